//! Implements sharers: threads that mark and unmark common pages.

use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::Duration;

use super::oracle::{Contents, State};
use super::own::{lost, offset, priority};
use super::{range, Counts, Shared, SHARED};
use glebe_testing::stressed::{fill, page_buffer, Random};

const REST_MAX: Duration = Duration::from_micros(1500);
const LOOK_EVERY: u64 = 64;

pub(super) fn share(shared: &Shared, id: u64) -> Counts {
    let mut counts = Counts::default();
    let mut random = Random(id << 40 | 7);
    if id == 0 {
        look(shared, &mut counts);
    }
    while !shared.stopped() {
        for _ in 0..LOOK_EVERY {
            let _common = shared.sharing.read();
            let _step = shared.step.read();
            let at = random.below(SHARED);
            let pages = 1 + random.below((SHARED - at).min(256));
            step(shared, &mut random, at, pages);
            if shared.stopped() {
                break;
            }
            random.rest(REST_MAX);
        }
        look(shared, &mut counts);
    }
    counts
}

fn step(shared: &Shared, random: &mut Random, at: u64, pages: u64) {
    if random.below(5) < 3 {
        let pages = range(shared.base() + at, pages);
        return shared.common().region.mark(pages, priority(random)).unwrap();
    }
    unmark(shared, at, pages);
}

fn unmark(shared: &Shared, at: u64, pages: u64) {
    let purged = shared.common().region.unmark(range(shared.base() + at, pages)).unwrap();
    let lost = lost(&purged, shared.base() + at, pages).unwrap();
    for (page, _) in (at..).zip(lost).filter(|(_, lost)| *lost) {
        shared.told[page as usize].store(true, Ordering::Relaxed);
    }
}

fn look(shared: &Shared, counts: &mut Counts) {
    let _alone = shared.sharing.write();
    let _step = shared.step.read();
    let mut versions = shared.versions.lock().unwrap_or_else(PoisonError::into_inner);
    unmark(shared, 0, SHARED);
    let mut bytes = page_buffer();
    for page in 0..SHARED {
        let version = versions[page as usize];
        let told = shared.told[page as usize].swap(false, Ordering::Relaxed);
        let region = &shared.common().region;
        region.read(offset(shared.base() + page), &mut bytes).unwrap();
        let was = State { version, marked: true, empty: version == 0, dropped: false };
        let is = was.judge(&bytes, shared.base() + page);
        counts.judge_unmarked(was, told, is);
        if is == Contents::Right && !was.empty {
            continue;
        }
        versions[page as usize] += 1;
        fill(&mut bytes, shared.base() + page, version + 1);
        region.write(offset(shared.base() + page), &bytes).unwrap();
    }
}
