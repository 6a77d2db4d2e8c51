//! [`Case`]: what is asked of a space, again and again.
//!
//! The first eight are those of the kernel's vmalloc test by name, over pure positions: nothing is
//! mapped or touched. The rest show what these leave out. Units: pages.

use glebe::extent::Extent;

use crate::reserve::keyed::Random;

use super::space::Space;
use super::state::State;

/// Logarithm of the bytes of a page, by which the kernel's test asks for alignments.
const PAGE_LOG: u64 = 12;

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

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    len: u64,
    align: u64,
    within: Option<Extent>,
    victim: usize,
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
        let window = (state.used_end / 64).max(200);
        let mut nth = 0;
        let one = || {
            nth += 1;
            let victim = random.below(state.held.len() as u64) as usize;
            let mut within = None;
            let (len, align) = match self {
                Self::FixSize | Self::FullFit => (1, 1),
                Self::LongBusyList | Self::BusyFrag => (if nth % 2 == 1 { 100 } else { 1 }, 1),
                Self::RandomSize | Self::Churn => (1 + random.below(100), 1),
                Self::FixAlign => (5, 8),
                Self::RandomSizeAlign => {
                    let byte = random.below(256);
                    (byte % 10 + 1, 1 << (byte % 23).saturating_sub(PAGE_LOG))
                }
                Self::AlignShift => (1, 1 << (nth % 64_u64).saturating_sub(PAGE_LOG)),
                Self::Window => {
                    within = Extent::new(random.below(state.used_end), window);
                    (1 + random.below(100), 1)
                }
                Self::Adversary => (8, 8),
            };
            Request { len, align, within, victim }
        };
        std::iter::repeat_with(one).take(count).collect()
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
        held: &mut [Option<Extent>],
        requests: &[Request],
        mut tell: impl FnMut(Option<u64>),
    ) {
        if self == Self::Churn {
            for request in requests {
                let place = &mut held[request.victim];
                if let Some(old) = place.take() {
                    space.free(old.start(), old.len());
                }
                let answer = space.alloc(request.len, request.align, request.within);
                *place = answer.and_then(|start| Extent::new(start, request.len));
                tell(answer);
            }
            return;
        }
        for group in requests.chunks(self.at_once()) {
            let mut answers = [None; 2];
            for (request, answer) in group.iter().zip(&mut answers) {
                *answer = space.alloc(request.len, request.align, request.within);
                tell(*answer);
            }
            for (request, answer) in group.iter().zip(answers) {
                if let Some(start) = answer {
                    space.free(start, request.len);
                }
            }
        }
    }
}
