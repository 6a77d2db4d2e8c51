//! Tests the bank of movable blocks, also with a busy program's pages in it.

use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::internal::{glance, Glance};
use glebe::contig::{bank, Contig, Error, Source};
use glebe::internal::ClosedBlock;
use glebe::reserve::Reserve;
use glebe::units::{Bytes, PageSize};
use glebe_testing::process::is_child;
use glebe_testing::time::slowed;

use super::busy::{be_busy, Busy};
use super::machine::{assert_as_before, block_of, block_size, blocks, frames, movable, turn};
use super::{assert_one_run, cannot, drawn};

const PATIENCE: Duration = Duration::from_secs(30);

pub struct Bank(pub Vec<u64>);

impl Bank {
    pub fn of_one_block() -> Option<Self> {
        if !bank::status().unwrap().blocks.is_empty() {
            println!("skipped: the machine has a bank, which is not the test's");
            return None;
        }
        match bank::add(Bytes::new(1), false) {
            Ok(change) => Some(Self(change.blocks)),
            Err(error) if cannot(&error) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Draws the bank's block. Memory comes from another block if the kernel cannot evacuate the
    /// bank's in time, or if another program takes its pages first. The draw is then repeated.
    pub fn drawn(&self) -> Option<Contig> {
        const DRAWS: usize = 8;
        let resisted = format!("memory block {}: ", self.0[0]);
        for _ in 0..DRAWS {
            let memory = drawn(Bytes::new(block_size()))?;
            let (first, why) = (memory.runs()[0].pfn.unwrap().get(), memory.why_not_better());
            if vec![block_of(first)] == self.0 {
                return Some(memory);
            }
            let is_reason =
                |it: &String| it.starts_with(&resisted) || it.contains("evacuated again");
            assert!(why.iter().any(is_reason), "the bank is drawn on first: {why:?}");
            println!("from another block: {why:?}");
        }
        println!("skipped: {DRAWS} draws came from other blocks");
        None
    }

    pub fn pages_of(&self, busy: &Busy, len: u64) -> usize {
        let frames = frames(busy.pid(), busy.addr, len);
        frames.iter().filter(|frame| self.0.contains(&block_of(**frame))).count()
    }
}

/// Gives the bank back. Retries for up to `PATIENCE` while other programs use its pages.
pub fn give_up() -> usize {
    let (begin, mut gone) = (Instant::now(), 0);
    loop {
        gone += bank::drop(None).map_or(0, |change| change.blocks.len());
        let is_left = bank::status().is_ok_and(|status| !status.blocks.is_empty());
        if !is_left || begin.elapsed() > slowed(PATIENCE) {
            return gone;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        give_up();
    }
}

#[test]
fn memory_is_drawn_from_under_a_busy_program() {
    const TEST: &str = "blocks::bank::memory_is_drawn_from_under_a_busy_program";
    if is_child() {
        return be_busy();
    }
    let Some(_turn) = turn() else { return };
    let before = blocks();
    let Some(bank) = Bank::of_one_block() else { return };
    let len = block_size();
    let busy = Busy::start(TEST, (2 * len) >> 20);
    let pages = bank.pages_of(&busy, 2 * len);
    let begin = Instant::now();
    let Some(memory) = bank.drawn() else { return };
    let took = begin.elapsed();
    assert_one_run(&memory);
    assert_eq!(bank.pages_of(&busy, 2 * len), 0);
    let report = busy.stop();
    let (checked, stall) = (report.checked, report.worst_stall);
    println!("{pages} pages of a busy program were in the bank, drawn in {took:?}");
    println!("{checked} words checked, worst stall of 64 {stall:?}");
    assert!(
        pages as u64 > Bytes::new(len / 4).pages_down(glebe::page_size()).get(),
        "{pages} pages of the program were in the bank"
    );
    assert_eq!(report.wrong, 0, "{report:?}");
    let status = bank::status().unwrap();
    assert_eq!(status.blocks[0].drawn, Bytes::new(len));
    let whole = Bytes::new(len);
    let sums = Glance { blocks: 1, len: whole, drawn: whole };
    assert_eq!(glance().unwrap(), Some(sums));
    let kept = bank::drop(None).unwrap();
    assert_eq!(kept.blocks, [] as [u64; 0], "what is drawn on stays");
    let name = format!("memory block {}", bank.0[0]);
    assert!(kept.notes.iter().any(|note| note.contains(&name)), "{:?}", kept.notes);
    drop(memory);
    assert_eq!(movable(), bank.0, "the bank's block stays movable");
    drop(bank);
    assert_as_before(&before);
}

#[test]
fn a_bank_grows_and_shrinks_by_blocks_and_says_so() {
    let Some(_turn) = turn() else { return };
    let (before, size) = (blocks(), block_size());
    if !bank::status().unwrap().blocks.is_empty() {
        println!("skipped: the machine has a bank, which is not the test's");
        return;
    }
    let two = Bytes::new(size + 1);
    let dry = match bank::add(two, true) {
        Ok(dry) => dry,
        Err(error) if cannot(&error) => return,
        Err(error) => panic!("{error}"),
    };
    assert_as_before(&before);
    let added = bank::add(two, false).unwrap();
    let bank = Bank(added.blocks);
    assert_eq!(dry.blocks.len(), 2, "{dry:?}");
    if bank.0.len() < 2 {
        // Another program's pages may resist.
        assert!(!added.notes.is_empty(), "{:?} of {dry:?}", bank.0);
        println!("skipped: {:?}", added.notes);
        return;
    }
    let mut sorted = bank.0.clone();
    sorted.sort_unstable();
    assert_eq!(movable(), sorted);
    let status = bank::status().unwrap();
    assert_eq!((status.blocks.len(), status.machine.movable.get()), (2, 2 * size));
    assert_eq!(status.blocks.iter().map(|b| b.number).collect::<Vec<_>>(), sorted);
    for block in &status.blocks {
        assert_eq!((block.free + block.used + block.drawn).get(), size, "{block:?}");
    }
    let one = bank::drop(Some(Bytes::new(1))).unwrap();
    assert_eq!((one.blocks.len(), one.len.get(), movable().len()), (1, size, 1));
    assert_eq!(give_up(), 1);
    assert_as_before(&before);
    assert_eq!(super::machine::record(), "");
    let none = bank::add(Bytes::ZERO, false);
    assert!(matches!(none, Err(Error::ZeroLength)), "{none:?}");
    let much = bank::add(Bytes::gib(1 << 20), false);
    assert!(matches!(much, Err(Error::TooMuchMovable { .. })), "{much:?}");
}

#[test]
fn a_reserve_for_leases_has_the_banks_run_and_keeps_it() {
    let Some(_turn) = turn() else { return };
    let before = blocks();
    let Some(bank) = Bank::of_one_block() else { return };
    for brick in [2 << 20, 8 << 20] {
        has_banks_run(&bank, PageSize::new(brick).unwrap());
    }
    drop(bank);
    assert_as_before(&before);
}

fn has_banks_run(bank: &Bank, brick: PageSize) {
    let (len, page) = (Bytes::new(block_size() / 2), glebe::page_size());
    let options = Reserve::options().memory(Contig::options().bricks_of(brick)).room(len);
    let reserve = options.build(len).unwrap();
    let contig = reserve.contig();
    if contig.source() == Source::Blocks {
        let runs = reserve.certificate().unwrap().runs;
        let first = runs[0].pfn.unwrap().get();
        assert_eq!((runs.len(), block_of(first)), (1, bank.0[0]));
        if first % brick.bytes().pages_down(page).get() != 0 {
            println!("skipped: the run is not aligned to a brick, since others have pages there");
            return;
        }
        let mut lent = ClosedBlock::of(&reserve, len.pages_down(page)).unwrap();
        assert_eq!(lent.give().count() as u64, len.get() / brick.bytes().get());
        drop(lent);
        let after = (reserve.len().bytes(page), reserve.certificate().unwrap().runs);
        assert_eq!(after, (len, runs));
        assert_eq!(reserve.verify().unwrap(), []);
        reserve.shrink(Bytes::mib(32)).unwrap();
        let drawn = bank::status().unwrap().blocks[0].drawn;
        assert_eq!(drawn, len - Bytes::mib(32));
    } else {
        // Other programs may have immovable pages in the block.
        let why = contig.why_not_better();
        let is_reason = |why: &String| why.starts_with("memory block");
        assert!(why.iter().any(is_reason) && !why.iter().any(|it| it.contains("no hugetlb")));
        println!("skipped: {why:?}");
    }
}

#[test]
fn a_reserve_seeks_its_run_in_the_bank_where_there_is_one() {
    let Some(_turn) = turn() else { return };
    let before = blocks();
    let Some(bank) = Bank::of_one_block() else { return };
    let reserve = Reserve::new(Bytes::new(block_size())).unwrap();
    let contig = reserve.contig();
    match contig.source() {
        Source::Blocks => {
            let first = contig.runs()[0].pfn.unwrap().get();
            assert_eq!((contig.runs().len(), block_of(first)), (1, bank.0[0]));
        }
        // Other programs may have immovable pages in the block.
        other => {
            let why = contig.why_not_better();
            assert!(why.iter().any(|why| why.starts_with("memory blocks")), "{other}: {why:?}");
        }
    }
    drop(reserve);
    drop(bank);
    assert_as_before(&before);
}
