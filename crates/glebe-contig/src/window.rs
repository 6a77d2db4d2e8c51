//! [`Window`] records a raised counter of a hugetlb pool in the pools' lock file. If the process is
//! killed, the lock's next holder lowers the counter.
//!
//! The file holds one line for each window, in decimal:
//!
//! ```text
//! glebe-hugetlb-windows 1 BOOT_ID
//! SIZE_BYTES COUNTER BEFORE BY [NODE]
//! ```
//!
//! `BEFORE` is the counter's old value, `BY` the intended increase, `NODE` the NUMA node if only
//! its counter is raised. Text of another boot and malformed lines are ignored. The format never
//! changes, because other versions of glebe read the file.

use glebe_os::internal::sys::machine::numa::Node;
use glebe_os::units::PageSize;

const HEADER: &str = "glebe-hugetlb-windows 1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    Pages,
    Overcommit,
}

impl Counter {
    const ALL: [Self; 2] = [Self::Pages, Self::Overcommit];

    fn word(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Overcommit => "overcommit",
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pages => "nr_hugepages",
            Self::Overcommit => "nr_overcommit_hugepages",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub size: PageSize,
    pub counter: Counter,
    pub before: u64,
    pub by: u64,
    pub node: Option<Node>,
}

impl Window {
    /// Returns by how much the counter is raised, if its value is `now`.
    pub fn made(&self, now: u64) -> u64 {
        now.saturating_sub(self.before).min(self.by)
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let (size, counter, before, by, node) = match fields[..] {
            [size, counter, before, by] => (size, counter, before, by, None),
            [size, counter, before, by, node] => {
                (size, counter, before, by, Some(Node(node.parse().ok()?)))
            }
            _ => return None,
        };
        let counter = Counter::ALL.into_iter().find(|known| known.word() == counter)?;
        let size = PageSize::new(size.parse().ok()?)?;
        Some(Self { size, counter, before: before.parse().ok()?, by: by.parse().ok()?, node })
    }
}

/// The strings describe ignored lines.
pub(super) fn parse(text: &[u8], boot_id: &str) -> (Vec<Window>, Vec<String>) {
    if text.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let Some(boot) = header.strip_prefix(HEADER).and_then(|rest| rest.strip_prefix(' ')) else {
        return (Vec::new(), vec![format!("header {header:.60?} is not {HEADER:?}: ignored")]);
    };
    if boot != boot_id {
        return (Vec::new(), Vec::new()); // the pools of a new boot are new
    }
    let (mut windows, mut ignored) = (Vec::new(), Vec::new());
    for line in lines {
        match Window::parse(line) {
            Some(window) => windows.push(window),
            None => ignored.push(format!("line {line:.60?} is no window: ignored")),
        }
    }
    (windows, ignored)
}

pub(super) fn format(windows: &[Window], boot_id: &str) -> String {
    if windows.is_empty() {
        return String::new();
    }
    let mut text = format!("{HEADER} {boot_id}\n");
    for Window { size, counter, before, by, node } in windows {
        let node = node.map_or(String::new(), |Node(number)| format!(" {number}"));
        text += &format!("{} {} {before} {by}{node}\n", size.bytes().get(), counter.word());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn window(counter: Counter, before: u64, by: u64) -> Window {
        Window { size: PageSize::new(2 << 20).unwrap(), counter, before, by, node: None }
    }

    #[test]
    fn how_far_a_change_got_is_told_by_the_counter() {
        for (before, by, now, made) in [
            (10, 5, 10, 0), // killed before the write
            (10, 5, 13, 3), // made in part
            (10, 5, 15, 5), // made
            (10, 5, 99, 5), // another program added pages
            (10, 5, 2, 0),  // another program took pages
            (u64::MAX, u64::MAX, 0, 0),
            (0, u64::MAX, u64::MAX, u64::MAX),
        ] {
            assert_eq!(window(Counter::Pages, before, by).made(now), made, "{before} {by} {now}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let windows = [window(Counter::Pages, 3, 1), window(Counter::Overcommit, 0, 4)];
        let text = format(&windows, "boot");
        assert_eq!(parse(text.as_bytes(), "boot"), (windows.to_vec(), vec![]));
        assert_eq!(parse(text.as_bytes(), "later boot").0, []);
        assert_eq!(parse(b"", "boot"), (vec![], vec![]));
        assert_eq!(format(&[], "boot"), "");
    }

    #[test]
    fn other_versions_read_what_is_written() {
        let windows = [window(Counter::Pages, 3, 1), window(Counter::Overcommit, 0, 4)];
        let text = "glebe-hugetlb-windows 1 boot\n2097152 pages 3 1\n2097152 overcommit 0 4\n";
        assert_eq!(format(&windows, "boot"), text);
        let of_node = [Window { node: Some(Node(2)), ..window(Counter::Pages, 3, 1) }];
        let text = "glebe-hugetlb-windows 1 boot\n2097152 pages 3 1 2\n";
        assert_eq!(format(&of_node, "boot"), text);
        assert_eq!(parse(text.as_bytes(), "boot"), (of_node.to_vec(), vec![]));
    }

    #[test]
    fn garbled_lines_are_named_and_passed_over() {
        let good = format(&[window(Counter::Pages, 3, 1)], "boot");
        let text = format!("{good}2097151 pages 3 0\n2097152 pages -3 0\n\n7 8\n\u{1b}[2J\n");
        let (windows, ignored) = parse(text.as_bytes(), "boot");
        assert_eq!((windows.len(), ignored.len()), (1, 5));
        assert!(!ignored[4].contains('\u{1b}'));
        assert_eq!(parse(b"\xff\xfe\n1 2 3 4", "boot").0, []);
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, "boot");
            let mut text = format(&[window(Counter::Pages, 1, 1)], "boot").into_bytes();
            text.extend(bytes);
            let _ = parse(&text, "boot");
        }
    }
}
