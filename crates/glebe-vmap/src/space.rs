//! A [`Space`] divides its addresses into free pages, live views, and dropped views that a flush
//! unmaps.

use std::mem;
use std::sync::Arc;

use super::{Error, MemFile, View};
use crate::free_tree::{Classes, FreeTree};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::{Addresses, Piece};
use glebe_os::internal::sync::{lock, Mutex, MutexGuard};
use glebe_os::internal::sys::memory::map_budget::{Budget, Counted, Exhausted};
use glebe_os::internal::sys::memory::map_count::{map_count, max_map_count};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize, Pages};

static VIEWS: Budget = Budget::one_in(2);
const OF_PROCESS: &str = "half of vm.max_map_count";
const OF_SPACE: &str = "the size of a space's tree";

const LAZY_VIEWS: usize = 256;
const LAZY_MAPPINGS: u64 = 4000;
const LAZY_BYTES: Bytes = Bytes::mib(64);
const MAPPINGS_MAX: u64 = 1 << 20;

/// Options of a [`Space`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    page: PageSize,
    lazy: Bytes,
    max_mappings: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { page: page_size(), lazy: LAZY_BYTES, max_mappings: MAPPINGS_MAX }
    }
}

impl Options {
    /// Sets the page size of the files; default: base pages.
    pub fn page(self, page: PageSize) -> Self {
        Self { page, ..self }
    }

    /// Sets the most bytes of dropped views to keep mapped; by default 64 MiB.
    pub fn lazy_max(self, lazy: Bytes) -> Self {
        Self { lazy, ..self }
    }

    #[cfg(test)]
    pub(super) fn max_mappings(self, max_mappings: u64) -> Self {
        Self { max_mappings, ..self }
    }

    /// Reserves `len` bytes of addresses, rounded up to whole pages.
    ///
    /// # Errors
    /// [`Error::Empty`]; [`Error::Os`] if the process lacks addresses or memory, or `RLIMIT_AS`
    /// forbids it.
    pub fn build(self, len: Bytes) -> Result<Space, Error> {
        let pages = len.pages_up(self.page);
        let len = pages.checked_bytes(self.page).unwrap_or(len);
        let span = Extent::new(0, pages.get()).ok_or(Error::Empty)?;
        let addresses = Addresses::reserve(len, self.page)?;
        // At most `limit` views exist, and at most one free extent more.
        let limit = self.max_mappings;
        let tree = all_free(span, limit as usize + 1)?;
        let state = State { tree, lazy: Lazy::new(), used: VIEWS.share(), limit, views: 0 };
        Ok(Space(Arc::new(Inner {
            addresses,
            page: self.page,
            lazy_pages: self.lazy.pages_down(self.page).get(),
            state: Mutex::new(state),
            flushing: Mutex::new(Lazy::new()),
        })))
    }
}

fn all_free(span: Extent, extents: usize) -> Result<FreeTree, OsError> {
    let mut tree = FreeTree::with_classes(span, extents, Classes::None)?;
    tree.free(span).expect("nothing of it is free yet");
    Ok(tree)
}

/// A `Space` owns addresses for views. Clones share them. See [the module](super).
#[derive(Clone, Debug)]
pub struct Space(Arc<Inner>);

/// The use of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live views.
    pub views: u64,
    /// Mappings of live and dropped views.
    pub mappings: u64,
    /// Bytes of dropped views that are still mapped.
    pub lazy: Bytes,
    /// Bytes of free addresses.
    pub free: Bytes,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) at: Extent,
    /// The view's mappings, plus one because the view splits the reserved mapping.
    pub(super) mappings: u64,
}

#[derive(Debug)]
struct Lazy {
    views: Vec<Taken>,
    pages: u64,
    mappings: u64,
}

impl Lazy {
    fn new() -> Self {
        Self { views: Vec::with_capacity(LAZY_VIEWS), pages: 0, mappings: 0 }
    }

    fn push(&mut self, taken: Taken) {
        self.views.push(taken);
        self.pages += taken.at.len();
        self.mappings += taken.mappings;
    }

    fn clear(&mut self) {
        self.views.clear();
        (self.pages, self.mappings) = (0, 0);
    }
}

#[derive(Debug)]
struct State {
    tree: FreeTree,
    lazy: Lazy,
    used: Counted,
    limit: u64,
    views: u64,
}

impl State {
    /// Returns `None` if no free range is long enough.
    fn take(&mut self, len: u64, mappings: u64) -> Result<Option<Taken>, Error> {
        let used = self.used.get();
        let (sum, limit) = (used.saturating_add(mappings), self.limit);
        let refused = |Exhausted { used, limit }, of| {
            Err(Error::ViewLimit { asked: mappings, used, limit, of })
        };
        if sum > limit {
            return refused(Exhausted { used, limit }, OF_SPACE);
        }
        let Ok(Some(at)) = self.tree.find(len, 1, None) else { return Ok(None) };
        if let Err(exhausted) = self.used.set(sum) {
            return refused(exhausted, OF_PROCESS);
        }
        self.tree.take(at).expect("found free, at the start of what is free");
        self.views += 1;
        Ok(Some(Taken { at, mappings }))
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    addresses: Addresses,
    page: PageSize,
    lazy_pages: u64,
    state: Mutex<State>,
    /// Views that a flush clears; locked until the flush ends.
    flushing: Mutex<Lazy>,
}

impl Space {
    /// Returns the default options.
    pub fn options() -> Options {
        Options::default()
    }

    /// Creates a space of `len` bytes of addresses, for files with base pages.
    ///
    /// # Errors
    /// Like [`Options::build`].
    pub fn new(len: Bytes) -> Result<Self, Error> {
        Self::options().build(len)
    }

    /// Maps `extents` of `file` side by side, in this order.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::OtherPage`], [`Error::Unaligned`], [`Error::BeyondEnd`],
    /// [`Error::ViewLimit`], [`Error::MapCount`], [`Error::NoAddresses`], [`Error::Forked`];
    /// [`Error::Os`] if the kernel refuses a call.
    pub fn view(&self, file: &Arc<MemFile>, extents: &[Extent]) -> Result<View, Error> {
        let inner = &self.0;
        if inner.addresses.is_lost_by_fork() {
            return Err(Error::Forked);
        }
        let (pieces, len) = inner.pieces(file, extents)?;
        let taken = inner.take(len, pieces.len() as u64 + 1)?;
        if let Err(why) = inner.addresses.place(inner.offset(taken.at), file, &pieces) {
            return Err(inner.undo(taken, why));
        }
        Ok(View::new(Arc::clone(inner), Arc::clone(file), taken, len))
    }

    /// Unmaps all dropped views.
    ///
    /// # Errors
    /// [`Error::Os`] if mmap(2) refuses; the refused views stay mapped. [`Error::Forked`].
    pub fn flush(&self) -> Result<(), Error> {
        if self.0.addresses.is_lost_by_fork() {
            return Err(Error::Forked);
        }
        self.0.flush().map_err(Error::Os)
    }

    /// Returns the use of the space; zeros in a forked child.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let inner = &self.0;
        if inner.addresses.is_lost_by_fork() {
            return Usage::default();
        }
        let flushing = lock(&inner.flushing).pages;
        let state = lock(&inner.state);
        Usage {
            views: state.views,
            mappings: state.used.get(),
            lazy: inner.bytes(state.lazy.pages + flushing),
            free: inner.bytes(state.tree.free_len()),
        }
    }

    /// Returns the page size of the files.
    #[must_use]
    pub fn page(&self) -> PageSize {
        self.0.page
    }
}

impl Inner {
    fn pieces(&self, file: &MemFile, extents: &[Extent]) -> Result<(Vec<Piece>, u64), Error> {
        if file.page() != self.page {
            let (given, page) = (file.page().bytes(), self.page.bytes());
            return Err(Error::OtherPage { given, page });
        }
        let base = page_size();
        let grain = self.page.bytes().pages_down(base);
        let len = file.len()?.pages_down(base);
        let mut pieces: Vec<Piece> = Vec::with_capacity(extents.len());
        let mut pages = 0_u64;
        for given in extents.iter().copied() {
            if given.start() % grain.get() != 0 || given.len() % grain.get() != 0 {
                return Err(Error::Unaligned { given, grain });
            }
            if given.end() > len.get() {
                return Err(Error::BeyondEnd { given, len });
            }
            let piece = Piece {
                offset: Pages::new(given.start()).bytes(base),
                len: Pages::new(given.len()).bytes(base),
            };
            match pieces.last_mut() {
                Some(last) if last.offset + last.len == piece.offset => {
                    last.len = last.len + piece.len;
                }
                _ => pieces.push(piece),
            }
            pages = pages.saturating_add(given.len() / grain.get());
        }
        if pages == 0 {
            return Err(Error::Empty);
        }
        Ok((pieces, pages))
    }

    fn take(&self, pages: u64, mappings: u64) -> Result<Taken, Error> {
        let mut taken = lock(&self.state).take(pages, mappings);
        if !matches!(taken, Ok(Some(_))) {
            // The second attempt reports a failure.
            let _ = self.flush();
            taken = lock(&self.state).take(pages, mappings);
        }
        taken?.ok_or_else(|| Error::NoAddresses {
            asked: Pages::new(pages).checked_bytes(self.page).unwrap_or(Bytes::new(u64::MAX)),
            largest: self.bytes(lock(&self.state).tree.largest()),
            all: self.addresses.len(),
        })
    }

    fn undo(&self, taken: Taken, why: OsError) -> Error {
        let mappings = taken.mappings;
        drop(self.end(taken));
        // Flushes first, because counting mappings needs memory, which may need a mapping.
        let _ = self.flush();
        if why.kind() == std::io::ErrorKind::OutOfMemory {
            if let (Ok(used), Ok(limit)) = (map_count(), max_map_count()) {
                if used.saturating_add(mappings) > limit {
                    return Error::MapCount { asked: mappings, used, limit, why };
                }
            }
        }
        Error::Os(why)
    }

    fn end(&self, taken: Taken) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        state.views -= 1;
        state.lazy.push(taken);
        state
    }

    pub(super) fn drop_view(&self, taken: Taken) {
        let state = self.end(taken);
        let lazy = &state.lazy;
        let many = lazy.pages > self.lazy_pages
            || lazy.mappings > LAZY_MAPPINGS
            || lazy.views.len() >= LAZY_VIEWS;
        drop(state);
        if many {
            let _ = self.flush();
        }
    }

    fn flush(&self) -> Result<(), OsError> {
        let mut flushing = lock(&self.flushing);
        mem::swap(&mut *flushing, &mut lock(&self.state).lazy);
        flushing.views.sort_unstable_by_key(|taken| taken.at);
        let mut refused = None;
        let mut from = 0;
        while from < flushing.views.len() {
            let rest = &flushing.views[from..];
            let beside = |pair: &[Taken]| pair[0].at.end() == pair[1].at.start();
            let len = 1 + rest.windows(2).take_while(|pair| beside(pair)).count();
            let run = &rest[..len];
            let pages = run[len - 1].at.end() - run[0].at.start();
            let cleared = self.addresses.clear(self.offset(run[0].at), self.bytes(pages));
            let mut state = lock(&self.state);
            match cleared {
                Ok(()) => state.give_back(run, pages),
                Err(why) => {
                    run.iter().for_each(|taken| state.lazy.push(*taken));
                    refused = Some(why);
                }
            }
            from += len;
        }
        flushing.clear();
        refused.map_or(Ok(()), Err)
    }

    fn offset(&self, at: Extent) -> Bytes {
        self.bytes(at.start())
    }

    fn bytes(&self, pages: u64) -> Bytes {
        Pages::new(pages).bytes(self.page)
    }

    pub(super) fn addr(&self, taken: &Taken) -> usize {
        self.addresses.at(self.offset(taken.at))
    }

    pub(super) fn page(&self) -> PageSize {
        self.page
    }

    pub(super) fn is_lost_by_fork(&self) -> bool {
        self.addresses.is_lost_by_fork()
    }
}

impl State {
    fn give_back(&mut self, run: &[Taken], pages: u64) {
        let mappings: u64 = run.iter().map(|taken| taken.mappings).sum();
        self.used.set(self.used.get() - mappings).expect("fewer than before");
        let at = Extent::new(run[0].at.start(), pages).expect("views are not empty");
        self.tree.free(at).expect("was taken, and there are fewer views than extents");
    }
}
