//! [`Case`]: what is asked of a space, again and again.
//!
//! The first eight are those of the kernel's vmalloc test by name, over pure positions: nothing is
//! mapped or touched. The rest show what these leave out. Units: pages.

use glebe::extent::Extent;

use crate::reserve::keyed::Random;

use super::space::Space;
use super::state::State;

/// Logarithm of the bytes of a page, by which the kernel's test asks for alignments.
pub(super) const PAGE_LOG: u64 = 12;

/// Requests of which the blocks are looked up together.
const AHEAD: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// One page; no hole.
    FixSize,
    /// One page; every second page is a hole that it fits exactly.
    FullFit,
    /// 100 pages and one page; no hole.
    LongBusyList,
    /// 1 to 100 pages; aged.
    RandomSize,
    /// 5 pages at a multiple of 8; aged.
    FixAlign,
    /// 1 to 10 pages at a multiple of up to 1024; aged.
    RandomSizeAlign,
    /// 1 page at a multiple of up to 2^51, most of which do not exist; aged.
    AlignShift,
    /// 100 pages and one page; as many holes as blocks, of 1 to 8 pages both.
    BusyFrag,
    /// 1 to 100 pages in a window of a 64th, anywhere; aged.
    Window,
    /// A block freed, 1 to 100 pages allocated; aged.
    Churn,
    /// 8 pages at a multiple of 8; the holes are of 8 pages and lie badly, all of them.
    Adversary,
}

/// What is asked for, in few bytes, since thousands lie in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    align: u64,
    len: u32,
    victim: u32,
    window_start: u32,
    /// 0: no window.
    window_len: u32,
}

impl Request {
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.len.into()
    }

    #[inline]
    pub(super) fn within(&self) -> Option<Extent> {
        Extent::new(self.window_start.into(), self.window_len.into())
    }
}

/// A block, or none if its length is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) place: u32,
    pub(super) len: u32,
}

impl Held {
    /// The held blocks of `state`.
    pub(super) fn all(state: &State) -> Vec<Self> {
        let block = |held: &Extent| Self { place: held.start() as u32, len: held.len() as u32 };
        state.held.iter().map(block).collect()
    }
}

impl Case {
    pub(super) const ALL: [Self; 11] = [
        Self::FixSize,
        Self::FullFit,
        Self::LongBusyList,
        Self::RandomSize,
        Self::FixAlign,
        Self::RandomSizeAlign,
        Self::AlignShift,
        Self::BusyFrag,
        Self::Window,
        Self::Churn,
        Self::Adversary,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::FixSize => "fix_size_alloc",
            Self::FullFit => "full_fit_alloc",
            Self::LongBusyList => "long_busy_list_alloc",
            Self::RandomSize => "random_size_alloc",
            Self::FixAlign => "fix_align_alloc",
            Self::RandomSizeAlign => "random_size_align_alloc",
            Self::AlignShift => "align_shift_alloc",
            Self::BusyFrag => "busy_frag",
            Self::Window => "window",
            Self::Churn => "churn",
            Self::Adversary => "adversary",
        }
    }

    /// So many requests, the same ones for the same state.
    pub(super) fn requests(self, state: &State, count: usize) -> Vec<Request> {
        let mut random = Random::new(count as u64);
        let window = (state.used_end / 64).max(200) as u32;
        let mut nth = 0;
        let one = || {
            nth += 1;
            let victim = random.below(state.held.len() as u64) as u32;
            let (mut window_start, mut window_len) = (0, 0);
            let (len, align) = self.draw(nth, &mut random);
            if self == Self::Window {
                window_start = random.below(state.used_end) as u32;
                window_len = window;
            }
            Request { align, len: len as u32, victim, window_start, window_len }
        };
        std::iter::repeat_with(one).take(count).collect()
    }

    /// Length and alignment of the request of that number, from 1.
    pub(super) fn draw(self, nth: u64, random: &mut Random) -> (u64, u64) {
        match self {
            Self::FixSize | Self::FullFit => (1, 1),
            Self::LongBusyList | Self::BusyFrag => (if nth % 2 == 1 { 100 } else { 1 }, 1),
            Self::RandomSize | Self::Churn | Self::Window => (1 + random.below(100), 1),
            Self::FixAlign => (5, 8),
            Self::RandomSizeAlign => {
                let byte = random.below(256);
                (byte % 10 + 1, 1 << (byte % 23).saturating_sub(PAGE_LOG))
            }
            Self::AlignShift => (1, 1 << (nth % 64).saturating_sub(PAGE_LOG)),
            Self::Adversary => (8, 8),
        }
    }

    /// Requests that are answered before any of their blocks is freed.
    pub(super) fn at_once(self) -> usize {
        match self {
            Self::LongBusyList | Self::BusyFrag => 2,
            _ => 1,
        }
    }

    /// Does what is asked, an allocation and a free for each request, and passes each answer on.
    #[inline]
    pub(super) fn serve(
        self,
        space: &mut dyn Space,
        held: &mut [Held],
        requests: &[Request],
        mut tell: impl FnMut(Option<u32>),
    ) {
        if self == Self::Churn {
            for (nth, request) in requests.iter().enumerate() {
                if nth % AHEAD == 0 {
                    // The caller's own table: no contestant is to wait for it.
                    for request in requests[nth..].iter().take(AHEAD) {
                        std::hint::black_box(held[request.victim as usize].len);
                    }
                }
                let block = &mut held[request.victim as usize];
                if block.len > 0 {
                    space.free(block.place, block.len.into());
                    block.len = 0;
                }
                let answer = space.alloc(request.len(), request.align, request.within());
                if let Some(place) = answer {
                    *block = Held { place, len: request.len };
                }
                tell(answer);
            }
            return;
        }
        for group in requests.chunks(self.at_once()) {
            let mut answers = [None; 2];
            for (request, answer) in group.iter().zip(&mut answers) {
                *answer = space.alloc(request.len(), request.align, request.within());
                tell(*answer);
            }
            for (request, answer) in group.iter().zip(answers) {
                if let Some(place) = answer {
                    space.free(place, request.len());
                }
            }
        }
    }
}
