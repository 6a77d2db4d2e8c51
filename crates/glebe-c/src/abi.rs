//! The header's handles, answers, error codes and structures.
//!
//! A test compares this file with `include/glebe.h`. Numbers never change and are never reused. A
//! structure with `size` grows only at its end.
//!
//! # Safety
//! The macro that implements [`Words`] asserts that each member is a word.
#![allow(unsafe_code, non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::NonNull;

use glebe::extent::Extent;

macro_rules! codes {
    ($($name:ident = $number:literal;)*) => {
        $(pub const $name: c_int = $number;)*

        pub(crate) fn name_of(code: c_int) -> Option<&'static CStr> {
            let name = match code {
                $($name => concat!(stringify!($name), "\0"),)*
                _ => return None,
            };
            CStr::from_bytes_with_nul(name.as_bytes()).ok()
        }
    };
}

codes! {
    GLEBE_OK = 0;
    GLEBE_ERROR_PANIC = -1;
    GLEBE_ERROR_FORKED = -2;
    GLEBE_ERROR_BAD_HANDLE = -3;
    GLEBE_ERROR_NULL = -4;
    GLEBE_ERROR_BAD_SIZE = -5;
    GLEBE_ERROR_BAD_ARGUMENT = -6;
    GLEBE_ERROR_BUSY = -7;
    GLEBE_ERROR_TOO_MANY = -8;
    GLEBE_ERROR_BAD_ALIGN = -9;
    GLEBE_ERROR_NO_RUN = -10;
    GLEBE_ERROR_WOULD_WAIT = -11;
    GLEBE_ERROR_BAD_LEN = -12;
    GLEBE_ERROR_NO_MEMORY = -13;
    GLEBE_ERROR_NO_SOURCE = -14;
    GLEBE_ERROR_NOT_CONTIGUOUS = -15;
    GLEBE_ERROR_OS = -16;
    GLEBE_ERROR_OTHER = -17;
    GLEBE_ERROR_UNALIGNED = -18;
    GLEBE_ERROR_EMPTY = -19;
    GLEBE_ERROR_BEYOND = -20;
    GLEBE_ERROR_UNMAPPED = -21;
    GLEBE_ERROR_LOCKED = -22;
    GLEBE_ERROR_HUGETLB = -23;
    GLEBE_ERROR_SHARED = -24;
    GLEBE_ERROR_FILE_PRIVATE = -25;
    GLEBE_ERROR_READ_ONLY = -26;
    GLEBE_ERROR_SPECIAL = -27;
    GLEBE_ERROR_MAP_BUDGET = -28;
    GLEBE_ERROR_STUCK = -29;
    GLEBE_ERROR_ADOPTED = -30;
    GLEBE_ERROR_HANDLER_COVERED = -31;
    GLEBE_ERROR_STALE = -32;
    GLEBE_ERROR_FOREIGN = -33;
    GLEBE_ERROR_TOO_LONG = -34;
    GLEBE_ERROR_BUFFER_TOO_SMALL = -35;
    GLEBE_ERROR_FULL = -36;
    GLEBE_ERROR_LIMIT_BELOW_HELD = -37;
    GLEBE_ERROR_CORRUPT = -38;
    GLEBE_ERROR_FIXED_LEN = -41;
    GLEBE_ERROR_NO_ROOM = -42;
    GLEBE_ERROR_NOT_GIVEN = -43;
    GLEBE_ERROR_TAKEN = -44;
    GLEBE_ERROR_BLIND = -45;
    GLEBE_ERROR_STARTED = -46;
    GLEBE_ERROR_BAD_FILE = -47;
    GLEBE_ERROR_TRUNCATED = -48;
    GLEBE_ERROR_NO_HOLDER_LEFT = -49;
    GLEBE_ERROR_UNDER_WAY = -50;
    GLEBE_ERROR_PINS_EXHAUSTED = -51;
    GLEBE_ERROR_QUOTA = -52;
    GLEBE_ERROR_PRIVATE = -53;
    GLEBE_ERROR_DEAD = -54;
    GLEBE_ERROR_PINNED = -55;
    GLEBE_ERROR_BUDGET = -56;
    GLEBE_ERROR_SIGNAL = -57;
    GLEBE_ERROR_NO_DAEMON = -58;
    GLEBE_ERROR_REVOKED = -59;
}

pub const GLEBE_PUT_STORED: c_int = 0;
pub const GLEBE_PUT_FULL: c_int = 1;
pub const GLEBE_PUT_RECALLED: c_int = 2;
pub const GLEBE_PUT_BUSY: c_int = 3;

pub const GLEBE_GET_HIT: c_int = 0;
pub const GLEBE_GET_MISS: c_int = 1;

pub const GLEBE_INVALIDATED: c_int = 0;
pub const GLEBE_NOT_THERE: c_int = 1;

pub const GLEBE_SOURCE_AUTO: u64 = 0;
pub const GLEBE_SOURCE_HUGETLB: u64 = 1;
pub const GLEBE_SOURCE_THP: u64 = 2;
pub const GLEBE_SOURCE_PLAIN: u64 = 3;
pub const GLEBE_SOURCE_BLOCKS: u64 = 4;

pub const GLEBE_GROW_AUTO: u64 = 0;
pub const GLEBE_GROW_NO: u64 = 1;
pub const GLEBE_GROW_YES: u64 = 2;
pub const GLEBE_NODE_ANY: u64 = 0;
pub const GLEBE_NODE_ONLY: u64 = 1;
pub const GLEBE_NODE_PREFER: u64 = 2;
pub const GLEBE_NODE_AMONG: u64 = 3;

pub const GLEBE_WRITERS_COUNTED: u64 = 0;
pub const GLEBE_WRITERS_RESTARTABLE: u64 = 1;

pub const GLEBE_ZEROED: u64 = 1;
pub const GLEBE_ANY: u64 = 2;
pub const GLEBE_NO_WAIT: u64 = 4;

pub const GLEBE_ENGINE_AUTO: u64 = 0;
pub const GLEBE_ENGINE_SCAN: u64 = 1;
pub const GLEBE_ENGINE_TAG: u64 = 2;

pub const GLEBE_UNMARK_TOLD: c_int = 0;
pub const GLEBE_UNMARK_MORE: c_int = 1;

pub const GLEBE_READ_DONE: c_int = 0;
pub const GLEBE_READ_LOST: c_int = 1;

pub const GLEBE_ORDER_FIFO: u64 = 0;
pub const GLEBE_ORDER_LIFO: u64 = 1;

pub const GLEBE_PIN_KEPT: c_int = 0;
pub const GLEBE_PIN_LOST: c_int = 1;

pub const GLEBE_REFILLS_ALLOWED: c_int = 0;
pub const GLEBE_REFILLS_WITHHELD: c_int = 1;

pub const GLEBE_VRANGE_VOLATILE: c_int = 0;
pub const GLEBE_VRANGE_NONVOLATILE: c_int = 1;

pub const GLEBE_LEASE_KEPT: c_int = 0;
pub const GLEBE_LEASE_RECALLED: c_int = 1;

pub const GLEBE_REMOVE_DONE: c_int = 0;
pub const GLEBE_REMOVE_NONE: c_int = 1;

pub const GLEBE_CODEC_AUTO: u64 = 0;
pub const GLEBE_CODEC_NONE: u64 = 1;
pub const GLEBE_CODEC_LZ4: u64 = 2;
pub const GLEBE_CODEC_ZSTD: u64 = 3;

pub const GLEBE_FORMAT_TEXT: u64 = 0;
pub const GLEBE_FORMAT_JSON: u64 = 1;
pub const GLEBE_FORMAT_OPENMETRICS: u64 = 2;
pub const GLEBE_FORMAT_CLASSES: u64 = 3;

pub const GLEBE_HELD_BY_NOTHING: u64 = 0;
pub const GLEBE_HELD_BY_HUGETLB_POOL: u64 = 1;
pub const GLEBE_HELD_BY_LONG_TERM_PIN: u64 = 2;
pub const GLEBE_HELD_BY_MOVABLE_POOL: u64 = 3;

pub const GLEBE_PFN_HIDDEN: u64 = u64::MAX;
pub const GLEBE_PFN_GONE: u64 = 0xffff_ffff_ffff_fffe;

/// A pointer in a structure.
pub type Address = Option<NonNull<c_void>>;
/// A zero-terminated text in a structure.
pub type Chars = Option<NonNull<c_char>>;
pub type glebe_refill = Option<glebe::volatile::Refill>;

/// A structure that may grow. Its first member is its size in bytes.
///
/// # Safety
/// The type is `repr(C)`. Each member is a 64-bit word, valid for every value that C may set, zero
/// included.
pub(crate) unsafe trait Words: Copy + Default {
    const NAME: &'static str;
    /// The members after `size`, in order.
    const MEMBERS: &'static [&'static str];
}

macro_rules! structures {
    ($($name:ident { $($member:ident: $of:ty,)* })*) => {$(
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        pub struct $name {
            pub size: u64,
            $(pub $member: $of,)*
        }

        const _: () = assert!($(size_of::<$of>() == size_of::<u64>())&&*);

        // SAFETY: the type is `repr(C)`, and the assertion checks that each member is a word.
        unsafe impl Words for $name {
            const NAME: &'static str = stringify!($name);
            const MEMBERS: &'static [&'static str] = &[$(stringify!($member)),*];
        }
    )*};
}

structures! {
    glebe_reserve_options {
        source: u64,
        hugetlb_page_bytes: u64,
        required_run_bytes: u64,
        preferred_run_bytes: u64,
        grow_pool: u64,
        threads: u64,
        zero_ahead_pages: u64,
        page_cache: u64,
        search_bytes: u64,
        lock_wait_ms: u64,
        search_ms: u64,
        room_bytes: u64,
        on_node: u64,
        node: u64,
        node_mask: u64,
    }
    glebe_memory {
        len_pages: u64,
        longest_run_pages: u64,
        source: u64,
        hugetlb_page_bytes: u64,
        pinned: u64,
        writers: u64,
    }
    glebe_contig {
        offset_bytes: u64,
        contiguous_bytes: u64,
        run_bytes: u64,
        pfn: u64,
        held_by: u64,
        source: u64,
        hugetlb_page_bytes: u64,
        mapped_bytes: u64,
        position_pages: u64,
    }
    glebe_lease_options {
        contiguous: u64,
        align_bytes: u64,
        one_file: u64,
        revocable: u64,
        on_node: u64,
        node: u64,
        name: Chars,
        socket: Chars,
    }
    glebe_shared_cache_options {
        cache_bytes: u64,
        socket: Chars,
        folder: Chars,
    }
    glebe_volatile_options {
        engine: u64,
        huge: u64,
        cap_bytes: u64,
        max_age_ns: u64,
        address: Address,
        refill: glebe_refill,
        data: Address,
    }
    glebe_shared_options {
        granule_bytes: u64,
        holders: u64,
        pin_quota_bytes: u64,
        sigbus: u64,
        address: Address,
    }
    glebe_zpool_options {
        limit_bytes: u64,
        evict_oldest: u64,
        manual_compaction: u64,
        codec: u64,
        zstd_level: u64,
        reserve: glebe_reserve,
        move_on_recall: u64,
        staging_bytes: u64,
    }
    glebe_swap_options {
        pool_limit_bytes: u64,
        capacity_bytes: u64,
        codec: u64,
        zstd_level: u64,
        drop_copies: u64,
        file_directory: Chars,
        file_bytes: u64,
        encrypt: u64,
        cache: glebe_swap_cache,
    }
    glebe_swap_cache_options {
        reserve: glebe_reserve,
        limit_bytes: u64,
        codec: u64,
        zstd_level: u64,
        encrypt: u64,
    }
    glebe_swap_area_options {
        file_directory: Chars,
        file_bytes: u64,
    }
    glebe_reclaimer_options {
        margin_bytes: u64,
        lead_ms: u64,
        withhold_ms: u64,
        yield_files: u64,
    }
    glebe_reclaimed {
        asked_bytes: u64,
        volatile_bytes: u64,
        waste_bytes: u64,
        objects_bytes: u64,
        budgets_bytes: u64,
        reserve_bytes: u64,
        measured_bytes: u64,
        failed: u64,
    }
}

mod stats;

pub use stats::*;

macro_rules! fixed {
    ($($name:ident { $($member:ident)* })*) => {$(
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $(pub $member: u64,)*
        }
    )*};
}

// Structures that never grow. Those with only `id` are handles.
fixed! {
    glebe_reserve { id }
    glebe_block { id }
    glebe_promise { id }
    glebe_view { id }
    glebe_lease { id }
    glebe_shared_cache { id }
    glebe_cache { id }
    glebe_volatile { id }
    glebe_zpool { id }
    glebe_zobject { id }
    glebe_reclaimer { id }
    glebe_budget { id }
    glebe_shared { id }
    glebe_pin { id }
    glebe_swap_store { id }
    glebe_swap_region { id }
    glebe_swap_pin { id }
    glebe_swap_cache { id }
    glebe_swap_area { id }
    glebe_swap_object { id store }
    glebe_extent { start_pages len_pages }
    glebe_run { start_pages len_pages pfn }
    glebe_drift { start_pages len_pages was_pfn now_pfn }
    glebe_on_node { start_pages len_pages node }
    glebe_compacted { moved freed_pages }
}

impl glebe_extent {
    pub(crate) fn of(extent: &Extent) -> Self {
        Self { start_pages: extent.start(), len_pages: extent.len() }
    }
}
