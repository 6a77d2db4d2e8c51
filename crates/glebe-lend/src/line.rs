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

/// Whole lines of bytes that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    /// Returns the bytes of the line that has not ended.
    pub(crate) fn pending(&self) -> usize {
        self.0.len()
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
        assert_eq!(lines.next(), None);
        lines.push(b"k\n2 ok\n3");
        assert_eq!(lines.next().as_deref(), Some("1 ok"));
        assert_eq!(lines.next().as_deref(), Some("2 ok"));
        assert_eq!((lines.next(), lines.pending()), (None, 1));
    }
}
