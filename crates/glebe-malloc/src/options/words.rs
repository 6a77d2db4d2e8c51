//! Parses values of options from bytes.

use glebe::internal::sys::processes::handler;

pub(super) fn switch(value: &[u8]) -> Result<bool, &'static str> {
    match value {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err("needs on or off"),
    }
}

pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses bytes; K, M or G at the end mean KiB, MiB or GiB.
pub(super) fn size(value: &[u8]) -> Option<u64> {
    let (digits, shift) = match value.split_last()? {
        (b'K' | b'k', digits) => (digits, 10),
        (b'M' | b'm', digits) => (digits, 20),
        (b'G' | b'g', digits) => (digits, 30),
        _ => (value, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

/// Parses the name of a signal that a program can spare.
pub(super) fn signal(name: &[u8]) -> Option<i32> {
    match name.strip_prefix(b"SIG").unwrap_or(name) {
        b"HUP" => Some(handler::HUP),
        b"USR1" => Some(handler::USR1),
        b"USR2" => Some(handler::USR2),
        b"WINCH" => Some(handler::WINCH),
        name => {
            let more = match name.strip_prefix(b"RTMIN")? {
                b"" => 0,
                more => number(more.strip_prefix(b"+")?)?,
            };
            (more < 30).then(|| handler::real_time(more as i32))
        }
    }
}
