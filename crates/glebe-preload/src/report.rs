//! Writes reports of the statistics, at exit and on a signal.
//!
//! A report allocates nothing and takes no lock, since a signal handler may write it. Processes
//! that end by `_exit`, `quick_exit` or a signal write none at exit.

use core::fmt::Write;
use std::sync::OnceLock;

use glebe::internal::sys::files::plain_file::{KeptErrors, Plain, ERRORS};
use glebe::internal::sys::processes::handler;
use pages::options::{Path, Report, PATH_MAX};
use pages::stats::{Format, Stats};
use pages::text::{Out, Shown};

struct Asked {
    report: Report,
    errors: Option<KeptErrors>,
}

static ASKED: OnceLock<Asked> = OnceLock::new();

pub(crate) fn set(report: Report) {
    let wanted = report.path.is_none() && (report.at_exit || report.signal.is_some());
    let errors = if wanted { KeptErrors::new() } else { None };
    let _ = ASKED.set(Asked { report, errors });
}

pub(crate) fn install() {
    let Some(signal) = ASKED.get().and_then(|asked| asked.report.signal) else { return };
    if !handler::install(signal, || write("on a signal")) {
        let _ = writeln!(Out::new(&ERRORS), "glebe-malloc: signal {signal} cannot be handled");
    }
}

pub(crate) fn at_exit() {
    let Some(Asked { report, .. }) = ASKED.get() else { return };
    if report.at_exit && report.pid.is_none_or(|pid| pid == std::process::id().into()) {
        write("at exit");
    }
}

fn write(when: &str) {
    let Some(Asked { report, errors }) = ASKED.get() else { return };
    let stats = Stats::now();
    match &report.path {
        Some(path) => match open(path) {
            Ok(file) => put(&file, report.format, when, &stats),
            Err(number) => {
                let (mut out, path) = (Out::new(&ERRORS), Shown(path.as_bytes()));
                let _ = writeln!(out, "glebe-malloc: no report in \"{path}\": error {number}");
            }
        },
        None => {
            if let Some(file) = errors.as_ref().and_then(KeptErrors::file) {
                put(&file, report.format, when, &stats);
            }
        }
    }
}

fn put(file: &Plain, format: Format, when: &str, stats: &Stats) {
    let mut out = Out::new(file);
    if format == Format::Text {
        let _ = writeln!(out, "glebe-malloc: process {}, {when}", std::process::id());
    }
    let _ = stats.write(format, &mut out);
}

/// Creates the file of a path, after replacing `%p` by the process number and `%%` by `%`.
fn open(path: &Path) -> Result<Plain, i32> {
    let mut whole = Whole { bytes: [0; PATH_MAX + 64], len: 0 };
    let mut rest = path.as_bytes().iter();
    while let Some(&byte) = rest.next() {
        match (byte, rest.as_slice().first()) {
            (b'%', Some(b'p')) => {
                let _ = write!(whole, "{}", std::process::id());
                rest.next();
            }
            (b'%', Some(b'%')) => {
                whole.push(b'%');
                rest.next();
            }
            _ => whole.push(byte),
        }
    }
    Plain::create(whole.text())
}

struct Whole {
    bytes: [u8; PATH_MAX + 64],
    len: usize,
}

impl Whole {
    fn push(&mut self, byte: u8) {
        // The last byte stays zero, to end the C string.
        if self.len + 1 < self.bytes.len() {
            self.bytes[self.len] = byte;
            self.len += 1;
        }
    }

    fn text(&self) -> &core::ffi::CStr {
        core::ffi::CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl Write for Whole {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}
