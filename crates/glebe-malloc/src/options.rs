//! [`Options`]: the user's settings in `GLEBE_MALLOC`, read without allocating.
//!
//! Commas separate words; the last word of a kind counts. A line on standard error names an unknown
//! word, which is ignored, because an allocator must not end a program. A process with more rights
//! than its user ignores the variable.

mod words;

use core::fmt::Write;
use core::time::Duration;

use glebe::internal::sys::files::plain_file::ERRORS;
use glebe::internal::sys::processes::environment;
use glebe::Bytes;

use crate::heap::{Settings, SPACE_MAX, SPACE_MIN};
use crate::stats::Format;
use crate::text::{Out, Shown};

use words::{number, signal, size, switch};

/// The environment variable.
pub const VARIABLE: &str = "GLEBE_MALLOC";

/// Longest value, in bytes.
const LEN_MAX: usize = 4000;

/// Longest path of a report, in bytes.
pub const PATH_MAX: usize = 1000;

const AGE_MS: core::ops::RangeInclusive<u64> = 1..=60_000;
const MARGIN: core::ops::RangeInclusive<u64> = 64 << 10..=64 << 30;
const ADDRESSES: core::ops::RangeInclusive<u64> = SPACE_MIN..=SPACE_MAX;

/// The user's settings.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Settings of the heap.
    pub heap: Settings,
    /// Settings of reports.
    pub report: Report,
}

/// When and where to write statistics.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Report at exit.
    pub at_exit: bool,
    /// The one process that reports at exit; `None`: all report.
    pub pid: Option<u64>,
    /// File; `None`: standard error.
    pub path: Option<Path>,
    /// Signal that writes a report.
    pub signal: Option<i32>,
    /// Form of reports.
    pub format: Format,
}

/// A report's path. `%p` means the process number, `%%` means `%`.
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

    /// Returns the user's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[derive(Clone, Copy, Debug)]
struct Complaint<'a> {
    word: &'a [u8],
    instead: &'static str,
}

const KNOWN: &str = "is not known; known are stats, stats=PATH, pid=N, signal=NAME, \
    format=text|json|openmetrics, thread=off, huge=off, pages=off, age=MS, margin=SIZE, \
    addresses=SIZE";

/// Reads the environment. Complains about wrong words.
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
    /// Takes a word. Returns advice if the word is wrong.
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
