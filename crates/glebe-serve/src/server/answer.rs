//! Formats answers, and decodes keys.

use crate::protocol::Key;
use base64::prelude::{Engine, BASE64_STANDARD};

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

pub(super) fn flag(out: &mut Vec<u8>, letter: u8, value: u64) {
    out.extend_from_slice(&[b' ', letter]);
    number(out, value);
}

pub(super) fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Returns the key's bytes, or `None` for malformed or empty base64.
pub(super) fn decoded<'a>(key: Key<'a>, buf: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if !key.is_base64 {
        return Some(key.sent);
    }
    buf.clear();
    BASE64_STANDARD.decode_vec(key.sent, buf).ok()?;
    (!buf.is_empty()).then_some(buf)
}
