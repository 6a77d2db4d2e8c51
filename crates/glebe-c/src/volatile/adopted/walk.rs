//! [`Walk`] finds the parts of a range that can become volatile. The walk skips holes, and ends at
//! other memory that cannot become volatile.
//!
//! Positions are base pages, numbered from address 0. Cost: reads the list of mappings once, and
//! again for each shared mapping and each hole. Takes no lock.

use std::ops::Range;

use glebe::extent::Extent;
use glebe::internal::sys::memory::vma::{self, SharedAt};
use glebe::page_size;
use glebe::units::Bytes;
use glebe::volatile::{Error, Refusal};

use crate::runs::between;

#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) pages: Extent,
    /// The mapping, if processes share it.
    pub(super) shared: Option<SharedAt>,
}

pub(super) struct Walk {
    pub(super) parts: Vec<Part>,
    /// The page that stopped the walk, or the end of the last part.
    pub(super) end: u64,
    /// Refusal of the first hole or memory that cannot be volatile, if any.
    pub(super) refused: Option<Error>,
}

pub(super) fn addresses(pages: Extent) -> Range<usize> {
    let page = page_size().bytes().as_usize();
    pages.start() as usize * page..pages.end() as usize * page
}

pub(crate) fn number(addr: usize) -> u64 {
    Bytes::new(addr as u64).pages_down(page_size()).get()
}

pub(super) fn pages_of(of: &SharedAt) -> Option<Extent> {
    between(number(of.range.start), number(of.range.end))
}

impl Walk {
    pub(super) fn over(asked: Extent) -> Result<Self, Error> {
        let mut walk = Self { parts: Vec::new(), end: asked.start(), refused: None };
        let mut at = asked.start();
        while let Some(rest) = between(at, asked.end()) {
            let Err(refusal) = vma::classify_watched(&addresses(rest)) else {
                walk.add(rest, None);
                return Ok(walk);
            };
            let Some(stop) = place_of(&refusal).map(number) else { return Err(refusal.into()) };
            if let Some(part) = between(at, stop) {
                walk.add(part, None);
            }
            let refusal = match shared(refusal) {
                Ok(of) => {
                    let end = number(of.range.end).min(asked.end());
                    between(stop, end).into_iter().for_each(|part| walk.add(part, Some(&of)));
                    at = end.max(stop + 1);
                    continue;
                }
                Err(refusal) => refusal,
            };
            let is_hole = matches!(refusal, Refusal::Unmapped { .. });
            walk.refused.get_or_insert(refusal.into());
            if !is_hole {
                // Holes before the refused memory count as done.
                walk.end = stop;
                return Ok(walk);
            }
            let Some(behind) = between(stop, asked.end()) else { break };
            let next = vma::among(&addresses(behind))?.first().map(|vma| number(vma.start));
            let Some(next) = next else { break };
            at = next.max(stop);
        }
        Ok(walk)
    }

    fn add(&mut self, pages: Extent, shared: Option<&SharedAt>) {
        self.parts.push(Part { pages, shared: shared.cloned() });
        self.end = pages.end();
    }
}

/// Returns the shared mapping of a refusal. Fails if that mapping cannot be volatile, for example
/// because its file is on a disk.
fn shared(refusal: Refusal) -> Result<SharedAt, Refusal> {
    let Refusal::Shared { at, .. } = refusal else { return Err(refusal) };
    vma::shared_at(at).map_err(|why| match why {
        Refusal::OnDisk { .. } => refusal,
        other => other,
    })
}

/// Returns the first address of the refused memory, if the refusal has it.
pub(super) fn place_of(refusal: &Refusal) -> Option<usize> {
    match refusal {
        Refusal::Unmapped { at }
        | Refusal::Hugetlb { at, .. }
        | Refusal::Special { at, .. }
        | Refusal::Shared { at, .. }
        | Refusal::FilePrivate { at, .. }
        | Refusal::Locked { at }
        | Refusal::ReadOnly { at, .. }
        | Refusal::Own { at }
        | Refusal::Watched { at, .. } => Some(*at),
        _ => None,
    }
}
