//! Tests entries against a map, while pages of entries come and go.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::entry::word::{Kind, Place};
use crate::memory::account::Account;
use glebe_os::internal::sys::page_size;

struct Both {
    entries: Entries,
    account: Account,
    live: HashMap<u32, (u32, Entry)>,
    gone: Vec<(u32, u32)>,
    made: u32,
}

impl Both {
    fn new(epoch_last: u32) -> Self {
        Self::of(1 << 14, epoch_last)
    }

    fn of(most: usize, epoch_last: u32) -> Self {
        let page = page_size();
        let tables = Tables::new(most, page, Words::new).unwrap();
        let mut entries = Entries::new(tables, page);
        entries.epoch_last = epoch_last;
        let (live, gone) = (HashMap::new(), Vec::new());
        Self { entries, account: Account::new(u64::MAX), live, gone, made: 0 }
    }

    fn some_entry(&mut self, named: u32) -> Entry {
        self.made += 1;
        match self.made % 4 {
            0 => Entry::filled(self.made % 3, 9, named),
            _ => {
                let place = Place { zspage: self.made, slot: self.made % 7 };
                Entry::live(Kind::Raw, place, 1 + self.made as usize % 900, named)
            }
        }
    }

    fn add(&mut self) {
        let (index, named) = self.entries.alloc(&self.account).unwrap();
        let entry = self.some_entry(named);
        self.entries.publish(index, entry);
        assert!(self.live.insert(index, (named, entry)).is_none(), "an entry twice");
        assert!(!self.gone.contains(&(index, named)), "a use twice");
    }

    fn nth(&self, n: usize) -> Option<u32> {
        let mut all: Vec<u32> = self.live.keys().copied().collect();
        all.sort_unstable();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn change(&mut self, index: u32, to: impl Fn(&mut Self, Entry, u32) -> Entry) -> Entry {
        let (named, from) = self.live[&index];
        let to = to(self, from, named);
        if from.has_place() {
            self.entries.exchange(index, from, to);
        } else {
            assert!(to == from || !self.entries.exchange_if(index, named, to, from), "another");
            assert!(self.entries.exchange_if(index, named, from, to));
        }
        to
    }

    fn replace(&mut self, n: usize) {
        let Some(index) = self.nth(n) else { return };
        let to = self.change(index, |both, _, named| both.some_entry(named));
        self.live.get_mut(&index).unwrap().1 = to;
    }

    fn remove(&mut self, index: u32) {
        self.change(index, |_, from, _| from.freed());
        let (named, was) = self.live.remove(&index).unwrap();
        self.gone.push((index, named));
        self.entries.free(&self.account, index, was);
    }

    fn check(&self) {
        for (index, (named, entry)) in &self.live {
            let is = self.entries.load(*index);
            assert!(is == *entry && self.entries.is(*index, is, *named), "entry {index} is {is:?}");
        }
        for (index, named) in &self.gone {
            assert!(!self.entries.is(*index, self.entries.load(*index), *named), "a stale use");
        }
        assert_eq!(self.entries.held().0.get(), self.account.held(), "what is charged");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add(usize),
    Replace(usize),
    Remove(usize),
    /// Removes entries from `from` on. Keeps every `keep`-th, or none if `keep` is 1.
    Thin {
        keep: usize,
        from: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..900_usize).prop_map(Op::Add),
        4 => any::<usize>().prop_map(Op::Replace),
        2 => any::<usize>().prop_map(Op::Remove),
        3 => (1..40_usize, any::<usize>()).prop_map(|(keep, from)| Op::Thin { keep, from }),
    ]
}

fn run(ops: Vec<Op>) {
    let mut both = Both::new(EPOCH_LAST);
    for op in ops {
        match op {
            Op::Add(many) => (0..many).for_each(|_| both.add()),
            Op::Replace(n) => both.replace(n),
            Op::Remove(n) => {
                both.nth(n).into_iter().for_each(|index| both.remove(index));
            }
            Op::Thin { keep, from } => {
                let mut all: Vec<u32> = both.live.keys().copied().collect();
                all.sort_unstable();
                let some = all.iter().skip(from % (all.len() + 1));
                let gone = some.enumerate().filter(|(n, _)| n % keep != 1 || keep == 1);
                gone.for_each(|(_, index)| both.remove(*index));
            }
        }
        both.check();
    }
    let all: Vec<u32> = both.live.keys().copied().collect();
    all.into_iter().for_each(|index| both.remove(index));
    both.check();
    let page = page_size().bytes().get();
    assert!(both.account.held() <= 6 * page, "{} bytes are left", both.account.held());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn as_a_map(ops in prop::collection::vec(op(), 1..40)) {
        run(ops);
    }
}

#[test]
fn words_of_free_entries_leave_with_the_pages_that_share_them() {
    let shared = words_per_page(page_size()) * SEGMENT;
    let mut both = Both::of(3 * shared as usize, 0);
    (0..3 * shared).for_each(|_| both.add());
    let count = |both: &Both| lock(&both.entries.state).free_pages.len();
    assert_eq!(count(&both), 3);
    let stays = |at: &u32| at % (shared / 4) == 3;
    (0..shared).for_each(|index| both.remove(index));
    (shared..2 * shared).filter(|at| !stays(at)).for_each(|at| both.remove(at));
    both.gone.clear();
    both.check();
    assert_eq!(count(&both), 3);
    (shared..2 * shared).filter(stays).for_each(|at| both.remove(at));
    assert_eq!(count(&both), 2);
    both.check();
    both.gone.clear();
    (0..2 * shared).for_each(|_| both.add());
    assert_eq!(count(&both), 3);
    both.check();
}

fn in_a_later_epoch() -> Both {
    let per_page = words_per_page(page_size());
    let (mut both, at) = (Both::new(EPOCH_LAST), per_page + 7);
    (0..3 * per_page).for_each(|_| both.add());
    for _ in 0..1 << GENERATION_BITS {
        both.remove(at);
        both.gone.clear();
        while !both.live.contains_key(&at) {
            both.add();
        }
    }
    (0..SEGMENT).for_each(|_| both.add());
    (0..2 * per_page).for_each(|at| both.remove(at));
    both.gone.clear();
    both
}

#[test]
fn entries_of_a_page_that_comes_again_go_on_with_its_latest_epoch() {
    let mut both = in_a_later_epoch();
    (0..3 * words_per_page(page_size())).for_each(|_| both.add());
    let later = both.live.values().filter(|(named, _)| named >> GENERATION_BITS > 0).count();
    assert!(later > 400, "{later} entries go on with the page's use");
    both.check();
}

#[test]
fn uses_outlive_a_page_that_went() {
    let per_page = words_per_page(page_size());
    let mut both = Both::new(0);
    (0..4 * per_page).for_each(|_| both.add());
    (0..3 * per_page).for_each(|at| both.remove(at));
    assert!(lock(&both.entries.state).pages.iter().any(|page| !page.is_present));
    (0..3 * per_page).for_each(|_| both.add());
    both.check();
}
