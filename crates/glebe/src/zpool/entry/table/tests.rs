//! Entries against a map, while pages are packed, packed anew and unpacked.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::sys::page_size;
use crate::zpool::entry::word::{Kind, Place};
use crate::zpool::memory::account::Account;

/// Entries, what was given out, and what each says.
struct Both {
    entries: Entries,
    account: Account,
    /// By index: the use, what it says.
    live: HashMap<u32, (u32, Entry)>,
    gone: Vec<(u32, u32)>,
    made: u32,
}

impl Both {
    fn new(packed_max: u32, epoch_last: u32) -> Self {
        Self::of(1 << 14, packed_max, epoch_last)
    }

    fn of(most: usize, packed_max: u32, epoch_last: u32) -> Self {
        let page = page_size();
        let tables = Tables::new(most, page, Words::new).unwrap();
        let mut entries = Entries::new(tables, page);
        entries.packed_max = packed_max.min(entries.packed_max);
        entries.epoch_last = epoch_last;
        let (live, gone) = (HashMap::new(), Vec::new());
        Self { entries, account: Account::new(u64::MAX), live, gone, made: 0 }
    }

    /// No two are the same, of those with a place.
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

    /// Unpacks a page; whether one was.
    fn unpack(&self) -> bool {
        let mut state = lock(&self.entries.state);
        self.entries.unpack_one(&self.account, &mut state).unwrap()
    }

    fn packed_pages(&self) -> usize {
        let state = lock(&self.entries.state);
        state.pages.iter().filter(|page| page.is_packed).count()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add(usize),
    Replace(usize),
    Remove(usize),
    /// All but one in so many, from one on.
    Thin {
        keep: usize,
        from: usize,
    },
    Pack(u32),
    Unpack,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..900_usize).prop_map(Op::Add),
        4 => any::<usize>().prop_map(Op::Replace),
        2 => any::<usize>().prop_map(Op::Remove),
        3 => (1..40_usize, any::<usize>()).prop_map(|(keep, from)| Op::Thin { keep, from }),
        3 => (0..16_u32).prop_map(Op::Pack),
        1 => Just(Op::Unpack),
    ]
}

fn run(ops: Vec<Op>, packed_max: u32, epoch_last: u32) {
    let mut both = Both::new(packed_max, epoch_last);
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
            Op::Pack(page) => {
                let known = lock(&both.entries.state).pages.len() as u32;
                if page < known {
                    both.entries.pack(&both.account, page);
                }
            }
            Op::Unpack => {
                both.unpack();
            }
        }
        both.check();
    }
    let all: Vec<u32> = both.live.keys().copied().collect();
    all.into_iter().for_each(|index| both.remove(index));
    both.check();
    assert_eq!(both.packed_pages(), 0, "a packed page of nothing");
    let page = page_size().bytes().get();
    // The current segment's page, a spare one, and those of the tables.
    assert!(both.account.held() <= 6 * page, "{} bytes are left", both.account.held());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn as_a_map(ops in prop::collection::vec(op(), 1..40), packed_max in 0..300_u32) {
        run(ops, packed_max, EPOCH_LAST);
    }
}

#[test]
fn sparse_pages_take_what_is_in_them() {
    let mut both = Both::new(u32::MAX, EPOCH_LAST);
    (0..12_000).for_each(|_| both.add());
    let full = both.account.held();
    let all: Vec<u32> = (0..12_000).collect();
    let gone = all.iter().filter(|index| **index % 16 != 5);
    gone.for_each(|index| both.remove(*index));
    both.check();
    assert!(both.packed_pages() > 20, "{} packed pages", both.packed_pages());
    // An eighth, with a bit for each entry and whole units; and pages of tables.

    let most = full / 8 + 4 * page_size().bytes().get();
    assert!(both.account.held() < most, "{} of {full} bytes", both.account.held());
    // New ones come to where old ones were.
    (0..10_000).for_each(|_| both.add());
    both.check();
    assert!(*both.live.keys().max().unwrap() < 12_500, "entries that died are used again");
}

#[test]
fn uses_outlive_packing() {
    let per_page = words_per_page(page_size());
    let mut both = Both::new(u32::MAX, EPOCH_LAST);
    (0..per_page).for_each(|_| both.add());
    // One entry is used until its generations have come round.
    for _ in 0..(1 << GENERATION_BITS) + 9 {
        both.remove(7);
        both.add();
    }
    let last = both.live[&7].0;
    assert_eq!(last >> GENERATION_BITS, 1);
    both.gone.clear();
    both.add();
    (0..per_page).step_by(3).for_each(|at| both.remove(at + at % 2));
    (1..per_page).step_by(2).for_each(|at| {
        if both.live.contains_key(&at) {
            both.remove(at);
        }
    });
    assert!(!both.live.contains_key(&7) && both.packed_pages() == 1);
    both.check();
    assert!(both.unpack());
    both.check();
    while !both.live.contains_key(&7) {
        both.add();
    }
    assert!(both.live[&7].0 > last, "a use twice");
    both.check();
}

#[test]
fn what_is_used_up_in_a_packed_page_stays_so() {
    let per_page = words_per_page(page_size());
    let mut both = Both::new(u32::MAX, 0);
    (0..per_page).for_each(|_| both.add());
    for _ in 0..(1 << GENERATION_BITS) - 1 {
        both.remove(7);
        both.add();
    }
    both.gone.clear();
    both.add();
    (0..per_page).filter(|at| at % 8 != 7).for_each(|at| both.remove(at));
    assert_eq!(both.packed_pages(), 1);
    both.remove(7);
    both.check();
    // Nothing of that page is taken again.
    assert!(!both.unpack());
    (0..2 * per_page).for_each(|_| both.add());
    assert!((0..per_page).filter(|at| at % 8 != 7).all(|at| !both.live.contains_key(&at)));
    (8..per_page).filter(|at| at % 8 == 7).for_each(|at| both.remove(at));
    assert_eq!(both.packed_pages(), 0);
    both.check();
}

#[test]
fn words_of_free_entries_leave_with_the_pages_that_share_them() {
    let shared = words_per_page(page_size()) * SEGMENT;
    let mut both = Both::of(3 * shared as usize, u32::MAX, 0);
    (0..3 * shared).for_each(|_| both.add());
    let count = |both: &Both| lock(&both.entries.state).free_pages.len();
    assert_eq!(count(&both), 3);
    // Of the first third nothing is left, of the second some packed pages.
    let stays = |at: &u32| at % (shared / 4) == 3;
    (0..shared).for_each(|index| both.remove(index));
    (shared..2 * shared).filter(|at| !stays(at)).for_each(|at| both.remove(at));
    assert_eq!((both.packed_pages(), count(&both)), (4, 2));
    both.gone.clear();
    both.check();
    (shared..2 * shared).filter(stays).for_each(|at| both.remove(at));
    assert_eq!((both.packed_pages(), count(&both)), (0, 1));
    both.check();
    both.gone.clear();
    (0..2 * shared).for_each(|_| both.add());
    assert_eq!(count(&both), 3);
    both.check();
}

/// Entry 7 is in its second epoch and its page is left by all or by few.
fn in_a_later_epoch(few: bool) -> Both {
    let per_page = words_per_page(page_size());
    let mut both = Both::new(u32::MAX, EPOCH_LAST);
    (0..3 * per_page).for_each(|_| both.add());
    for _ in 0..1 << GENERATION_BITS {
        both.remove(7);
        both.gone.clear();
        both.add();
        while !both.live.contains_key(&7) {
            both.add();
        }
    }
    // The current segment is another page's.
    (0..SEGMENT).for_each(|_| both.add());
    let stays = |at: u32| few && at % 64 == 9;
    (0..2 * per_page).filter(|at| !stays(*at)).for_each(|at| both.remove(at));
    both.gone.clear();
    both
}

#[test]
fn entries_of_a_page_that_comes_again_go_on_with_its_latest_epoch() {
    for few in [false, true] {
        let mut both = in_a_later_epoch(few);
        (0..3 * words_per_page(page_size())).for_each(|_| both.add());
        let later = both.live.values().filter(|(named, _)| named >> GENERATION_BITS > 0).count();
        assert!(later > 400, "{later} entries go on with the page's use; few: {few}");
        both.check();
    }
}

#[test]
fn what_died_in_a_packed_page_goes_on_with_its_own_use() {
    let per_page = words_per_page(page_size());
    let mut both = Both::new(u32::MAX, 0);
    (0..per_page + SEGMENT).for_each(|_| both.add());
    // Of entry 7 several uses are over, of the others one.
    for _ in 0..5 {
        both.remove(7);
        while !both.live.contains_key(&7) {
            both.add();
        }
    }
    (0..SEGMENT).for_each(|_| both.add());
    (0..per_page).filter(|at| at % 8 != 7).for_each(|at| both.remove(at));
    assert_eq!(both.packed_pages(), 1);
    both.remove(7);
    assert_eq!(both.packed_pages(), 1);
    assert!(both.unpack());
    while !both.live.contains_key(&7) {
        both.add();
    }
    both.check();
}

#[test]
fn uses_outlive_a_page_that_went_without_being_packed() {
    let per_page = words_per_page(page_size());
    let mut both = Both::new(0, 0);
    (0..4 * per_page).for_each(|_| both.add());
    (0..3 * per_page).for_each(|at| both.remove(at));
    assert_eq!(both.packed_pages(), 0);
    assert!(lock(&both.entries.state).pages.iter().any(|page| !page.is_present));
    // No use is given twice, which is looked at with each.
    (0..3 * per_page).for_each(|_| both.add());
    both.check();
}
