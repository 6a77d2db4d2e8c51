//! [`Log`] writes events to standard error, one line each.

use std::fmt::Display;
use std::io::{self, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Log {
    /// Problems.
    Quiet,
    /// Problems and events.
    Plain,
    /// Problems, events, and each poll that found memory short.
    Verbose,
}

impl Log {
    pub fn warn(self, line: impl Display) {
        // Ignores a failure, because standard error may be closed.
        let _ = writeln!(io::stderr(), "glebe reclaim: {}", one_line(&line.to_string()));
    }

    pub fn tell(self, line: impl Display) {
        if self >= Self::Plain {
            self.warn(line);
        }
    }

    pub fn detail(self, line: impl Display) {
        if self >= Self::Verbose {
            self.warn(line);
        }
    }
}

/// Escapes control characters, which file names may contain.
pub fn one_line(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_of_a_file_makes_a_line_of_its_own() {
        assert_eq!(one_line("/run/a b/\u{e4}"), "/run/a b/\u{e4}");
        assert_eq!(one_line("a\nb\u{1b}[2Jc"), "a\\nb\\u{1b}[2Jc");
    }
}
