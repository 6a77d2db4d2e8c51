//! [`Step`] prints a part of the demo while it runs: what happens, how far it is, how long it took.

use std::io::{self, Write};
use std::time::Instant;

/// One line of output, which grows. Everything is flushed at once.
pub struct Step<'a> {
    out: &'a mut dyn Write,
    start: Instant,
    shown: u64,
    wrote: io::Result<()>,
}

impl<'a> Step<'a> {
    /// Prints the title.
    ///
    /// # Errors
    ///
    /// If the output fails.
    pub fn begin(out: &'a mut dyn Write, title: &str) -> io::Result<Self> {
        write!(out, "{title}")?;
        out.flush()?;
        Ok(Self { out, start: Instant::now(), shown: 0, wrote: Ok(()) })
    }

    /// Prints the name of each mark up to `mark` that was not printed yet. [`Self::end`] returns an
    /// error of the output.
    pub fn reached(&mut self, mark: u64, name: impl Fn(u64) -> String) {
        while self.shown < mark && self.wrote.is_ok() {
            self.shown += 1;
            self.wrote = write!(self.out, " {}", name(self.shown)).and_then(|()| self.out.flush());
        }
    }

    /// Prints the time that the step took.
    ///
    /// # Errors
    ///
    /// If the output fails, or failed before.
    pub fn end(self) -> io::Result<()> {
        self.wrote?;
        writeln!(self.out, " ({:.1} s)", self.start.elapsed().as_secs_f64())?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_prints_each_mark_once_and_its_time() {
        let mut out = Vec::new();
        let mut step = Step::begin(&mut out, "reads:").unwrap();
        for mark in [0, 2, 1, 3] {
            step.reached(mark, |mark| format!("{mark}"));
        }
        step.end().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("reads: 1 2 3 (") && text.ends_with(" s)\n"), "{text}");
    }

    #[test]
    fn a_closed_output_is_reported_at_the_end() {
        struct Closed(usize);
        impl Write for Closed {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Closed(1);
        let mut step = Step::begin(&mut out, "reads:").unwrap();
        step.reached(2, |mark| format!("{mark}"));
        assert_eq!(step.end().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
