//! [`of`] says which uses of glebe the kernel's mechanisms allow.

use glebe::probe::{Mechanism, State};

pub(super) struct Use {
    pub name: &'static str,
    pub state: State,
    /// Describes the part that works, and names the row that limits it, if any.
    pub text: String,
}

/// Rows that a volatile region needs to raise SIGBUS at a lost page.
const SIGBUS: [&str; 3] = ["uffd.sigbus", "uffd.zeropage", "madv.populate_write"];
/// Rows; each suffices to open a userfaultfd.
const OPENS: [&str; 3] = ["uffd.user", "uffd.kernel", "uffd.device"];

pub(super) fn of(rows: &[Mechanism]) -> [Use; 6] {
    [
        reserve(rows),
        proof(rows),
        volatile(rows),
        region(rows),
        malloc(rows),
        Use {
            name: "no requirements",
            state: State::Yes,
            text: "object pools, stores (swap::Store), shared files, serve, reclaim".to_owned(),
        },
    ]
}

fn reserve(rows: &[Mechanism]) -> Use {
    let pools = || rows.iter().filter(|row| row.key.starts_with("hugetlb."));
    let (state, text) = match pools().any(|row| row.state == State::Yes) {
        true => (State::Yes, "of huge pages of a pool".to_owned()),
        false if has(rows, "thp") => {
            (State::Partly, format!("in pieces of 2 MiB, {}", because(pools().next())))
        }
        false => (State::Partly, format!("in small pages, {}", because(pools().next()))),
    };
    Use { name: "reserve", state, text }
}

fn proof(rows: &[Mechanism]) -> Use {
    let (state, text) = match missing(rows, &["pagemap.pfn"]) {
        None => (State::Yes, "a certificate of page frame numbers".to_owned()),
        row => (State::Partly, format!("only within one huge page, {}", because(row))),
    };
    Use { name: "contiguity proof", state, text }
}

fn volatile(rows: &[Mechanism]) -> Use {
    let (state, text) = match missing(rows, &["madv.free"]) {
        None => match no_sigbus(rows) {
            None => (State::Yes, "a touch of a lost page raises SIGBUS".to_owned()),
            row => (State::Partly, format!("no SIGBUS on a lost page, {}", because(row))),
        },
        row => (State::No, format!("private memory cannot be marked, {}", because(row))),
    };
    Use { name: "volatile ranges", state, text }
}

fn region(rows: &[Mechanism]) -> Use {
    let (state, text) = match no_sigbus(rows) {
        None => (State::Yes, "memory that pages itself".to_owned()),
        row => (State::No, because(row)),
    };
    Use { name: "swap::Region", state, text }
}

fn malloc(rows: &[Mechanism]) -> Use {
    let (state, text) = match missing(rows, &["madv.free"]) {
        None => (State::Yes, "the kernel may take what a program freed".to_owned()),
        row => (State::Partly, format!("the kernel cannot take free memory, {}", because(row))),
    };
    Use { name: "run --malloc", state, text }
}

fn no_sigbus(rows: &[Mechanism]) -> Option<&Mechanism> {
    let closed = !OPENS.iter().any(|key| has(rows, key));
    let opens = closed.then(|| get(rows, "uffd.user")).flatten();
    opens.or_else(|| missing(rows, &SIGBUS))
}

/// Returns the first row of `keys` whose state is not `Yes`. Ignores absent rows.
fn missing<'a>(rows: &'a [Mechanism], keys: &[&str]) -> Option<&'a Mechanism> {
    keys.iter().filter_map(|key| get(rows, key)).find(|row| row.state != State::Yes)
}

fn get<'a>(rows: &'a [Mechanism], key: &str) -> Option<&'a Mechanism> {
    rows.iter().find(|row| row.key == key)
}

fn has(rows: &[Mechanism], key: &str) -> bool {
    get(rows, key).is_some_and(|row| row.state == State::Yes)
}

fn because(row: Option<&Mechanism>) -> String {
    match row {
        Some(row) => format!("because {} says {}", row.key, row.state),
        None => "because the kernel has no such pages".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the states of all uses if the rows `without` say no and all others say yes.
    fn states(without: &[&str]) -> [State; 6] {
        let keys = ["hugetlb.2048kB", "thp", "pagemap.pfn", "madv.free"];
        let rows = keys.iter().chain(&SIGBUS).chain(&OPENS).map(|key| Mechanism {
            key: (*key).to_owned(),
            name: String::new(),
            state: if without.contains(key) { State::No } else { State::Yes },
            detail: String::new(),
            reason: String::new(),
            remedy: String::new(),
        });
        of(&rows.collect::<Vec<_>>()).map(|of| of.state)
    }

    #[test]
    fn each_use_depends_on_its_rows() {
        use State::{No, Partly, Yes};
        assert_eq!(states(&[]), [Yes; 6]);
        assert_eq!(states(&["hugetlb.2048kB"]), [Partly, Yes, Yes, Yes, Yes, Yes]);
        assert_eq!(states(&["pagemap.pfn"]), [Yes, Partly, Yes, Yes, Yes, Yes]);
        assert_eq!(states(&["madv.free"]), [Yes, Yes, No, Yes, Partly, Yes]);
        assert_eq!(states(&["uffd.sigbus"]), [Yes, Yes, Partly, No, Yes, Yes]);
        assert_eq!(states(&["uffd.user", "uffd.device"]), [Yes; 6]);
        assert_eq!(states(&OPENS), [Yes, Yes, Partly, No, Yes, Yes]);
    }

    #[test]
    fn a_limit_names_the_row_that_causes_it() {
        let row = Mechanism {
            key: "hugetlb.2048kB".to_owned(),
            name: String::new(),
            state: State::No,
            detail: String::new(),
            reason: String::new(),
            remedy: String::new(),
        };
        let [reserve, ..] = of(&[row]);
        assert_eq!(reserve.text, "in small pages, because hugetlb.2048kB says no");
    }
}
