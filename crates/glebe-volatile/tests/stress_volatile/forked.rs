//! Forks during the stress: a child finds each page lost or whole.

use std::time::{Duration, Instant};

use glebe_testing::time::slowed;

use super::ground::Ground;
use super::own::{lost, offset};
use super::{range, Counts, Shared, GRACE};
use glebe_testing::stressed::{in_child, page_buffer, ChildEnd};

const FORK_EVERY: Duration = Duration::from_millis(200);

pub(super) fn fork_until(shared: &Shared, time: Duration) {
    let begin = Instant::now();
    let is_over = || {
        let gone = begin.elapsed();
        gone >= time
            && (gone >= time + slowed(GRACE) || shared.grounds.iter().all(Ground::has_shown))
    };
    for nth in 0_u64.. {
        if is_over() || shared.stopped() {
            break;
        }
        std::thread::sleep(FORK_EVERY);
        fork(shared, nth % 2 == 0);
        shared.grounds.iter().for_each(Ground::look_for_huge_pages);
    }
}

/// Forks a child that unmarks all owned pages. With `rest`, owner threads pause, so the child also
/// checks the contents. Without `rest`, the child checks only for failed calls.
fn fork(shared: &Shared, rest: bool) {
    let mut page = page_buffer();
    let alone = rest.then(|| shared.step.write());
    let ended = in_child(|| {
        shared.grounds.iter().fold(0, |bits, ground| bits | faults(ground, &mut page, rest))
    });
    drop(alone);
    assert_eq!(
        ended,
        ChildEnd::Exit(0),
        "lost writes 1, stale reads 2, false intact 4, false purged 8"
    );
}

const FAILED: u8 = 16;

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
    let faults = counts.faults().into_iter().chain([u64::from(failed)]);
    faults.enumerate().map(|(bit, count)| u8::from(count > 0) << bit).sum()
}
