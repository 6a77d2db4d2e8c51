//! [`ForeignPages`] adds free pages of another owner to the hugetlb pool. Code that gives back too
//! many pages takes some of these, so a test sees the error.
//!
//! A child, which runs this program too, holds the pages until the pipe to it closes. So the pages
//! go back even if a test panics with armed faults or is killed.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use glebe::contig::{grow_pool, PoolLock, Source};
use glebe::internal::sys::machine::hugetlb::Pool;
use glebe_testing::process::child_of;

use crate::hugetlb::Turn;

const MARK: &str = "GLEBE_FAULTS_FOREIGN_PAGES";
const TEST: &str = "foreign::pages_that_were_set_aside_go_back";
const SET_ASIDE: &str = "set aside: ";
const ALL: &str = "all";

pub struct ForeignPages {
    child: Child,
    // Stays open, since the child may still write.
    _said: BufReader<ChildStdout>,
}

impl ForeignPages {
    pub fn add(pages: u64) -> Option<Self> {
        let mut command = child_of(TEST);
        command.env(MARK, pages.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        // The harness prints the test's name on the same line.
        let what = said.by_ref().lines().find_map(|line| {
            let line = line.expect("what the child says");
            line.split_once(SET_ASIDE).map(|(_, what)| what.to_owned())
        });
        let foreign = Self { child, _said: said };
        let what = what.expect("a child that says what it has");
        if what == ALL {
            return Some(foreign);
        }
        println!("skipped: {what}");
        None
    }
}

impl Drop for ForeignPages {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        // The next lock closes descriptors that could not be closed while faults were armed.
        let _ = PoolLock::acquire();
    }
}

fn set_aside(pages: u64) {
    let Source::Hugetlb(size) = Source::HUGETLB_2M else { unreachable!() };
    let grown = grow_pool(size, pages, false);
    println!("{SET_ASIDE}{}", grown.as_ref().err().map_or(ALL.to_owned(), ToString::to_string));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    if let Ok(grown) = grown {
        let (_lock, pool) = (PoolLock::acquire().unwrap(), Pool::of(size).unwrap());
        let persistent = pool.counts().unwrap().persistent();
        pool.set_persistent(persistent.saturating_sub(grown.pages + grown.absorbed)).unwrap();
    }
}

#[test]
fn pages_that_were_set_aside_go_back() {
    if let Some(pages) = env::var_os(MARK) {
        return set_aside(pages.to_str().unwrap().parse().unwrap());
    }
    glebe_testing::alone!();
    let Some(turn) = Turn::take() else { return };
    turn.machine.base_is_kept(|| drop(ForeignPages::add(2)));
}
