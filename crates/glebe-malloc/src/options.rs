//! [`Options`]: what the user asks for in `GLEBE_MALLOC`, read without allocation.
//!
//! Words with commas between; the last of a kind counts. A word that is not understood is named in
//! one line on the standard error output, and else ignored: an allocator is not to end a program.
//! Where the process has more rights than its user, the variable is not looked at.

mod words;

use core::fmt::Write;
use core::time::Duration;

use glebe::sys::environment;
use glebe::sys::plain_file::ERRORS;
use glebe::Bytes;

use crate::heap::{Settings, SPACE_MAX, SPACE_MIN};
use crate::stats::Format;
use crate::text::{Out, Shown};

use words::{number, signal, size, switch};

/// The variable.
pub const VARIABLE: &str = "GLEBE_MALLOC";

/// Bytes of the variable that are looked at.
const LEN_MAX: usize = 4000;

/// Bytes of the longest path of a report.
pub const PATH_MAX: usize = 1000;

const AGE_MS: core::ops::RangeInclusive<u64> = 1..=60_000;
const MARGIN: core::ops::RangeInclusive<u64> = 64 << 10..=64 << 30;
const ADDRESSES: core::ops::RangeInclusive<u64> = SPACE_MIN..=SPACE_MAX;

/// What the user asks for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Of the heap.
    pub heap: Settings,
    /// Of reports.
    pub report: Report,
}

/// When and where statistics are written.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Whether there is one at exit.
    pub at_exit: bool,
    /// Of this process alone.
    pub pid: Option<u64>,
    /// Where to; else to the standard error output.
    pub path: Option<Path>,
    /// There is one on this signal too.
    pub signal: Option<i32>,
    /// As what.
    pub format: Format,
}

/// The path of a report, in which `%p` stands for the process's number and `%%` for `%`.
#[derive(Clone, Debug)]
pub struct Path {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl Path {
    fn new(path: &[u8]) -> Option<Self> {
        let mut bytes = [0; PATH_MAX];
        bytes.get_mut(..path.len())?.copy_from_slice(path);
        (!path.is_empty()).then_some(Self { bytes, len: path.len() })
    }

    /// As the user wrote it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A word that is not understood, and what would be.
#[derive(Clone, Copy, Debug)]
struct Complaint<'a> {
    word: &'a [u8],
    instead: &'static str,
}

const KNOWN: &str = "is not known; known are stats, stats=PATH, pid=N, signal=NAME, \
    format=text|json|openmetrics, thread=off, huge=off, pages=off, age=MS, margin=SIZE, \
    addresses=SIZE";

/// The options of the environment. Complains of words that it does not understand.
#[must_use]
pub fn from_environment() -> Options {
    let mut value = [0; LEN_MAX];
    let len = match environment::variable(VARIABLE, &mut value) {
        Some(len) if !environment::is_secure() => len,
        _ => return Options::default(),
    };
    let complain = |Complaint { word, instead }: Complaint| {
        let mut out = Out::new(&ERRORS);
        let _ = writeln!(out, "glebe-malloc: {VARIABLE}: \"{}\" {instead}", Shown(word));
    };
    if len > LEN_MAX {
        let word = &value[..];
        complain(Complaint { word, instead: "is longer than 4000 bytes and not looked at" });
        return Options::default();
    }
    parse(&value[..len], complain)
}

fn parse<'a>(text: &'a [u8], mut complain: impl FnMut(Complaint<'a>)) -> Options {
    let mut options = Options::default();
    for word in text.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
        if word.is_empty() {
            continue;
        }
        if let Err(instead) = options.take(word) {
            complain(Complaint { word, instead });
        }
    }
    options
}

impl Options {
    /// Takes one word; else says what is wrong with it.
    fn take(&mut self, word: &[u8]) -> Result<(), &'static str> {
        let mut parts = word.splitn(2, |&byte| byte == b'=');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next());
        let (heap, report) = (&mut self.heap, &mut self.report);
        match (name, value) {
            (b"stats", None) => (report.at_exit, report.path) = (true, None),
            (b"stats", Some(path)) => {
                let path = Path::new(path).ok_or("needs a PATH of 1 to 1000 bytes")?;
                (report.at_exit, report.path) = (true, Some(path));
            }
            (b"pid", Some(pid)) => report.pid = Some(number(pid).ok_or("needs a number")?),
            (b"signal", Some(name)) => {
                report.signal = Some(
                    signal(name)
                        .ok_or("needs one of HUP, USR1, USR2, WINCH, and RTMIN to RTMIN+29")?,
                );
            }
            (b"format", Some(format)) => {
                report.format = match format {
                    b"text" => Format::Text,
                    b"json" => Format::Json,
                    b"openmetrics" => Format::OpenMetrics,
                    _ => return Err("needs one of text, json and openmetrics"),
                };
            }
            (b"thread", Some(value)) => heap.thread = switch(value)?,
            (b"huge", Some(value)) => heap.huge = switch(value)?,
            (b"pages", Some(value)) => heap.pages = switch(value)?,
            (b"age", Some(value)) => {
                let age = number(value).filter(|ms| AGE_MS.contains(ms));
                heap.age = Duration::from_millis(age.ok_or("needs MS from 1 to 60000")?);
            }
            (b"margin", Some(value)) => {
                let margin = size(value).filter(|size| MARGIN.contains(size));
                heap.margin = Some(Bytes::new(margin.ok_or("needs a SIZE from 64K to 64G")?));
            }
            (b"addresses", Some(value)) => {
                let most = size(value).filter(|size| ADDRESSES.contains(size));
                heap.addresses = Some(Bytes::new(most.ok_or("needs a SIZE from 64M to 2048G")?));
            }
            _ => return Err(KNOWN),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
