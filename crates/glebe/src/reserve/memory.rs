//! [`Memory`] of a reserve that can grow is a window of addresses with parts mapped in it.
//!
//! A part is the first memory or a piece that a grow added, less the pages given back. Unit: base
//! pages from the window's start, or [`Bytes`]. Locks: `turn` during a resize, then `parts`.

use std::sync::Arc;

use super::closed::{BrickPlace, Odd};
use super::error::ReserveError;
use super::near::NodeTeller;
use super::positions::resize::{filled, runs_of_bricks};
use super::{Footing, GRANULE};
use crate::contig::internal::{self, joined_nodes, push_run};
use crate::contig::{
    self, Certificate, Contig, Drift, HeldBy, Location, Node, Options, Proof, Run, Source,
};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::extents::{within, without};
use glebe_os::internal::mapping::{BrickSize, Bricks, Window};
use glebe_os::internal::sync::{lock, try_lock, Mutex, MutexGuard};
use glebe_os::internal::sys::memory::brick::Brick;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize, Pages, Pfn};

const WINDOW_ALIGN: PageSize = PageSize::new(1 << 30).unwrap();

#[derive(Clone, Debug)]
pub(super) struct MemoryPart {
    start: u64,
    left: Vec<Extent>,
    contig: Arc<Contig>,
}

#[derive(Debug)]
pub(super) struct Memory {
    window: Window,
    wishes: Options,
    /// Locked during a resize. Number of registrations; a resize needs 0.
    turn: Mutex<u64>,
    parts: Mutex<Vec<MemoryPart>>,
}

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

impl MemoryPart {
    fn extent(&self) -> Extent {
        let pages = self.contig.len().pages_down(page_size()).get();
        Extent::new(self.start, pages).expect("memory is not empty")
    }

    fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs_in(&self.left)
    }

    fn runs_in<'a>(&'a self, left: &'a [Extent]) -> impl Iterator<Item = Run> + 'a {
        let cut = move |run: &Run| {
            let start = self.start + run.pages.start();
            let whole = Extent::new(start, run.pages.len()).expect("not empty");
            let pfn = run.pfn;
            within(left, whole).map(move |pages| {
                let behind = Pages::new(pages.start() - start);
                Run { pages, pfn: pfn.map(|pfn| pfn.plus(behind)) }
            })
        };
        self.contig.runs().iter().flat_map(cut)
    }

    fn nodes(&self, teller: NodeTeller) -> Result<Vec<(Extent, Node)>, OsError> {
        let cut = |(pages, node): (Extent, Node)| {
            let whole = Extent::new(self.start + pages.start(), pages.len()).expect("not empty");
            within(&self.left, whole).map(move |pages| (pages, node))
        };
        Ok((teller.pages)(&self.contig)?.into_iter().flat_map(cut).collect())
    }
}

fn nodes_of(parts: &[MemoryPart], teller: NodeTeller) -> Result<Vec<(Extent, Node)>, OsError> {
    let all: Result<Vec<_>, OsError> = parts.iter().map(|part| part.nodes(teller)).collect();
    let mut all: Vec<(Extent, Node)> = all?.into_iter().flatten().collect();
    all.sort_unstable_by_key(|(pages, _)| pages.start());
    Ok(joined_nodes(all))
}

fn runs_of(parts: &[MemoryPart]) -> Vec<Run> {
    let mut all: Vec<Run> = parts.iter().flat_map(MemoryPart::runs).collect();
    all.sort_unstable_by_key(|run| run.pages.start());
    let mut present: Vec<Extent> = parts.iter().flat_map(|part| part.left.clone()).collect();
    present.sort_unstable_by_key(|extent| extent.start());
    let mut joined = Vec::with_capacity(all.len());
    for run in filled(&all, &present) {
        push_run(&mut joined, run);
    }
    joined
}

fn proof_of(parts: &[MemoryPart]) -> Proof {
    parts.iter().map(|part| part.contig.proof()).fold(Proof::Frames, Proof::weaker)
}

fn footing_of(parts: &[MemoryPart]) -> Footing {
    let of = |part: &MemoryPart| Footing {
        source: part.contig.source(),
        held_by: part.contig.held_by(),
        len: bytes(part.left.iter().map(|left| left.len()).sum()),
    };
    let common = parts.iter().map(of).reduce(|all, next| Footing {
        source: if all.source == next.source { all.source } else { Source::Divided },
        held_by: if all.held_by == next.held_by { all.held_by } else { HeldBy::Nothing },
        len: all.len + next.len,
    });
    common.expect("the last granule stays")
}

impl Memory {
    pub(super) fn new(
        contig: Contig,
        room: Bytes,
        wishes: Options,
    ) -> Result<(Self, Arc<Contig>), ReserveError> {
        if contig.file().is_some() {
            let why = "its pages are a file's";
            return Err(ReserveError::FixedLen { why });
        }
        let window = Window::reserve(room, WINDOW_ALIGN)?;
        let contig = Arc::new(internal::moved_into(contig, &window, Bytes::ZERO)?);
        let part = MemoryPart::new(Arc::clone(&contig), 0);
        let (turn, parts) = (Mutex::new(0), Mutex::new(vec![part]));
        Ok((Self { window, wishes, turn, parts }, contig))
    }

    /// Begins a resize, which ends with the guard.
    pub(super) fn turn(&self) -> Result<MutexGuard<'_, u64>, ReserveError> {
        let turn = lock(&self.turn);
        match *turn {
            0 => Ok(turn),
            _ => Err(ReserveError::FixedLen { why: "it is registered with a device" }),
        }
    }

    /// Returns true if a device has the addresses. Does not wait for a resize.
    pub(super) fn is_kept(&self) -> bool {
        try_lock(&self.turn).is_some_and(|keepers| *keepers > 0)
    }

    /// Returns the number of registrations.
    #[cfg(feature = "cuda")]
    pub(super) fn keepers(&self) -> MutexGuard<'_, u64> {
        lock(&self.turn)
    }

    pub(super) fn room(&self) -> Bytes {
        self.window.len()
    }

    pub(super) fn present(&self) -> Pages {
        self.footing().len.pages_down(page_size())
    }

    pub(super) fn end(&self) -> u64 {
        let parts = lock(&self.parts);
        parts.iter().flat_map(|part| &part.left).map(|extent| extent.end()).max().unwrap_or(0)
    }

    fn all(&self) -> Vec<Extent> {
        Extent::new(0, self.room().pages_down(page_size()).get()).into_iter().collect()
    }

    fn absent(&self) -> Vec<Extent> {
        let parts = lock(&self.parts);
        let left = parts.iter().flat_map(|part| &part.left);
        left.fold(self.all(), |rest, left| without(&rest, *left))
    }

    /// Returns the pages with memory, in order; no two extents adjoin.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.absent().iter().fold(self.all(), |rest, absent| without(&rest, *absent))
    }

    /// Returns places without memory at multiples of `align`: in the shortest gap that is long
    /// enough, or in several. The error is the number of pages that fit.
    pub(super) fn places(&self, len: u64, align: u64) -> Result<Vec<Extent>, u64> {
        let aligned = |absent: &Extent| {
            let start = absent.start().next_multiple_of(align);
            Extent::new(start, absent.end().checked_sub(start)?)
        };
        let mut free: Vec<Extent> = self.absent().iter().filter_map(aligned).collect();
        free.sort_by_key(|extent| extent.len());
        let (mut found, mut missing) = (Vec::new(), len);
        while missing > 0 {
            let enough = free.iter().find(|extent| extent.len() >= missing).copied();
            let Some(from) = enough.or_else(|| free.pop()) else { return Err(len - missing) };
            let part = if from.len() < missing { from.len() / align * align } else { missing };
            found.extend(Extent::new(from.start(), part));
            missing -= part;
        }
        Ok(found)
    }

    pub(super) fn had(&self, place: Extent) -> Result<MemoryPart, ReserveError> {
        let len = bytes(place.len());
        let contig = internal::options_for_more(&self.wishes, len).build(len)?;
        let unit = internal::return_unit(&contig).unwrap_or(page_size());
        if contig.len() != len || place.start() % unit.bytes().pages_down(page_size()).get() != 0 {
            return Err(ReserveError::BadLen { given: len, granule: unit.bytes() });
        }
        let contig = internal::moved_into(contig, &self.window, bytes(place.start()))?;
        Ok(MemoryPart::new(Arc::new(contig), place.start()))
    }

    pub(super) fn give_up(&self, parts: Vec<MemoryPart>) {
        for part in parts {
            let extent = part.extent();
            // If the kernel refuses, the mapping stays until other memory replaces it.
            let _ = self.window.vacate(bytes(extent.start()), bytes(extent.len()));
        }
    }

    pub(super) fn runs_with(&self, more: &mut Vec<MemoryPart>) -> (Vec<Run>, Proof) {
        let mut parts = lock(&self.parts);
        let had = parts.len();
        parts.append(more);
        let (runs, proof) = (runs_of(&parts), proof_of(&parts));
        more.extend(parts.drain(had..));
        drop(parts);
        (runs_of_bricks(runs, self.brick()), proof)
    }

    pub(super) fn longest_in(&self, extents: &[Extent]) -> Pages {
        let runs = runs_of(&lock(&self.parts));
        let inside = |run: &Run| within(extents, run.pages).map(Extent::len).max().unwrap_or(0);
        Pages::new(runs.iter().map(inside).max().unwrap_or(0).max(1))
    }

    pub(super) fn add(&self, parts: Vec<MemoryPart>) {
        lock(&self.parts).extend(parts);
    }

    pub(super) fn unit(&self) -> Result<PageSize, ReserveError> {
        let parts = lock(&self.parts);
        let mut units = parts.iter().map(|part| internal::return_unit(&part.contig));
        let most = units.try_fold(page_size(), |most, unit| Some(most.max(unit?)));
        most.ok_or(ReserveError::FixedLen { why: "a buffer of a dma-heap is given back whole" })
    }

    /// Gives back `gone`, whole units ([`Memory::unit`]). The addresses stay readable, because
    /// readers may still copy from there.
    pub(super) fn vacate(&self, gone: Extent) -> Result<(), OsError> {
        let mut parts = lock(&self.parts);
        let pinned = |part: &MemoryPart, gone: Extent| within(&part.left, gone).collect::<Vec<_>>();
        let again = |parts: &[MemoryPart]| {
            for part in parts {
                for gone in pinned(part, gone) {
                    let _ = part.repin(gone, true);
                }
            }
        };
        for (nth, part) in parts.iter().enumerate() {
            for piece in pinned(part, gone) {
                part.repin(piece, false).inspect_err(|_| again(&parts[..=nth]))?;
            }
        }
        let vacated = self.window.vacate(bytes(gone.start()), bytes(gone.len()));
        vacated.inspect_err(|_| again(&parts))?;
        for part in parts.iter_mut() {
            pinned(part, gone).into_iter().for_each(|piece| drop(part.take_bricks(piece)));
            part.left = without(&part.left, gone);
        }
        let (kept, empty) = parts.drain(..).partition(|part| !part.left.is_empty());
        *parts = kept;
        drop(parts);
        // Memory of blocks takes the pools' lock when it ends.
        drop::<Vec<MemoryPart>>(empty);
        Ok(())
    }

    /// Returns the size of a brick, or `None` if the memory is not of bricks.
    pub(super) fn brick(&self) -> Option<BrickSize> {
        let first = lock(&self.parts).first().map(|part| Arc::clone(&part.contig))?;
        internal::bricks(&first).map(Bricks::size)
    }

    /// Returns the least length to add: a granule, or a brick if that is longer.
    pub(super) fn least(&self) -> Bytes {
        self.brick().map_or(GRANULE, |size| size.each.bytes().max(GRANULE))
    }

    /// Takes the bricks of `gone` out, with their places. The addresses stay readable.
    pub(super) fn take_out(
        &self,
        gone: Extent,
        size: BrickSize,
    ) -> Result<Vec<(BrickPlace, Brick)>, OsError> {
        let parts = lock(&self.parts);
        let each = size.each.bytes().pages_down(page_size()).get();
        let starts = (gone.start()..gone.end()).step_by(each as usize);
        let of = |start| {
            let pages = Extent::new(start, each).filter(|_| start % each == 0)?;
            Some((pages, parts.iter().find(|part| part.has(pages) && part.has_brick(pages))?))
        };
        let found: Option<Vec<(Extent, &MemoryPart)>> = starts.map(of).collect();
        let found = found.ok_or_else(|| {
            let missing = std::io::ErrorKind::NotFound.into();
            OsError::new("munmap", format!("pages {gone}, not all bricks"), missing)
        })?;
        self.window.vacate(bytes(gone.start()), bytes(gone.len()))?;
        let taken = found.into_iter().flat_map(|(pages, part)| {
            let place = BrickPlace { pages, frames: part.frames(pages, size.page) };
            part.take_bricks(pages).into_iter().map(move |brick| (place.clone(), brick))
        });
        Ok(taken.collect())
    }

    /// Maps a brick at `pages`, from where one was taken out. Returns a brick that does not have
    /// that one's frames. With `is_same`, the caller puts the same brick back, whose frames may be
    /// hidden.
    pub(super) fn put_in(
        &self,
        pages: Extent,
        brick: Brick,
        is_same: bool,
    ) -> Result<Option<Odd>, OsError> {
        let (at, page) = (bytes(pages.start()), brick.page());
        self.window.show(at, &brick)?;
        let frames = match self.window.frames(at, brick.len(), page) {
            Err(_) if is_same => Vec::new(),
            told => told?,
        };
        let was = self.frames(pages, page);
        let moved =
            |(is, was): (&Option<Pfn>, &Option<Pfn>)| is.is_some() && was.is_some() && is != was;
        if frames.iter().zip(&was).any(moved) {
            self.window.vacate(at, brick.len())?;
            return Ok(Some(Odd { frames, brick }));
        }
        let parts = lock(&self.parts);
        if let Some(part) = parts.iter().find(|part| part.has(pages)) {
            part.put_brick(pages, brick);
        }
        Ok(None)
    }

    /// Returns the frame of each page of the pool when it came, if that was visible.
    pub(super) fn frames(&self, pages: Extent, page: PageSize) -> Vec<Option<Pfn>> {
        let parts = lock(&self.parts);
        let part = parts.iter().find(|part| part.has(pages));
        part.map_or_else(Vec::new, |part| part.frames(pages, page))
    }

    /// Returns the parts of this moment, for questions to the kernel without the lock.
    fn snapshot(&self) -> Vec<MemoryPart> {
        lock(&self.parts).clone()
    }

    /// Returns no nodes if the kernel does not tell those of one part.
    pub(super) fn certificate(&self, teller: NodeTeller) -> Certificate {
        let parts = self.snapshot();
        let Footing { source, held_by, len } = footing_of(&parts);
        let (runs, proof) = (runs_of(&parts), proof_of(&parts));
        let nodes = nodes_of(&parts, teller).unwrap_or_default();
        Certificate { source, held_by, len, runs, proof, nodes }
    }

    /// Returns the nodes of the present memory and of `more`.
    pub(super) fn nodes_with(
        &self,
        more: &[MemoryPart],
        teller: NodeTeller,
    ) -> Result<Vec<(Extent, Node)>, OsError> {
        let mut parts = self.snapshot();
        parts.extend_from_slice(more);
        nodes_of(&parts, teller)
    }

    pub(super) fn footing(&self) -> Footing {
        footing_of(&lock(&self.parts))
    }

    pub(super) fn locate(&self, offset: Bytes) -> Option<Location> {
        let parts = lock(&self.parts);
        let position = offset.pages_down(page_size()).get();
        let here = Extent::new(position, 1)?;
        parts.iter().flat_map(|part| &part.left).find(|left| left.contains(here))?;
        contig::internal::locate(&runs_of(&parts), self.room(), offset)
    }

    /// Passes over pages that other processes may map in the reserve's place.
    pub(super) fn verify(&self) -> Result<Vec<Drift>, OsError> {
        let parts = lock(&self.parts);
        let mut all = Vec::new();
        for part in parts.iter() {
            let moved = |pages: Extent| Extent::new(pages.start() - part.start, pages.len());
            let mapped = part.mapped();
            let left = part
                .runs_in(&mapped)
                .filter_map(|run| Some(Run { pages: moved(run.pages)?, ..run }));
            let drifts = internal::verify_runs(&part.contig, &left.collect::<Vec<_>>())?;
            all.extend(drifts.into_iter().filter_map(|drift| {
                let pages = Extent::new(drift.pages.start() + part.start, drift.pages.len())?;
                Some(Drift { pages, ..drift })
            }));
        }
        Ok(all)
    }
}

impl MemoryPart {
    fn new(contig: Arc<Contig>, start: u64) -> Self {
        let mut part = Self { start, left: Vec::new(), contig };
        part.left = vec![part.extent()];
        part
    }

    pub(super) fn granules(&self, granule_pages: u64) -> std::ops::Range<usize> {
        let extent = self.extent();
        (extent.start() / granule_pages) as usize..(extent.end() / granule_pages) as usize
    }

    pub(super) fn left(&self) -> &[Extent] {
        &self.left
    }

    fn has(&self, pages: Extent) -> bool {
        self.left.iter().any(|left| left.contains(pages))
    }

    fn frame(&self, page: u64) -> Option<Pfn> {
        let (runs, at) = (self.contig.runs(), page - self.start);
        let run = runs.get(runs.partition_point(|run| run.pages.end() <= at))?;
        let behind = at.checked_sub(run.pages.start())?;
        run.pfn.map(|pfn| pfn.plus(Pages::new(behind)))
    }

    fn frames(&self, pages: Extent, page: PageSize) -> Vec<Option<Pfn>> {
        let step = page.bytes().pages_down(page_size()).as_usize();
        (pages.start()..pages.end()).step_by(step).map(|page| self.frame(page)).collect()
    }

    fn slots(&self, pages: Extent) -> Option<(&Bricks, std::ops::Range<usize>)> {
        let bricks = internal::bricks(&self.contig)?;
        let each = bricks.size().each.bytes().pages_down(page_size()).get();
        let [from, to] = [pages.start(), pages.end()].map(|page| (page - self.start) / each);
        Some((bricks, from as usize..to as usize))
    }

    fn has_brick(&self, pages: Extent) -> bool {
        self.slots(pages).is_some_and(|(bricks, slots)| bricks.are_in(slots))
    }

    /// Returns the pages left, except those of bricks that were taken out.
    fn mapped(&self) -> Vec<Extent> {
        let Some(bricks) = internal::bricks(&self.contig) else { return self.left.clone() };
        let each = bricks.size().each.bytes().pages_down(page_size()).get();
        let out = bricks.taken().into_iter();
        let out = out.filter_map(|nth| Extent::new(self.start + nth as u64 * each, each));
        out.fold(self.left.clone(), |left, out| without(&left, out))
    }

    fn take_bricks(&self, pages: Extent) -> Vec<Brick> {
        self.slots(pages).map_or_else(Vec::new, |(bricks, slots)| bricks.take(slots))
    }

    fn put_brick(&self, pages: Extent, brick: Brick) {
        if let Some((bricks, slots)) = self.slots(pages) {
            bricks.put(slots.start, brick);
        }
    }

    fn repin(&self, pages: Extent, keep: bool) -> Result<(), OsError> {
        internal::repin(&self.contig, bytes(pages.start() - self.start), bytes(pages.len()), keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_taken_out_whole_stays() {
        let options = Contig::options().source(Source::Plain);
        let contig = options.clone().build(Bytes::mib(4)).unwrap();
        contig.mapping().write(Bytes::ZERO, &[7]);
        let (memory, contig) = Memory::new(contig, Bytes::mib(4), options).unwrap();
        let each = PageSize::new(2 << 20).unwrap();
        let size = BrickSize { each, page: each };
        let all = Extent::new(0, Bytes::mib(4).pages_down(page_size()).get()).unwrap();
        let error = memory.take_out(all, size).unwrap_err();
        assert!(error.to_string().contains("not all bricks"), "{error}");
        let mut byte = [0];
        contig.mapping().read(Bytes::ZERO, &mut byte);
        assert_eq!(byte, [7]);
    }
}
