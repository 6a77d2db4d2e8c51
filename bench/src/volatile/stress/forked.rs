//! Forks in the mix: the child unmarks what it inherits, and finds it told or whole.

use std::time::Duration;

use super::ground::Ground;
use super::own::{lost, offset};
use super::{range, Counts, Shared, GRACE};
use crate::clock;
use crate::reserve::fork::{in_child, End};
use crate::reserve::page_buffer;

const FORK_EVERY: Duration = Duration::from_millis(200);

/// Forks now and then until the time is over, and a while longer if regions have shown nothing.
pub(super) fn fork_until(shared: &Shared, time: Duration) -> Counts {
    let mut counts = Counts::default();
    let start = clock::wall();
    loop {
        let gone = clock::wall().saturating_sub(start);
        let shown = || shared.grounds.iter().all(Ground::has_shown);
        if gone >= time && (gone >= time + GRACE || shown()) {
            break;
        }
        std::thread::sleep(FORK_EVERY);
        fork(shared, counts.forks % 2 == 0, &mut counts);
        shared.look_for_huge_pages();
    }
    counts
}

/// With `rest` nobody is in the middle of a step, so that the child knows what every page must
/// hold; without, it only has to come through.
fn fork(shared: &Shared, rest: bool, counts: &mut Counts) {
    let mut page = page_buffer();
    let alone = rest.then(|| shared.step.write());
    let ended = in_child(|| {
        shared.grounds.iter().fold(0, |bits, ground| bits | faults(ground, &mut page, rest))
    });
    drop(alone);
    counts.forks += 1;
    match ended {
        Ok(End::Exit(0)) => {}
        Ok(End::Exit(bits)) => {
            if bits & !FAILED != 0 {
                counts.error("a forked child", format!("faults {bits:#x}, fork {}", counts.forks));
            }
            counts.lost_writes += u64::from(bits & LOST_WRITE != 0);
            counts.stale_reads += u64::from(bits & STALE_READ != 0);
            counts.false_intact += u64::from(bits & FALSE_INTACT != 0);
            counts.false_purged += u64::from(bits & FALSE_PURGED != 0);
            if bits & FAILED != 0 {
                counts.error("a forked child", "a call failed");
            }
        }
        Ok(end) => counts.error("a forked child", end),
        Err(e) => counts.error("fork", e),
    }
}

const LOST_WRITE: u8 = 1;
const STALE_READ: u8 = 2;
const FALSE_INTACT: u8 = 4;
const FALSE_PURGED: u8 = 8;
const FAILED: u8 = 16;

/// In a child: one bit for each kind of fault.
fn faults(ground: &Ground, bytes: &mut [u8], rest: bool) -> u8 {
    let own = ground.own();
    let Ok(purged) = ground.region.unmark(range(0, own)) else { return FAILED };
    let Ok(lost) = lost(&purged, 0, own) else { return FAILED };
    let mut counts = Counts::default();
    let mut failed = false;
    for (page, lost) in (0..own).zip(lost) {
        failed |= ground.region.read(offset(page), bytes).is_err();
        if rest {
            let was = ground.oracle.state(page);
            counts.judge_unmarked(was, lost, ground.oracle.judge(was, bytes, page));
        }
    }
    let bit = |count: u64, bit: u8| if count > 0 { bit } else { 0 };
    bit(counts.lost_writes, LOST_WRITE)
        | bit(counts.stale_reads, STALE_READ)
        | bit(counts.false_intact, FALSE_INTACT)
        | bit(counts.false_purged, FALSE_PURGED)
        | bit(u64::from(failed), FAILED)
}
