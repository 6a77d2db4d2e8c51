//! An amount of memory on the command line: a number with or without K, M or G (powers of 1024).

use glebe::units::Bytes;

/// More than any machine has, and room to round up.
const MAX: u64 = 1 << 60;

/// Parses `256M`, `1G`, `1073741824`.
pub fn parse(text: &str) -> Result<Bytes, String> {
    let text = text.trim_end_matches(['i', 'B']);
    let shift = match text.chars().next_back() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    let number: u64 = digits.parse().map_err(|e| format!("{e}: give a number, K, M or G"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes @ 1..=MAX) => Ok(Bytes::new(bytes)),
        _ => Err(format!("at least 1 byte and at most {} is needed", Bytes::new(MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("12"), Ok(Bytes::new(12)));
        assert_eq!(parse("3K"), Ok(Bytes::new(3 << 10)));
        assert_eq!(parse("256M"), Ok(Bytes::mib(256)));
        assert_eq!(parse("1GiB"), Ok(Bytes::gib(1)));
        for bad in ["", "0", "M", "1T", "-1", "1.5G", "99999999999G"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
