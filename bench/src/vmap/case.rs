//! [`Case`] makes requests to a space. [`State`] is where every contestant starts.
//!
//! The first seven cases bear the names of the kernel's vmalloc test, but map nothing. The other
//! cases cover what the first seven leave out. Unit: pages.

use std::hint::black_box;
use std::iter;

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};

use super::space::Space;
use crate::reserve::keyed::Random;

/// Pages of the space.
pub(super) const END: u64 = 1 << 31;
/// Binary logarithm of a page's bytes, because the kernel's test gives alignments in bytes.
pub(super) const PAGE_LOG: u64 = 12;
/// Requests whose held blocks are prefetched together.
const AHEAD: usize = 8;

/// Function that makes a case's first state of n blocks. The second argument is the aged state.
type Layout = fn(usize, &State) -> State;

const PACKED: Layout = |n, _| State::packed((0..n).map(|_| (1, true)));
const HOLES: Layout = |n, _| State::packed((0..2 * n).map(|i| (1, i % 2 == 0)));
/// A held page, then blocks of 8 pages, free and held by turns, each a page past a multiple of 8.
const SHIFTED: Layout =
    |n, _| State::packed(iter::once((1, true)).chain((0..n).map(|i| (8, i % 2 == 1))));
const AGED: Layout = |_, aged| aged.clone();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    /// Frees each block at once.
    One,
    /// Frees two blocks after both were allocated.
    Two,
    /// Frees a held block first and keeps the new one.
    Churn,
}

/// Function that returns the length and alignment, in pages, of the n-th request. n counts from 1.
type Draw = fn(u64, &mut Random) -> (u64, u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) layout: Layout,
    service: Service,
    draw: Draw,
}

const fn case(name: &'static str, layout: Layout, service: Service, draw: Draw) -> Case {
    Case { name, layout, service, draw }
}

const TO_100: Draw = |_, random| (1 + random.below(100), 1);

pub(super) const FIX_ALIGN: &str = "fix_align_alloc";
pub(super) const ADVERSARY: &str = "adversary";
pub(super) const CASES: [Case; 9] = [
    case("fix_size_alloc", PACKED, Service::One, |_, _| (1, 1)),
    case("full_fit_alloc", HOLES, Service::One, |_, _| (1, 1)),
    case("long_busy_list_alloc", PACKED, Service::Two, |nth, _| {
        (if nth % 2 == 1 { 100 } else { 1 }, 1)
    }),
    case("random_size_alloc", AGED, Service::One, TO_100),
    case(FIX_ALIGN, AGED, Service::One, |_, _| (5, 8)),
    case("random_size_align_alloc", AGED, Service::One, |_, random| {
        let byte = random.below(256);
        (byte % 10 + 1, 1 << (byte % 23).saturating_sub(PAGE_LOG))
    }),
    // Alignments go up to 2^51. For an alignment beyond the space, only position 0 fits.
    case("align_shift_alloc", AGED, Service::One, |nth, _| {
        (1, 1 << (nth % 64).saturating_sub(PAGE_LOG))
    }),
    case("churn", AGED, Service::Churn, TO_100),
    // All holes between blocks are long enough but badly aligned.
    case(ADVERSARY, SHIFTED, Service::One, |_, _| (8, 8)),
];

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    align: u64,
    len: u32,
    victim: u32,
}

/// A block; length 0 means no block.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenBlock {
    place: u32,
    len: u32,
}

impl Case {
    /// Returns `count` requests, equal for equal states.
    pub(super) fn requests(&self, state: &State, count: usize) -> Vec<Request> {
        let mut random = Random::new(count as u64);
        let request = |nth| {
            let victim = random.below(state.held.len() as u64) as u32;
            let (len, align) = (self.draw)(nth, &mut random);
            Request { align, len: len as u32, victim }
        };
        (1..=count as u64).map(request).collect()
    }

    #[inline]
    pub(super) fn serve(
        &self,
        space: &mut dyn Space,
        held: &mut [TakenBlock],
        requests: &[Request],
        mut tell: impl FnMut(Option<u32>),
    ) {
        if self.service == Service::Churn {
            for (nth, request) in requests.iter().enumerate() {
                if nth % AHEAD == 0 {
                    // Prefetches the harness's own table, so that no contestant waits for it.
                    for request in requests[nth..].iter().take(AHEAD) {
                        black_box(held[request.victim as usize].len);
                    }
                }
                let block = &mut held[request.victim as usize];
                if block.len > 0 {
                    space.free(block.place, block.len.into());
                    block.len = 0;
                }
                let answer = space.alloc(request.len.into(), request.align);
                if let Some(place) = answer {
                    *block = TakenBlock { place, len: request.len };
                }
                tell(answer);
            }
            return;
        }
        for group in requests.chunks(if self.service == Service::Two { 2 } else { 1 }) {
            let mut answers = [None; 2];
            for (request, answer) in group.iter().zip(&mut answers) {
                *answer = space.alloc(request.len.into(), request.align);
                tell(*answer);
            }
            for (request, answer) in group.iter().zip(answers) {
                if let Some(place) = answer {
                    space.free(place, request.len.into());
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) free: Vec<Extent>,
    pub(super) held: Vec<Extent>,
}

impl State {
    /// Places blocks side by side, held or free. Everything after the last held block is free.
    fn packed(blocks: impl Iterator<Item = (u64, bool)>) -> Self {
        let (mut free, mut held, mut at) = (Vec::new(), Vec::new(), 0);
        for (len, is_held) in blocks {
            let to = if is_held { &mut held } else { &mut free };
            to.push(Extent::new(at, len).expect("not empty"));
            at += len;
        }
        let used_end = held.last().map_or(0, |last| last.end());
        free.retain(|extent| extent.start() < used_end);
        free.push(Extent::new(used_end, END - used_end).expect("room behind"));
        Self { free, held }
    }

    /// Places n blocks of 1 to 100 pages by exact first fit, then replaces a random block 4n times.
    pub(super) fn aged(n: usize) -> Self {
        let mut random = Random::new(n as u64);
        let span = Extent::new(0, END).expect("not empty");
        let mut tree = FreeTree::with_classes(span, 2 * n + 2, Classes::None).expect("memory");
        tree.free(span).expect("empty before");
        let mut alloc = |tree: &mut FreeTree| {
            let found = tree.alloc(1 + random.below(100), 1, None).expect("in order");
            (found.expect("room"), random.below(n as u64) as usize)
        };
        let mut held: Vec<Extent> = (0..n).map(|_| alloc(&mut tree).0).collect();
        let mut victim = 0;
        for _ in 0..4 * n {
            tree.free(held[victim]).expect("held");
            (held[victim], victim) = alloc(&mut tree);
        }
        Self { free: tree.iter().collect(), held }
    }

    pub(super) fn blocks(&self) -> Vec<TakenBlock> {
        let block =
            |held: &Extent| TakenBlock { place: held.start() as u32, len: held.len() as u32 };
        self.held.iter().map(block).collect()
    }
}
