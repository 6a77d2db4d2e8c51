//! Sorts numbers in a [`Region`] whose budget is a quarter of their size.
//!
//! [`Region::resident`] keeps a run in memory while it is sorted. The merge reads pieces of runs by
//! [`Region::read_at`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{stdout, Write};
use std::time::Instant;

use glebe::swap::{Region, Store, SwapError};
use glebe::Bytes;

const BUDGET: Bytes = Bytes::mib(8);
const NUMBERS: u64 = 4 << 20;
/// Half the budget, because other pages need some too.
const RUN: Bytes = Bytes::mib(4);
const PIECE: usize = 64 << 10;
const WORD: u64 = size_of::<u64>() as u64;

/// Returns pseudo-random numbers (xorshift; Marsaglia 2003).
fn numbers() -> impl Iterator<Item = u64> {
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    std::iter::repeat_with(move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x >> 24
    })
    .take(NUMBERS as usize)
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn sort_run(region: &Region, at: Bytes, len: Bytes) -> Result<(), SwapError> {
    let mut run = region.resident(at, len)?;
    let mut sorted: Vec<u64> = run.chunks_exact(8).map(number).collect();
    sorted.sort_unstable();
    for (to, number) in run.chunks_exact_mut(8).zip(sorted) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    Ok(())
}

struct Run {
    at: Bytes,
    end: Bytes,
    piece: Vec<u8>,
    next: usize,
}

impl Run {
    fn next(&mut self, region: &Region) -> Result<Option<u64>, SwapError> {
        if self.next == self.piece.len() {
            let len = PIECE.min((self.end - self.at).as_usize());
            self.piece.resize(len, 0);
            region.read_at(self.at, &mut self.piece)?;
            self.at = self.at + Bytes::new(len as u64);
            self.next = 0;
        }
        let bytes = self.piece.get(self.next..self.next + 8);
        self.next += 8;
        Ok(bytes.map(number))
    }
}

fn merge(
    region: &Region,
    runs: &[(Bytes, Bytes)],
    mut to: impl FnMut(u64),
) -> Result<(), SwapError> {
    let run = |&(at, len): &(Bytes, Bytes)| Run { at, end: at + len, piece: Vec::new(), next: 0 };
    let mut runs: Vec<Run> = runs.iter().map(run).collect();
    let mut heads = BinaryHeap::new();
    for (nth, run) in runs.iter_mut().enumerate() {
        heads.extend(run.next(region)?.map(|number| Reverse((number, nth))));
    }
    while let Some(Reverse((least, nth))) = heads.pop() {
        to(least);
        heads.extend(runs[nth].next(region)?.map(|number| Reverse((number, nth))));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let len = Bytes::new(NUMBERS * WORD);
    let region = match Store::options().pool_limit(Bytes::mib(48)).build_region(len, BUDGET) {
        Err(SwapError::Os(why)) if why.call() == "userfaultfd" => {
            return Ok(writeln!(stdout(), "skipped: swap_sort ({why})")?);
        }
        made => made?,
    };
    let begin = Instant::now();
    let mut at = Bytes::ZERO;
    let mut piece = Vec::with_capacity(PIECE);
    for number in numbers() {
        piece.extend(number.to_le_bytes());
        if piece.len() == PIECE {
            region.write_at(at, &piece)?;
            at = at + Bytes::new(PIECE as u64);
            piece.clear();
        }
    }
    let starts = (0..len.get()).step_by(RUN.as_usize()).map(Bytes::new);
    let runs: Vec<_> = starts.map(|at| (at, RUN.min(len - at))).collect();
    runs.iter().try_for_each(|&(at, len)| sort_run(&region, at, len))?;
    let mut sorted = Vec::with_capacity(NUMBERS as usize);
    merge(&region, &runs, |number| sorted.push(number))?;
    let time = begin.elapsed();

    let mut expected: Vec<u64> = numbers().collect();
    expected.sort_unstable();
    assert!(sorted == expected, "the numbers are not those that were written, in order");
    let stats = region.stats();
    assert!(stats.resident <= stats.budget && stats.loaded > 0, "{stats}");
    let loaded = stats.loaded;
    Ok(writeln!(stdout(), "{len} sorted within {BUDGET}: {time:.2?}, {loaded} pages came back")?)
}
