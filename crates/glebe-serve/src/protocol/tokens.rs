//! [`Tokens`] splits a line into words. Numbers are parsed as in memcached.

const ALL_32: i64 = 1 << 32;
const DAYS_30: i64 = 60 * 60 * 24 * 30;

#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// Returns the line from the next word on.
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

pub(super) fn unsigned_32(token: &[u8]) -> Option<u32> {
    unsigned(token)?.try_into().ok()
}

/// Parses seconds from now, or a date. libmemcached sends small negative numbers as unsigned 32-bit
/// numbers, so dates of the last 30 days before 2106-02-07 count as negative numbers.
pub(super) fn time(token: &[u8]) -> Option<i64> {
    if let Some(digits) = token.strip_prefix(b"-") {
        return Some(-i64::try_from(unsigned(digits)?).ok()?);
    }
    let number = i64::try_from(unsigned(token)?).ok()?;
    let is_below_zero = (ALL_32 - DAYS_30..ALL_32).contains(&number);
    Some(if is_below_zero { number - ALL_32 } else { number })
}
