//! [`Settings`] are the words of the environment variable `GLEBE_HUGE`.
//!
//! ```text
//! required          end the process where a request would fail, or fall back
//! quota=BYTES       most bytes leased at a time
//! node=N            lease memory of this NUMA node
//! revocable         the program may offer private mappings to the daemon (`glebe_huge_offer`)
//! leave-out         forked children do not get private mappings, instead of a copy
//! show-pages        the kernel's files show the daemon's free pages
//! verbose           a line for each mapping
//! main=PID          this process always tells what it did
//! ```

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) is_required: bool,
    pub(crate) quota: Option<u64>,
    pub(crate) node: Option<u32>,
    pub(crate) may_offer: bool,
    pub(crate) leaves_out: bool,
    pub(crate) shows_pages: bool,
    pub(crate) is_verbose: bool,
    pub(crate) main: Option<u32>,
}

pub(crate) const VARIABLE: &str = "GLEBE_HUGE";

impl Settings {
    /// Parses the variable's value. The other result is the words that nobody knows.
    pub(crate) fn parse(value: &str) -> (Self, Vec<&str>) {
        let (mut settings, mut unknown) = (Self::default(), Vec::new());
        for word in value.split(',').filter(|word| !word.is_empty()) {
            if settings.take(word).is_none() {
                unknown.push(word);
            }
        }
        (settings, unknown)
    }

    fn take(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            None => match word {
                "required" => self.is_required = true,
                "revocable" => self.may_offer = true,
                "leave-out" => self.leaves_out = true,
                "show-pages" => self.shows_pages = true,
                "verbose" => self.is_verbose = true,
                _ => return None,
            },
            Some(("quota", bytes)) => self.quota = Some(bytes.parse().ok()?),
            Some(("node", node)) => self.node = Some(node.parse().ok()?),
            Some(("main", pid)) => self.main = Some(pid.parse().ok()?),
            Some(_) => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_unknown_ones_told() {
        let (settings, unknown) = Settings::parse(
            "required,revocable,quota=4096,node=1,leave-out,show-pages,verbose,main=7,,",
        );
        let expected = Settings {
            is_required: true,
            quota: Some(4096),
            node: Some(1),
            may_offer: true,
            leaves_out: true,
            shows_pages: true,
            is_verbose: true,
            main: Some(7),
        };
        assert_eq!((settings, unknown.len()), (expected, 0));
        let wrong = ["required=1", "quota=", "quota=1G", "quota", "node=-1", "main=x", "else"];
        assert_eq!(Settings::parse(&wrong.join(",")), (Settings::default(), wrong.to_vec()));
    }
}
