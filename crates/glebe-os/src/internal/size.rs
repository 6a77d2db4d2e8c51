//! Parses sizes that people write: a number, perhaps with a fraction, and optionally K, M, G or T
//! (powers of 1024).

use crate::units::Bytes;

/// Largest size in bytes: more than any machine has, and small enough to round up.
const MAX: u64 = 1 << 60;

/// Parses `256M`, `1.5G`, `4TiB`, `1073741824`.
pub fn parse(text: &str) -> Result<Bytes, String> {
    let number = text.strip_suffix('B').unwrap_or(text);
    let number = number.strip_suffix('i').unwrap_or(number);
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit =
        units.iter().find(|(unit, _)| number.ends_with(|c: char| c.eq_ignore_ascii_case(unit)));
    let (number, shift) =
        unit.map_or((number, 0), |(_, shift)| (&number[..number.len() - 1], *shift));
    let is_whole = |digits: &str| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if !is_whole(whole) || !is_whole(fraction) {
        return Err("give a number and K, M, G or T, such as 64M or 1.5G".into());
    }
    let too_much = || format!("at least 1 byte and at most {} is needed", Bytes::new(MAX));
    // Keeps 18 digits, which fit `u128`. More digits would change less than a byte.
    let fraction = &fraction[..fraction.len().min(18)];
    let tenths = 10_u128.pow(fraction.len() as u32);
    let part = fraction.parse::<u128>().map_err(|e| e.to_string())? << shift;
    let whole = whole.parse::<u64>().map_err(|_| too_much())?;
    let bytes = (u128::from(whole) << shift) + part / tenths;
    match u64::try_from(bytes) {
        Ok(bytes @ 1..=MAX) if part % tenths == 0 || shift > 0 => Ok(Bytes::new(bytes)),
        Ok(1..=MAX) => Err("bytes are whole".into()),
        _ => Err(too_much()),
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
        assert_eq!(parse("1.5G"), Ok(Bytes::mib(1536)));
        assert_eq!(parse("4T"), Ok(Bytes::gib(4096)));
        assert_eq!(parse("0.25m"), Ok(Bytes::new(256 << 10)));
        assert_eq!(parse("2.000000000000000000001K"), Ok(Bytes::new(2048)));
        assert_eq!(parse("1048576T"), Ok(Bytes::new(1 << 60)));
        let bad = [
            "",
            "0",
            "M",
            "-1",
            "+1",
            "1.5",
            "1.G",
            ".5G",
            "1..5G",
            "1e3",
            "1 G",
            "0.0001K",
            "1048577T",
            "99999999999G",
            "99999999999999999999999",
            "1ii",
            "1BB",
            "١G",
        ];
        for bad in bad {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
