//! Builds memory of a hugetlb pool, if possible in physical order ([`ordered`]).
//!
//! Takes the pool's idle pages, then adds pages to the pool. Zeroes pages without the [`PoolLock`],
//! unless a search chose the pages ([`draw`]). Counts are huge pages.

mod draw;
mod effort;
mod held;
mod idle;
mod nodes;
mod ordered;
mod promised;
mod search;
mod survey;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::effort::Effort;
use self::held::HeldPages;
pub(super) use self::idle::Kept;
use self::nodes::Nodes;
pub(super) use self::survey::is_in_pool;
use super::options::Options;
use super::order::RunPlan;
use super::pool::PoolLock;
use super::populate::{available_on, machine_available, populate_until, Gate, Order};
use super::{runs, Contig, Error, Source};
use glebe_os::error::OsError;
use glebe_os::internal::mapping::{Mapping, Visibility};
use glebe_os::internal::sys::machine::cgroup::Resource;
use glebe_os::internal::sys::machine::hugetlb::{sizes, Pool};
use glebe_os::internal::sys::machine::numa::{self, Node};
use glebe_os::internal::sys::memory::madvise::found_no_page;
use glebe_os::internal::sys::memory::memfd::MemFile;
use glebe_os::internal::sys::memory::pagemap::frames_visible;
use glebe_os::units::{Bytes, PageSize, Pages};

pub(super) fn build(options: &Options, len: Bytes, size: PageSize) -> Result<Contig, Error> {
    let mut builder = Builder::new(options, len, size)?;
    let mapping = builder.map().map_err(|error| builder.in_words_of_run(error))?;
    let runs = runs::read(&mapping, size)?;
    let (tried, why_not_better) = (builder.tried, builder.notes);
    Ok(Contig { tried, why_not_better, ..Contig::of(Source::Hugetlb(size), mapping, runs) })
}

/// About an eighth of the kernel's default limit on mappings.
const STRETCHES_MAX: usize = 1 << 13;

pub(super) struct Builder<'a> {
    options: &'a Options,
    len: Bytes,
    pub pages: u64,
    pub pool: Pool,
    may_change: bool,
    gate: Gate,
    /// Pages of the run to search for; 1 for no search.
    run: usize,
    effort: Effort,
    nodes: Nodes,
    until: Option<Instant>,
    pub held: HeldPages,
    /// Promises of idle pages, dropped after `held`.
    idle: Vec<Mapping>,
    tried: Option<String>,
    pub notes: Vec<String>,
}

impl<'a> Builder<'a> {
    pub fn new(options: &'a Options, len: Bytes, size: PageSize) -> Result<Self, Error> {
        let pool = pool_of(options, size, options.node_set())?;
        let gate = Gate::new(Resource::Hugetlb(size))?;
        gate.check(len)?;
        let pages = len.pages_up(size).get();
        let may_change = pool.is_writable();
        let effort = Effort::new(len, options);
        let (held, idle, nodes) = (HeldPages::default(), Vec::new(), Nodes::One);
        let (run, until, tried, notes) = (1, None, None, Vec::new());
        Ok(Self {
            options,
            len,
            pages,
            pool,
            may_change,
            gate,
            run,
            effort,
            nodes,
            until,
            held,
            idle,
            tried,
            notes,
        })
    }

    /// Continues with the pages of one node, or of all if `None`.
    pub fn go_to(&mut self, node: Option<Node>) -> Result<(), Error> {
        self.pool = pool_of(self.options, self.pool.size(), node.as_slice())?;
        Ok(())
    }

    fn machine_pool(&self) -> Result<Pool, Error> {
        pool_of(self.options, self.pool.size(), &[])
    }

    fn map(&mut self) -> Result<Mapping, Error> {
        if !self.options.any_order && self.pages > 1 && frames_visible() {
            if self.may_grow() {
                self.check_room(self.pages, self.pool.counts()?.available())?;
            }
            return self.map_in_order();
        }
        let mapping = self.take(self.pages)?;
        self.fill(&mapping, Order::Any)?;
        Ok(mapping)
    }

    fn take(&mut self, pages: u64) -> Result<Mapping, Error> {
        let have = self.pool.counts()?.available();
        if have >= pages {
            match self.mapped(pages) {
                // Other programs took the pages.
                Err(Error::Os(error)) if error.kind() == ErrorKind::OutOfMemory => {}
                other => return other,
            }
        }
        let have = self.pool.counts()?.available();
        if !self.may_grow() {
            return Err(self.pool_short(pages, have));
        }
        self.check_room(pages, have)?;
        let lock = self.lock()?;
        self.grown(&lock, pages)
    }

    fn check_room(&self, pages: u64, have: u64) -> Result<(), Error> {
        let missing = pages.saturating_sub(have);
        let available = available_on(&self.pool.nodes())?;
        let size = self.pool.size();
        if Pages::new(missing).checked_bytes(size).is_some_and(|missing| missing <= available) {
            return Ok(());
        }
        let had = Pages::new(have).checked_bytes(size).unwrap_or_default();
        let available = available.checked_add(had).unwrap_or(available);
        Err(Error::too_large(self.len, available))
    }

    fn grown(&mut self, lock: &PoolLock, pages: u64) -> Result<Mapping, Error> {
        let pool = self.pool.clone();
        let missing = || Ok::<_, OsError>(pages.saturating_sub(pool.counts()?.available()));
        // Surplus pages cannot serve a wanted node, because the kernel chooses the node.
        if !pool.is_part() {
            match lock.with_surplus(&pool, missing()?, || self.mapped(pages)) {
                // The kernel lacks memory, has no surplus of this size, or refuses a higher limit.
                Err(Error::Os(error)) if is_no_surplus(&error) => {}
                other => return other,
            }
        }
        lock.with_pages(&pool, missing()?, |_| match pool.counts()?.available() {
            have if have < pages => Err(self.pool_short(pages, have)),
            _ => self.mapped_beside_idle(pages),
        })
    }

    /// On chosen nodes, also promises all idle pages, because the end of `with_pages` frees
    /// unpromised pages.
    fn mapped_beside_idle(&mut self, pages: u64) -> Result<Mapping, Error> {
        let mapping = self.mapped(pages).map_err(|error| self.short(pages, error))?;
        if self.pool.is_part() {
            self.promise_idle()?;
        }
        Ok(mapping)
    }

    fn lock(&mut self) -> Result<PoolLock, Error> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        self.lock_within(left)
    }

    fn lock_within(&mut self, most: Option<Duration>) -> Result<PoolLock, Error> {
        let patience = self.options.patience();
        let patience = most.map_or(patience, |most| patience.min(most));
        let lock = PoolLock::of(&self.options.place, patience)?;
        self.notes.extend(lock.notes().iter().cloned());
        Ok(lock)
    }

    fn may_grow(&self) -> bool {
        self.may_change && self.options.grow_pool.unwrap_or(true)
    }

    fn may_choose(&self) -> bool {
        self.may_grow() && self.nodes.are_any()
    }

    fn mapped(&self, pages: u64) -> Result<Mapping, Error> {
        if !self.options.is_of_files() {
            return self.private(pages);
        }
        let (len, size) = (Pages::new(pages).bytes(self.pool.size()), self.pool.size());
        // Only a mapping of all pages can be the result; others are taken to see their frames.
        if let Some(brick) = self.options.brick_of(size).filter(|_| pages == self.pages) {
            return self.bound(Mapping::of_bricks(len, brick, Visibility::PRIVATE)?);
        }
        let file = MemFile::hugetlb(len, size)?.not_for_children()?;
        self.bound(Mapping::shared(Arc::new(file), size, Visibility::PRIVATE)?)
    }

    pub fn private(&self, pages: u64) -> Result<Mapping, Error> {
        let (len, size) = (Pages::new(pages).bytes(self.pool.size()), self.pool.size());
        self.bound(Mapping::hugetlb(len, size, Visibility::PRIVATE)?)
    }

    fn bound(&self, mapping: Mapping) -> Result<Mapping, Error> {
        match (&self.options.nodes, self.pool.node()) {
            (Some(_), Some(node)) => mapping.bind(&[node])?,
            (Some(nodes), None) => mapping.bind(nodes)?,
            // If mbind fails, the touching thread still runs on the node.
            (None, Some(node)) => _ = mapping.bind(&[node]),
            (None, None) => {}
        }
        Ok(mapping)
    }

    fn fill(&self, mapping: &Mapping, order: Order) -> Result<(), Error> {
        let (size, options) = (self.pool.size(), self.options);
        let filled = populate_until(self.until, mapping, size, order, options, &self.gate);
        match filled.map_err(|error| self.in_words_of_node(error))? {
            true => Ok(()),
            false => Err(self.too_short()),
        }
    }

    fn in_words_of_run(&mut self, error: Error) -> Error {
        match error {
            Error::Os(error) if self.until.is_some() && error.kind() == ErrorKind::TimedOut => {
                self.effort.note(error.to_string());
                self.too_short()
            }
            other => other,
        }
    }

    /// Turns EFAULT into [`Error::PoolShort`]. A promise names no node, so other programs can take
    /// the node's pages.
    fn in_words_of_node(&self, error: Error) -> Error {
        match (error, self.pool.counts()) {
            (Error::Os(error), Ok(counts)) if self.pool.is_part() && found_no_page(&error) => {
                let (size, wanted, got) = (self.pool.size().bytes(), self.pages, counts.free);
                let how_to = "others took pages of the node meanwhile; try again".to_owned();
                Error::PoolShort { size, wanted, got, path: self.pool.path(), how_to }
            }
            (error, _) => error,
        }
    }

    /// Returns the pages of a brick; 1 if the memory is of no bricks.
    fn brick(&self) -> u64 {
        let size = self.pool.size();
        self.options.brick_of(size).map_or(1, |brick| brick.each.bytes().pages_down(size).get())
    }

    fn plan(&self, held: &HeldPages) -> RunPlan {
        held.plan(self.pages, self.brick())
    }

    fn longest_in_hand(&self) -> Bytes {
        Pages::new(self.plan(&self.held).longest as u64).bytes(self.pool.size())
    }

    fn too_short(&self) -> Error {
        let wanted = self.options.required.unwrap_or(self.len);
        let longest = self.longest_in_hand();
        Error::NotContiguous { wanted, longest, tried: Some(self.effort.to_string()) }
    }

    fn short(&self, pages: u64, error: Error) -> Error {
        match (error, self.pool.counts()) {
            (Error::Os(error), Ok(counts)) if error.kind() == ErrorKind::OutOfMemory => {
                self.pool_short(pages, counts.available())
            }
            (error, _) => error,
        }
    }

    fn pool_short(&self, wanted: u64, got: u64) -> Error {
        let path = self.pool.path();
        let (missing, shown) = (wanted.saturating_sub(got), path.display());
        let how_to = if !self.may_change {
            format!("as root, add {missing} to {shown}, or run with write access to it")
        } else if !self.may_grow() {
            format!("allow the pool to grow, or add {missing} to {shown}")
        } else {
            format!(
                "memory is too fragmented to add {missing}: write 1 to \
                 /proc/sys/vm/compact_memory, \
                 or reserve at boot with hugepagesz= and hugepages="
            )
        };
        Error::PoolShort { size: self.pool.size().bytes(), wanted, got, path, how_to }
    }
}

/// Returns the pool of `nodes`, or the whole pool if these are all nodes or none.
fn pool_of(options: &Options, size: PageSize, nodes: &[Node]) -> Result<Pool, Error> {
    let no_such = || Error::NoSuchSize { size, listed: sizes() };
    let pool = Pool::below(&options.place.pools, size).ok_or_else(no_such)?;
    match numa::are_a_part(nodes) {
        true => pool.on_nodes(&options.place.nodes, nodes)?.ok_or_else(no_such),
        false => Ok(pool),
    }
}

fn is_no_surplus(error: &OsError) -> bool {
    use ErrorKind::{InvalidInput, OutOfMemory, PermissionDenied};
    matches!(error.kind(), InvalidInput | OutOfMemory | PermissionDenied)
}
