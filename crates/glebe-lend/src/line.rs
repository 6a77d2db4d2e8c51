//! [`Answer`] is a line of the agent; `agent.py` describes the lines.

/// The agent's answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The command's number; 0 for the first answer.
    pub(crate) number: u64,
    pub(crate) body: Result<String, Refused>,
}

/// The agent's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: String,
    pub(crate) text: String,
}

impl Answer {
    /// Returns `None` for a line that is no answer.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (number, rest) = line.split_once(' ')?;
        let number = number.parse().ok()?;
        let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let body = match word {
            "ok" => Ok(rest.to_owned()),
            "error" => {
                let (code, text) = rest.split_once(' ').unwrap_or((rest, ""));
                Err(Refused { code: code.to_owned(), text: text.to_owned() })
            }
            _ => return None,
        };
        Some(Self { number, body })
    }
}

impl Refused {
    /// Returns true if the agent may still have memory mapped that it should not have.
    pub(crate) fn is_mapped(&self) -> bool {
        self.code == "mapped"
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code.as_str() {
            // The master's client has this number for a call that got no answer.
            "-900" => write!(f, "{} gave -900: the master does not answer", self.text),
            "setup" | "import" | "mapped" | "python" => f.write_str(&self.text),
            code => write!(f, "{} gave {code}", self.text),
        }
    }
}

/// Most characters of a line.
pub(crate) const SHOWN: usize = 400;
/// Most bytes of lines at once.
const PENDING_MAX: usize = 1 << 16;

/// Returns at most `max` characters of a text, without those that command a terminal.
pub(crate) fn printable(text: &str, max: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(max).collect()
}

/// Whole lines of bytes that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes the whole lines, [printable].
    pub(crate) fn whole(&mut self) -> Vec<String> {
        if self.is_full() && !self.0.contains(&b'\n') {
            self.0.push(b'\n');
        }
        let len = self.0.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let whole: Vec<u8> = self.0.drain(..len).collect();
        let lines = whole.split_inclusive(|byte| *byte == b'\n');
        lines.map(|line| printable(&String::from_utf8_lossy(line), SHOWN)).collect()
    }

    /// Returns true if the whole lines have to be taken first. A line without an end is then cut.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= PENDING_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str, text: &str) -> Refused {
        Refused { code: code.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn answers_are_read() {
        let body = |line: &str| Answer::parse(line).map(|answer| (answer.number, answer.body));
        assert_eq!(body("0 ok 0.3.13 host:15"), Some((0, Ok("0.3.13 host:15".to_owned()))));
        assert_eq!(body("7 ok"), Some((7, Ok(String::new()))));
        assert_eq!(body("8 error -900 is_exist"), Some((8, Err(refused("-900", "is_exist")))));
        assert_eq!(body("8 error mapped"), Some((8, Err(refused("mapped", "")))));
        for wrong in ["", "7", "x ok", "-1 ok", "7 maybe", "Traceback (most recent call last):"] {
            assert_eq!(body(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn refusals_say_why() {
        assert!(refused("-900", "unmount_segment").to_string().contains("master does not answer"));
        assert_eq!(refused("-704", "mount_segment").to_string(), "mount_segment gave -704");
        assert_eq!(refused("import", "no such module").to_string(), "no such module");
        assert!(refused("mapped", "").is_mapped() && !refused("-1", "mapped").is_mapped());
    }

    #[test]
    fn lines_arrive_in_pieces() {
        let mut lines = Lines::default();
        lines.push(b"1 o");
        assert!(lines.whole().is_empty());
        lines.push(b"k\n2 ok\n3");
        assert_eq!(lines.whole(), ["1 ok", "2 ok"]);
        assert!(lines.whole().is_empty());
        lines.push(b" ok\n");
        assert_eq!(lines.whole(), ["3 ok"]);
    }

    #[test]
    fn only_a_line_without_an_end_is_cut() {
        let mut lines = Lines::default();
        lines.push(&b"1 ok\n".repeat(PENDING_MAX / 5));
        lines.push(b"2 o");
        assert!(lines.is_full());
        assert!(lines.whole().iter().all(|line| line == "1 ok"));
        lines.push(b"k\n");
        assert_eq!(lines.whole(), ["2 ok"]);
        lines.push(&vec![b'x'; PENDING_MAX]);
        assert_eq!(lines.whole(), ["x".repeat(SHOWN)]);
        assert!(!lines.is_full());
    }

    #[test]
    fn lines_reach_a_terminal_without_its_commands() {
        let mut lines = Lines::default();
        lines.push("0 ok \x1b]0;title\x07\u{9b}31m \u{e9}\r\n".as_bytes());
        assert_eq!(lines.whole(), ["0 ok ]0;title31m \u{e9}"]);
    }
}
