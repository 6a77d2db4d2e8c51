//! Tests sealed zspages, whose bytes a map has taken over from the pool.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::class::Fullness;
use crate::objects::Stored;
use crate::shared::CLASSES_MAX;
use crate::staging::Sealing;

type Name = (u32, u32);

#[derive(Default)]
struct Elsewhere(HashMap<(u32, usize), Vec<u8>>);

impl Elsewhere {
    fn seal(&mut self, pool: &ObjectPool, class: u32, fullness: Fullness) -> Option<u32> {
        let classes = (0..CLASSES_MAX).map(|n| (n + class) % CLASSES_MAX);
        let sealing = classes.filter_map(|n| Sealing::begin(&pool.objects, n, fullness)).next()?;
        let zspage = sealing.zspage();
        for page in 0..sealing.pages() {
            let old = self.0.insert((zspage, page as usize), sealing.page(page).to_vec());
            assert_eq!(old, None, "zspage {zspage} is not gone");
        }
        sealing.finish();
        Some(zspage)
    }

    fn read(&self, pool: &ObjectPool, (index, named): Name) -> Option<Vec<u8>> {
        let pinned = pool.objects.pin(index, named)?;
        let mut bytes = Vec::new();
        if pinned.is_sealed {
            let from = pinned.offset();
            for at in from..from + pinned.entry.len() {
                bytes.push(self.0[&(pinned.entry.place().zspage, at / page())][at % page()]);
            }
        } else {
            bytes.resize(page(), 0);
            let len = pool.copy_out(&pinned, &mut bytes).unwrap();
            bytes.truncate(len);
        }
        pool.objects.unpin(&pinned);
        Some(bytes)
    }

    fn let_go(&mut self, pool: &ObjectPool) {
        let memory = &pool.objects.memory;
        pool.objects.settle();
        for zspage in memory.take_ended() {
            self.0.retain(|(of, _), _| *of != zspage);
            memory.zspages.drop_number(&memory.account, zspage);
        }
    }
}

fn insert(pool: &ObjectPool, bytes: &[u8]) -> Name {
    pool.objects.insert(Stored::raw(bytes)).unwrap()
}

#[test]
fn a_sealed_zspage_gives_its_pages_back_and_keeps_its_objects() {
    let (pool, mut elsewhere) = (plain().lend(Pages::ZERO).build().unwrap(), Elsewhere::default());
    let names: Vec<Name> = (0..512).map(|n| insert(&pool, &bytes_of(n, 1000))).collect();
    let used = pool.objects.memory.pages.used();
    while elsewhere.seal(&pool, 0, Fullness::Full).is_some() {}
    let stats = pool.stats();
    stats.check().unwrap();
    assert!(stats.sealed_pages > 0 && stats.used_pages < used);
    assert_eq!(stats.sealed_pages + stats.used_pages, used);
    for (n, name) in names.iter().enumerate() {
        assert!(elsewhere.read(&pool, *name) == Some(bytes_of(n as u64, 1000)));
    }
    for name in &names {
        assert!(pool.objects.remove(name.0, name.1));
        elsewhere.let_go(&pool);
        pool.check();
    }
    assert!(elsewhere.0.is_empty());
    let stats = pool.stats();
    stats.check().unwrap();
    assert_eq!((stats.sealed_pages, stats.used_pages, stats.objects), (0, 0, 0));
}

#[test]
fn no_slot_of_a_sealed_zspage_is_given_out() {
    let (pool, mut elsewhere) = (plain().lend(Pages::ZERO).build().unwrap(), Elsewhere::default());
    let names: Vec<Name> = (0..64).map(|n| insert(&pool, &bytes_of(n, 1000))).collect();
    let zspage = elsewhere.seal(&pool, 0, Fullness::Fullest).unwrap();
    let sealed = |name: &Name| pool.objects.entry(name.0, name.1).unwrap().place().zspage == zspage;
    let (gone, left): (Vec<Name>, Vec<Name>) = names.iter().partition(|name| sealed(name));
    for name in &gone[1..] {
        assert!(pool.objects.remove(name.0, name.1));
    }
    pool.compact(Budget::All).unwrap();
    let more: Vec<Name> = (0..64).map(|n| insert(&pool, &bytes_of(n, 1000))).collect();
    assert!(!more.iter().chain(&left).any(sealed));
    pool.check();
    let first = names.iter().position(|name| *name == gone[0]).unwrap();
    assert!(elsewhere.read(&pool, gone[0]) == Some(bytes_of(first as u64, 1000)));
}

#[test]
fn a_zspage_is_not_sealed_while_an_object_is_written() {
    let pool = plain().lend(Pages::ZERO).build().unwrap();
    let (name, objects) = (insert(&pool, &bytes_of(1, page())), &pool.objects);
    let class = objects.memory.zspages.about(objects.entry(name.0, name.1).unwrap().place().zspage);
    let entry = objects.memory.entries.load(name.0);
    let free = crate::entry::word::Entry::free(name.1);
    objects.memory.entries.exchange(name.0, entry, free);
    assert!(Sealing::begin(objects, class.class, Fullness::Full).is_none());
    assert!(Sealing::begin(objects, class.class, Fullness::Fullest).is_none());
    objects.memory.entries.exchange(name.0, free, entry);
    assert!(Sealing::begin(objects, class.class, Fullness::Full).is_some());
    pool.check();
}

#[test]
fn pages_of_a_zspage_stay_while_somebody_reads_there() {
    let (pool, mut elsewhere) = (plain().lend(Pages::ZERO).build().unwrap(), Elsewhere::default());
    let name = insert(&pool, &bytes_of(1, page()));
    let handle = Handle::new(pool.number, name.1, name.0);
    let (guard, bytes) = (pool.get(handle).unwrap(), bytes_of(1, page()));
    elsewhere.seal(&pool, 0, Fullness::Full).unwrap();
    let others: Vec<Name> = (2..99).map(|n| insert(&pool, &bytes_of(n, page()))).collect();
    assert!(*guard == *bytes && elsewhere.read(&pool, name) == Some(bytes));
    pool.remove(handle).unwrap();
    drop(guard);
    elsewhere.let_go(&pool);
    pool.check();
    assert!(elsewhere.0.is_empty());
    assert_eq!(pool.stats().used_pages, others.len() as u64);
    pool.stats().check().unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Insert(usize),
    Remove(usize),
    Replace(usize, usize),
    Read(usize),
    Compact,
    Seal { class: u32, full: bool },
    Abort { class: u32, remove: usize },
    Lose { nth: usize, pages: u32 },
    LetGo,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => super::len().prop_map(Op::Insert),
        4 => any::<usize>().prop_map(Op::Remove),
        2 => (any::<usize>(), super::len()).prop_map(|(nth, len)| Op::Replace(nth, len)),
        3 => any::<usize>().prop_map(Op::Read),
        1 => Just(Op::Compact),
        3 => (0..64_u32, any::<bool>()).prop_map(|(class, full)| Op::Seal { class, full }),
        1 => (0..64_u32, any::<usize>()).prop_map(|(class, remove)| Op::Abort { class, remove }),
        1 => (any::<usize>(), 1..16_u32).prop_map(|(nth, pages)| Op::Lose { nth, pages }),
        1 => Just(Op::LetGo),
    ]
}

fn run(pool: &ObjectPool, ops: Vec<Op>) {
    let (mut model, mut elsewhere) = (Vec::<(Name, Vec<u8>)>::new(), Elsewhere::default());
    for (seed, op) in ops.into_iter().enumerate() {
        let nth = |n: usize| (!model.is_empty()).then(|| n % model.len());
        let fresh = |len| bytes_of(seed as u64, len);
        let objects = &pool.objects;
        match op {
            Op::Insert(len) => model.push((insert(pool, &fresh(len)), fresh(len))),
            Op::Remove(n) => {
                let Some(at) = nth(n) else { continue };
                let ((index, named), _) = model.swap_remove(at);
                assert!(objects.remove(index, named));
            }
            Op::Replace(n, len) => {
                let Some(at) = nth(n) else { continue };
                let ((index, named), bytes) = &mut model[at];
                *bytes = fresh(len);
                assert!(objects.replace(*index, *named, Stored::raw(bytes)).unwrap());
            }
            Op::Read(n) => {
                let Some(at) = nth(n) else { continue };
                let (name, bytes) = &model[at];
                assert!(elsewhere.read(pool, *name).as_ref() == Some(bytes));
            }
            Op::Compact => drop(pool.compact(Budget::All).unwrap()),
            Op::Seal { class, full } => {
                let fullness = if full { Fullness::Full } else { Fullness::Fullest };
                elsewhere.seal(pool, class, fullness);
            }
            Op::Abort { class, remove } => {
                let sealing = Sealing::begin(objects, class, Fullness::Fullest);
                if let Some(at) = nth(remove).filter(|_| sealing.is_some()) {
                    let ((index, named), _) = model.swap_remove(at);
                    assert!(objects.remove(index, named));
                }
            }
            Op::Lose { nth: n, pages } => {
                let Some(at) = nth(n) else { continue };
                let (index, named) = model[at].0;
                let pinned = objects.pin(index, named).unwrap();
                objects.unpin(&pinned);
                if !pinned.is_sealed {
                    continue;
                }
                let zspage = pinned.entry.place().zspage;
                let lost =
                    objects.evict_by(zspage, |state| state.lose(&objects.memory, zspage, pages));
                let before = model.len();
                model.retain(|(name, _)| objects.entry(name.0, name.1).is_some());
                assert_eq!(before - model.len(), lost);
                let touches =
                    pinned.offset() / page()..=(pinned.offset() + pinned.entry.len() - 1) / page();
                let goes = touches.into_iter().any(|at| pages & 1 << at != 0);
                assert_eq!(objects.entry(index, named).is_none(), goes);
            }
            Op::LetGo => elsewhere.let_go(pool),
        }
        pool.check();
        pool.stats().check().unwrap();
    }
    for (name, bytes) in &model {
        assert!(elsewhere.read(pool, *name).as_ref() == Some(bytes));
        assert!(pool.objects.remove(name.0, name.1));
    }
    elsewhere.let_go(pool);
    assert!(elsewhere.0.is_empty());
    assert_eq!((pool.stats().used_pages, pool.stats().sealed_pages), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn sealed_and_other_objects_are_what_was_put(
        ops in prop::collection::vec(op(), 1..160), chain in 1..6_u64,
    ) {
        let rules = Rules { chain: Pages::new(chain), ..Rules::of_page(page_size()) };
        run(&plain().lend(Pages::ZERO).table(TableChoice::Rules(rules)).build().unwrap(), ops);
    }
}
