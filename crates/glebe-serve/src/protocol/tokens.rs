//! Words of a line, and numbers as memcached reads them.

/// The words of a line: what lies between blanks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// What comes after the blanks that are next.
    pub(super) fn rest(&self) -> &'a [u8] {
        let start = self.rest.iter().position(|byte| *byte != b' ').unwrap_or(self.rest.len());
        &self.rest[start..]
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest();
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (token, rest) = rest.split_at(end);
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }
}

/// A number without a sign.
#[inline]
pub(super) fn unsigned(token: &[u8]) -> Option<u64> {
    if token.is_empty() || token.len() > 20 {
        return None;
    }
    token.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// A number without a sign of 32 bits.
pub(super) fn unsigned_32(token: &[u8]) -> Option<u32> {
    unsigned(token)?.try_into().ok()
}

/// A number of 32 bits with a sign; or without one, as libmemcached sends what is below zero.
pub(super) fn signed_32(token: &[u8]) -> Option<i64> {
    let number = match token.strip_prefix(b"-") {
        Some(digits) => -i64::try_from(unsigned(digits)?).ok()?,
        None => unsigned(token)?.try_into().ok()?,
    };
    let number = i32::try_from(number).or_else(|_| u32::try_from(number).map(|n| n as i32));
    number.ok().map(i64::from)
}
