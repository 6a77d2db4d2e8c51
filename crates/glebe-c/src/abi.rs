//! Names that the header has: handles, answers, error codes, structures.
//!
//! Kept in step with `include/glebe.h` by a test that compares both texts. A number is never
//! changed or used anew. A structure with `size` grows at its end only; all members are 64-bit
//! words, so that there is no padding to keep zero.
#![allow(non_camel_case_types)]

use std::ffi::c_int;

/// Done, or the answer that was hoped for.
pub const GLEBE_OK: c_int = 0;

pub const GLEBE_PUT_STORED: c_int = 0;
pub const GLEBE_PUT_FULL: c_int = 1;
pub const GLEBE_PUT_RECALLED: c_int = 2;
pub const GLEBE_PUT_BUSY: c_int = 3;

pub const GLEBE_GET_HIT: c_int = 0;
pub const GLEBE_GET_MISS: c_int = 1;

pub const GLEBE_INVALIDATED: c_int = 0;
pub const GLEBE_NOT_THERE: c_int = 1;

pub const GLEBE_ERROR_PANIC: c_int = -1;
pub const GLEBE_ERROR_FORKED: c_int = -2;
pub const GLEBE_ERROR_BAD_HANDLE: c_int = -3;
pub const GLEBE_ERROR_NULL: c_int = -4;
pub const GLEBE_ERROR_BAD_SIZE: c_int = -5;
pub const GLEBE_ERROR_BAD_ARGUMENT: c_int = -6;
pub const GLEBE_ERROR_BUSY: c_int = -7;
pub const GLEBE_ERROR_TOO_MANY: c_int = -8;
pub const GLEBE_ERROR_ZERO_PAGES: c_int = -9;
pub const GLEBE_ERROR_BAD_ALIGN: c_int = -10;
pub const GLEBE_ERROR_NO_RUN: c_int = -11;
pub const GLEBE_ERROR_WOULD_WAIT: c_int = -12;
pub const GLEBE_ERROR_BAD_PAGE_LEN: c_int = -13;
pub const GLEBE_ERROR_BAD_LEN: c_int = -14;
pub const GLEBE_ERROR_NO_MEMORY: c_int = -15;
pub const GLEBE_ERROR_NO_SOURCE: c_int = -16;
pub const GLEBE_ERROR_NOT_CONTIGUOUS: c_int = -17;
pub const GLEBE_ERROR_OS: c_int = -18;
pub const GLEBE_ERROR_OTHER: c_int = -19;
pub const GLEBE_ERROR_UNALIGNED: c_int = -20;
pub const GLEBE_ERROR_EMPTY: c_int = -21;
pub const GLEBE_ERROR_BEYOND: c_int = -22;
pub const GLEBE_ERROR_MARKED: c_int = -23;
pub const GLEBE_ERROR_UNMAPPED: c_int = -24;
pub const GLEBE_ERROR_LOCKED: c_int = -25;
pub const GLEBE_ERROR_HUGETLB: c_int = -26;
pub const GLEBE_ERROR_SHARED: c_int = -27;
pub const GLEBE_ERROR_FILE_PRIVATE: c_int = -28;
pub const GLEBE_ERROR_READ_ONLY: c_int = -29;
pub const GLEBE_ERROR_SPECIAL: c_int = -30;
pub const GLEBE_ERROR_MAP_BUDGET: c_int = -31;
pub const GLEBE_ERROR_SELF_TEST: c_int = -32;
pub const GLEBE_ERROR_STUCK: c_int = -33;
pub const GLEBE_ERROR_ADOPTED: c_int = -34;
pub const GLEBE_ERROR_HANDLER_COVERED: c_int = -35;
pub const GLEBE_ERROR_STALE: c_int = -37;
pub const GLEBE_ERROR_FOREIGN: c_int = -38;
pub const GLEBE_ERROR_TOO_LONG: c_int = -39;
pub const GLEBE_ERROR_BUFFER_TOO_SMALL: c_int = -40;
pub const GLEBE_ERROR_FULL: c_int = -41;
pub const GLEBE_ERROR_LIMIT_BELOW_HELD: c_int = -42;
pub const GLEBE_ERROR_NO_BUDGET: c_int = -43;
pub const GLEBE_ERROR_BAD_RULES: c_int = -44;
pub const GLEBE_ERROR_CORRUPT: c_int = -45;
pub const GLEBE_ERROR_BAD_DICTIONARY: c_int = -46;
pub const GLEBE_ERROR_FIXED_LEN: c_int = -49;
pub const GLEBE_ERROR_NO_ROOM: c_int = -50;
pub const GLEBE_ERROR_NOT_GIVEN: c_int = -51;

pub const GLEBE_SOURCE_AUTO: u64 = 0;
pub const GLEBE_SOURCE_HUGETLB: u64 = 1;
pub const GLEBE_SOURCE_THP: u64 = 2;
pub const GLEBE_SOURCE_PLAIN: u64 = 3;
pub const GLEBE_SOURCE_BLOCKS: u64 = 4;

pub const GLEBE_GROW_AUTO: u64 = 0;
pub const GLEBE_GROW_NO: u64 = 1;
pub const GLEBE_GROW_YES: u64 = 2;

pub const GLEBE_WRITERS_AUTO: u64 = 0;
pub const GLEBE_WRITERS_COUNTED: u64 = 1;
pub const GLEBE_WRITERS_RESTARTABLE: u64 = 2;

pub const GLEBE_ZEROED: u64 = 1;
pub const GLEBE_ANY: u64 = 2;
pub const GLEBE_NO_WAIT: u64 = 4;

pub const GLEBE_VIRTUAL_ONLY: c_int = 0;
pub const GLEBE_WITHIN_GRAIN: c_int = 1;
pub const GLEBE_PROVED: c_int = 2;

pub const GLEBE_ENGINE_AUTO: u64 = 0;
pub const GLEBE_ENGINE_SCAN: u64 = 1;
pub const GLEBE_ENGINE_TAG: u64 = 2;

#[allow(dead_code)] // for callers
pub const GLEBE_PRIORITY_LOWEST: u64 = 0;
#[allow(dead_code)] // for callers
pub const GLEBE_PRIORITY_NORMAL: u64 = 4;
#[allow(dead_code)] // for callers
pub const GLEBE_PRIORITY_HIGHEST: u64 = 7;

pub const GLEBE_UNMARK_TOLD: c_int = 0;
pub const GLEBE_UNMARK_MORE: c_int = 1;

pub const GLEBE_READ_DONE: c_int = 0;
pub const GLEBE_READ_LOST: c_int = 1;

pub const GLEBE_VRANGE_VOLATILE: c_int = 0;
pub const GLEBE_VRANGE_NONVOLATILE: c_int = 1;

pub const GLEBE_AT_LIMIT_REFUSE: u64 = 0;
pub const GLEBE_AT_LIMIT_EVICT_OLDEST: u64 = 1;

pub const GLEBE_TABLE_BY_SIZE: u64 = 0;
pub const GLEBE_TABLE_RULES: u64 = 1;
pub const GLEBE_TABLE_FITTED: u64 = 2;

pub const GLEBE_MERGE_AUTO: u64 = 0;
pub const GLEBE_MERGE_NO: u64 = 1;
pub const GLEBE_MERGE_YES: u64 = 2;

pub const GLEBE_COMPACTION_AUTOMATIC: u64 = 0;
pub const GLEBE_COMPACTION_MANUAL: u64 = 1;

pub const GLEBE_CODEC_AUTO: u64 = 0;
pub const GLEBE_CODEC_NONE: u64 = 1;
pub const GLEBE_CODEC_LZ4: u64 = 2;
pub const GLEBE_CODEC_ZSTD: u64 = 3;

pub const GLEBE_BUDGET_ALL: u64 = 0;
pub const GLEBE_BUDGET_PAGES: u64 = 1;
pub const GLEBE_BUDGET_US: u64 = 2;

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

pub const GLEBE_FRAMES_SHOWN: u64 = 0;
pub const GLEBE_FRAMES_LEFT_OUT: u64 = 1;

pub const GLEBE_WHY_NOT_BETTER: u64 = 0;
pub const GLEBE_WHY_NOT_PINNED: u64 = 1;
pub const GLEBE_WHY_COUNTED: u64 = 2;

pub const GLEBE_STATS_VERSION: u64 = 1;
pub const GLEBE_VOLATILE_STATS_VERSION: u64 = 1;
pub const GLEBE_ZPOOL_STATS_VERSION: u64 = 1;

pub const GLEBE_CACHE_PLAIN: u64 = 0;
pub const GLEBE_CACHE_LZ4: u64 = 1;
pub const GLEBE_CACHE_ZSTD: u64 = 2;

pub const GLEBE_ON_RECALL_DISCARD: u64 = 0;
pub const GLEBE_ON_RECALL_MOVE: u64 = 1;

pub const GLEBE_LENT_ZPOOL_STATS_VERSION: u64 = 1;

pub type glebe_reserve = u64;
pub type glebe_block = u64;
pub type glebe_promise = u64;
pub type glebe_pool = u64;
pub type glebe_volatile = u64;
pub type glebe_zpool = u64;
pub type glebe_lent_zpool = u64;
pub type glebe_zobject = u64;
pub type glebe_view = u64;
pub type glebe_refill = Option<glebe::volatile::Refill>;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_options {
    pub size: u64,
    pub len_bytes: u64,
    pub source: u64,
    pub hugetlb_page_bytes: u64,
    pub required_run_bytes: u64,
    pub preferred_run_bytes: u64,
    pub grow_pool: u64,
    pub threads: u64,
    pub writers: u64,
    pub zero_ahead_pages: u64,
    pub page_cache: u64,
    pub search_bytes: u64,
    pub lock_wait_ms: u64,
    pub search_ms: u64,
    pub room_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_lent_zpool_options {
    pub size: u64,
    pub on_recall: u64,
    pub codec: u64,
    pub zstd_level: u64,
    pub staging_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_lent_zpool_stats {
    pub size: u64,
    pub version: u64,
    pub lost: u64,
    pub refused: u64,
    pub sealed: u64,
    pub moved_pages: u64,
    pub taken_out: u64,
    pub lent_pages: u64,
    pub staged_pages: u64,
    pub staging_pages: u64,
    pub places_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_extent {
    pub start_pages: u64,
    pub len_pages: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_memory {
    pub size: u64,
    pub len_pages: u64,
    pub longest_run_pages: u64,
    pub source: u64,
    pub hugetlb_page_bytes: u64,
    pub pinned: u64,
    pub writers: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_run {
    pub start_pages: u64,
    pub len_pages: u64,
    pub pfn: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_contig {
    pub size: u64,
    pub offset_bytes: u64,
    pub contiguous_bytes: u64,
    pub run_bytes: u64,
    pub pfn: u64,
    pub held_by: u64,
    pub source: u64,
    pub hugetlb_page_bytes: u64,
    pub mapped_bytes: u64,
    pub position_pages: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_drift {
    pub start_pages: u64,
    pub len_pages: u64,
    pub was_pfn: u64,
    pub now_pfn: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_volatile_options {
    pub size: u64,
    pub engine: u64,
    pub huge: u64,
    pub cap_bytes: u64,
    pub max_age_ns: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_lost_run {
    pub start_pages: u64,
    pub len_pages: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_zpool_options {
    pub size: u64,
    pub limit_bytes: u64,
    pub at_limit: u64,
    pub compaction: u64,
    pub table: u64,
    pub chain_pages: u64,
    pub step_bytes: u64,
    pub merge: u64,
    pub codec: u64,
    pub zstd_level: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct glebe_compacted {
    pub moved: u64,
    pub freed_pages: u64,
}
