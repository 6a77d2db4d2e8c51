//! [`Process`] has the tables of the calling process's objects.
//!
//! The first object makes the tables, which are never freed. Volatile and shared regions have other
//! tables. A forked child that makes an object gets new tables. The child never touches its
//! parent's tables, because their locks may have been held at the fork. Each handle has the number
//! of its process. Finding the tables costs two loads and no lock.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use glebe::cache::SharedCache;
use glebe::extent::Extent;
use glebe::internal::stats::LANES;
use glebe::internal::sys::processes::fork::ForkGuard;
use glebe::lease::Lease;
use glebe::reclaim::{Budget, Reclaimer};
use glebe::reserve::{Block, LentObjectPool, Namespace, Promise, Reserve};
use glebe::swap::cache::{Area, SwapCache};
use glebe::swap::{Region, Store};
use glebe::vmap::View;
use glebe::zpool;

use crate::abi::*;
use crate::failure::Failure;
use crate::mapped::Contigs;
use crate::pinned::{Pinnable, SwapPin};
use crate::sharing::Pinned;
use crate::table::{Held, Kind, Table, PROCESSES};

/// An object, and the reserve that it uses, or 0.
#[derive(Clone, Debug)]
pub(crate) struct Of<T> {
    pub(crate) reserve: glebe_reserve,
    pub(crate) object: T,
}

#[derive(Debug)]
pub(crate) struct Viewed {
    pub(crate) view: View,
    pub(crate) extents: Vec<Extent>,
}

#[derive(Clone, Debug)]
pub(crate) enum Objects {
    Own(Arc<zpool::ObjectPool>),
    Lent(LentObjectPool),
}

/// A type of handle. Its table in [`Process`] has each object `N` times: once per lane (a group
/// of threads), or once.
pub(crate) trait Handle<const N: usize>: Copy {
    type Object: 'static;
    const KIND: Kind;
    fn id(self) -> u64;
    fn from_id(id: u64) -> Self;
    fn table(process: &Process) -> &Table<Self::Object, N>;
}

macro_rules! tables {
    ($($number:literal $name:literal $handle:ident $table:ident: $object:ty, $lanes:expr;)*) => {
        #[derive(Debug)]
        pub(crate) struct Process {
            guard: ForkGuard,
            /// Number of ancestors that have tables.
            number: u32,
            pub(crate) contigs: Contigs,
            $(pub(crate) $table: Table<$object, { $lanes }>,)*
        }

        impl Process {
            fn new(number: u32) -> Self {
                Self {
                    guard: ForkGuard::new(),
                    number,
                    contigs: Contigs::default(),
                    $($table: Table::new($handle::KIND, number),)*
                }
            }
        }

        $(impl Handle<{ $lanes }> for $handle {
            type Object = $object;
            const KIND: Kind = Kind { number: $number, name: $name };

            fn id(self) -> u64 {
                self.id
            }

            fn from_id(id: u64) -> Self {
                Self { id }
            }

            fn table(process: &Process) -> &Table<$object, { $lanes }> {
                &process.$table
            }
        })*
    };
}

// Kinds 5 and 10, volatile and shared regions, have other tables, which forked children inherit.
tables! {
    1 "reserve" glebe_reserve reserves: Reserve, LANES;
    2 "block" glebe_block blocks: Of<Block>, 1;
    3 "promise" glebe_promise promises: Of<Promise>, 1;
    4 "cache" glebe_cache caches: Of<Namespace>, LANES;
    6 "object pool" glebe_zpool zpools: Of<Objects>, LANES;
    7 "view" glebe_view views: Viewed, 1;
    8 "reclaimer" glebe_reclaimer reclaimers: Reclaimer, 1;
    9 "budget" glebe_budget budgets: Budget, LANES;
    11 "pin" glebe_pin pins: Pinned, 1;
    12 "swap store" glebe_swap_store stores: Arc<Pinnable<Store>>, LANES;
    13 "swap region" glebe_swap_region regions: Arc<Pinnable<Region>>, LANES;
    14 "swap pin" glebe_swap_pin swap_pins: SwapPin, 1;
    15 "swap cache" glebe_swap_cache swap_caches: Of<SwapCache>, LANES;
    16 "swap area" glebe_swap_area areas: Of<Arc<Area>>, LANES;
    17 "lease" glebe_lease leases: Lease, 1;
    18 "shared cache" glebe_shared_cache shared_caches: Arc<SharedCache>, LANES;
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

#[allow(unsafe_code)]
fn last() -> Option<&'static Process> {
    // SAFETY: the pointer is null, or to a box that `create` leaked.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

impl Process {
    /// Returns the tables of the calling process; makes them if necessary.
    pub(crate) fn create() -> Result<&'static Self, Failure> {
        let last = last();
        let number = match last {
            Some(last) if !last.guard.is_child() => return Ok(last),
            Some(last) => last.number + 1,
            None => 0,
        };
        if number >= PROCESSES {
            let text = format!("no more than {PROCESSES} generations of processes with handles");
            return Err(Failure::new(GLEBE_ERROR_TOO_MANY, text));
        }
        let new = Box::leak(Box::new(Self::new(number)));
        let old = last.map_or(std::ptr::null_mut(), |last| std::ptr::from_ref(last).cast_mut());
        let (ok, failed) = (Ordering::AcqRel, Ordering::Acquire);
        match CURRENT.compare_exchange(old, new, ok, failed) {
            Ok(_) => Ok(new),
            // Another thread was first. The leaked tables are empty and small.
            Err(_) => Self::create(),
        }
    }

    #[inline]
    pub(crate) fn own() -> Result<Option<&'static Self>, Failure> {
        match last() {
            Some(process) if process.guard.is_child() => Err(Failure::forked()),
            other => Ok(other),
        }
    }

    #[inline]
    fn of<H: Handle<N>, const N: usize>(handle: H) -> Result<&'static Self, Failure> {
        Self::own()?.ok_or_else(|| H::KIND.unknown(handle.id()))
    }
}

/// Calls `call` on an object, which cannot end meanwhile.
#[inline]
pub(crate) fn with<H: Handle<N>, R, const N: usize>(
    handle: H,
    call: impl FnOnce(&H::Object) -> Result<R, Failure>,
) -> Result<R, Failure> {
    H::table(Process::of(handle)?).with(handle.id(), call)
}

/// Does what [`with`] does, for a call that fails only with errors of the library.
pub(crate) fn on<H: Handle<N, Object = Of<T>>, T, R, E, const N: usize>(
    handle: H,
    call: impl FnOnce(&T) -> Result<R, E>,
) -> Result<R, Failure>
where
    Failure: From<E>,
{
    with(handle, |of| Ok(call(&of.object)?))
}

pub(crate) fn hold<H: Handle<N>, const N: usize>(
    handle: H,
) -> Result<(&'static Process, Held<'static, H::Object, N>), Failure> {
    let process = Process::of(handle)?;
    Ok((process, H::table(process).hold(handle.id())?))
}

pub(crate) fn end<H: Handle<N>, const N: usize>(handle: H) -> Result<i32, Failure> {
    H::table(Process::of(handle)?).end(handle.id())?;
    Ok(GLEBE_OK)
}

pub(crate) fn insert<H: Handle<N>, const N: usize>(
    process: &Process,
    make: impl FnOnce() -> Result<[H::Object; N], Failure>,
) -> Result<H, Failure> {
    Ok(H::from_id(H::table(process).insert(make)?))
}

/// Returns the handle of a new object in a reserve. The reserve cannot end during `make`.
pub(crate) fn insert_in<T, H: Handle<N, Object = Of<T>>, const N: usize>(
    reserve: glebe_reserve,
    make: impl FnOnce(&Reserve) -> Result<[T; N], Failure>,
) -> Result<H, Failure> {
    let process = Process::of(reserve)?;
    with(reserve, |of| insert(process, || Ok(make(of)?.map(|object| Of { reserve, object }))))
}

pub(crate) fn each<T: Clone, const N: usize>(object: T) -> [T; N] {
    std::array::from_fn(|_| object.clone())
}
