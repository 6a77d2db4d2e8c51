//! [`Stock`] has bricks that are zeroed, unmapped, and ready to be lent.

use std::collections::BTreeMap;

use glebe::internal::ClosedBlock;

/// Bricks by position. All have the same number of pages.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    bricks: BTreeMap<u64, Ready>,
}

#[derive(Debug)]
struct Ready {
    frame: Option<u64>,
    is_run: bool,
    block: ClosedBlock,
}

impl Stock {
    pub(crate) fn len(&self) -> usize {
        self.bricks.len()
    }

    pub(crate) fn put(&mut self, block: ClosedBlock) {
        let frame = block.frames().next().flatten().map(|pfn| pfn.get());
        self.bricks.insert(block.start(), Ready { frame, is_run: block.is_run(), block });
    }

    /// Takes `count` bricks: the first adjacent ones whose first frame is a multiple of `align`
    /// frames, else the lowest unless they must be `contiguous`. O(stock).
    pub(crate) fn take(
        &mut self,
        count: usize,
        contiguous: bool,
        align: u64,
    ) -> Option<Vec<ClosedBlock>> {
        if count > self.bricks.len() {
            return None;
        }
        let run = self.run(count, align);
        if run.is_none() && contiguous {
            return None;
        }
        let places: Vec<u64> = match run {
            Some(first) => self.bricks.range(first..).map(|(at, _)| *at).take(count).collect(),
            None => self.bricks.keys().copied().take(count).collect(),
        };
        let taken = places.iter().filter_map(|at| self.bricks.remove(at));
        Some(taken.map(|ready| ready.block).collect())
    }

    /// Returns the longest run of adjacent frames, in bricks.
    pub(crate) fn longest(&self) -> usize {
        let (mut longest, mut now, mut last) = (0, 0, None);
        for (at, ready) in &self.bricks {
            let follows = last.is_some_and(|last| ready.follows(last, *at));
            now = if follows { now + 1 } else { usize::from(ready.is_run) };
            longest = longest.max(now);
            last = Some((*at, ready));
        }
        longest
    }

    fn run(&self, count: usize, align: u64) -> Option<u64> {
        let (mut first, mut len, mut last) = (0, 0, None);
        for (at, ready) in &self.bricks {
            if last.is_some_and(|last| ready.follows(last, *at)) {
                len += 1;
            } else if ready.is_run && ready.frame.unwrap_or(*at) % align.max(1) == 0 {
                (first, len) = (*at, 1);
            } else {
                len = 0;
            }
            // A run continues only behind an aligned beginning.
            last = (len > 0).then_some((*at, ready));
            if len == count {
                return Some(first);
            }
        }
        None
    }

    pub(crate) fn take_all(&mut self) -> Vec<ClosedBlock> {
        std::mem::take(&mut self.bricks).into_values().map(|ready| ready.block).collect()
    }
}

impl Ready {
    /// Hidden frames prove nothing, so then no brick follows another.
    fn follows(&self, (at, last): (u64, &Self), here: u64) -> bool {
        let pages = last.block.pages().get();
        let is_next = last.frame.is_some() && last.frame.map(|f| f + pages) == self.frame;
        here == at + pages && is_next && last.is_run && self.is_run
    }
}
