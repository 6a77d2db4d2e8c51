//! Parts of answers: numbers, and the lines that begin them.

use crate::protocol::Key;
use base64::prelude::{Engine, BASE64_STANDARD};

/// Appends the digits of a number.
#[inline]
pub(super) fn number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a flag of a meta answer that is a number.
pub(super) fn flag(out: &mut Vec<u8>, letter: u8, value: u64) {
    out.extend_from_slice(&[b' ', letter]);
    number(out, value);
}

/// Appends a line.
pub(super) fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The bytes of a key; `None` where it is no base64 and should be, or is too short or long.
pub(super) fn decoded<'a>(key: Key<'a>, buf: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if !key.is_base64 {
        return Some(key.sent);
    }
    buf.clear();
    BASE64_STANDARD.decode_vec(key.sent, buf).ok()?;
    (!buf.is_empty()).then_some(buf)
}
