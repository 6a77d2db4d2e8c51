/*
 * glebe.h: the C interface of glebe.
 *
 * A reserve is physically contiguous memory that is set aside once, works as a cache while it is
 * idle, and is taken back without waiting. Volatile memory is what the system may take back; glebe
 * tells exactly what it took. Object pools pack and compress objects of up to a page. Swap keeps
 * more data than its budget of memory, compressed and in files.
 *
 * VERBS  glebe_KIND_new makes one of a kind and glebe_KIND_free ends it, for each kind of handle:
 *   reserve, view, promise, cache, volatile, shared, pin, zpool, reclaimer, budget, swap_store,
 *   swap_region, swap_cache, swap_area. Blocks, which all programs make, have shorter names:
 *   glebe_alloc and glebe_free. A block that was promised is made by glebe_promise_take; a swap_pin
 *   is made by the calls that pin.
 * ANSWERS  A function that returns int returns 0 for done (or the answer that was hoped for), a
 *   positive number for another answer where its description names one, or a negative
 *   GLEBE_ERROR_*. After an error nothing has been changed, and no argument has been written, with
 *   two exceptions: a buffer where that is said, and the length needed with
 *   GLEBE_ERROR_BUFFER_TOO_SMALL. glebe_last_error() has the text. Every function on a handle can
 *   answer BAD_HANDLE and FORKED, which its description does not repeat. No call ends the process,
 *   unless memory for glebe's own book-keeping runs out; no call throws or unwinds.
 * HANDLES  Each kind of handle is a type of its own, a structure of one number that is passed by
 *   value: a compiler refuses a reserve where a block is wanted. The number is never an address,
 *   and never 0 in a handle that is open. One that is not open, was freed, or was made up is
 *   GLEBE_ERROR_BAD_HANDLE, whatever its value. (A handle that was freed is told from later ones
 *   until 2^32 others have had its place.)
 * UNITS  Lengths and alignments of first class, and positions in a reserve, count base pages of
 *   glebe_page_bytes() bytes. Names that end in _bytes count bytes, in _ns nanoseconds, in _ms
 *   milliseconds.
 * MEMORY  What is given as `const void *` is only read: it may be where nobody can write, and
 *   several calls may be given it at once. Until the call returns nobody may write it: no other
 *   thread and, if it is shared memory, no other process. Memory that is given to be filled is the
 *   call's alone until it returns. A length above PTRDIFF_MAX is GLEBE_ERROR_BAD_ARGUMENT, unless
 *   the call names another error for one that is too long.
 * FRAMES  A page frame number times glebe_page_bytes() is the physical address of the page: in a
 *   virtual machine that of the guest, and behind an IOMMU not the address that a device uses. The
 *   kernel tells frames to CAP_SYS_ADMIN alone. Who makes memory without it finds GLEBE_PFN_HIDDEN
 *   wherever a frame would stand, and contiguity is proved within one page of the memory's source.
 *   Do not pass frames on to a process that may not see them.
 * TEXTS  A function that gives a text writes it, with a zero byte at its end, to `text`, which has
 *   room for `text_len_bytes`, and the room it took to `needed_bytes`. With a null `text` and a
 *   `text_len_bytes` of 0 it writes the room alone, and returns 0; with less room than needed that
 *   is GLEBE_ERROR_BUFFER_TOO_SMALL.
 * ARRAYS  A function that gives several answers writes the first `capacity` of them to an array,
 *   which may be null if `capacity` is 0, and how many there are to `count`.
 * THREADS  Every function may be called by any thread at any time, on any handle. Freeing a handle
 *   waits for the calls under way on it. No function may be called from a signal handler, but
 *   glebe_vrange and glebe_vrange_strict as is said there; and no thread may be cancelled
 *   (pthread_cancel) inside one. A call costs, beside the work itself, some tens of nanoseconds,
 *   and shares no lock with calls on other handles of its kind.
 * FORK  Handles and memory stay with the process that made them. In a forked child every call on
 *   one of them is GLEBE_ERROR_FORKED and touches nothing; the memory of a block is not mapped
 *   there. The child may make objects of its own of every kind. But volatile regions go along:
 *   the child has its own copy of memory, marks and handles, and both processes go on each for
 *   itself. Shared regions go along too, with memory and marks that parent and child share, and
 *   without pins. A child made by clone(2) and not by the C library's fork gets GLEBE_ERROR_FORKED
 *   there too. What the parent gives back goes back to the system although a child lives.
 * STRUCTURES  The first member of a structure that may grow is its size in bytes as the caller
 *   knows it: set it to sizeof. A smaller one, of an older header, is served as far as it goes. Of
 *   a larger one the members that the library does not know must be zero where they go in, and are
 *   set to zero where they come out. Zero is the default of every member of options, and a null
 *   pointer to options stands for all defaults.
 * LINKING  The soname is libglebe.so.0; within it functions, constants and members are only added.
 *   Both libraries show the functions below and nothing else: a zstd, an LZ4 or a Rust library of
 *   the program's own stays apart. A program without shared libraries (-static) finds no
 *   restartable sequences in its C library: its reserves have GLEBE_WRITERS_COUNTED.
 */
#ifndef GLEBE_H
#define GLEBE_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header; glebe_version() is that of the library. GLEBE_VERSION_NUMBER is
 * MAJOR * 1000000 + MINOR * 1000 + PATCH, to be compared. */
#define GLEBE_VERSION "0.1.0"
#define GLEBE_VERSION_MAJOR 0
#define GLEBE_VERSION_MINOR 1
#define GLEBE_VERSION_PATCH 0
#define GLEBE_VERSION_NUMBER 1000

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ---------------------------------------------------------------------------------- */

enum {
    GLEBE_OK = 0,

    GLEBE_ERROR_PANIC = -1,          /* a fault inside glebe, caught; please report it */
    GLEBE_ERROR_FORKED = -2,         /* the handle stayed with the process that forked this */
    GLEBE_ERROR_BAD_HANDLE = -3,     /* no such object is open */
    GLEBE_ERROR_NULL = -4,           /* a null pointer where one must not be */
    GLEBE_ERROR_BAD_SIZE = -5,       /* the size member of a structure cannot be right */
    GLEBE_ERROR_BAD_ARGUMENT = -6,   /* a flag, choice or name that does not exist */
    GLEBE_ERROR_BUSY = -7,           /* blocks, promises, caches, pools or pins are left: see the
                                        text */
    GLEBE_ERROR_TOO_MANY = -8,       /* as many handles as there can be (2^23 of a kind) */
    GLEBE_ERROR_BAD_ALIGN = -9,     /* an alignment that is not a power of two */
    GLEBE_ERROR_NO_RUN = -10,        /* no free run is long enough, or none that is so aligned; the
                                        text has the longest */
    GLEBE_ERROR_WOULD_WAIT = -11,    /* only by waiting: for a tenant's copy, which was not wanted,
                                        or in a signal handler for a call that it interrupted */
    GLEBE_ERROR_BAD_LEN = -12,       /* a length that cannot be: the text says which can */
    GLEBE_ERROR_NO_MEMORY = -13,     /* more than machine, cgroup, pool or the kernel has to give */
    GLEBE_ERROR_NO_SOURCE = -14,     /* this machine has not the kind of pages that was asked for */
    GLEBE_ERROR_NOT_CONTIGUOUS = -15, /* memory, but without the run that was required */
    GLEBE_ERROR_OS = -16,            /* the kernel refused a call; the text names it and why */
    GLEBE_ERROR_OTHER = -17,         /* see the text */
    GLEBE_ERROR_UNALIGNED = -18,     /* a range that does not start and end where granules do */
    GLEBE_ERROR_EMPTY = -19,         /* a block of no pages, a range or an object of no bytes */
    GLEBE_ERROR_BEYOND = -20,        /* a range that ends beyond its region or overflows */
    GLEBE_ERROR_UNMAPPED = -21,      /* nothing is mapped there; from here to SPECIAL the text */
    GLEBE_ERROR_LOCKED = -22,        /* has the first such address: locked memory (mlock) */
    GLEBE_ERROR_HUGETLB = -23,       /* memory of a hugetlb pool */
    GLEBE_ERROR_SHARED = -24,        /* shared memory */
    GLEBE_ERROR_FILE_PRIVATE = -25,  /* a private mapping of a file */
    GLEBE_ERROR_READ_ONLY = -26,     /* memory that cannot be written */
    GLEBE_ERROR_SPECIAL = -27,       /* of a device or the kernel, or another's userfaultfd's */
    GLEBE_ERROR_MAP_BUDGET = -28,    /* more ranges or extents apart than mappings are allowed */
    GLEBE_ERROR_STUCK = -29,         /* pages that can be neither kept nor taken (bad memory) */
    GLEBE_ERROR_ADOPTED = -30,       /* memory of which a volatile region was made already */
    GLEBE_ERROR_HANDLER_COVERED = -31, /* a SIGBUS handler was installed over glebe's */
    GLEBE_ERROR_STALE = -32,         /* the object is gone: removed or evicted */
    GLEBE_ERROR_FOREIGN = -33,       /* an object of another pool, or none at all */
    GLEBE_ERROR_TOO_LONG = -34,      /* an object longer than a page */
    GLEBE_ERROR_BUFFER_TOO_SMALL = -35, /* the length that is needed was written */
    GLEBE_ERROR_FULL = -36,          /* the pool's limit leaves no room; the text has both */
    GLEBE_ERROR_LIMIT_BELOW_HELD = -37, /* the pool holds more and can shed no more */
    GLEBE_ERROR_CORRUPT = -38,       /* stored bytes of an object are damaged */
    GLEBE_ERROR_FIXED_LEN = -41,     /* the reserve was made to keep its length: see the text */
    GLEBE_ERROR_NO_ROOM = -42,       /* more than the reserve has room for; the text has the rest */
    GLEBE_ERROR_NOT_GIVEN = -43,     /* more than can be given back; the text has how much can */
    GLEBE_ERROR_TAKEN = -44,         /* another reclaimer of this process has it */
    GLEBE_ERROR_BLIND = -45,         /* nothing says how much memory there is; see the text */
    GLEBE_ERROR_STARTED = -46,       /* the reclaimer's thread runs already */
    GLEBE_ERROR_BAD_FILE = -47,      /* a file that cannot be shared memory, or holds none */
    GLEBE_ERROR_TRUNCATED = -48,     /* the file of a shared region was cut, or lost pages */
    GLEBE_ERROR_NO_HOLDER_LEFT = -49, /* as many processes use the file as can */
    GLEBE_ERROR_UNDER_WAY = -50,     /* another process or thread purges or joins: try again */
    GLEBE_ERROR_PINS_EXHAUSTED = -51, /* this process has pinned it as often as can be counted */
    GLEBE_ERROR_QUOTA = -52,         /* more would be pinned than the file's creator allows */
    GLEBE_ERROR_PRIVATE = -53,       /* private memory, where only what processes share can be */
    GLEBE_ERROR_DEAD = -54,          /* the object's bytes were given up by glebe_swap_store_dead */
    GLEBE_ERROR_PINNED = -55,        /* pins of the object or the range stand against the call */
    GLEBE_ERROR_BUDGET = -56,        /* what is pinned leaves no room; the text has all three */
    GLEBE_ERROR_SIGNAL = -57         /* SIGBUS is blocked or another's, or its stack is small */
};

/* The text of the calling thread's last error: what was refused, the value, the limit. Empty if
 * there was none; a success leaves it. Never null; good until the thread calls this again. */
const char *glebe_last_error(void);

/* The name of an error code, such as "GLEBE_ERROR_BUSY"; "unknown" for other numbers. Static. */
const char *glebe_error_name(int code);

/* The version of the library, as "MAJOR.MINOR.PATCH". Static. */
const char *glebe_version(void);

/* Bytes in a base page of this machine. */
uint64_t glebe_page_bytes(void);

/* ---- Reserves -------------------------------------------------------------------------------- */

/* Memory that is set aside, and what lives in it. */
typedef struct glebe_reserve {
    uint64_t id;
} glebe_reserve;

/* Where memory comes from. */
enum {
    GLEBE_SOURCE_AUTO = 0,    /* the best that can be had */
    GLEBE_SOURCE_HUGETLB = 1, /* the hugetlb pool of hugetlb_page_bytes; such pages stay in place */
    GLEBE_SOURCE_THP = 2,     /* transparent huge pages; the kernel may move them */
    GLEBE_SOURCE_PLAIN = 3,   /* base pages */
    GLEBE_SOURCE_BLOCKS = 4   /* one run out of memory blocks that are evacuated for it: root */
};

/* Whether a hugetlb pool may be given pages that it has not. The kernel has them back when they are
 * freed or the process ends, by SIGKILL too. One process of the machine at a time looks for such
 * pages, under a lock: a call waits for that, up to lock_wait_ms, and is then refused with the
 * process that it waited for. No call waits where the pool has the pages. */
enum {
    GLEBE_GROW_AUTO = 0, /* if the caller may */
    GLEBE_GROW_NO = 1,
    GLEBE_GROW_YES = 2
};

/* How tenants are kept out of blocks. */
enum {
    GLEBE_WRITERS_COUNTED = 0,    /* by counting copies; first class may have to wait for one */
    GLEBE_WRITERS_RESTARTABLE = 1 /* by restartable sequences, without waiting */
};

/* How objects and cached pages are stored. What does not become shorter is stored as it is,
 * whatever the codec; pages of the cache also where they become shorter by less than a quarter. */
enum {
    GLEBE_CODEC_AUTO = 0, /* LZ4 for an object pool and swap, as they are for the page cache */
    GLEBE_CODEC_NONE = 1, /* as they are */
    GLEBE_CODEC_LZ4 = 2,
    GLEBE_CODEC_ZSTD = 3 /* shorter, and about three times as long to read */
};

/* What reserve is wanted. */
typedef struct glebe_reserve_options {
    uint64_t size;                /* sizeof(glebe_reserve_options) */
    uint64_t source;              /* GLEBE_SOURCE_*: this one or none */
    uint64_t hugetlb_page_bytes;  /* for GLEBE_SOURCE_HUGETLB: of a page; 0: the smallest */
    uint64_t required_run_bytes;  /* a physically contiguous run without which the call fails */
    uint64_t preferred_run_bytes; /* a run to try for; glebe_reserve_memory() says what came */
    uint64_t grow_pool;           /* GLEBE_GROW_* */
    uint64_t threads;             /* that populate; 0: one a processor, at most 8 */
    uint64_t zero_ahead_pages;    /* keep so many pages zeroed, by a thread in the background */
    uint64_t page_cache;          /* GLEBE_CODEC_*, of the page cache */
    uint64_t search_bytes;        /* look at so much of the machine's memory for long runs; 0: at
                                     all but a tenth of what is available, 1 GiB at least */
    uint64_t lock_wait_ms;        /* wait so long at most for others that change the hugetlb pools;
                                     0: a minute */
    uint64_t search_ms;           /* look for runs so long at most, whatever is tried; 0: as much
                                     work as takes a processor 2 s, and for more than a GiB 2 s a
                                     GiB; three times that for a run that is required; and five
                                     times as long at most where others use the processors too */
    uint64_t room_bytes;          /* the most that the reserve may be, for glebe_reserve_grow() and
                                     glebe_reserve_shrink(); 0: its length is fixed */
} glebe_reserve_options;

/* Sets `len_bytes` of memory aside: maps and populates it, which takes about as long as zeroing
 * it. Errors: BAD_LEN, NO_MEMORY, NO_SOURCE, NOT_CONTIGUOUS, OS, BAD_SIZE, BAD_ARGUMENT, NULL,
 * TOO_MANY, FIXED_LEN. */
int glebe_reserve_new(uint64_t len_bytes, const glebe_reserve_options *options,
                      glebe_reserve *reserve);

/* Adds memory to the reserve, `len_bytes` rounded up to whole 2 MiB, had as the reserve was
 * made; how much came goes to `came_bytes`, which may be null. Blocks, promises and cached pages
 * stay where they are, and other calls on the reserve go on meanwhile. On an error nothing came.
 * Errors: FIXED_LEN without room_bytes; NO_ROOM, BAD_LEN, NO_MEMORY, NO_SOURCE, NOT_CONTIGUOUS,
 * OS. */
int glebe_reserve_grow(glebe_reserve reserve, uint64_t len_bytes, uint64_t *came_bytes);

/* Gives memory of the reserve back to the system, `len_bytes` rounded up to whole 2 MiB and
 * whole pages of its pool; how much went goes to `went_bytes`, which may be null. Cached pages
 * there are dropped, as for a block; no block and no promise is touched. Errors: FIXED_LEN
 * without room_bytes; NOT_GIVEN with how much can be given now; BAD_LEN, NO_MEMORY, OS:
 * glebe_reserve_memory() says what is left then. */
int glebe_reserve_shrink(glebe_reserve reserve, uint64_t len_bytes, uint64_t *went_bytes);

/* Gives the memory back to the system. Every block, view, promise, cache, object pool and swap
 * cache of the reserve, and every area and store in a swap cache of it, must have been freed:
 * otherwise GLEBE_ERROR_BUSY, with their numbers in the text, and the reserve lives on unchanged.
 * Looks at every handle that there is. */
int glebe_reserve_free(glebe_reserve reserve);

/* What a reserve is made of. */
typedef struct glebe_memory {
    uint64_t size;               /* sizeof(glebe_memory); set to the bytes that were filled */
    uint64_t len_pages;          /* pages in the reserve now */
    uint64_t longest_run_pages;  /* the longest contiguity that is proved, in use or not */
    uint64_t source;             /* GLEBE_SOURCE_* */
    uint64_t hugetlb_page_bytes; /* for GLEBE_SOURCE_HUGETLB, otherwise 0 */
    uint64_t pinned;             /* 1 if something holds the pages in their frames */
    uint64_t writers;            /* GLEBE_WRITERS_COUNTED or GLEBE_WRITERS_RESTARTABLE */
} glebe_memory;

/* Fills `memory`. Errors: NULL, BAD_SIZE. */
int glebe_reserve_memory(glebe_reserve reserve, glebe_memory *memory);

/* The longest block that could be had now, in pages. A request up to it can still fail for its
 * alignment. */
int glebe_reserve_largest_run(glebe_reserve reserve, uint64_t *pages);

/* The page frame number of a run whose frames the caller may not see. */
#define GLEBE_PFN_HIDDEN UINT64_MAX

/* A physically contiguous run. Never grows. */
typedef struct glebe_run {
    uint64_t start_pages; /* pages from the start of the reserve */
    uint64_t len_pages;
    uint64_t pfn; /* the frame of the first page, or GLEBE_PFN_HIDDEN */
} glebe_run;

/* Gives the runs of the reserve, in the order of positions. There is none if not even one huge
 * page is proved contiguous. The runs of a reserve change only when it grows or shrinks. Errors:
 * NULL. */
int glebe_reserve_runs(glebe_reserve reserve, glebe_run *runs, size_t capacity, size_t *count);

/* What keeps pages in their frames. */
enum {
    GLEBE_HELD_BY_NOTHING = 0, /* the kernel may move them */
    GLEBE_HELD_BY_HUGETLB_POOL = 1, /* but newer kernels may move pages of 2 MiB to make room for a
                                       contiguous allocation of their own: verify tells */
    GLEBE_HELD_BY_LONG_TERM_PIN = 2, /* a registered buffer of an io_uring */
    GLEBE_HELD_BY_MOVABLE_POOL = 3 /* as the pool, in movable memory, out of which a long-term pin
                                      of a device moves the pages */
};

/* Where a byte lies, as far as that is proved: at least its page is one run. */
typedef struct glebe_contig {
    uint64_t size;               /* sizeof(glebe_contig); set to the bytes that were filled */
    uint64_t offset_bytes;       /* of its run, in front of it */
    uint64_t contiguous_bytes;   /* that follow, itself included */
    uint64_t run_bytes;          /* of the whole run */
    uint64_t pfn;                /* the frame of its page, or GLEBE_PFN_HIDDEN */
    uint64_t held_by;            /* GLEBE_HELD_BY_* */
    uint64_t source;             /* GLEBE_SOURCE_* */
    uint64_t hugetlb_page_bytes; /* for GLEBE_SOURCE_HUGETLB, otherwise 0 */
    uint64_t mapped_bytes;       /* of the whole mapping, or of the whole reserve */
    uint64_t position_pages;     /* of its page, from the start of the mapping or of the reserve */
} glebe_contig;

/* Fills `contig` for the page at `position_pages` from the start of the reserve. For the
 * segments of a view, ask for the first page of each extent (glebe_view_extents), and again
 * behind `contiguous_bytes` as long as that ends within the extent. Frames are as they were when
 * the reserve was made. Errors: NULL, BAD_SIZE; BEYOND the end of the reserve. */
int glebe_reserve_query(glebe_reserve reserve, uint64_t position_pages, glebe_contig *contig);

/* The frame of a page that is not in memory any more. */
#define GLEBE_PFN_GONE 0xfffffffffffffffe

/* Pages that are not in the frames in which they were. Never grows. */
typedef struct glebe_drift {
    uint64_t start_pages; /* from the start of the reserve, or of the mapping */
    uint64_t len_pages;
    uint64_t was_pfn; /* the frame that the first had, or GLEBE_PFN_HIDDEN */
    uint64_t now_pfn; /* the frame that it has now, or GLEBE_PFN_GONE */
} glebe_drift;

/* Reads the frames again and gives the runs of pages that were moved since the reserve was made, in
 * the order of positions: none if all are where glebe_reserve_runs says. Where frames are hidden
 * from the caller only a page that has gone is found, and only of sources with huge pages. Takes
 * time in proportion to the pages of the source. Errors: NULL, OS. */
int glebe_reserve_verify(glebe_reserve reserve, glebe_drift *drifts, size_t capacity,
                         size_t *count);

/* Gives the reasons for what a reserve is not, as text, one a line: for each better source that was
 * refused, and a shorter run than asked for, what, the value, the limit, how to get it; then why
 * there is no long-term pin, where one was tried; then why it has GLEBE_WRITERS_COUNTED, where it
 * has. Empty if there are none. Errors: NULL. */
int glebe_reserve_why_not(glebe_reserve reserve, char *text, size_t text_len_bytes,
                          size_t *needed_bytes);

/* ---- First class: blocks and promises -------------------------------------------------------- */

/* A block of memory, the caller's alone. */
typedef struct glebe_block {
    uint64_t id;
} glebe_block;

/* A physically contiguous block of `pages`. Contents are unspecified: they may be what a tenant
 * stored. Takes microseconds, never fails because of tenants, and waits for none where restartable
 * sequences work (GLEBE_WRITERS_RESTARTABLE). Errors: EMPTY, NO_RUN, NULL, TOO_MANY. */
int glebe_alloc(glebe_reserve reserve, uint64_t pages, glebe_block *block);

/* For glebe_alloc_with; any sum of these. */
enum {
    GLEBE_ZEROED = 1,    /* filled with zeros */
    GLEBE_ANY = 2,       /* contiguous in virtual addresses only, if need be */
    GLEBE_NO_WAIT = 4    /* rather GLEBE_ERROR_WOULD_WAIT than waiting for a tenant's copy */
};

/* As glebe_alloc, at a multiple of `align_pages`, a power of two, of page frames, and with flags.
 * Also BAD_ALIGN; BAD_ARGUMENT for a flag that does not exist; WOULD_WAIT with GLEBE_NO_WAIT. */
int glebe_alloc_with(glebe_reserve reserve, uint64_t pages, uint64_t align_pages, uint64_t flags,
                     glebe_block *block);

/* Ends a block: its memory goes back to the reserve, and must not be touched any more. */
int glebe_free(glebe_block block);

/* The first byte of a block, and its bytes. Either place may be null. The memory is the caller's
 * alone until the block is freed. */
int glebe_block_memory(glebe_block block, void **address, uint64_t *len_bytes);

/* Fills `contig` for the byte `offset_bytes` into a block, what a device needs: `pfn` is the frame
 * of its page, and `contiguous_bytes` follow it, of this block, in one piece: as far as that is
 * proved, which it is for the whole of most blocks. Otherwise ask again behind `contiguous_bytes`
 * for the next piece. Frames are as they were when the reserve was made. Errors: NULL, BAD_SIZE;
 * BEYOND the end of the block. */
int glebe_block_query(glebe_block block, uint64_t offset_bytes, glebe_contig *contig);

/* A run that is set aside for a block that is wanted later. */
typedef struct glebe_promise {
    uint64_t id;
} glebe_promise;

/* Promises a block of `pages` at a multiple of `align_pages`: until it is taken tenants use its
 * memory, and no other block gets it. Errors: as glebe_alloc_with. */
int glebe_promise_new(glebe_reserve reserve, uint64_t pages, uint64_t align_pages,
                      glebe_promise *promise);

/* Makes the block that was promised; the promise ends. It cannot fail for want of room. Errors:
 * NULL, and TOO_MANY, after which the promise still stands. */
int glebe_promise_take(glebe_promise promise, glebe_block *block);

/* Ends a promise without a block. */
int glebe_promise_free(glebe_promise promise);

/* ---- Views: pages side by side --------------------------------------------------------------- */

/* Pages of a file that are mapped side by side. */
typedef struct glebe_view {
    uint64_t id;
} glebe_view;

/* Pages side by side. Never grows. */
typedef struct glebe_extent {
    uint64_t start_pages; /* base pages from the start of the reserve, file or region */
    uint64_t len_pages;
} glebe_extent;

/* Pages of a file of the caller's, a memfd or a file on tmpfs or hugetlbfs that is open for
 * reading and writing: the `count` extents, base pages, mapped side by side in that order. A
 * page may be in several views, or twice in one. The descriptor stays the caller's and may be
 * closed. What others take out of the file is SIGBUS to touch. Errors: BAD_ARGUMENT for another
 * descriptor; EMPTY for no extents or one of no pages; BEYOND the end of the file; UNALIGNED for
 * parts of a huge page; MAP_BUDGET, with the limit in the text; NO_MEMORY, OS, NULL, TOO_MANY. */
int glebe_view_new(int fd, const glebe_extent *extents, size_t count, glebe_view *view);

/* Ends a view: its memory must not be touched any more. */
int glebe_view_free(glebe_view view);

/* The first byte of a view, and its bytes. Either place may be null. The memory is the caller's
 * alone until the view is freed, if it is a reserve's. */
int glebe_view_memory(glebe_view view, void **address, uint64_t *len_bytes);

/* Gives the extents of a view, in the order of its bytes. Errors: NULL. */
int glebe_view_extents(glebe_view view, glebe_extent *extents, size_t capacity, size_t *count);

/* ---- Second class: the page cache ------------------------------------------------------------ */

/* A name space of the page cache: pages in what first class is not using, by object and index. */
typedef struct glebe_cache {
    uint64_t id;
} glebe_cache;

/* A handle on the name space of this name (UTF-8), which is made if there is none. A name that has
 * a handle already gets one more on the same pages. Errors: NULL, BAD_ARGUMENT, TOO_MANY. */
int glebe_cache_new(glebe_reserve reserve, const char *name, glebe_cache *cache);

enum {
    GLEBE_PUT_STORED = 0,   /* to be had by glebe_cache_get until it is evicted or recalled */
    GLEBE_PUT_FULL = 1,     /* not kept: first class, or others, had every page looked at */
    GLEBE_PUT_RECALLED = 2, /* not kept: first class took the pages under way */
    GLEBE_PUT_BUSY = 3      /* not kept: interrupted or crowded out too often */
};

/* Copies a page in, in place of what its key held; returns GLEBE_PUT_*. What is not kept leaves
 * nothing under its key. `len_bytes` must be glebe_page_bytes(). Takes no lock that another name
 * space or first class takes. Errors: NULL, BAD_LEN. */
int glebe_cache_put(glebe_cache cache, uint64_t object, uint64_t index, const void *page,
                    size_t len_bytes);

enum {
    GLEBE_GET_HIT = 0,
    GLEBE_GET_MISS = 1 /* not there, or gone meanwhile: then the buffer may hold anything */
};

/* Copies a page out; returns GLEBE_GET_*. `len_bytes` must be glebe_page_bytes(). Errors: NULL,
 * BAD_LEN. */
int glebe_cache_get(glebe_cache cache, uint64_t object, uint64_t index, void *page,
                    size_t len_bytes);

/* Copies bytes in as the pages of an object from index `first` on; the last page may be given in
 * part, and is filled with zeros. Returns GLEBE_PUT_*: all of it is kept, or nothing. Errors:
 * NULL. */
int glebe_cache_put_run(glebe_cache cache, uint64_t object, uint64_t first, const void *bytes,
                        size_t len_bytes);

/* Copies the pages of an object from index `first` on out; of the last one a part may be asked for.
 * Returns GLEBE_GET_*: a miss if one of them is not there. Errors: NULL. */
int glebe_cache_get_run(glebe_cache cache, uint64_t object, uint64_t first, void *bytes,
                        size_t len_bytes);

enum {
    GLEBE_INVALIDATED = 0,
    GLEBE_NOT_THERE = 1
};

/* Drops one page; returns GLEBE_INVALIDATED or GLEBE_NOT_THERE. */
int glebe_cache_invalidate_page(glebe_cache cache, uint64_t object, uint64_t index);

/* Drops all pages of an object; takes the same time however many they are. */
int glebe_cache_invalidate_object(glebe_cache cache, uint64_t object);

/* Drops all pages of a name space; takes the same time however many they are. */
int glebe_cache_invalidate(glebe_cache cache);

/* Ends a handle on a name space. Its pages stay, and a new handle of the name finds them. */
int glebe_cache_free(glebe_cache cache);

/* ---- Statistics ------------------------------------------------------------------------------ */

typedef struct glebe_reserve_stats {
    uint64_t size; /* sizeof(glebe_reserve_stats); set to the bytes that were filled */
    uint64_t stored; /* pages that tenants stored (GCMA: cc_stored_pages) */
    uint64_t loaded; /* gets that hit (GCMA: cc_loaded_pages) */
    uint64_t missed; /* gets that missed (GCMA: cc_load_failed_pages) */
    uint64_t evicted; /* pages dropped for other tenant pages (GCMA: cc_evicted_pages) */
    uint64_t recalled; /* pages that first class took from tenants (GCMA: cc_reclaimed_pages) */
    uint64_t replaced; /* pages dropped for a newer page of their key */
    uint64_t invalidated_pages; /* pages dropped as invalid (GCMA: cc_invalidated_pages) */
    uint64_t invalidated_objects; /* objects invalidated (GCMA: cc_invalidated_inodes) */
    uint64_t invalidated_pools; /* pools invalidated (GCMA: cc_invalidated_fses) */
    uint64_t invalidate_failed; /* pages to be invalidated that were not there */
    uint64_t rejected; /* puts that kept nothing */
    uint64_t rejected_recalled; /* pages taken from a tenant in the middle of a put */
    uint64_t zeroed_ahead; /* pages made zero in the background */
    uint64_t allocs; /* first-class blocks given */
    uint64_t alloc_failures; /* first-class requests for which no run was free */
    uint64_t barriers; /* recalls that interrupted tenants by a barrier */
    uint64_t waited_for_writer; /* first-class requests that waited for a tenant's copy */
    uint64_t total_pages; /* pages in the reserve */
    uint64_t live_pages; /* pages that tenants use */
    uint64_t held_pages; /* pages that first class holds */
    uint64_t free_pages; /* pages that nobody uses */
    uint64_t alloc_count; /* first-class requests that were granted: how many */
    uint64_t alloc_sum_ns; /* first-class requests that were granted: all together */
    uint64_t alloc_p50_ns; /* first-class requests that were granted: half took no longer */
    uint64_t alloc_p90_ns; /* first-class requests that were granted: 9 of 10 took no longer */
    uint64_t alloc_p99_ns; /* first-class requests that were granted: 99 of 100 took no longer */
    uint64_t alloc_p999_ns; /* first-class requests that were granted: 999 of 1000 took no longer */
    uint64_t alloc_max_ns; /* first-class requests that were granted: the longest */
    uint64_t packed_stored; /* pages that were put compressed */
    uint64_t packed_loaded; /* gets that hit a compressed page */
    uint64_t packed_dropped; /* compressed pages dropped: replaced, invalid, displaced */
    uint64_t packed_lost; /* compressed pages found lost with the lent pages they were in */
    uint64_t packed_pages; /* pages in the page cache that are stored compressed */
} glebe_reserve_stats;

/* Fills `stats`. Exact while no other call is under way. Takes longer the larger the reserve, a few
 * nanoseconds each 2 MiB. Errors: NULL, BAD_SIZE. */
int glebe_reserve_get_stats(glebe_reserve reserve, glebe_reserve_stats *stats);

/* Forms of all statistics. */
enum {
    GLEBE_FORMAT_TEXT = 0,        /* a line a total */
    GLEBE_FORMAT_JSON = 1,        /* one object: the totals; of an object pool also a list of the
                                     size classes in use */
    GLEBE_FORMAT_OPENMETRICS = 2, /* version 1.0; names begin with glebe_reserve_, or glebe_zpool_
                                     for totals and glebe_zpool_class_ for size classes, or
                                     glebe_store_ or glebe_swap_area_ */
    GLEBE_FORMAT_CLASSES = 3      /* of object pools only: each size class, in the columns of the
                                     kernel's own table */
};

/* Gives the statistics as text. Errors: NULL; BAD_ARGUMENT for a form that does not exist or is an
 * object pool's. */
int glebe_reserve_format_stats(glebe_reserve reserve, uint64_t format, char *text,
                               size_t text_len_bytes, size_t *needed_bytes);

/* Lets other processes of this user, and root, read the statistics: `glebe stats` shows them. One
 * thread is started, which sleeps until it is asked and ends with the reserve. `directory` is made
 * if it is missing, and nobody else's to enter; null is $XDG_RUNTIME_DIR/glebe if that is the
 * user's, or else /run/glebe for root and /run/user/UID/glebe for others. A reserve is served once:
 * a later call gives the socket of the first. Gives the path of the socket as a text. With
 * GLEBE_ERROR_BUFFER_TOO_SMALL the statistics are served all the same, and the next call gives the
 * path. Errors: NULL; OS; OTHER where no directory is known, or others own it or can enter. */
int glebe_reserve_serve_stats(glebe_reserve reserve, const char *directory, char *socket,
                              size_t socket_len_bytes, size_t *needed_bytes);

/* ---- Volatile memory ------------------------------------------------------------------------- */

/* A region of memory of which parts can be *marked*: the kernel may then take their pages, when it
 * needs memory, instead of swapping or failing. An *unmark* takes that right back and tells exactly
 * which pages were lost; these are zeros then, and every other page has all its bytes.
 *
 * Marked memory must not be written. Reading it in place is possible with GLEBE_ENGINE_SCAN only,
 * and a touch of a lost page is SIGBUS with its address. A system call that is given a lost page
 * answers EFAULT: unmark what it is to be given first. */
typedef struct glebe_volatile {
    uint64_t id;
} glebe_volatile;

/* How lost pages are known. */
enum {
    GLEBE_ENGINE_AUTO = 0, /* scan if the machine lets, otherwise tag */
    GLEBE_ENGINE_SCAN = 1, /* by page tables and a userfaultfd: contents are never altered */
    GLEBE_ENGINE_TAG = 2   /* by the first 8 bytes of a page, altered while it is marked: works
                              without userfaultfd, unmarks what is there without a system call, and
                              runs of more than 8 pages unaltered with a few; a touch of a lost
                              page finds zeros */
};

/* What glebe drops first, where a cap asks for it, 0 to 7: the lowest. The kernel purges in the
 * order of marking. */
enum {
    GLEBE_PRIORITY_LOWEST = 0,
    GLEBE_PRIORITY_NORMAL = 4,
    GLEBE_PRIORITY_HIGHEST = 7
};

/* Gives the contents of a lost page that was touched: the address of its `len_bytes`, which stay
 * until the next call on the same thread, or null. `offset_bytes` is the page's, from the region's
 * start. It runs in a signal handler, on the thread that touched the page: it may do what
 * signal-safety(7) lists, touches no page of the region, returns, and calls nothing of glebe. */
typedef const void *(*glebe_refill)(uint64_t offset_bytes, size_t len_bytes, void *data);

/* What region is wanted. */
typedef struct glebe_volatile_options {
    uint64_t size;       /* sizeof(glebe_volatile_options) */
    uint64_t engine;     /* GLEBE_ENGINE_*: this one or an error */
    uint64_t huge;       /* 1: transparent huge pages, marked and lost whole, populated at once */
    uint64_t cap_bytes;  /* what is marked may hold so much; more is dropped after a mark. 0: all */
    uint64_t max_age_ns; /* what was marked so long ago is dropped at the next mark. 0: never */
    void *address;       /* memory of the caller's that becomes the region; null: it is mapped */
    glebe_refill refill; /* called for a lost page that is touched; null: the touch is SIGBUS */
    void *data;          /* the last argument of `refill` */
} glebe_volatile_options;

/* Makes a region of `len_bytes`: mapped, rounded up to whole granules and all zeros, or of the
 * caller's memory at `address`. Errors: NULL, BAD_SIZE, BAD_ARGUMENT, EMPTY, BEYOND,
 * NO_MEMORY, OS, TOO_MANY; LOCKED where the process locks all its memory; OTHER where the kernel
 * loses pages that were written.
 *
 * Of the caller's memory, which is private and anonymous, the region has the whole base pages, and
 * the contents stay. It is to stay mapped until the region ends. What is mapped over a marked part
 * meanwhile is not volatile, and with GLEBE_ENGINE_SCAN nothing of it is ever lost or told lost;
 * GLEBE_ENGINE_TAG cannot see it, leaves it as it is, and tells it lost. A page of which the first
 * word was written while it was marked is left as it is there, too, and told lost. Its huge pages
 * are not made anew meanwhile. Further errors: UNMAPPED, HUGETLB, SHARED, FILE_PRIVATE, READ_ONLY,
 * SPECIAL, ADOPTED; LOCKED for locked memory alone.
 *
 * With a `refill`, whatever touches a marked page that was lost has it refilled, and goes on.
 * Such a page counts as kept at the next unmark; an unmark under way meanwhile may tell it lost
 * though it holds what was given. The kernel may not take it, and caps do not count it, until
 * the region's next glebe_volatile_mark or glebe_volatile_drop_now, of whatever range: then it
 * counts as marked just then. Where `refill` answers null, the touch is a SIGBUS with its exact
 * address, as in a region without. `refill` is called with `data` until glebe_volatile_free has
 * returned. The first such region installs a SIGBUS handler, once and for good, which hands what
 * is not its own to the handler that was there before; one that is installed later stands in
 * front of it and must do likewise. Where one stands in front of it already, the answer is
 * HANDLER_COVERED: nobody could vouch for a refill. With GLEBE_ENGINE_TAG `refill` is never
 * called. */
int glebe_volatile_new(uint64_t len_bytes, const glebe_volatile_options *options,
                       glebe_volatile *region);

/* Ends a region, marked or not. Memory of its own is unmapped and must not be touched any more; the
 * caller's memory is unmarked, and what was lost of it is not told. */
int glebe_volatile_free(glebe_volatile region);

/* The first byte of a region, and its bytes; its granule, what is marked and, as a rule, lost
 * together: a base page or a huge page (of a huge page that the kernel split, single base pages
 * may be lost); and the engine at work, GLEBE_ENGINE_SCAN or GLEBE_ENGINE_TAG. Each place may be
 * null. */
int glebe_volatile_memory(glebe_volatile region, void **address, uint64_t *len_bytes,
                          uint64_t *granule_bytes, uint64_t *engine);

/* Gives the kernel the right to `len_bytes` from `offset_bytes` on, whole granules. What is marked
 * already keeps its age. Errors: UNALIGNED, EMPTY, BEYOND, BAD_ARGUMENT, after which nothing has
 * changed; LOCKED, NO_MEMORY, OS, after which the range counts as marked and is to be unmarked;
 * MAP_BUDGET, of the caller's memory, after which nothing has changed. */
int glebe_volatile_mark(glebe_volatile region, uint64_t offset_bytes, uint64_t len_bytes,
                        uint64_t priority);

enum {
    GLEBE_UNMARK_TOLD = 0, /* `runs` has all that was lost */
    GLEBE_UNMARK_MORE = 1  /* `runs` is full, and there are more: call again */
};

/* Takes the right back to a range of whole granules, marked or not. Gives the runs of lost
 * pages, ascending and with a kept page between any two. Where there are more than `capacity`,
 * the answer is GLEBE_UNMARK_MORE: the range is unmarked all the same, and the surplus stays
 * with the region and is told, once, by the next unmark of a range that holds it, by whichever
 * thread. Half the pages of a range, rounded up, is always enough. Of unmarks that overlap in
 * time each is told what the others found. Errors: NULL, UNALIGNED, EMPTY, BEYOND; NO_MEMORY, OS
 * and STUCK, after which the range is still marked and the next unmark tells what was lost. */
int glebe_volatile_unmark(glebe_volatile region, uint64_t offset_bytes, uint64_t len_bytes,
                          glebe_extent *runs, size_t capacity, size_t *count);

enum {
    GLEBE_READ_DONE = 0,
    GLEBE_READ_LOST = 1 /* some of it is lost: then the buffer may hold anything */
};

/* Copies out of memory, marked or not, leaving the marks as they are; returns GLEBE_READ_*. Never
 * raises SIGBUS. If some is lost, `lost_bytes`, unless that is null, is set to the offset of the
 * first page that was found lost. The buffer is no volatile memory, and
 * may be null for no bytes. Errors: NULL, BEYOND, OS. */
int glebe_volatile_read(glebe_volatile region, uint64_t offset_bytes, void *buffer,
                        size_t len_bytes, uint64_t *lost_bytes);

/* Drops now what is marked in a range of whole granules: it is lost, and marked still. Writes to
 * `dropped_bytes`, unless that is null, how much of it glebe had not dropped before. Errors:
 * UNALIGNED, EMPTY, BEYOND; OS, after which some may have been dropped. */
int glebe_volatile_drop_now(glebe_volatile region, uint64_t offset_bytes, uint64_t len_bytes,
                            uint64_t *dropped_bytes);

typedef struct glebe_volatile_stats {
    uint64_t size; /* sizeof(glebe_volatile_stats); set to the bytes that were filled */
    uint64_t marks; /* calls that marked something */
    uint64_t unmarks; /* calls that unmarked something */
    uint64_t marked_ever; /* pages that were marked */
    uint64_t purged; /* pages that an unmark found lost */
    uint64_t rescued; /* pages that an unmark kept (v10: pgdiscard_rescued) */
    uint64_t dropped_by_cap; /* marked pages dropped because of a cap or their age */
    uint64_t dropped_now; /* marked pages dropped because the program asked for it */
    uint64_t overwritten; /* lost pages that were written while they were marked */
    uint64_t reads_lost; /* reads of marked memory that found some of it lost */
    uint64_t total_pages; /* pages of the region */
    uint64_t marked_pages; /* pages marked */
    uint64_t resident_pages; /* marked pages that are in memory still */
    uint64_t lazy_free_pages; /* pages counted in RSS that the kernel may take (LazyFree) */
    uint64_t unreclaimable_pages; /* pages counted in RSS less those the kernel may take */
    uint64_t shed; /* marked pages dropped because a reclaimer asked for their memory */
} glebe_volatile_stats;

/* Fills `stats`. marked_ever is marked_pages and purged and rescued together, while no other call
 * is under way. Looks at the page tables of what is marked. Errors: NULL, BAD_SIZE. */
int glebe_volatile_get_stats(glebe_volatile region, glebe_volatile_stats *stats);

/* ---- The call of the volatile ranges patches ------------------------------------------------- */

enum {
    GLEBE_VRANGE_VOLATILE = 0,
    GLEBE_VRANGE_NONVOLATILE = 1
};

/* vrange(2) as the tenth posting of the patches has it (Minchan Kim and John Stultz, 2014; from the
 * eleventh on the modes have each other's number), on private anonymous memory of the caller's, and
 * on what it shares with its children (below). Makes it volatile: the kernel may take pages, a
 * touch of one that it took is SIGBUS, pages may be read meanwhile and must not be written. Or
 * makes it non-volatile: pages that were taken are zeros then.
 *
 * Returns how many bytes from `start` on were done, as write(2) does. `length` is rounded down to
 * whole pages, and further to what an int can hold. Holes are passed over and counted, but for one
 * that goes to the end of the range, so that a range with nothing mapped gives 0. The call stops,
 * without an error, in front of memory that cannot be volatile: of a file on disk, locked, of a
 * hugetlb pool, not writable, special, a glebe_volatile region, or glebe's own, as the memory of a
 * reserve and its tables are. What lies in the heap is not known to be glebe's: a range should not
 * go on past memory of the caller's. `purged` may be null; otherwise it is set to 1 if any page
 * that is now non-volatile was taken, and to 0 if none was. Volatility goes along in a fork, and
 * ends with what was mapped; where it ends so, the call is to be made nevertheless, since the range
 * counts as one that is kept until then.
 *
 * Unlike there: a mode that does not exist is refused, and an error is one of glebe.h: UNALIGNED
 * (`start`), EMPTY (less than a page), BEYOND, BAD_ARGUMENT (the mode, or a `purged` that cannot be
 * written), MAP_BUDGET, NO_MEMORY, STUCK, and OS where userfaultfd is denied. Programs of the
 * patches build unchanged with glebe_vrange.h, which gives them the patches' numbers for errors.
 * `purged` is of the pages of this call only. Reads the list of mappings: for ranges of many pages.
 *
 * A SIGBUS handler may call it for a touch of a lost page (si_code BUS_ADRERR) that the
 * program's own code made, to make the page non-volatile and write it again; not where the touch
 * was made inside malloc(), since the call allocates. Where the handler interrupted a call of
 * glebe on volatile memory, whose buffer was lost, or a fork, the answer is WOULD_WAIT, and
 * nothing has changed: the handler can map a page there (mmap with MAP_FIXED), which is not
 * volatile. In a handler for a SIGBUS that somebody sent it must not be called. A region with a
 * `refill` needs no handler of the program's.
 *
 * Memory of MAP_SHARED: MAP_ANONYMOUS, a memfd, or a file on tmpfs. What is volatile and what was
 * taken is the same for the process that makes the first call on a mapping and for the children
 * that it forks after that, as long as one of those that made a call is there. Others that map the
 * same memory, at other addresses too, do not see it, and lose what is taken: unlike in the
 * patches. The kernel takes none of it: glebe_vrange_purge does, or the thread of
 * glebe_vrange_reclaim. A touch of what was taken is no SIGBUS; it finds zeros, and the call that
 * makes it non-volatile says so. The memory stays mapped, and at its place in the file, while any
 * of it is volatile. Each such mapping takes a descriptor and 8 bytes a page that was ever
 * volatile, until other memory is mapped there and a call finds that. Further errors: UNDER_WAY,
 * NO_HOLDER_LEFT (64 processes made calls), OS. */
int glebe_vrange(void *start, size_t length, int mode, int *purged);

/* As glebe_vrange, but all of the range or an error: also UNALIGNED for a length that is no
 * whole number of pages, UNMAPPED, LOCKED, HUGETLB, SHARED (of a file on disk), FILE_PRIVATE,
 * READ_ONLY, SPECIAL (glebe's own memory too) and ADOPTED. Returns 0. After an error nothing has
 * become volatile; what was may be so still. */
int glebe_vrange_strict(void *start, size_t length, int mode, int *purged);

/* Takes up to `target_bytes`, rounded up to pages, of the memory of MAP_SHARED that glebe_vrange
 * made volatile in this process or one that it was forked from; how much goes to `purged_bytes`,
 * which may be null. What was volatile first goes first, mapping by mapping. A mapping of which
 * this process has unmapped some is passed over. Errors: WOULD_WAIT, OS. */
int glebe_vrange_purge(uint64_t target_bytes, uint64_t *purged_bytes);

/* Starts a thread that does this whenever memory is short, as a reclaimer sees it, until the
 * process ends. `margin_bytes` is that of glebe_reclaimer_options; 0: its default. Without this
 * call there is no such thread; a forked child has none until it makes the call too. Errors:
 * STARTED, WOULD_WAIT; BLIND if neither a cgroup nor the machine says how much memory there is;
 * OS. */
int glebe_vrange_reclaim(uint64_t margin_bytes);

/* ---- Shared volatile memory ------------------------------------------------------------------ */

/* Volatile memory of a file that several processes map: a memfd, or a file on tmpfs. Marks belong
 * to the file, and every process that has it sees the same. A part of it, a *granule*, is marked,
 * pinned and lost as a whole. The kernel takes nothing of it by itself. A *purge*, by any of the
 * processes, takes granules that are marked and that nobody has *pinned*: the lowest priority
 * first, and within it in the order that their marks say.
 *
 * Every process may read and write the data at any time; what is marked and not pinned may become
 * zeros meanwhile. Pin it first. Data of an unmarked granule is never purged. When a process ends,
 * however it does, its pins end. When the last one ends, all marks end; losses are still told.
 *
 * Another process that can write the file can change or destroy what it holds, but no call here
 * crashes for it: the answer is TRUNCATED, if the file was cut or somebody took what is pinned, by
 * other counts of pins. A call that meets a purge under way
 * waits for it for a second, then the answer is UNDER_WAY. A forked child has the handles, but no
 * pins, and counts as another process. A thread that is inside another call on volatile memory or a
 * fork gets WOULD_WAIT. */
typedef struct glebe_shared {
    uint64_t id;
} glebe_shared;

/* What shared region is wanted. */
typedef struct glebe_shared_options {
    uint64_t size;            /* sizeof(glebe_shared_options) */
    uint64_t granule_bytes;   /* a power of two, at least a base page; 0: a base page */
    uint64_t holders;         /* processes that can use the file at once, 128 at most; 0: 64. Each
                                 handle of the file counts */
    uint64_t pin_quota_bytes; /* what each of them can have pinned at once; 0: all */
    uint64_t sigbus;          /* 1: a touch of a lost page that is marked, without a pin, is SIGBUS
                                 in this process, and a system call that is given a page without
                                 memory answers EFAULT, marked or not; needs userfaultfd. 0: both
                                 find zeros */
    void *address;            /* for glebe_shared_new: memory of the caller's that becomes the
                                 region; null: a file is made */
} glebe_shared_options;

/* Makes a file without a name, of `len_bytes` of data, rounded up to whole granules, all zeros.
 * Other processes get it by its descriptor. Nobody can change its length. Errors: NULL, BAD_SIZE;
 * BAD_ARGUMENT for an option that cannot be; EMPTY, BEYOND for the length; HANDLER_COVERED with
 * `sigbus`; NO_MEMORY, OS, TOO_MANY.
 *
 * With `address` the region is made of `len_bytes` of the caller's memory there, whole granules,
 * and the contents stay. It is a mapping with MAP_SHARED of a memfd, of a file on tmpfs, or with
 * MAP_ANONYMOUS, readable and writable. It stays mapped until the region is freed, in every process
 * that uses it, nobody cuts its file, and no other region is made of it. This process uses it, and
 * the children that it forks from then on; its descriptor is of no use to others. What a purge
 * takes goes from every process that maps it. Further errors: UNALIGNED; UNMAPPED, LOCKED, HUGETLB,
 * PRIVATE, READ_ONLY, SPECIAL; BAD_FILE for a file on a disk; BAD_ARGUMENT with `sigbus`. */
int glebe_shared_new(uint64_t len_bytes, const glebe_shared_options *options,
                     glebe_shared *shared);

/* As glebe_shared_new, a file at `path` on tmpfs, which must not be there yet. This user alone may
 * open it. It stays until it is removed. Errors: as there; BAD_FILE on another file system;
 * HANDLER_COVERED also without `sigbus`; OS where `path` cannot be made. */
int glebe_shared_new_at(const char *path, uint64_t len_bytes,
                        const glebe_shared_options *options, glebe_shared *shared);

/* Opens the file at `path`, which is no symbolic link. Of the options `sigbus` alone may be set:
 * the file knows the others. Errors: NULL, BAD_SIZE, BAD_ARGUMENT; BAD_FILE for a file that is none
 * of this kind; TRUNCATED; NO_HOLDER_LEFT; UNDER_WAY; HANDLER_COVERED; NO_MEMORY, OS, TOO_MANY. */
int glebe_shared_open(const char *path, const glebe_shared_options *options,
                      glebe_shared *shared);

/* As glebe_shared_open, the file of a descriptor that is open for reading and writing, which stays
 * the caller's and may be closed. Errors: as there; BAD_ARGUMENT for a number that is not open. */
int glebe_shared_adopt(int fd, const glebe_shared_options *options, glebe_shared *shared);

/* Leaves the file, and unmaps it here: its memory must not be touched any more. Marks stay as long
 * as another process uses the file. GLEBE_ERROR_BUSY if this process has pins of it. */
int glebe_shared_free(glebe_shared shared);

/* Writes the descriptor of the file to `fd`, for another process to have. It is the region's: do
 * not close it. It is closed when the region is freed. Errors: NULL. */
int glebe_shared_fd(glebe_shared shared, int *fd);

/* The first byte of the data, and its bytes; and its granule. Each place may be null. */
int glebe_shared_memory(glebe_shared shared, void **address, uint64_t *len_bytes,
                        uint64_t *granule_bytes);

/* Which of the granules of one priority are purged first. */
enum {
    GLEBE_ORDER_FIFO = 0, /* those marked first */
    GLEBE_ORDER_LIFO = 1  /* those marked last, and all of them before any of GLEBE_ORDER_FIFO */
};

/* Lets purges take `len_bytes` from `offset_bytes` on, whole granules. What is marked already keeps
 * its priority and its place in the order. Errors: UNALIGNED, EMPTY, BEYOND, BAD_ARGUMENT;
 * TRUNCATED, UNDER_WAY, NO_HOLDER_LEFT, NO_MEMORY, OS, after which some may be marked. */
int glebe_shared_mark(glebe_shared shared, uint64_t offset_bytes, uint64_t len_bytes,
                      uint64_t priority, uint64_t order);

/* Ends the right of purges to a range, marked or not. Gives the runs of lost pages as
 * glebe_volatile_unmark does: with GLEBE_UNMARK_MORE the surplus is told by the next unmark of this
 * process that holds it. Of unmarks that overlap in time, in whichever processes, at least one is
 * told of each loss. Errors: NULL, UNALIGNED, EMPTY, BEYOND; TRUNCATED, UNDER_WAY, NO_HOLDER_LEFT,
 * NO_MEMORY, OS, after which the next unmark tells what was lost. */
int glebe_shared_unmark(glebe_shared shared, uint64_t offset_bytes, uint64_t len_bytes,
                        glebe_extent *runs, size_t capacity, size_t *count);

/* Takes now what is marked in a range and nobody has pinned. Writes how much was taken to
 * `dropped_bytes`, which may be null. Errors: as glebe_shared_mark. */
int glebe_shared_drop_now(glebe_shared shared, uint64_t offset_bytes, uint64_t len_bytes,
                          uint64_t *dropped_bytes);

/* Takes granules that are marked and not pinned, of priority `up_to` at most, until `target_bytes`
 * are free, rounded up to whole granules. Writes how much was taken to `purged_bytes`, which may be
 * null. UNDER_WAY at once if another process or thread purges the file. Looks at every granule that
 * was ever marked. Errors: BAD_ARGUMENT; as glebe_shared_mark. */
int glebe_shared_purge(glebe_shared shared, uint64_t target_bytes, uint64_t up_to,
                       uint64_t *purged_bytes);

/* Granules that no purge takes. */
typedef struct glebe_pin {
    uint64_t id;
} glebe_pin;

enum {
    GLEBE_PIN_KEPT = 0, /* all bytes are there */
    GLEBE_PIN_LOST = 1  /* some were lost: see glebe_pin_lost */
};

/* Pins `len_bytes` from `offset_bytes` on, whole granules, marked or not, and gives them memory, so
 * that no touch of them fails for want of it. Returns GLEBE_PIN_*. A granule can be pinned 65535
 * times at once by a process. Where all of it has memory and no purge is under way this takes no
 * system call. Errors: NULL, UNALIGNED, EMPTY, BEYOND; PINS_EXHAUSTED, QUOTA, with the limit in the
 * text; TRUNCATED, UNDER_WAY, NO_HOLDER_LEFT, NO_MEMORY, OS, TOO_MANY. */
int glebe_pin_new(glebe_shared shared, uint64_t offset_bytes, uint64_t len_bytes, glebe_pin *pin);

/* Ends a pin. */
int glebe_pin_free(glebe_pin pin);

/* The first byte that is pinned, and how many are. Either place may be null. Other processes may
 * change these bytes at any time. */
int glebe_pin_memory(glebe_pin pin, void **address, uint64_t *len_bytes);

/* Gives the runs of pages that were lost when they were pinned, in pages from the start of the
 * region: zeros, or what somebody has written since. Does not change what the next unmark or pin
 * tells. Errors: NULL. */
int glebe_pin_lost(glebe_pin pin, glebe_extent *runs, size_t capacity, size_t *count);

/* Says that the lost pages of a pin hold again what they should. They are not told lost any more,
 * and count as marked just now where they are marked. Errors: TRUNCATED, UNDER_WAY, OS. */
int glebe_pin_restored(glebe_pin pin);

/* Copies bytes out of what is pinned, from `offset_bytes` behind its start on; others may change
 * them meanwhile. Never raises SIGBUS. Errors: NULL, BEYOND; TRUNCATED, after which the buffer may
 * hold anything. */
int glebe_pin_read(glebe_pin pin, uint64_t offset_bytes, void *buffer, size_t len_bytes);

/* Copies bytes into what is pinned. Errors: as glebe_pin_read. */
int glebe_pin_write(glebe_pin pin, uint64_t offset_bytes, const void *bytes, size_t len_bytes);

typedef struct glebe_shared_stats {
    uint64_t size; /* sizeof(glebe_shared_stats); set to the bytes that were filled */
    uint64_t marks; /* calls that marked something */
    uint64_t unmarks; /* calls that unmarked something */
    uint64_t pins; /* pins made */
    uint64_t marked_ever; /* pages that were marked */
    uint64_t purged; /* pages that an unmark told as lost */
    uint64_t freed; /* pages that purges of this process took */
    uint64_t dropped_now; /* pages taken because the program asked for it */
    uint64_t total_pages; /* pages of data */
    uint64_t marked_pages; /* pages marked */
    uint64_t present_pages; /* pages that may hold memory, as far as is known */
    uint64_t lost_pages; /* pages that were lost and not told */
    uint64_t pinned_pages; /* pages that this process has pinned */
} glebe_shared_stats;

/* Fills `stats`: what this handle did, and how the file stands now, for all processes. Looks at
 * every granule that was ever marked. Errors: NULL, BAD_SIZE. */
int glebe_shared_get_stats(glebe_shared shared, glebe_shared_stats *stats);

/* Gives the statistics as text, in one of GLEBE_FORMAT_* but GLEBE_FORMAT_CLASSES. Names in
 * OpenMetrics begin with glebe_shared_. Errors: NULL, BAD_ARGUMENT. */
int glebe_shared_format_stats(glebe_shared shared, uint64_t format, char *text,
                              size_t text_len_bytes, size_t *needed_bytes);

/* ---- Contiguous memory ----------------------------------------------------------------------- */

/* mmap(2) with the flag that the MAP_CONTIG patches (2017) proposed: `len` bytes, rounded up to
 * base pages, that are physically contiguous, or none. The memory is populated, filled with zeros
 * and held in its page frames, cannot be grown in its place (do not have mremap move it), is in no
 * core dump, and is gone in a forked child: a touch of it there is SIGSEGV. Contiguity is proved,
 * not supposed: who may not see page frames gets what one huge page holds.
 *
 * `flags` are MAP_PRIVATE and MAP_ANONYMOUS, and `fd` is -1; with them may go MAP_HUGETLB, with a
 * size for that pool or none, without one for the pool of the smallest size, MAP_FIXED_NOREPLACE,
 * which wants the memory at `addr` and needs room there, and MAP_POPULATE, MAP_LOCKED and
 * MAP_NORESERVE, which change nothing. Without MAP_FIXED_NOREPLACE `addr` is not looked at. `off`
 * is a multiple of a page and changes nothing.
 *
 * The address, or MAP_FAILED with errno: ENOMEM if it cannot be had contiguous, EINVAL for a
 * length of 0, a flag, protection, descriptor or offset that cannot be, EPERM if nothing would
 * hold the pages (a pool of huge pages, or RLIMIT_MEMLOCK for a pin), EACCES for a protection
 * that this process cannot have (PROT_EXEC where PR_SET_MDWE or a security module denies it),
 * EEXIST if something is mapped at `addr`, ETIMEDOUT if another process changed the hugetlb
 * pools for longer than glebe_mmap_contig_limits allows. glebe_last_error() has the text, with
 * the longest run that could be had, or the process that was waited for. */
void *glebe_mmap_contig(void *addr, size_t len, int prot, int flags, int fd, int64_t off);

/* What each later call of glebe_mmap_contig in this process may do: how much of the machine's
 * memory it may look at for a run, for how long, and how long it may wait for others that change
 * the hugetlb pools. 0 for any is as in glebe_reserve_options. Returns 0. */
int glebe_mmap_contig_limits(uint64_t search_bytes, uint64_t search_ms, uint64_t lock_wait_ms);

/* Unmaps what glebe_mmap_contig gave, as a whole: `len` is what was asked for or what is mapped.
 * The kernel has back what a hugetlb pool was given for it. munmap(2) takes the addresses alone:
 * pages that a pin holds go at the end of the process, and the mapping must not be named here any
 * more. Errors: UNMAPPED, BAD_LEN, FORKED. */
int glebe_munmap_contig(void *addr, size_t len);

/* Fills `contig` for the byte at `addr` of a mapping of glebe_mmap_contig, much as
 * posix_mem_offset(3) does. Errors: UNMAPPED, FORKED, NULL, BAD_SIZE. */
int glebe_contig_query(const void *addr, glebe_contig *contig);

/* As glebe_reserve_verify, for the mapping of glebe_mmap_contig that has the byte at `addr`.
 * Errors: UNMAPPED, FORKED, NULL, OS. */
int glebe_contig_verify(const void *addr, glebe_drift *drifts, size_t capacity, size_t *count);

/* ---- Object pools ---------------------------------------------------------------------------- */

/* A pool of objects of 1 byte to a page, packed across page borders into zspages, runs of a few
 * pages whose slots have one size. Compaction moves objects and gives whole pages back to the
 * system; an object keeps its number. Calls on different size classes share no lock, and a read
 * takes none of the pool's.
 *
 * A pool has memory of its own, or lives in what first class does not hold of a reserve. There its
 * objects are second class: they come into ordinary memory, the staging, and when that is full they
 * go to lent pages; what first class takes, or other tenants evict, is lost. Who asks for a lost
 * object first is told so, later its number is GLEBE_ERROR_STALE; nobody is given another object's
 * bytes. */
typedef struct glebe_zpool {
    uint64_t id;
} glebe_zpool;

/* An object in its pool. One that is gone is GLEBE_ERROR_STALE, one of another pool, or of none,
 * GLEBE_ERROR_FOREIGN: never another object's bytes. (The number of a place comes round after 8192
 * objects there, with pages of 4 KiB; fewer with larger ones.) */
typedef struct glebe_zobject {
    uint64_t id; /* never 0 */
} glebe_zobject;

/* What pool is wanted. */
typedef struct glebe_zpool_options {
    uint64_t size;                 /* sizeof(glebe_zpool_options) */
    uint64_t limit_bytes;          /* the most it may hold, everything counted; 0 or UINT64_MAX:
                                      what the machine has. Not with a reserve, nor the next two */
    uint64_t evict_oldest;         /* 1: at the limit, after compaction has freed what it could,
                                      objects that are old and unread go, a zspage at a time; 0:
                                      the call is GLEBE_ERROR_FULL */
    uint64_t manual_compaction;    /* 1: only by request, and before anything is refused or evicted;
                                      0: also a little with each remove and replace, once it is
                                      worth it */
    uint64_t codec;                /* GLEBE_CODEC_* */
    uint64_t zstd_level;           /* with GLEBE_CODEC_ZSTD: from 1 on, as zstd has it; 0: 1 */
    glebe_reserve reserve;         /* whose idle pages the pool lives in; 0: in memory of its own */
    uint64_t move_on_recall;       /* with a reserve, of pages that first class takes: 1: they are
                                      copied first, to other lent pages if there are any; 0: they
                                      are lost, at once, and cost first class nothing */
    uint64_t staging_bytes;        /* with a reserve: ordinary memory, at least 64 pages; 0: a 64th
                                      of the reserve */
} glebe_zpool_options;

/* Makes an empty pool. One with memory of its own reserves address space, and memory comes as
 * objects do; without a limit it reserves at most half of what the process may still have
 * (ulimit -v). A reserve cannot be freed while a pool is on it. Errors: NULL, BAD_SIZE,
 * BAD_ARGUMENT, LIMIT_BELOW_HELD (an empty pool holds some tables), NO_MEMORY, OS,
 * TOO_MANY. */
int glebe_zpool_new(const glebe_zpool_options *options, glebe_zpool *pool);

/* Ends a pool and all its objects; its memory goes back to the system, lent pages to the
 * reserve. */
int glebe_zpool_free(glebe_zpool pool);

/* Stores a copy of `len_bytes` at `bytes` and writes its number to `object`. Errors: NULL,
 * EMPTY, TOO_LONG, NO_MEMORY, OS; FULL at the limit, or where the staging is full and no pages
 * are lent. */
int glebe_zpool_insert(glebe_zpool pool, const void *bytes, size_t len_bytes,
                       glebe_zobject *object);

/* Copies an object to the start of `buffer`, which has room for `buffer_len_bytes`, and writes its
 * length to `len_bytes`; with less room than needed the answer is GLEBE_ERROR_BUFFER_TOO_SMALL and
 * the length. A page is always enough; with a `buffer_len_bytes` of 0 only the
 * length is written, and that is no error. GLEBE_GET_MISS, and no length, if a reserve lost it.
 * After that, and after an error, the buffer may hold anything. Errors: NULL, STALE, FOREIGN,
 * CORRUPT. */
int glebe_zpool_read(glebe_zpool pool, glebe_zobject object, void *buffer,
                     size_t buffer_len_bytes, size_t *len_bytes);

/* Stores other bytes under the same number, also of an object that was lost and that nobody has
 * asked for since; who reads meanwhile has the old ones or the new ones. After an error the object
 * is as it was. Errors: NULL, EMPTY, TOO_LONG, STALE, FOREIGN, FULL, NO_MEMORY, OS. */
int glebe_zpool_replace(glebe_zpool pool, glebe_zobject object, const void *bytes,
                        size_t len_bytes);

/* Removes an object, whether or not it was lost unnoticed. Errors: STALE, FOREIGN. */
int glebe_zpool_remove(glebe_zpool pool, glebe_zobject object);

/* What a compaction did. Never grows. */
typedef struct glebe_compacted {
    uint64_t moved; /* objects */
    uint64_t freed_pages;
} glebe_compacted;

/* Moves objects together and frees the pages that are left, until nothing is left to free, or,
 * where one of the two is not 0, until `max_pages` were freed or `max_us` microseconds have
 * passed: it stops at the first object that takes it over that. What is being read meanwhile
 * stays. On a reserve, first what is staged, then lent zspages that are sparse. `compacted` may
 * be null. Errors: BAD_ARGUMENT for both limits at once. */
int glebe_zpool_compact(glebe_zpool pool, uint64_t max_pages, uint64_t max_us,
                        glebe_compacted *compacted);

/* Changes the limit. Where the pool holds more, it compacts and, if it may, evicts. Errors:
 * BAD_ARGUMENT for a pool on a reserve; LIMIT_BELOW_HELD, after which the limit is as it was, and
 * what was shed is shed. */
int glebe_zpool_set_limit(glebe_zpool pool, uint64_t limit_bytes);

/* Looks at the pages of so many zspages on a reserve, going on where the last call ended, and ends
 * the objects whose pages are lost. Inserts do that too, bit by bit. A pool with memory of its own
 * loses none. */
int glebe_zpool_sweep(glebe_zpool pool, uint64_t zspages);

typedef struct glebe_zpool_stats {
    uint64_t size; /* sizeof(glebe_zpool_stats); set to the bytes that were filled */
    uint64_t inserted; /* objects that were stored, by insert or replace */
    uint64_t inserted_bytes; /* bytes of what was inserted, as it was given */
    uint64_t inserted_stored_bytes; /* bytes of what was inserted, as it was stored */
    uint64_t removed; /* objects that went by remove or replace */
    uint64_t evicted; /* objects that were removed for others at the limit, or were recalled */
    uint64_t moved; /* objects that compaction moved */
    uint64_t compacted_pages; /* pages that compaction freed (zram: pages_compacted) */
    uint64_t objects; /* objects that are stored */
    uint64_t stored_bytes; /* bytes of them as they are stored (zram: compr_data_size) */
    uint64_t slot_bytes; /* bytes of their slots: with what rounding adds */
    uint64_t limbo_slots; /* slots that wait until nobody reads there */
    uint64_t zspages; /* zspages */
    uint64_t used_pages; /* pages of zspages (zram: mem_used_total) */
    uint64_t kept_pages; /* pages that wait for the next zspage */
    uint64_t freeable_pages; /* pages that compaction would free */
    uint64_t metadata_bytes; /* bytes of everything that is held besides pages */
    uint64_t held_bytes; /* bytes that are held, everything counted */
    uint64_t held_bytes_max; /* the most bytes that were ever held */
    uint64_t limit_bytes; /* the most that may be held; 0 without a limit */
    uint64_t same_objects; /* objects that one word fills, which take no slot (zram: same_pages) */
    uint64_t sealed_pages; /* pages of zspages that are lent by a reserve */
    /* Of a pool on a reserve; `evicted` are `lost` there. */
    uint64_t lost; /* objects found lost with their pages */
    uint64_t refused; /* inserts for which no page could be lent */
    uint64_t sealed; /* zspages that went to lent pages */
    uint64_t moved_pages; /* pages that were moved before first class took them */
    uint64_t taken_out; /* objects that came back from sparse zspages */
    uint64_t lent_pages; /* lent pages of zspages */
    uint64_t staged_pages; /* pages of zspages in ordinary memory */
    uint64_t staging_pages; /* the most of these that there may be */
    uint64_t places_bytes; /* bytes of tables that say where lent pages are */
} glebe_zpool_stats;

/* Fills `stats`. Exact while no other call is under way: held_bytes is the pages that are used and
 * kept, and metadata_bytes; inserted is objects, removed and evicted. But freeable_pages leaves out
 * size classes that the pool uses no longer. Errors: NULL, BAD_SIZE. */
int glebe_zpool_get_stats(glebe_zpool pool, glebe_zpool_stats *stats);

/* Gives the statistics as text, in one of GLEBE_FORMAT_*. Of a pool on a reserve, names of what is
 * beside the objects' statistics begin with glebe_object_pool_ in OpenMetrics. Errors: NULL,
 * BAD_ARGUMENT. */
int glebe_zpool_format_stats(glebe_zpool pool, uint64_t format, char *text, size_t text_len_bytes,
                             size_t *needed_bytes);

/* ---- Swap: memory larger than its budget ----------------------------------------------------- */

/* A store has objects of 1 byte to 2 MiB, and a *budget*: the bytes of them that may be in memory.
 * An object has one address for life. It is in memory while it is pinned; when it is not, its
 * memory may go, and it is kept compressed, in memory of the store's own or, where that is full, in
 * a file. So the program pins what it uses, and no other access is possible: there is no signal and
 * no fault. What is pinned counts against the budget and cannot leave. */
typedef struct glebe_swap_store {
    uint64_t id;
} glebe_swap_store;

/* An object of a store: the name, not the bytes. Never grows. A name that was removed is
 * GLEBE_ERROR_STALE wherever it is used, and never names another object. */
typedef struct glebe_swap_object {
    uint64_t id;
    uint64_t store; /* the store, unlike every other's of the process */
} glebe_swap_object;

/* Memory of a store or a region that stays where it is until the pin is freed, by any thread. */
typedef struct glebe_swap_pin {
    uint64_t id;
} glebe_swap_pin;

/* A swap cache: memory that may be lost at any moment, for copies of what a file has. See
 * glebe_swap_cache_new. */
typedef struct glebe_swap_cache {
    uint64_t id;
} glebe_swap_cache;

/* What store or region is wanted. */
typedef struct glebe_swap_options {
    uint64_t size;             /* sizeof(glebe_swap_options) */
    uint64_t pool_limit_bytes; /* the most memory for what is compressed, everything counted; 0: as
                                  much as the budget, and 1 MiB at least */
    uint64_t capacity_bytes;   /* of a store: the most bytes of all objects, each rounded up to
                                  pages; 0: sixteen budgets. Of a region: 0 */
    uint64_t codec;            /* GLEBE_CODEC_* */
    uint64_t zstd_level;       /* for GLEBE_CODEC_ZSTD; 0: the usual one */
    uint64_t drop_copies;      /* 0: what was loaded and not written since keeps its compressed copy
                                  while there is room, and leaves without being compressed again; 1:
                                  it does not */
    const char *file_directory; /* a file in this directory takes what the pool has no room for;
                                   null: new objects are refused then. The file has no name, is
                                   this process's alone, and is gone with it */
    uint64_t file_bytes;        /* the most that the file may have */
    uint64_t encrypt;           /* 1: what goes to the file is encrypted, by a key that only this
                                   process has; 0: it is not */
    glebe_swap_cache cache;     /* of a store with a file: what is in the file is in this swap cache
                                   too, and a load reads the file only where first class, or
                                   another user of the cache, took the copy meanwhile; 0: in none.
                                   Of a region: 0 */
} glebe_swap_options;

/* Makes a store of which `budget_bytes` are in memory at most. Errors: NULL, BAD_SIZE, TOO_MANY;
 * BAD_ARGUMENT, also for encryption or a swap cache without a file; BAD_LEN for a budget or a
 * capacity of less than a page; LIMIT_BELOW_HELD for a pool's limit that an empty pool passes; OS,
 * NO_MEMORY. */
int glebe_swap_store_new(uint64_t budget_bytes, const glebe_swap_options *options,
                         glebe_swap_store *store);

/* Ends a store and its objects. Errors: BUSY while it has pins. */
int glebe_swap_store_free(glebe_swap_store store);

/* Stores a copy of `len_bytes` as an object. Other objects leave memory for it. Errors: NULL,
 * BAD_LEN; BUDGET and FULL where no room can be made; NO_RUN where its addresses are taken, up to
 * the capacity; OS, NO_MEMORY. */
int glebe_swap_store_insert(glebe_swap_store store, const void *bytes, size_t len_bytes,
                            glebe_swap_object *object);

/* Makes an object of `len_bytes` zeros, pinned to be written: its memory is at `address` until
 * `pin` is freed. Errors: as glebe_swap_store_insert; TOO_MANY. */
int glebe_swap_store_create(glebe_swap_store store, size_t len_bytes, glebe_swap_object *object,
                            void **address, glebe_swap_pin *pin);

/* Pins an object to be read: it is brought to memory if it is not there, and its bytes are at
 * `address`, and `len_bytes` of them, which may be null, until `pin` is freed. Several pins to read
 * may be had at once. Errors: NULL, STALE, FOREIGN, DEAD, TOO_MANY; PINNED by a pin to write;
 * PINS_EXHAUSTED; BUDGET and FULL where no room can be made; CORRUPT where its copy is not what was
 * stored, after which it can only be removed; OS, NO_MEMORY. */
int glebe_swap_store_pin(glebe_swap_store store, glebe_swap_object object, const void **address,
                         size_t *len_bytes, glebe_swap_pin *pin);

/* As glebe_swap_store_pin, to be written: no other pin of the object may be had meanwhile. PINNED
 * also by pins to read. */
int glebe_swap_store_pin_mut(glebe_swap_store store, glebe_swap_object object, void **address,
                             size_t *len_bytes, glebe_swap_pin *pin);

/* Ends a pin, of a store or a region: its memory must not be touched any more without another. */
int glebe_swap_pin_free(glebe_swap_pin pin);

/* Copies an object out, and its length to `len_bytes`, and removes it. It needs no room in the
 * budget. If it is longer than `buffer_len_bytes` it stays, and the answer is BUFFER_TOO_SMALL and
 * the length; with a `buffer_len_bytes` of 0 only the length is written, and that is no error.
 * Errors: NULL, STALE, FOREIGN, DEAD, PINNED, CORRUPT, OS, after which the object stays. */
int glebe_swap_store_take(glebe_swap_store store, glebe_swap_object object, void *buffer,
                          size_t buffer_len_bytes, size_t *len_bytes);

/* Removes an object, dead and damaged ones too. Errors: STALE, FOREIGN, PINNED. */
int glebe_swap_store_remove(glebe_swap_store store, glebe_swap_object object);

/* Says that an object is not needed for a while: it is among the next to leave memory. Errors:
 * STALE, FOREIGN. */
int glebe_swap_store_cold(glebe_swap_store store, glebe_swap_object object);

/* Brings an object to memory that will be needed soon. Errors: as glebe_swap_store_pin, but for
 * PINNED. */
int glebe_swap_store_will_need(glebe_swap_store store, glebe_swap_object object);

/* Says that an object's bytes are wanted no more: they are never compressed or written again, and
 * their memory goes at once or with the last pin. The object stays until it is removed, and cannot
 * be pinned. Errors: STALE, FOREIGN. */
int glebe_swap_store_dead(glebe_swap_store store, glebe_swap_object object);

/* Changes the budget. Where more is in memory, objects leave it. Errors: BAD_LEN for less than a
 * page; LIMIT_BELOW_HELD for less than is pinned, which the text has; FULL; after these the budget
 * is as it was. */
int glebe_swap_store_set_budget(glebe_swap_store store, uint64_t budget_bytes);

/* Changes the limit of what is compressed in memory. Kept copies go if they must. Errors:
 * LIMIT_BELOW_HELD, after which the limit is as it was. */
int glebe_swap_store_set_pool_limit(glebe_swap_store store, uint64_t limit_bytes);

typedef struct glebe_swap_stats {
    uint64_t size; /* sizeof(glebe_swap_stats); set to the bytes that were filled */
    uint64_t created_pages; /* pages of objects that were made */
    uint64_t freed_pages; /* pages of objects that were freed or taken */
    uint64_t dead_pages; /* pages of objects of which the program said that they are dead */
    uint64_t loaded; /* objects that were brought to memory */
    uint64_t evicted; /* objects that left memory */
    uint64_t rescued; /* objects chosen to leave that were used before they had */
    uint64_t stayed; /* objects whose pages the kernel did not take */
    uint64_t coded; /* copies made by the codec */
    uint64_t raw; /* copies of objects that do not get smaller */
    uint64_t filled; /* copies of objects that one word fills, which take no room */
    uint64_t reused; /* objects that left by a copy that was kept */
    uint64_t kept_dropped; /* kept copies that made room for others */
    uint64_t spilled; /* copies that went from the pool to the file */
    uint64_t spilled_bytes; /* bytes of them */
    uint64_t read_back; /* objects that were brought to memory from the file */
    uint64_t loaded_idle; /* objects that the file has and that came from a swap cache */
    uint64_t coded_bytes; /* bytes of objects that the codec made smaller */
    uint64_t block_bytes; /* bytes that it made of them */
    uint64_t damaged; /* copies that were not what was stored */
    uint64_t moved_out_pages; /* pages of a region that were moved into the window */
    uint64_t retouched_pages; /* pages of a region that came back from the window */
    uint64_t read_ahead_pages; /* pages of a region that were loaded before a touch */
    uint64_t came_over_pages; /* pages of a region that came though nothing could leave */
    uint64_t refused; /* times that no room could be made */
    uint64_t stuck_pages; /* pages nobody wants that the kernel did not take back */
    uint64_t resident_pages; /* pages of objects in memory */
    uint64_t pinned_pages; /* pages of those that guards pin */
    uint64_t kept_pages; /* pages of those that have a copy too */
    uint64_t stored_pages; /* pages of objects that are not in memory */
    uint64_t window_pages; /* pages of a region that wait to be compressed, of those in memory */
    uint64_t buried_pages; /* pages of dead objects that were not freed, which take no memory */
    uint64_t charged_pages; /* pages charged to the budget */
    uint64_t budget_pages; /* the budget */
    uint64_t over_budget_pages; /* pages charged beyond it */
    uint64_t pool_pages; /* memory of the copies, everything counted */
    uint64_t file_pages; /* pages of the file that hold copies */
    uint64_t load_count; /* objects brought to memory: how many */
    uint64_t load_sum_ns; /* objects brought to memory: all together */
    uint64_t load_p50_ns; /* objects brought to memory: half took no longer */
    uint64_t load_p90_ns; /* objects brought to memory: 9 of 10 took no longer */
    uint64_t load_p99_ns; /* objects brought to memory: 99 of 100 took no longer */
    uint64_t load_p999_ns; /* objects brought to memory: 999 of 1000 took no longer */
    uint64_t load_max_ns; /* objects brought to memory: the longest */
} glebe_swap_stats;

/* Fills `stats`. Takes time in proportion to the objects. Errors: NULL, BAD_SIZE. */
int glebe_swap_store_get_stats(glebe_swap_store store, glebe_swap_stats *stats);

/* Gives the statistics as text, in one of GLEBE_FORMAT_* but GLEBE_FORMAT_CLASSES. Errors: NULL,
 * BAD_ARGUMENT. */
int glebe_swap_store_format_stats(glebe_swap_store store, uint64_t format, char *text,
                                  size_t text_len_bytes, size_t *needed_bytes);

/* A region is ordinary memory, used by address, of which no more than a budget is in memory; the
 * rest is kept as a store keeps it. A touch of what is not there raises SIGBUS, which glebe's
 * handler serves in the thread that touched. Needs userfaultfd(2), no privilege; twice its length
 * of addresses; and 32 bytes for each page that was ever touched. What follows from that:
 *   - A system call or a device that is given what is not in memory answers EFAULT: give it what
 *     glebe_swap_region_resident pins.
 *   - A thread that blocks SIGBUS is killed by a touch, and so is one whose alternate signal stack
 *     is too small: glebe_swap_region_arm_thread tells.
 *   - A touch that cannot be served is SIGBUS to the handler that was there before glebe's, or else
 *     the end of the process: si_addr is the address, si_errno says why. That is so where the
 *     page's copy is damaged or its file cannot be read. Where nothing can leave memory, a touch
 *     goes over the budget, and over_budget_pages tells; calls are refused.
 *   - A handler for SIGBUS that is installed later stands in front of glebe's, and must hand on
 *     what is not its own.
 *   - A forked child has not the memory: a touch there is SIGSEGV.
 *   - The program may advise on parts (madvise), lock and protect them. What it locks or makes
 *     read-only may stay in memory, over the budget if it must. Where the process locks all that it
 *     maps (mlockall), pages are locked as they come, and twice the region's length counts against
 *     RLIMIT_MEMLOCK.
 *   - Memory of a region is not given to an allocator, and is touched under no lock that an
 *     allocator takes. */
typedef struct glebe_swap_region {
    uint64_t id;
} glebe_swap_region;

/* Makes a region of `len_bytes` zeros, rounded up to whole pages, of which `budget_bytes` are in
 * memory at most. Errors: as glebe_swap_store_new; OS also where userfaultfd(2) is refused. */
int glebe_swap_region_new(uint64_t len_bytes, uint64_t budget_bytes,
                          const glebe_swap_options *options, glebe_swap_region *region);

/* Ends a region: its memory must not be touched any more. Errors: BUSY while it has pins. */
int glebe_swap_region_free(glebe_swap_region region);

/* The first byte of a region, and its bytes; and 1 where pages leave by UFFDIO_MOVE (Linux 6.8), or
 * 0: then devices may not write to what is not pinned. Each place may be null. */
int glebe_swap_region_memory(glebe_swap_region region, void **address, uint64_t *len_bytes,
                             uint64_t *moves_pages);

/* Brings `len_bytes` from `offset_bytes` on to memory and keeps them there until `pin` is freed: to
 * be read and written, also by system calls and devices. Their pages count against the budget, of
 * which an eighth is for all others. No other pin, and no read or write below, has one of the
 * pages meanwhile. Errors: NULL, BEYOND, TOO_MANY; PINNED by another pin; BUDGET, FULL, CORRUPT,
 * OS, NO_MEMORY. */
int glebe_swap_region_resident(glebe_swap_region region, uint64_t offset_bytes, uint64_t len_bytes,
                               void **address, glebe_swap_pin *pin);

/* Copies out of a region. Never raises SIGBUS for the region. Errors: as
 * glebe_swap_region_resident, after which the buffer may hold anything. */
int glebe_swap_region_read(glebe_swap_region region, uint64_t offset_bytes, void *buffer,
                           size_t len_bytes);

/* Copies into a region. Never raises SIGBUS for the region. Errors: as glebe_swap_region_resident,
 * after which the first pages may be written. */
int glebe_swap_region_write(glebe_swap_region region, uint64_t offset_bytes, const void *bytes,
                            size_t len_bytes);

/* Says that pages are not needed for a while: where memory is short, those that lie whole in the
 * range are the next to leave it. A touch until then does not change that. Of many ranges that
 * wait, the oldest are forgotten. Errors: BEYOND. */
int glebe_swap_region_cold(glebe_swap_region region, uint64_t offset_bytes, uint64_t len_bytes);

/* Brings pages to memory that will be needed soon: those that hold the first of the bytes, as many
 * as the budget has. They may leave again before they are needed. Errors: BEYOND, BUDGET, FULL,
 * CORRUPT, OS, NO_MEMORY. */
int glebe_swap_region_will_need(glebe_swap_region region, uint64_t offset_bytes,
                                uint64_t len_bytes);

/* Gives up the bytes of the pages that lie whole in the range: they take neither memory nor room in
 * pool and file any more, are zeros from then on, and a damaged page is whole again. Errors:
 * BEYOND; PINNED by a pin, OS, NO_MEMORY: after these the first pages may be zeros. */
int glebe_swap_region_discard(glebe_swap_region region, uint64_t offset_bytes, uint64_t len_bytes);

/* Readies the calling thread to touch the region: makes what its first touch would make in the
 * handler, and tests what would end the process there. Errors: SIGNAL. */
int glebe_swap_region_arm_thread(glebe_swap_region region);

/* Changes the budget. Where more is in memory, pages leave it. Errors: as
 * glebe_swap_store_set_budget. */
int glebe_swap_region_set_budget(glebe_swap_region region, uint64_t budget_bytes);

/* Fills `stats`; what a region lacks is 0. Takes time in proportion to the pages. Errors: NULL,
 * BAD_SIZE. */
int glebe_swap_region_get_stats(glebe_swap_region region, glebe_swap_stats *stats);

/* As glebe_swap_store_format_stats. */
int glebe_swap_region_format_stats(glebe_swap_region region, uint64_t format, char *text,
                                   size_t text_len_bytes, size_t *needed_bytes);

/* A swap cache is memory for the pages of areas: the idle part of a reserve, or memory of its own.
 * An area has the pages of a program's own pager, by index, compressed, and a file or none. A page
 * that the file has is *saved*. Lent pages of a reserve hold copies of saved pages alone: a recall
 * finds nothing to write. Pages that are not saved are in ordinary memory of the area, and two
 * numbers bound their compressed bytes:
 *   - write-back: bytes that wait to be written, by a later store that finds no room;
 *   - put-back: bytes that need not be written, with a file or without.
 * Both are 0 at first, which is write-through: the file has a page when its store returns.
 * A swap cache may also have copies of what a store's file has. */
typedef struct glebe_swap_area {
    uint64_t id;
} glebe_swap_area;

/* What swap cache is wanted. */
typedef struct glebe_swap_cache_options {
    uint64_t size;         /* sizeof(glebe_swap_cache_options) */
    glebe_reserve reserve; /* in what first class does not hold of it; 0: in memory of its own */
    uint64_t limit_bytes;  /* without a reserve: the most memory, everything counted */
    uint64_t codec;        /* GLEBE_CODEC_*, of areas made in it */
    uint64_t zstd_level;   /* for GLEBE_CODEC_ZSTD; 0: the usual one */
    uint64_t encrypt;      /* 1: areas made in it encrypt what they write to their files, each by a
                              key that only this process has; 0: they do not. A store in it does so
                              by its own options */
} glebe_swap_cache_options;

/* Makes a swap cache. A reserve is not ended while it has one, or an area or a store in one.
 * Errors: NULL, BAD_SIZE, TOO_MANY; BAD_ARGUMENT without a limit or a reserve, or with both;
 * LIMIT_BELOW_HELD for a limit that an empty pool passes; OS, NO_MEMORY. */
int glebe_swap_cache_new(const glebe_swap_cache_options *options, glebe_swap_cache *cache);

/* Ends the handle. Areas and stores in the cache stay as they are. */
int glebe_swap_cache_free(glebe_swap_cache cache);

/* Writes what suits most areas as write-back to `write_back_bytes`: a sixteenth of the reserve or
 * the limit, and at most 16 MiB. Errors: NULL. */
int glebe_swap_cache_usual_write_back(glebe_swap_cache cache, uint64_t *write_back_bytes);

/* What area is wanted. */
typedef struct glebe_swap_area_options {
    uint64_t size;              /* sizeof(glebe_swap_area_options) */
    const char *file_directory; /* where its file is, which has no name, is this process's alone,
                                   and is gone with it; null: without a file it stores nothing until
                                   glebe_swap_area_set_put_back */
    uint64_t file_bytes;        /* the most that the file may have */
} glebe_swap_area_options;

/* Makes an area of `pages`. Errors: NULL, BAD_SIZE, BAD_ARGUMENT, TOO_MANY; BAD_LEN for none or too
 * many; OS, NO_MEMORY. */
int glebe_swap_area_new(glebe_swap_cache cache, uint64_t pages,
                        const glebe_swap_area_options *options, glebe_swap_area *area);

/* Ends an area and its pages. */
int glebe_swap_area_free(glebe_swap_area area);

/* Stores bytes as the pages from index `first` on, in place of what was there: whole pages, of
 * which several share a write. Errors: NULL, BAD_LEN, BEYOND, after which nothing has changed; FULL
 * where file and put-back have no room, OS, NO_MEMORY: after these each of the pages is as it was,
 * is stored, or is stored no more. */
int glebe_swap_area_store(glebe_swap_area area, uint64_t first, const void *bytes,
                          size_t len_bytes);

/* Copies a page out; returns GLEBE_GET_*. `len_bytes` must be glebe_page_bytes(). Errors: NULL,
 * BAD_LEN, BEYOND; CORRUPT where it is not what was stored; OS. After these the buffer may hold
 * anything. */
int glebe_swap_area_load(glebe_swap_area area, uint64_t index, void *page, size_t len_bytes);

/* As glebe_swap_area_load, and after a hit the page is stored no more. */
int glebe_swap_area_take(glebe_swap_area area, uint64_t index, void *page, size_t len_bytes);

/* Drops one page; returns GLEBE_INVALIDATED or GLEBE_NOT_THERE. Errors: BEYOND. */
int glebe_swap_area_invalidate_page(glebe_swap_area area, uint64_t index);

/* Drops all pages, and writes how many there were to `pages`, unless that is null. */
int glebe_swap_area_invalidate(glebe_swap_area area, uint64_t *pages);

/* Sets write-back; it counts only with a file. What is more than it lets wait is written before
 * this returns. Errors: FULL, OS, after which it is as it was. */
int glebe_swap_area_set_write_back(glebe_swap_area area, uint64_t write_back_bytes);

/* Sets put-back. What is more is written before this returns, but for what write-back lets wait.
 * Errors: as glebe_swap_area_set_write_back; LIMIT_BELOW_HELD without a file, where more is
 * stored. */
int glebe_swap_area_set_put_back(glebe_swap_area area, uint64_t put_back_bytes);

typedef struct glebe_swap_area_stats {
    uint64_t size; /* sizeof(glebe_swap_area_stats); set to the bytes that were filled */
    uint64_t stored; /* pages that were stored */
    uint64_t ended; /* pages that were replaced, taken or invalidated */
    uint64_t filled; /* pages that one word fills, which take no room */
    uint64_t refused; /* stores that were refused */
    uint64_t through; /* pages that the file had when their store returned */
    uint64_t cleaned; /* pages that were written later */
    uint64_t written_bytes; /* bytes of pages written to the file, without rounding */
    uint64_t waited; /* stores that wrote older pages first */
    uint64_t loaded; /* pages loaded that were not in the file, or are the same all over */
    uint64_t loaded_kept; /* pages loaded from copies that are kept */
    uint64_t read_back; /* pages loaded from the file */
    uint64_t kept_lost; /* kept copies that a load found gone */
    uint64_t missed; /* loads of what was not stored */
    uint64_t damaged; /* loads of pages that were not what was stored */
    uint64_t present_pages; /* pages stored */
    uint64_t unsaved_pages; /* pages that the file does not have */
    uint64_t saved_pages; /* pages that the file has */
    uint64_t kept_pages; /* saved pages with a copy that may still be there */
    uint64_t same_filled_pages; /* pages that one word fills */
    uint64_t own_pages; /* ordinary memory for pages that the file does not have */
    uint64_t file_pages; /* pages of the file that hold copies */
    uint64_t unsaved_block_bytes; /* bytes of pages that the file does not have */
    uint64_t charged_bytes; /* bytes charged for them */
    uint64_t limit_bytes; /* the most that may be: write-back and put-back */
} glebe_swap_area_stats;

/* Fills `stats`. Takes time in proportion to the pages. Errors: NULL, BAD_SIZE. */
int glebe_swap_area_get_stats(glebe_swap_area area, glebe_swap_area_stats *stats);

/* As glebe_swap_store_format_stats. */
int glebe_swap_area_format_stats(glebe_swap_area area, uint64_t format, char *text,
                                 size_t text_len_bytes, size_t *needed_bytes);

/* ---- Reclaimers ------------------------------------------------------------------------------ */

/* A reclaimer takes memory back from parts of the program before the kernel has to kill it. It
 * reads the memory limits of the cgroups above the process, and what the machine has. While the
 * tightest of these leaves less than a margin, it takes what is missing, and no more, in this
 * order: marked volatile memory, the lowest priority first and within it the oldest; what
 * compaction of object pools frees; objects of pools that may evict; what budgets were granted; and
 * memory of reserves that first class does not hold.
 *
 * Parts are added, and leave when they are freed. The reclaimer keeps none of them alive, and a
 * part has one reclaimer. glebe_volatile_free waits for a look that is under way. Memory of an
 * object pool or a reserve that is freed during a look goes back at its end.
 *
 * A reclaimer looks when glebe_reclaimer_poll is called, or in a thread of its own after
 * glebe_reclaimer_start. A look takes some tens of microseconds, and the time to take what is
 * taken. A thread that is inside another call on volatile memory or a fork gets WOULD_WAIT. */
typedef struct glebe_reclaimer {
    uint64_t id;
} glebe_reclaimer;

/* What reclaimer is wanted. */
typedef struct glebe_reclaimer_options {
    uint64_t size;         /* sizeof(glebe_reclaimer_options) */
    uint64_t margin_bytes; /* take memory while less than this can be had; 0: a sixteenth of the
                              limit, but 4 MiB at least and 256 MiB at most. Never more than a
                              quarter of the limit */
    uint64_t lead_ms;      /* the margin grows by what usage rises by in this time; 0: 200 */
    uint64_t withhold_ms;  /* refills are withheld so long after memory was short; 0: 1000 */
    uint64_t yield_files;  /* 0: in a cgroup with a limit, marked memory stays so little that the
                              kernel drops no file page for it; 1: the kernel chooses */
} glebe_reclaimer_options;

/* Makes a reclaimer without parts. Errors: NULL, BAD_SIZE, BAD_ARGUMENT, TOO_MANY; BLIND if
 * neither a cgroup nor the machine says how much memory there is; OS, NO_MEMORY. */
int glebe_reclaimer_new(const glebe_reclaimer_options *options, glebe_reclaimer *reclaimer);

/* Ends a reclaimer and its thread, once the look under way has ended. Its parts stay as they are,
 * and another reclaimer may have them. Budgets allow all that they were made with again. Errors:
 * WOULD_WAIT. */
int glebe_reclaimer_free(glebe_reclaimer reclaimer);

/* Adds the marked memory of a region. Errors: TAKEN, WOULD_WAIT, OS. */
int glebe_reclaimer_add_volatile(glebe_reclaimer reclaimer, glebe_volatile region);

/* Adds what a purge of a shared region would take: what is marked and nobody has pinned, of all
 * processes. Where several processes add regions of one file, each takes what its own look finds
 * missing. Errors: TAKEN, WOULD_WAIT, NO_MEMORY, OS; BAD_ARGUMENT without a descriptor left;
 * BAD_FILE for a region of the caller's memory; HANDLER_COVERED as glebe_shared_open. */
int glebe_reclaimer_add_shared(glebe_reclaimer reclaimer, glebe_shared shared);

/* Adds an object pool with memory of its own: what compaction frees, and with evict_oldest the
 * objects that are old and unread. Errors: TAKEN, WOULD_WAIT; BAD_ARGUMENT for a pool on a
 * reserve. */
int glebe_reclaimer_add_zpool(glebe_reclaimer reclaimer, glebe_zpool pool);

/* Adds a reserve, made with room_bytes, of which `least_bytes` are to stay. What goes, goes as by
 * glebe_reserve_shrink; it does not come back by itself, but by glebe_reserve_grow. Errors: TAKEN,
 * WOULD_WAIT; FIXED_LEN for a reserve without room_bytes; OS. */
int glebe_reclaimer_add_reserve(glebe_reclaimer reclaimer, glebe_reserve reserve,
                                uint64_t least_bytes);

/* How much a cache of the program's own may hold. The program says what it holds, reads now and
 * then what it may hold, and gives up the rest. What it was asked for counts as coming for a
 * second; after that other parts are asked. For memory that goes back to the system when the cache
 * gives it up. */
typedef struct glebe_budget {
    uint64_t id;
} glebe_budget;

/* Makes a budget of `most_bytes`, which is what it allows while memory is not short. Errors: NULL,
 * TOO_MANY. */
int glebe_budget_new(uint64_t most_bytes, glebe_budget *budget);

/* Ends a budget. */
int glebe_budget_free(glebe_budget budget);

/* Says how much the cache holds now. */
int glebe_budget_set_held(glebe_budget budget, uint64_t held_bytes);

/* Writes how much the cache may hold now to `allowed_bytes`: all of it without a reclaimer.
 * Errors: NULL. */
int glebe_budget_allowed(glebe_budget budget, uint64_t *allowed_bytes);

/* Adds a budget. Errors: TAKEN, WOULD_WAIT. */
int glebe_reclaimer_add_budget(glebe_reclaimer reclaimer, glebe_budget budget);

/* What a look took. */
typedef struct glebe_reclaimed {
    uint64_t size;           /* sizeof(glebe_reclaimed); set to the bytes that were filled */
    uint64_t asked_bytes;    /* what was to go; 0: memory was not short */
    uint64_t volatile_bytes; /* marked memory that went */
    uint64_t waste_bytes;    /* what compaction of object pools freed */
    uint64_t objects_bytes;  /* what went with objects of pools */
    uint64_t budgets_bytes;  /* by how much budgets were lowered; their owners free it */
    uint64_t reserve_bytes;  /* what reserves gave back */
    uint64_t measured_bytes; /* by how much usage fell meanwhile, whoever else uses memory */
    uint64_t failed;         /* parts that could not be shed and were passed over */
} glebe_reclaimed;

/* Looks at how much memory there is, and takes what is missing. What was taken goes to
 * `reclaimed`, which may be null. Waits for a look under way. Errors: BAD_SIZE, WOULD_WAIT; BLIND,
 * after which nothing was taken and the next look is due in a second; OS. */
int glebe_reclaimer_poll(glebe_reclaimer reclaimer, glebe_reclaimed *reclaimed);

/* Waits until the next look is due, a signal comes, or `most_ms` have passed. A look is due at the
 * latest a second after the last one. Errors: WOULD_WAIT, OS. */
int glebe_reclaimer_wait(glebe_reclaimer reclaimer, uint64_t most_ms);

/* Writes a descriptor to `fd` that is readable, for poll(2) or epoll(7), while a look is due. It is
 * the reclaimer's: do not read or close it. It is closed when the reclaimer is freed. Errors:
 * NULL. */
int glebe_reclaimer_fd(glebe_reclaimer reclaimer, int *fd);

/* Starts a thread that looks whenever a look is due, until the reclaimer is freed. Errors: STARTED,
 * WOULD_WAIT, OS, NO_MEMORY. */
int glebe_reclaimer_start(glebe_reclaimer reclaimer);

enum {
    GLEBE_REFILLS_ALLOWED = 0,
    GLEBE_REFILLS_WITHHELD = 1 /* memory is short, or was until just now */
};

/* Whether caches may fill up again, as one of GLEBE_REFILLS_*. A cache that asks before it computes
 * anew what it lost does not undo what the reclaimer did. A few loads. */
int glebe_reclaimer_refills(glebe_reclaimer reclaimer);

typedef struct glebe_reclaimer_stats {
    uint64_t size; /* sizeof(glebe_reclaimer_stats); set to the bytes that were filled */
    uint64_t polls; /* looks at how much memory there is */
    uint64_t notices; /* looks that a notice of the kernel's came before */
    uint64_t blind; /* looks that could not tell */
    uint64_t sheds; /* looks that asked for memory */
    uint64_t asked; /* pages that were asked for */
    uint64_t freed_volatile; /* pages freed that were marked volatile */
    uint64_t freed_waste; /* pages freed by compaction of object pools */
    uint64_t freed_objects; /* pages freed with objects of pools */
    uint64_t freed_reserve; /* pages that reserves gave back */
    uint64_t asked_budgets; /* pages that budgets were lowered by */
    uint64_t measured; /* pages by which usage fell meanwhile */
    uint64_t failed; /* parts that failed to give memory back */
    uint64_t withheld; /* times that refills were withheld */
    uint64_t limit_pages; /* the tightest limit, at the last look */
    uint64_t room_pages; /* what could be had before the kernel kills, then */
    uint64_t free_pages; /* what could be had before the kernel drops files, then */
    uint64_t margin_pages; /* below which memory is shed, then */
    uint64_t marked_pages; /* what was marked in all parts, then */
    uint64_t poll_count; /* looks, with what was shed: how many */
    uint64_t poll_sum_ns; /* looks, with what was shed: all together */
    uint64_t poll_p50_ns; /* looks, with what was shed: half took no longer */
    uint64_t poll_p90_ns; /* looks, with what was shed: 9 of 10 took no longer */
    uint64_t poll_p99_ns; /* looks, with what was shed: 99 of 100 took no longer */
    uint64_t poll_p999_ns; /* looks, with what was shed: 999 of 1000 took no longer */
    uint64_t poll_max_ns; /* looks, with what was shed: the longest */
} glebe_reclaimer_stats;

/* Fills `stats`. Errors: NULL, BAD_SIZE. */
int glebe_reclaimer_get_stats(glebe_reclaimer reclaimer, glebe_reclaimer_stats *stats);

/* Gives the statistics as text, in one of GLEBE_FORMAT_* but GLEBE_FORMAT_CLASSES. Names in
 * OpenMetrics begin with glebe_reclaim_. Errors: NULL, BAD_ARGUMENT. */
int glebe_reclaimer_format_stats(glebe_reclaimer reclaimer, uint64_t format, char *text,
                                 size_t text_len_bytes, size_t *needed_bytes);

#ifdef __cplusplus
}
#endif

#endif
