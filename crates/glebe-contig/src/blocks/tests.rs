//! Tests memory blocks, as root.

use super::glance::{glance, Glance};
use super::plan::{outlook, plan, Wanted, Whose};
use super::record::Line;
use super::*;
use crate::Contig;
use std::io::ErrorKind;

use glebe_os::internal::sync::{StaticMutex, StaticMutexGuard};
use glebe_os::internal::sys::machine::hugetlb::Pool;
use glebe_os::internal::sys::machine::memory_block::{BlockState, MemoryBlock};

const LOCK: Duration = Duration::from_secs(60);
const DEAD: Owner = Owner::Process(u32::MAX);
static TURN: StaticMutex<()> = StaticMutex::new(());

fn begin() -> Result<BlockWork, Error> {
    BlockWork::begin(&Place::default(), LOCK)
}

fn wanted<'a>(own: &'a [u64], stuck: &'a [u64], of: Whose) -> Wanted<'a> {
    Wanted { len: Bytes::new(1), nodes: &[], own, stuck, of }
}

fn this_process() -> Owner {
    let work = begin().unwrap();
    work.book.this_process(&work.lock).unwrap()
}

/// A block that can be evacuated.
struct Good {
    block: u64,
    zone: Zone,
    _turn: StaticMutexGuard<'static, ()>,
}

impl Good {
    fn new() -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut work = match begin() {
            Err(error @ Error::NoBlocks { .. }) => {
                println!("skipped: {error}");
                return None;
            }
            begun => begun.unwrap(),
        };
        let block = match plan(&mut work, &wanted(&[], &[], Whose::Kernels)) {
            Ok(plan) => plan.blocks[0],
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let zone = work.blocks.read(block).unwrap().zone.unwrap();
        Some(Self { block, zone, _turn: turn })
    }

    fn leave(&self, owner: Owner, movable: bool) -> bool {
        let mut work = begin().unwrap();
        work.note_down(self.block, owner).unwrap();
        let off = work.blocks.take_off_line(self.block, Duration::from_secs(1));
        if let Err(error) = off {
            work.bring_back(&[self.block], true);
            println!("skipped: {error}");
            return false;
        }
        if movable {
            work.blocks.put_on_line(self.block, true).unwrap();
        }
        true
    }

    fn seen(&self, work: &BlockWork) -> (BlockState, Option<Zone>, Option<Line>) {
        let block = work.blocks.read(self.block).unwrap();
        (block.state, block.zone, work.book.of(self.block))
    }

    fn assert_mended(&self, what: &str) {
        let work = begin().unwrap();
        let of_it = format!("memory block {}", self.block);
        let told = work.notes.iter().any(|note| note.contains(&of_it) && note.contains(what));
        assert!(told, "{:?}", work.notes);
        assert_eq!(self.seen(&work), (BlockState::Online, Some(self.zone), None));
    }
}

impl Drop for Good {
    fn drop(&mut self) {
        if let Ok(mut work) = begin() {
            work.bring_back(&[self.block], true);
        }
    }
}

#[test]
fn a_block_that_an_ended_process_took_off_line_comes_back_on_line() {
    let Some(good) = Good::new() else { return };
    if good.leave(DEAD, false) {
        good.assert_mended("given back");
    }
}

#[test]
fn a_movable_block_of_an_ended_process_is_the_kernels_again() {
    let Some(good) = Good::new() else { return };
    for owner in [DEAD, Owner::Nobody] {
        if good.leave(owner, true) {
            good.assert_mended("given back");
        }
    }
}

#[test]
fn a_block_of_a_living_process_stays_movable_and_comes_back_on_line() {
    let Some(good) = Good::new() else { return };
    let this = this_process();
    if good.leave(this, true) {
        let work = begin().unwrap();
        let (state, zone, line) = good.seen(&work);
        assert_eq!((state, zone), (BlockState::Online, Some(Zone::Movable)));
        assert_eq!(line.unwrap().owner, this);
        drop(work);
        begin().unwrap().bring_back(&[good.block], false);
    }
    if good.leave(this, false) {
        good.assert_mended("given back");
    }
}

#[test]
fn a_block_of_the_bank_that_is_off_line_comes_back_to_the_bank() {
    let Some(good) = Good::new() else { return };
    if good.leave(Owner::Bank, false) {
        let work = begin().unwrap();
        let (state, zone, line) = good.seen(&work);
        assert_eq!((state, zone), (BlockState::Online, Some(Zone::Movable)));
        assert_eq!(line.unwrap().owner, Owner::Bank);
    }
}

#[test]
fn a_block_of_the_bank_that_somebody_put_back_is_struck_out() {
    let Some(good) = Good::new() else { return };
    if good.leave(Owner::Bank, true) {
        let work = begin().unwrap();
        work.blocks.take_off_line(good.block, Duration::from_secs(1)).unwrap();
        work.blocks.put_on_line(good.block, false).unwrap();
        drop(work);
        good.assert_mended("no more");
    }
}

#[test]
fn a_glance_waits_for_no_lock_and_repairs_nothing() {
    let Some(good) = Good::new() else { return };
    let sums = || glance().unwrap().unwrap_or_default();
    let before = sums();
    if !good.leave(Owner::Bank, true) {
        return;
    }
    let work = begin().unwrap();
    let (one, len) = (before.blocks + 1, before.len + work.blocks.size());
    assert_eq!(sums(), Glance { blocks: one, len, drawn: before.drawn });
    work.blocks.take_off_line(good.block, Duration::from_secs(1)).unwrap();
    work.blocks.put_on_line(good.block, false).unwrap();
    assert_eq!(sums(), before, "somebody put it back");
    assert_eq!(work.book.of(good.block).map(|line| line.owner), Some(Owner::Bank));
    drop(work);
    good.assert_mended("no more");
}

#[test]
fn a_pinned_page_holds_a_block_until_the_deadline_and_no_longer() {
    let Some(good) = Good::new() else { return };
    let pinned = Contig::options().source(Source::Plain).pin(true).build(Bytes::mib(32));
    let pinned = match pinned {
        Ok(memory) if memory.runs().iter().all(|run| run.pfn.is_some()) => memory,
        other => return println!("skipped: {:?}", other.map(|memory| memory.proof())),
    };
    let mut work = begin().unwrap();
    let each = work.blocks.pages().get();
    let frames = pinned.runs().iter().filter_map(|run| run.pfn);
    let mut blocks: Vec<u64> = frames.map(|frame| frame.get() / each).collect();
    blocks.dedup();
    let looks_movable = |block: &u64| {
        let seen = work.look(*block, false).unwrap();
        seen.is_movable() && seen.pool == 0 && *block != good.block
    };
    let Some(block) = blocks.into_iter().find(looks_movable) else {
        return println!("skipped: no pinned page lies in a block that can be moved otherwise");
    };
    let before = work.blocks.read(block).unwrap();
    let owner = work.book.this_process(&work.lock).unwrap();
    let began = std::time::Instant::now();
    let refused = work.empty(&[block], owner).unwrap_err().unwrap();
    let took = began.elapsed();
    println!("{} after {took:?}", refused.error);
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(work.blocks.read(block).unwrap(), before);
    assert_eq!(work.book.of(block), None);
    assert_eq!(pinned.verify().unwrap(), []);
}

#[test]
fn a_block_that_is_not_there_leaves_no_record_of_the_others() {
    let Some(good) = Good::new() else { return };
    let mut work = begin().unwrap();
    let owner = work.book.this_process(&work.lock).unwrap();
    let before = work.blocks.read(good.block).unwrap();
    let refused = work.empty(&[good.block, u64::MAX], owner);
    assert!(matches!(refused, Err(Err(_))), "{refused:?}");
    assert_eq!(work.blocks.read(good.block).unwrap(), before);
    assert_eq!(work.book.of(good.block), None);
}

#[test]
fn a_block_that_holds_pages_of_a_pool_is_no_slack() {
    let Some(_good) = Good::new() else { return };
    let mut work = begin().unwrap();
    let owner = work.book.this_process(&work.lock).unwrap();
    let mut own = Vec::new();
    for _ in 0..3 {
        let block = plan(&mut work, &wanted(&[], &own, Whose::Kernels)).map(|plan| plan.blocks[0]);
        let evacuated = block.map(|block| (block, work.evacuate(&[block], owner)));
        let Ok((block, Ok(()))) = evacuated else {
            work.bring_back(&own, true);
            return println!("skipped: {evacuated:?}");
        };
        own.push(block);
    }
    let pool = Pool::of(smallest_size().unwrap()).unwrap();
    let planned = work.lock.with_pages(&pool, 8, |_| {
        // The block with the pool's new pages becomes the oldest.
        own.sort_by_key(|block| std::cmp::Reverse(work.look(*block, true).unwrap().pool));
        let holds = work.look(own[0], true)?.pool > 0;
        let planned = outlook(&work, &wanted(&own, &[], Whose::Anybodys));
        Ok::<_, Error>(holds.then_some(planned))
    });
    work.bring_back(&own, true);
    match planned.unwrap() {
        Some(Ok(plan)) => assert!(own[1..].contains(&plan.slack.unwrap()), "{plan:?}, {own:?}"),
        other => println!("skipped: {other:?}"),
    }
}

#[test]
fn a_block_stays_if_others_took_pages_of_it_since_it_was_chosen() {
    let Some(good) = Good::new() else { return };
    let this = this_process();
    if !good.leave(this, true) {
        return;
    }
    let work = begin().unwrap();
    let pool = Pool::of(smallest_size().unwrap()).unwrap();
    let refused = work.lock.with_pages(&pool, 8, |_| {
        let before = pool.total()?;
        let has_some = work.look(good.block, true)?.pool > 0;
        let refused = has_some.then(|| work.unplug(good.block));
        assert_eq!(pool.total()?, before);
        Ok::<_, Error>(refused)
    });
    match refused.unwrap() {
        Some(Err(error)) => assert!(error.to_string().contains("pages of hugetlb pools")),
        Some(Ok(())) => panic!("the block went off line"),
        None => println!("skipped: the pool grew elsewhere"),
    }
}

#[test]
fn a_block_that_a_drop_could_not_give_back_goes_with_the_next_work() {
    let Some(good) = Good::new() else { return };
    let this = this_process();
    if good.leave(this, true) {
        leave(&[good.block]);
        let work = begin().unwrap();
        assert_eq!(good.seen(&work), (BlockState::Online, Some(good.zone), None));
    }
}

#[test]
fn a_dry_run_of_the_bank_changes_no_block() {
    let Some(_good) = Good::new() else { return };
    let text = || std::fs::metadata("/run/glebe/blocks").and_then(|file| file.modified()).ok();
    let before = text();
    // More than fits, so that a search for the last blocks fails.
    let len = Bytes::new(bank::movable().unwrap().memory.get() / 5);
    let notes = bank::add(len, true).map(|change| change.notes);
    assert_eq!(text(), before);
    let is_short = match &notes {
        Ok(notes) => notes.iter().any(|note| note.contains("the longest stretch")),
        Err(error) => matches!(error, Error::BlocksShort { .. }),
    };
    if !is_short {
        println!("skipped: no search failed for want of blocks: {notes:?}");
    }
}

#[test]
fn a_block_of_the_bank_that_cannot_come_on_line_stops_no_work() {
    let Some(_good) = Good::new() else { return };
    let mut work = begin().unwrap();
    let number = u64::MAX >> 8; // not there, so the kernel cannot put it on line
    let line = Line { block: number, zone: Zone::Normal, owner: Owner::Bank };
    let block = MemoryBlock { number, state: BlockState::Offline, zone: None, node: None };
    work.mend_one(line, block).unwrap();
    let note = work.notes.last().unwrap();
    assert!(note.contains(&number.to_string()) && note.contains("is off line"), "{note}");
}

#[test]
fn the_search_time_limits_the_wait_for_the_lock() {
    let Some(_good) = Good::new() else { return };
    let time = Duration::from_millis(50);
    let (lock, began) = (begin().unwrap(), std::time::Instant::now());
    let options = || Contig::options().source(Source::Blocks).search_time(time);
    let build = || options().require_run(Bytes::mib(4)).build(Bytes::mib(4));
    let refused = std::thread::scope(|scope| scope.spawn(build).join().unwrap());
    let took = began.elapsed();
    drop(lock);
    let error = refused.map(|memory| memory.proof()).unwrap_err();
    assert!(matches!(&error, Error::Os(why) if why.kind() == ErrorKind::TimedOut), "{error}");
    assert!(took < LOCK / 2, "{took:?}");
}
