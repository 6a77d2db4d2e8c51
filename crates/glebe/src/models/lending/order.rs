//! Models the order in which readers see the pages of one key.

use super::*;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Heeds,
    Ignores,
}

const KEY: u64 = 7;

fn claimed(lent: &Lent, page: usize) -> Claim {
    claim(lent, page).expect("free")
}

fn filled(lent: &Lent, claim: Claim, version: u64) -> Result<PageUse, NotFilled> {
    lent.fill(claim, [KEY], &bytes_of(words_of(version)))
}

fn publish(lent: &Lent, index: &Index, filled: Result<PageUse, NotFilled>) {
    let held = |other| match lent.holds_use(other) {
        Some(_) => Held::Same,
        None => Held::Stale,
    };
    let old = match filled {
        Ok(at) => index.publish(HASH, at, held).expect("room").replaced,
        Err(_) => index.remove(HASH, |other| held(other) == Held::Same),
    };
    if let Some(old) = old {
        lent.discard_use(old);
    }
}

fn version(lent: &Lent, index: &Index, reader: Reader) -> Option<u64> {
    let mut buf = [0; PAGE_BYTES];
    let take = |at: PageUse| {
        let held = (reader == Reader::Ignores).then(|| lent.holds(at.page)).flatten();
        let at = held.map_or(at, |(word, _, _)| word.use_of(at.page));
        lent.read(at, &[KEY], &mut buf)
    };
    index.find(HASH, take)?;
    let found = u64::from_ne_bytes(*buf.first_chunk().expect("a word"));
    assert_eq!(buf, bytes_of(words_of(found)), "a hit of two versions");
    Some(found)
}

/// Leaves a stale index entry: a recall took the entry's page 0. Returns a new claim of page 0.
fn claimed_with_a_stale_entry(lent: &Lent, index: &Index) -> Claim {
    publish(lent, index, filled(lent, claimed(lent, 0), 1));
    lent.recall(&EDGE, false, true).expect("waits");
    lent.give_back(&EDGE);
    claimed(lent, 0)
}

/// Puts a newer version into the page of a stale entry, while a reader finds an older version in
/// another page.
fn reads_during_a_put(reader: Reader) {
    let (lent, index) = (
        lent(1, Critical::restartable(1, Fault::None)),
        Index::new(&mut Tables, 4).expect("model memory"),
    );
    let index = Arc::new(index);
    let claim = claimed_with_a_stale_entry(&lent, &index);
    // `Held::Other` keeps the stale entry. A reader rejects the entry only by the generation.
    let old = filled(&lent, claimed(&lent, 1), 2).expect("alone");
    index.publish(HASH, old, |_| Held::Other).expect("room");
    let put = {
        let (lent, index) = (Arc::clone(&lent), Arc::clone(&index));
        thread::spawn(move || publish(&lent, &index, filled(&lent, claim, 3)))
    };
    let reads = {
        let (lent, index) = (Arc::clone(&lent), Arc::clone(&index));
        thread::spawn(move || {
            let before = version(&lent, &index, reader);
            lent.recall(&EDGE, false, true).expect("waits");
            [before, version(&lent, &index, reader)]
        })
    };
    put.join().unwrap();
    let reads = reads.join().unwrap();
    assert_ne!(reads, [Some(3), Some(2)], "new, then old");
    assert_eq!(version(&lent, &index, reader), None, "recalled, after {reads:?}");
}

#[test]
fn reader_never_sees_the_new_page_and_then_the_old_one() {
    explore_large(2, || reads_during_a_put(Reader::Heeds));
}

#[test]
#[should_panic(expected = "new, then old")]
fn order_of_reads_needs_the_generation() {
    explore_large(2, || reads_during_a_put(Reader::Ignores));
}

/// Puts one key in two threads, once into a stale entry's page, and reads the key in a third. Loom
/// needs no preemption to run the three threads in any order, because the main thread only waits.
fn reads_during_two_puts(reader: Reader) {
    let (lent, index) = (
        lent(1, Critical::restartable(2, Fault::None)),
        Index::new(&mut Tables, 4).expect("model memory"),
    );
    let index = Arc::new(index);
    let claim = claimed_with_a_stale_entry(&lent, &index);
    let other = filled(&lent, claimed(&lent, 1), 2);
    let puts = [
        {
            let (lent, index) = (Arc::clone(&lent), Arc::clone(&index));
            thread::spawn(move || {
                run_on(1);
                publish(&lent, &index, other);
            })
        },
        {
            let (lent, index) = (Arc::clone(&lent), Arc::clone(&index));
            thread::spawn(move || publish(&lent, &index, filled(&lent, claim, 3)))
        },
    ];
    let reads = {
        let (lent, index) = (Arc::clone(&lent), Arc::clone(&index));
        thread::spawn(move || [(); 2].map(|()| version(&lent, &index, reader)))
    };
    puts.into_iter().for_each(|put| put.join().unwrap());
    let reads = reads.join().unwrap();
    let last = version(&lent, &index, reader);
    assert!(last.is_some_and(|last| last > 1), "{reads:?}, {last:?}");
    assert!(reads[0] != last || reads[1] == last || reads[1].is_none(), "{reads:?}, then {last:?}");
}

#[test]
fn reader_sees_each_of_two_puts_once() {
    explore_orders(1, || reads_during_two_puts(Reader::Heeds));
}

#[test]
#[should_panic(expected = ", then ")]
fn order_of_two_puts_needs_the_generation() {
    explore_orders(1, || reads_during_two_puts(Reader::Ignores));
}
