/*
 * glebe.h: the C interface of glebe.
 *
 * A reserve is memory that a program sets aside once, physically contiguous as far as the machine
 * allows. While the reserve is idle, it works as a cache; the program takes the memory back at
 * once. Volatile memory may be taken by the system; glebe reports exactly which pages it took.
 * Object pools pack and compress objects of up to a page. Swap keeps more data than its budget of
 * memory, compressed and in files.
 *
 * VERBS  glebe_KIND_new makes an object and glebe_KIND_free ends it, for each kind of handle. There
 *   are three exceptions. Blocks have the shorter names glebe_alloc and glebe_free.
 *   glebe_promise_take makes a promised block. The calls that pin make a swap_pin.
 * ANSWERS  A function that returns int returns 0 for success, a positive number for another answer
 *   that its description names, or a negative GLEBE_ERROR_*. An error changes nothing and writes no
 *   argument, unless the description says so; GLEBE_ERROR_BUFFER_TOO_SMALL writes the needed
 *   length. glebe_last_error() has the text of the error. Every function on a handle can return
 *   BAD_HANDLE and FORKED; the descriptions do not repeat these two. No call ends the process,
 *   unless memory for glebe's own book-keeping runs out. No call throws or unwinds.
 * HANDLES  Each kind of handle has its own type, a structure of one number that is passed by value.
 *   So a compiler refuses a reserve where a function needs a block. The number is never an address,
 *   and in an open handle never 0. Any number that is no open handle gives GLEBE_ERROR_BAD_HANDLE.
 *   (Only after 2^32 later handles in the same place may a freed handle count as open again.)
 * UNITS  Lengths and alignments of first class, and positions in a reserve, are in base pages of
 *   glebe_page_bytes() bytes. A name that ends in _bytes is in bytes, in _ns nanoseconds, in _ms
 *   milliseconds.
 * MEMORY  A call only reads memory that it gets as `const void *`. This memory may be read-only,
 *   and several calls may use it at once. Until the call returns, nobody may write the memory: no
 *   other thread and, if it is shared memory, no other process. A call that fills memory needs that
 *   memory for itself until it returns. A length above PTRDIFF_MAX gives GLEBE_ERROR_BAD_ARGUMENT,
 *   unless the call names another error for a length that is too large.
 * FRAMES  A page frame number times glebe_page_bytes() is the physical address of the page. In a
 *   virtual machine it is the guest's physical address. Behind an IOMMU, a device uses another
 *   address. The kernel shows frames only to a process with CAP_SYS_ADMIN. Other processes get
 *   GLEBE_PFN_HIDDEN in place of every frame, and glebe proves contiguity only within one page of
 *   the memory's source. Do not pass frames on to a process that may not see them.
 * TEXTS  A function that returns a text writes it to `text`, which has room for `text_len_bytes`
 *   bytes, with a zero byte at its end. The function writes the number of bytes that the text takes
 *   to `needed_bytes`. With a null `text` and a `text_len_bytes` of 0 the function writes only that
 *   number and returns 0. With less room than needed it returns GLEBE_ERROR_BUFFER_TOO_SMALL.
 * ARRAYS  A function that returns several answers writes the first `capacity` of them to an array,
 *   and the total number to `count`. The array may be null if `capacity` is 0.
 * THREADS  Any thread may call any function at any time, on any handle. Freeing a handle waits for
 *   the calls under way on it. A signal handler may call only glebe_vrange and glebe_vrange_strict,
 *   under the conditions stated there. No thread may be cancelled (pthread_cancel) inside a
 *   function. Beside the work itself, a call costs some tens of nanoseconds, and shares no lock
 *   with calls on other handles of its kind.
 * FORK  Handles and memory belong to the process that made them. In a forked child, every call on a
 *   handle of the parent returns GLEBE_ERROR_FORKED and touches nothing. The memory of a block is
 *   not mapped in the child. Parent and child share the memory of a lease, but the child has no
 *   handle of it. The child may make its own objects of every kind. Only volatile and shared
 *   regions are inherited. The child has its own copy of a volatile region: memory, marks and
 *   handles. Parent and child share the memory and the marks of a shared region, but the child has
 *   no pins. A child made by clone(2) instead of the C library's fork gets GLEBE_ERROR_FORKED for
 *   these regions, too. Memory that the parent gives back returns to the system even if a child
 *   lives.
 * STRUCTURES  The first member of a structure that may grow is its size in bytes as the caller
 *   knows it: set it to sizeof. If the size is smaller, because the header is older, the library
 *   uses only the members within that size. If it is larger, the unknown members must be zero on
 *   input, and the library sets them to zero on output. Zero is the default of every member of
 *   options, and a null pointer to options means all defaults.
 * LINKING  The soname is libglebe.so.0. Later versions with this soname only add functions,
 *   constants and members. Both libraries show only the functions below, so they do not conflict
 *   with a zstd, an LZ4 or a Rust library of the program. In a program without shared libraries
 *   (-static) the C library has no restartable sequences, so the program's reserves have
 *   GLEBE_WRITERS_COUNTED.
 */
#ifndef GLEBE_H
#define GLEBE_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header; glebe_version() returns the version of the library.
 * GLEBE_VERSION_NUMBER is MAJOR * 1000000 + MINOR * 1000 + PATCH, for comparisons. */
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

    GLEBE_ERROR_PANIC = -1,          /* glebe caught a fault inside itself; please report it */
    GLEBE_ERROR_FORKED = -2,         /* the handle belongs to the process that forked this one */
    GLEBE_ERROR_BAD_HANDLE = -3,     /* the handle names no open object */
    GLEBE_ERROR_NULL = -4,           /* a pointer is null that must not be null */
    GLEBE_ERROR_BAD_SIZE = -5,       /* the size member of a structure is not a possible size */
    GLEBE_ERROR_BAD_ARGUMENT = -6,   /* a flag, choice or name that does not exist */
    GLEBE_ERROR_BUSY = -7,           /* blocks, promises, caches, pools or pins still exist: see the
                                        text */
    GLEBE_ERROR_TOO_MANY = -8,       /* the maximum number of handles of a kind (2^23) exists */
    GLEBE_ERROR_BAD_ALIGN = -9,     /* an alignment is not a power of two */
    GLEBE_ERROR_NO_RUN = -10,        /* no free run is long enough, or none has the alignment; the
                                        text has the longest */
    GLEBE_ERROR_WOULD_WAIT = -11,    /* the call could only wait: for a tenant's copy, which
                                        GLEBE_NO_WAIT forbids, or in a signal handler for the
                                        interrupted call */
    GLEBE_ERROR_BAD_LEN = -12,       /* an invalid length: the text says which lengths are valid */
    GLEBE_ERROR_NO_MEMORY = -13,     /* machine, cgroup, pool or kernel has too little memory */
    GLEBE_ERROR_NO_SOURCE = -14,     /* this machine does not have the wanted kind of pages */
    GLEBE_ERROR_NOT_CONTIGUOUS = -15, /* the memory lacks the run that was required */
    GLEBE_ERROR_OS = -16,            /* the kernel refused a call; the text names it and the
                                        reason */
    GLEBE_ERROR_OTHER = -17,         /* see the text */
    GLEBE_ERROR_UNALIGNED = -18,     /* a range does not start and end at borders of granules */
    GLEBE_ERROR_EMPTY = -19,         /* a block of no pages, a range or an object of no bytes */
    GLEBE_ERROR_BEYOND = -20,        /* a range ends beyond its region or overflows */
    GLEBE_ERROR_UNMAPPED = -21,      /* nothing is mapped at an address; for this error and the next
                                        ones to SPECIAL, the text has the first such address */
    GLEBE_ERROR_LOCKED = -22,        /* locked memory (mlock) */
    GLEBE_ERROR_HUGETLB = -23,       /* memory of a hugetlb pool */
    GLEBE_ERROR_SHARED = -24,        /* shared memory */
    GLEBE_ERROR_FILE_PRIVATE = -25,  /* a private mapping of a file */
    GLEBE_ERROR_READ_ONLY = -26,     /* memory that cannot be written */
    GLEBE_ERROR_SPECIAL = -27,       /* memory of a device, the kernel or another userfaultfd */
    GLEBE_ERROR_MAP_BUDGET = -28,    /* more separate ranges or extents than mappings are allowed */
    GLEBE_ERROR_STUCK = -29,         /* the kernel can neither keep nor take pages (bad memory) */
    GLEBE_ERROR_ADOPTED = -30,       /* a volatile region already exists on this memory */
    GLEBE_ERROR_HANDLER_COVERED = -31, /* another SIGBUS handler was installed over glebe's */
    GLEBE_ERROR_STALE = -32,         /* the object was removed or evicted */
    GLEBE_ERROR_FOREIGN = -33,       /* the object belongs to another pool, or to none */
    GLEBE_ERROR_TOO_LONG = -34,      /* an object is longer than a page, or a value too long for a
                                        shared cache */
    GLEBE_ERROR_BUFFER_TOO_SMALL = -35, /* the call wrote the length that it needs */
    GLEBE_ERROR_FULL = -36,          /* the limit leaves no room; the text has the bytes held and
                                        the limit */
    GLEBE_ERROR_LIMIT_BELOW_HELD = -37, /* the pool holds more than the limit and can shed no
                                           more */
    GLEBE_ERROR_CORRUPT = -38,       /* the stored bytes of an object are damaged */
    GLEBE_ERROR_FIXED_LEN = -41,     /* the length of the reserve is fixed: see the text */
    GLEBE_ERROR_NO_ROOM = -42,       /* the reserve has too little room to grow; the text has the
                                        room left */
    GLEBE_ERROR_NOT_GIVEN = -43,     /* the reserve cannot give back that much; the text has how
                                        much it can */
    GLEBE_ERROR_TAKEN = -44,         /* another reclaimer of this process has the part */
    GLEBE_ERROR_BLIND = -45,         /* nothing reports how much memory exists; see the text */
    GLEBE_ERROR_STARTED = -46,       /* the thread runs already */
    GLEBE_ERROR_BAD_FILE = -47,      /* the file cannot be shared memory, or holds none */
    GLEBE_ERROR_TRUNCATED = -48,     /* the file of a shared region was cut, or lost pages */
    GLEBE_ERROR_NO_HOLDER_LEFT = -49, /* the maximum number of processes uses the file */
    GLEBE_ERROR_UNDER_WAY = -50,     /* another process or thread purges or joins, or leased memory
                                        is on its way back: try again */
    GLEBE_ERROR_PINS_EXHAUSTED = -51, /* this process has the maximum number of pins on a granule */
    GLEBE_ERROR_QUOTA = -52,         /* the pins would exceed the quota of the file's creator, or a
                                        lease the user's limit */
    GLEBE_ERROR_PRIVATE = -53,       /* private memory where the call needs shared memory */
    GLEBE_ERROR_DEAD = -54,          /* glebe_swap_store_dead gave up the object's bytes */
    GLEBE_ERROR_PINNED = -55,        /* pins of the object or the range prevent the call */
    GLEBE_ERROR_BUDGET = -56,        /* pinned memory leaves no room; the text has length, pins and
                                        budget */
    GLEBE_ERROR_SIGNAL = -57,        /* SIGBUS is blocked or has another handler, or its stack is
                                        small */
    GLEBE_ERROR_NO_DAEMON = -58,     /* no daemon answers at the socket */
    GLEBE_ERROR_REVOKED = -59        /* the daemon took the memory of a lease back */
};

/* Returns the text of the calling thread's last error: the refused value, and the limit. The text
 * is empty if there was no error; a success does not clear it. The pointer is never null, and valid
 * until the thread calls this function again. */
const char *glebe_last_error(void);

/* Returns the name of an error code, for example "GLEBE_ERROR_BUSY"; "unknown" for other numbers.
 * The text is static. */
const char *glebe_error_name(int code);

/* Returns the version of the library, as "MAJOR.MINOR.PATCH". The text is static. */
const char *glebe_version(void);

/* Returns the bytes of a base page of this machine. */
uint64_t glebe_page_bytes(void);

/* ---- Reserves -------------------------------------------------------------------------------- */

/* Memory that is set aside, with its blocks and caches. */
typedef struct glebe_reserve {
    uint64_t id;
} glebe_reserve;

/* The source of memory. */
enum {
    GLEBE_SOURCE_AUTO = 0,    /* the best source that the machine has */
    GLEBE_SOURCE_HUGETLB = 1, /* the hugetlb pool of hugetlb_page_bytes */
    GLEBE_SOURCE_THP = 2,     /* transparent huge pages; the kernel may move them */
    GLEBE_SOURCE_PLAIN = 3,   /* base pages */
    GLEBE_SOURCE_BLOCKS = 4   /* one run of memory blocks that the kernel evacuates; needs root */
};

/* Says if a hugetlb pool may get new pages. The kernel gets these pages back when they are freed or
 * the process ends, also by SIGKILL. Only one process of the machine at a time looks for new pages.
 * A call that would wait longer than lock_wait_ms for another process fails, with an error that
 * names the other process. A call does not wait if the pool has the pages. */
enum {
    GLEBE_GROW_AUTO = 0, /* if the caller may */
    GLEBE_GROW_NO = 1,
    GLEBE_GROW_YES = 2
};

/* The NUMA nodes of a reserve. */
enum {
    GLEBE_NODE_ANY = 0,    /* the kernel's choice */
    GLEBE_NODE_ONLY = 1,   /* only memory of one node */
    GLEBE_NODE_PREFER = 2, /* memory of one node if it has enough, otherwise of any */
    GLEBE_NODE_AMONG = 3   /* only memory of the nodes in node_mask */
};

/* The method that keeps tenants out of blocks. */
enum {
    GLEBE_WRITERS_COUNTED = 0,    /* by counting copies; first class may have to wait for a copy */
    GLEBE_WRITERS_RESTARTABLE = 1 /* by restartable sequences, without waiting */
};

/* The storage of objects and cached pages. Data that does not become shorter is stored as it is; so
 * is a cached page that saves less than a quarter, or a swapped object that saves less than an
 * eighth. */
enum {
    GLEBE_CODEC_AUTO = 0, /* LZ4 for object pools and swap, no codec for the page cache */
    GLEBE_CODEC_NONE = 1, /* no codec */
    GLEBE_CODEC_LZ4 = 2,
    GLEBE_CODEC_ZSTD = 3 /* shorter than LZ4, and reading takes about three times as long */
};

/* Options of a new reserve. */
typedef struct glebe_reserve_options {
    uint64_t size;                /* sizeof(glebe_reserve_options) */
    uint64_t source;              /* GLEBE_SOURCE_*: only this source */
    uint64_t hugetlb_page_bytes;  /* for GLEBE_SOURCE_HUGETLB: bytes of a page; 0: the smallest */
    uint64_t required_run_bytes;  /* the call fails without a physically contiguous run of this
                                     length */
    uint64_t preferred_run_bytes; /* tries for a run of this length; glebe_reserve_memory() gives
                                     the result */
    uint64_t grow_pool;           /* GLEBE_GROW_* */
    uint64_t threads;             /* number of threads that populate; 0: one a processor, at most
                                     8 */
    uint64_t zero_ahead_pages;    /* keep this many pages zeroed, by a thread in the background */
    uint64_t page_cache;          /* GLEBE_CODEC_*, of the page cache */
    uint64_t search_bytes;        /* memory that the search for long runs looks at; 0: all available
                                     memory but a tenth, or but 1 GiB if that is more */
    uint64_t lock_wait_ms;        /* longest wait for other processes that change the hugetlb pools;
                                     0: a minute */
    uint64_t search_ms;           /* longest search for runs; 0: 2 s of processor time for each GiB
                                     or part of a GiB, and three times that for a required run; in
                                     wall time at most five times as long */
    uint64_t room_bytes;          /* the maximum length of the reserve, for glebe_reserve_grow() and
                                     glebe_reserve_shrink(); 0: its length is fixed */
    uint64_t on_node;             /* GLEBE_NODE_*, also for memory that glebe_reserve_grow() adds */
    uint64_t node;                /* number of the NUMA node; 0 for GLEBE_NODE_ANY and
                                     GLEBE_NODE_AMONG */
    uint64_t node_mask;           /* for GLEBE_NODE_AMONG: bit N, from the lowest one, is node N;
                                     otherwise 0 */
} glebe_reserve_options;

/* Makes a reserve of `len_bytes`: maps and populates the memory, which takes about as long as
 * zeroing it. Errors: BAD_LEN, NO_MEMORY, NO_SOURCE, NOT_CONTIGUOUS, OS, BAD_SIZE, BAD_ARGUMENT,
 * NULL, TOO_MANY, FIXED_LEN. */
int glebe_reserve_new(uint64_t len_bytes, const glebe_reserve_options *options,
                      glebe_reserve *reserve);

/* Adds `len_bytes`, rounded up to whole 2 MiB, to the reserve, from the same source as its first
 * memory. Writes the bytes added to `came_bytes`, which may be null. Blocks, promises and cached
 * pages stay in place, and other calls on the reserve continue meanwhile. An error adds nothing.
 * Errors: FIXED_LEN without room_bytes; NO_ROOM, BAD_LEN, NO_MEMORY, NO_SOURCE, NOT_CONTIGUOUS,
 * OS. */
int glebe_reserve_grow(glebe_reserve reserve, uint64_t len_bytes, uint64_t *came_bytes);

/* Gives `len_bytes` of the reserve back to the system, rounded up to whole 2 MiB and whole pages of
 * its pool. Writes the bytes given back to `went_bytes`, which may be null. Drops the cached pages
 * in this memory, and touches no block and no promise. Errors: FIXED_LEN without room_bytes;
 * NOT_GIVEN, whose text has how much the reserve can give back now; BAD_LEN, NO_MEMORY, OS. After
 * NO_MEMORY and OS, glebe_reserve_memory() says what is left. */
int glebe_reserve_shrink(glebe_reserve reserve, uint64_t len_bytes, uint64_t *went_bytes);

/* Ends a reserve and gives its memory back to the system. Free every block, promise, cache, object
 * pool and swap cache of the reserve first, and every area and store in a swap cache of it.
 * Otherwise the call returns GLEBE_ERROR_BUSY, with their numbers in the text. The call looks at
 * every handle of these kinds. */
int glebe_reserve_free(glebe_reserve reserve);

/* The memory of a reserve. */
typedef struct glebe_memory {
    uint64_t size;               /* sizeof(glebe_memory); set to the bytes filled */
    uint64_t len_pages;          /* pages in the reserve now */
    uint64_t longest_run_pages;  /* the longest run that is proved contiguous, in use or not */
    uint64_t source;             /* GLEBE_SOURCE_* */
    uint64_t hugetlb_page_bytes; /* for GLEBE_SOURCE_HUGETLB, else 0 */
    uint64_t pinned;             /* 1 if a mechanism holds the pages in their frames */
    uint64_t writers;            /* GLEBE_WRITERS_COUNTED or GLEBE_WRITERS_RESTARTABLE */
} glebe_memory;

/* Fills `memory`. Errors: NULL, BAD_SIZE. */
int glebe_reserve_memory(glebe_reserve reserve, glebe_memory *memory);

/* Writes the length of the longest block that could be allocated now, in pages. A request of this
 * length can still fail because of its alignment. */
int glebe_reserve_largest_run(glebe_reserve reserve, uint64_t *pages);

/* The page frame number of a run whose frames the caller may not see. */
#define GLEBE_PFN_HIDDEN UINT64_MAX

/* A physically contiguous run. The structure never grows. */
typedef struct glebe_run {
    uint64_t start_pages; /* pages from the start of the reserve or lease */
    uint64_t len_pages;
    uint64_t pfn; /* the frame of the first page, or GLEBE_PFN_HIDDEN */
} glebe_run;

/* Writes the runs of the reserve, in order of position. The reserve has no runs if not even one
 * huge page is proved contiguous. The runs change only when the reserve grows or shrinks. Errors:
 * NULL. */
int glebe_reserve_runs(glebe_reserve reserve, glebe_run *runs, size_t capacity, size_t *count);

/* The mechanism that keeps pages in their frames. */
enum {
    GLEBE_HELD_BY_NOTHING = 0, /* the kernel may move them */
    GLEBE_HELD_BY_HUGETLB_POOL = 1, /* newer kernels may move its pages of 2 MiB to make room for
                                       their own contiguous allocations; glebe_reserve_verify finds
                                       moved pages */
    GLEBE_HELD_BY_LONG_TERM_PIN = 2, /* a registered buffer of an io_uring */
    GLEBE_HELD_BY_MOVABLE_POOL = 3 /* the hugetlb pool, but in movable memory: a long-term pin of a
                                      device moves the pages away */
};

/* The place of a byte, as far as it is proved: at least the byte's page is one run. The frames are
 * those at the time when the memory was mapped. */
typedef struct glebe_contig {
    uint64_t size;               /* sizeof(glebe_contig); set to the bytes filled */
    uint64_t offset_bytes;       /* bytes of its run before the byte */
    uint64_t contiguous_bytes;   /* bytes of its run from the byte on, the byte included */
    uint64_t run_bytes;          /* bytes of the whole run */
    uint64_t pfn;                /* the frame of its page, or GLEBE_PFN_HIDDEN */
    uint64_t held_by;            /* GLEBE_HELD_BY_* */
    uint64_t source;             /* GLEBE_SOURCE_* */
    uint64_t hugetlb_page_bytes; /* for GLEBE_SOURCE_HUGETLB, else 0 */
    uint64_t mapped_bytes;       /* bytes of the whole mapping, or of the whole reserve */
    uint64_t position_pages;     /* its page, from the start of the mapping or reserve */
} glebe_contig;

/* Fills `contig` for the page at `position_pages` from the start of the reserve. Errors: NULL,
 * BAD_SIZE; BEYOND the end of the reserve. */
int glebe_reserve_query(glebe_reserve reserve, uint64_t position_pages, glebe_contig *contig);

/* The frame of a page that is no longer in memory. */
#define GLEBE_PFN_GONE 0xfffffffffffffffe

/* Pages that are no longer in their first frames. The structure never grows. */
typedef struct glebe_drift {
    uint64_t start_pages; /* from the start of the reserve or mapping */
    uint64_t len_pages;
    uint64_t was_pfn; /* the first page's old frame, or GLEBE_PFN_HIDDEN */
    uint64_t now_pfn; /* the first page's frame now, or GLEBE_PFN_GONE */
} glebe_drift;

/* Reads the frames again and writes the runs of pages that were moved since the reserve was made,
 * in order of position. If frames are hidden from the caller, the call finds only pages that are no
 * longer in memory, and only for sources with huge pages. The time is proportional to the number of
 * pages of the source. Errors: NULL, OS. */
int glebe_reserve_verify(glebe_reserve reserve, glebe_drift *drifts, size_t capacity,
                         size_t *count);

/* Pages on one NUMA node. The structure never grows. */
typedef struct glebe_on_node {
    uint64_t start_pages; /* from the start of the reserve or mapping */
    uint64_t len_pages;
    uint64_t node; /* number of the node */
} glebe_on_node;

/* Asks the kernel which NUMA nodes the pages of the reserve are on, and writes them in order of
 * position. Neighbouring pages on one node are one entry. Pages that are no longer in memory have
 * no entry. On a machine with several nodes, the time is proportional to the number of pages of the
 * source: 0.1 us a page. Errors: NULL; OS if the kernel, or a filter of system calls, refuses. */
int glebe_reserve_nodes(glebe_reserve reserve, glebe_on_node *nodes, size_t capacity,
                        size_t *count);

/* Returns, as text with one reason a line, why the reserve is not better. First, for each better
 * source that was refused and for a run shorter than asked for: the reason, the value, the limit,
 * and a remedy. Then why the reserve has no long-term pin, if a pin was tried. Then why it has
 * GLEBE_WRITERS_COUNTED, if it has. Errors: NULL. */
int glebe_reserve_why_not(glebe_reserve reserve, char *text, size_t text_len_bytes,
                          size_t *needed_bytes);

/* ---- First class: blocks and promises -------------------------------------------------------- */

/* A block of memory that belongs to the caller. */
typedef struct glebe_block {
    uint64_t id;
} glebe_block;

/* Allocates a physically contiguous block of `pages`. Its contents may be anything, also data that
 * a tenant stored. The call takes microseconds and never fails because of tenants. It does not wait
 * for tenants if restartable sequences work (GLEBE_WRITERS_RESTARTABLE). Errors: EMPTY, NO_RUN,
 * NULL, TOO_MANY. */
int glebe_alloc(glebe_reserve reserve, uint64_t pages, glebe_block *block);

/* Flags of glebe_alloc_with; add any of them. */
enum {
    GLEBE_ZEROED = 1,    /* filled with zeros */
    GLEBE_ANY = 2,       /* contiguous only in virtual addresses, if necessary */
    GLEBE_NO_WAIT = 4    /* return GLEBE_ERROR_WOULD_WAIT instead of waiting for a tenant's copy */
};

/* Allocates as glebe_alloc does, with flags, at a page frame that is a multiple of `align_pages`, a
 * power of two. Further errors: BAD_ALIGN; BAD_ARGUMENT for an unknown flag; WOULD_WAIT with
 * GLEBE_NO_WAIT. */
int glebe_alloc_with(glebe_reserve reserve, uint64_t pages, uint64_t align_pages, uint64_t flags,
                     glebe_block *block);

/* Ends a block: its memory returns to the reserve. Do not touch it any more. */
int glebe_free(glebe_block block);

/* Writes the address and the length in bytes of a block. Either pointer may be null. The memory
 * belongs to the caller until the block is freed. */
int glebe_block_memory(glebe_block block, void **address, uint64_t *len_bytes);

/* Fills `contig` for the byte `offset_bytes` into a block, as a device needs it. `pfn` is the frame
 * of the byte's page. `contiguous_bytes` of this block follow in one proved piece; for most blocks
 * that is the rest of the block. Otherwise query again after `contiguous_bytes` for the next piece.
 * Errors: NULL, BAD_SIZE; BEYOND the end of the block. */
int glebe_block_query(glebe_block block, uint64_t offset_bytes, glebe_contig *contig);

/* A run that is set aside for a later block. */
typedef struct glebe_promise {
    uint64_t id;
} glebe_promise;

/* Promises a block of `pages` at a multiple of `align_pages`. Until the promise is taken, tenants
 * use its memory, and no other block gets it. Errors: as glebe_alloc_with. */
int glebe_promise_new(glebe_reserve reserve, uint64_t pages, uint64_t align_pages,
                      glebe_promise *promise);

/* Makes the promised block and ends the promise. The call never lacks room. Errors: NULL; TOO_MANY,
 * which keeps the promise. */
int glebe_promise_take(glebe_promise promise, glebe_block *block);

/* Ends a promise without a block. */
int glebe_promise_free(glebe_promise promise);

/* ---- Views: pages side by side --------------------------------------------------------------- */

/* Pages of a file that are mapped side by side. */
typedef struct glebe_view {
    uint64_t id;
} glebe_view;

/* Pages side by side. The structure never grows. */
typedef struct glebe_extent {
    uint64_t start_pages; /* base pages from the start of the file or region */
    uint64_t len_pages;
} glebe_extent;

/* Maps pages of the caller's file side by side. The file is a memfd or a file on tmpfs or
 * hugetlbfs, open for reading and writing. The view has the `count` extents, in base pages, in the
 * given order. A page may be in several views, or twice in one. The descriptor remains the caller's
 * and may be closed. If another process removes pages from the file, a touch of them is SIGBUS.
 * Errors: BAD_ARGUMENT for another descriptor; EMPTY for no extents or an extent of no pages;
 * BEYOND the end of the file; UNALIGNED for parts of a huge page; MAP_BUDGET, with the limit in the
 * text; NO_MEMORY, OS, NULL, TOO_MANY. */
int glebe_view_new(int fd, const glebe_extent *extents, size_t count, glebe_view *view);

/* Ends a view. Do not touch its memory any more. */
int glebe_view_free(glebe_view view);

/* Writes the address and the length in bytes of a view. Either pointer may be null. */
int glebe_view_memory(glebe_view view, void **address, uint64_t *len_bytes);

/* Writes the extents of a view, in the order of its bytes. Errors: NULL. */
int glebe_view_extents(glebe_view view, glebe_extent *extents, size_t capacity, size_t *count);

/* ---- Second class: the page cache ------------------------------------------------------------ */

/* A name space of the page cache: pages in memory that first class does not use, by object and
 * index. */
typedef struct glebe_cache {
    uint64_t id;
} glebe_cache;

/* Opens the name space of this name (UTF-8), and makes it if necessary. A second handle of a name
 * has the same pages. Errors: NULL, BAD_ARGUMENT, TOO_MANY. */
int glebe_cache_new(glebe_reserve reserve, const char *name, glebe_cache *cache);

enum {
    GLEBE_PUT_STORED = 0,   /* glebe_cache_get finds it until it is evicted or recalled */
    GLEBE_PUT_FULL = 1,     /* not kept: first class or other tenants had every page that was
                               tried */
    GLEBE_PUT_RECALLED = 2, /* not kept: first class took the pages during the call */
    GLEBE_PUT_BUSY = 3      /* not kept: the call was interrupted or crowded out too often */
};

/* Copies a page in, in place of the earlier page of its key; returns GLEBE_PUT_*. If the page is
 * not kept, its key has no page afterwards. `len_bytes` must be glebe_page_bytes(). Takes no lock
 * that another name space or first class takes. Errors: NULL, BAD_LEN. */
int glebe_cache_put(glebe_cache cache, uint64_t object, uint64_t index, const void *page,
                    size_t len_bytes);

enum {
    GLEBE_GET_HIT = 0,
    GLEBE_GET_MISS = 1 /* not there, or lost during the call: the buffer may hold anything */
};

/* Copies a page out; returns GLEBE_GET_*. `len_bytes` must be glebe_page_bytes(). Errors: NULL,
 * BAD_LEN. */
int glebe_cache_get(glebe_cache cache, uint64_t object, uint64_t index, void *page,
                    size_t len_bytes);

/* Copies bytes in as the pages of an object from index `first` on. If the last page is incomplete,
 * the call fills it with zeros. Returns GLEBE_PUT_*: the cache keeps all of the bytes or none.
 * Errors: NULL. */
int glebe_cache_put_run(glebe_cache cache, uint64_t object, uint64_t first, const void *bytes,
                        size_t len_bytes);

/* Copies the pages of an object from index `first` on out; the last page may be copied in part.
 * Returns GLEBE_GET_*: a miss if one of the pages is missing. Errors: NULL. */
int glebe_cache_get_run(glebe_cache cache, uint64_t object, uint64_t first, void *bytes,
                        size_t len_bytes);

enum {
    GLEBE_INVALIDATED = 0,
    GLEBE_NOT_THERE = 1
};

/* Drops one page; returns GLEBE_INVALIDATED or GLEBE_NOT_THERE. */
int glebe_cache_invalidate_page(glebe_cache cache, uint64_t object, uint64_t index);

/* Drops all pages of an object. The time does not depend on their number. */
int glebe_cache_invalidate_object(glebe_cache cache, uint64_t object);

/* Drops all pages of a name space. The time does not depend on their number. */
int glebe_cache_invalidate(glebe_cache cache);

/* Ends a handle on a name space. The pages stay, and a new handle of the name finds them. */
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

/* Fills `stats`. The values are exact while no other call is under way. The time grows with the
 * reserve, a few nanoseconds for each 2 MiB. Errors: NULL, BAD_SIZE. */
int glebe_reserve_get_stats(glebe_reserve reserve, glebe_reserve_stats *stats);

/* The formats of all statistics. */
enum {
    GLEBE_FORMAT_TEXT = 0,        /* one line for each total */
    GLEBE_FORMAT_JSON = 1,        /* one object with the totals; for an object pool also a list of
                                     the size classes in use */
    GLEBE_FORMAT_OPENMETRICS = 2, /* version 1.0; names begin with glebe_reserve_, or glebe_zpool_
                                     for totals and glebe_zpool_class_ for size classes, or
                                     glebe_store_ or glebe_swap_area_ */
    GLEBE_FORMAT_CLASSES = 3      /* only for object pools: each size class, in the columns of the
                                     kernel's own table */
};

/* Returns the statistics as text. Errors: NULL; BAD_ARGUMENT for an unknown format, or a format
 * that only object pools have. */
int glebe_reserve_format_stats(glebe_reserve reserve, uint64_t format, char *text,
                               size_t text_len_bytes, size_t *needed_bytes);

/* Lets other processes of this user, and root, read the statistics; `glebe stats` shows them. The
 * call starts one thread, which sleeps until a reader asks and ends with the reserve. It makes
 * `directory` if it is missing. No other user may enter the directory. A null `directory` means
 * $XDG_RUNTIME_DIR/glebe if that belongs to the user, else /run/glebe for root and
 * /run/user/UID/glebe for other users. A reserve has one socket: a later call returns the socket of
 * the first. Returns the path of the socket as a text. With GLEBE_ERROR_BUFFER_TOO_SMALL the socket
 * exists nevertheless, and the next call returns the path. Errors: NULL; OS; OTHER if no directory
 * is known, or other users own it or can enter it. */
int glebe_reserve_serve_stats(glebe_reserve reserve, const char *directory, char *socket,
                              size_t socket_len_bytes, size_t *needed_bytes);

/* ---- Volatile memory ------------------------------------------------------------------------- */

/* A region of memory whose parts can be *marked*. When the kernel needs memory, it may take marked
 * pages. An *unmark* ends this right and reports exactly which pages were lost. Lost pages are then
 * zeros; every other page has all its bytes.
 *
 * Do not write to marked memory. Only GLEBE_ENGINE_SCAN allows reading it in place: a touch of a
 * lost page is SIGBUS with its address. A system call that gets a lost page returns EFAULT, so
 * unmark memory before you pass it to a system call. */
typedef struct glebe_volatile {
    uint64_t id;
} glebe_volatile;

/* The method that detects lost pages. */
enum {
    GLEBE_ENGINE_AUTO = 0, /* scan if the machine allows it, else tag */
    GLEBE_ENGINE_SCAN = 1, /* by page tables and a userfaultfd: contents never change */
    GLEBE_ENGINE_TAG = 2   /* by the first 8 bytes of a page, which change while it is marked,
                              except in runs of more than 8 pages. Works without userfaultfd. An
                              unmark makes no system call for pages that are still there, and a few
                              calls for runs of more than 8 pages. A touch of a lost page finds
                              zeros */
};

/* Priorities of marked memory, 0 to 7: glebe drops the lowest first. The kernel purges in the order
 * of marking. */
enum {
    GLEBE_PRIORITY_LOWEST = 0,
    GLEBE_PRIORITY_NORMAL = 4,
    GLEBE_PRIORITY_HIGHEST = 7
};

/* Returns the contents of a lost page that was touched: the address of its `len_bytes`, which must
 * stay until the next call on the same thread, or null. `offset_bytes` is the page's offset from
 * the start of the region. The function runs in a signal handler, on the thread that touched the
 * page. It may do only what signal-safety(7) lists. It must return, touch no page of the region,
 * and call nothing of glebe. */
typedef const void *(*glebe_refill)(uint64_t offset_bytes, size_t len_bytes, void *data);

/* Options of a new region. */
typedef struct glebe_volatile_options {
    uint64_t size;       /* sizeof(glebe_volatile_options) */
    uint64_t engine;     /* GLEBE_ENGINE_*: this engine or an error */
    uint64_t huge;       /* 1: transparent huge pages, marked and lost as a whole, populated at
                            once */
    uint64_t cap_bytes;  /* the most memory of marked pages; a mark then drops the rest. 0: no
                            limit */
    uint64_t max_age_ns; /* a mark drops memory that was marked this long ago. 0: never */
    void *address;       /* the caller's memory that becomes the region; null: the call maps it */
    glebe_refill refill; /* called for a touch of a lost page; null: the touch is SIGBUS */
    void *data;          /* the last argument of `refill` */
} glebe_volatile_options;

/* Makes a region of `len_bytes`. Without `address` the call maps the memory, rounded up to whole
 * granules and all zeros. With `address` the region is the caller's memory there. Errors: NULL,
 * BAD_SIZE, BAD_ARGUMENT, EMPTY, BEYOND, NO_MEMORY, OS, TOO_MANY; LOCKED if the process locks all
 * its memory; OTHER if the kernel loses pages that were written.
 *
 * The caller's memory must be private and anonymous. The region consists of its whole base pages,
 * and their contents stay. Keep the memory mapped until the region ends. If the program maps other
 * memory over a marked part, the new memory is not volatile. GLEBE_ENGINE_SCAN never loses it or
 * reports it lost. GLEBE_ENGINE_TAG cannot see the new mapping: it leaves the memory as it is and
 * reports it lost. With GLEBE_ENGINE_TAG the region also keeps, and reports lost, a page whose
 * first word was written while the page was marked. Meanwhile the kernel makes no new huge pages in
 * the memory. Further errors: UNMAPPED, HUGETLB, SHARED, FILE_PRIVATE, READ_ONLY, SPECIAL, ADOPTED;
 * LOCKED also if only this memory is locked.
 *
 * With a `refill`, a touch of a lost marked page calls it for the contents, and the touch is then
 * repeated. The next unmark counts the page as kept. An unmark that is under way at the touch may
 * report the page lost, although it holds the new contents. The kernel may not take a refilled
 * page, and caps do not count it, until the next glebe_volatile_mark or glebe_volatile_drop_now of
 * the region, for any range. Then the page counts as just marked. If `refill` returns null, the
 * touch is SIGBUS with its exact address, as without a `refill`. `refill` may be called with `data`
 * until glebe_volatile_free has returned.
 *
 * The first region with a `refill` installs a SIGBUS handler, once for the process. This handler
 * passes foreign signals to the handler that was installed before. A handler that is installed
 * later is in front of glebe's and must pass on foreign signals too. If there is one already, the
 * call fails with HANDLER_COVERED, because glebe could not guarantee refills. GLEBE_ENGINE_TAG
 * never calls `refill`. */
int glebe_volatile_new(uint64_t len_bytes, const glebe_volatile_options *options,
                       glebe_volatile *region);

/* Ends a region, marked or not. If the memory is the region's own, the call unmaps it: do not touch
 * it any more. If the memory is the caller's, the call unmarks it and does not report losses. */
int glebe_volatile_free(glebe_volatile region);

/* Writes the address and the length in bytes of a region, its granule, and its engine,
 * GLEBE_ENGINE_SCAN or GLEBE_ENGINE_TAG. The granule, a base page or a huge page, is the unit of
 * marks and usually of losses. (If the kernel split a huge page, single base pages may be lost.)
 * Each pointer may be null. */
int glebe_volatile_memory(glebe_volatile region, void **address, uint64_t *len_bytes,
                          uint64_t *granule_bytes, uint64_t *engine);

/* Lets the kernel take `len_bytes` from `offset_bytes` on, in whole granules. Memory that is
 * already marked keeps its age. Errors that change nothing: UNALIGNED, EMPTY, BEYOND, BAD_ARGUMENT,
 * and MAP_BUDGET for the caller's memory. After the errors LOCKED, NO_MEMORY, OS the range counts
 * as marked: unmark it. */
int glebe_volatile_mark(glebe_volatile region, uint64_t offset_bytes, uint64_t len_bytes,
                        uint64_t priority);

enum {
    GLEBE_UNMARK_TOLD = 0, /* `runs` has all lost pages */
    GLEBE_UNMARK_MORE = 1  /* `runs` is full, and more pages are lost: call again */
};

/* Ends the kernel's right to a range of whole granules, marked or not. Writes the runs of lost
 * pages in ascending order, with a kept page between any two. If there are more than `capacity`
 * runs, the call returns GLEBE_UNMARK_MORE, and the range is unmarked nevertheless. The region
 * keeps the other runs: the next unmark of a range with one of them reports it once. A capacity of
 * half the pages of the range, rounded up, is always enough. If unmarks overlap in time, each
 * reports also what the others found. Errors: NULL, UNALIGNED, EMPTY, BEYOND; NO_MEMORY, OS and
 * STUCK. After these three the range is still marked, and the next unmark reports the losses. */
int glebe_volatile_unmark(glebe_volatile region, uint64_t offset_bytes, uint64_t len_bytes,
                          glebe_extent *runs, size_t capacity, size_t *count);

enum {
    GLEBE_READ_DONE = 0,
    GLEBE_READ_LOST = 1 /* a part is lost: the buffer may hold anything */
};

/* Copies bytes out of memory, marked or not, and does not change the marks; returns GLEBE_READ_*.
 * Never raises SIGBUS. If pages are lost, writes the offset of the first page found lost to
 * `lost_bytes`, unless that is null. The buffer must not be volatile memory, and may be null for 0
 * bytes. Errors: NULL, BEYOND, OS. */
int glebe_volatile_read(glebe_volatile region, uint64_t offset_bytes, void *buffer,
                        size_t len_bytes, uint64_t *lost_bytes);

/* Drops the marked memory in a range of whole granules now: it is then lost and still marked.
 * Writes to `dropped_bytes`, unless that is null, how many bytes glebe had not dropped before.
 * Errors: UNALIGNED, EMPTY, BEYOND, OS. After OS some memory may have been dropped. */
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

/* Fills `stats`. While no other call is under way, marked_ever is the sum of marked_pages, purged
 * and rescued. The call looks at the page tables of the marked memory. Errors: NULL, BAD_SIZE. */
int glebe_volatile_get_stats(glebe_volatile region, glebe_volatile_stats *stats);

/* ---- The call of the volatile ranges patches ------------------------------------------------- */

enum {
    GLEBE_VRANGE_VOLATILE = 0,
    GLEBE_VRANGE_NONVOLATILE = 1
};

/* vrange(2) as in the tenth posting of the patches (Minchan Kim and John Stultz, 2014). From the
 * eleventh posting on, the two modes have each other's number. The call works on the caller's
 * private anonymous memory, and on memory that the caller shares with its children (see below).
 * GLEBE_VRANGE_VOLATILE makes the memory volatile: the kernel may take its pages, and a touch of a
 * taken page is SIGBUS. The program may read volatile pages and must not write them.
 * GLEBE_VRANGE_NONVOLATILE makes the memory non-volatile: taken pages are then zeros.
 *
 * Returns the number of bytes done from `start` on, as write(2) does. `length` is rounded down to
 * whole pages, and further to the largest value of an int. The call passes over holes and counts
 * them, except a hole at the end of the range, so a range with nothing mapped gives 0. The call
 * stops, without an error, before memory that cannot be volatile: of a file on disk, locked, of a
 * hugetlb pool, read-only, special, of a glebe_volatile region, or glebe's own, for example a
 * reserve and its tables. glebe does not recognize its own memory in the heap, so a range should
 * end with the caller's memory. `purged` may be null. Otherwise the call sets it to 1 if a page
 * that is now non-volatile was taken, else to 0. A forked child inherits volatility. Volatility
 * ends when the memory is unmapped. Make the memory non-volatile in that case too, because glebe
 * keeps a record of the range until then.
 *
 * Differences from the patches: the call refuses an unknown mode. It returns errors of glebe.h:
 * UNALIGNED (`start`), EMPTY (less than a page), BEYOND, BAD_ARGUMENT (the mode, or a `purged` that
 * cannot be written), MAP_BUDGET, NO_MEMORY, STUCK, and OS if userfaultfd is denied. Programs
 * written for the patches build unchanged with glebe_vrange.h, which gives them the patches' error
 * numbers. `purged` describes only the pages of this call. Each call reads the list of mappings, so
 * it suits ranges of many pages.
 *
 * A SIGBUS handler may call glebe_vrange if the program's own code touched a lost page (si_code
 * BUS_ADRERR), to make the page non-volatile and write it again. The handler must not make the call
 * if the touch was inside malloc(), because the call allocates. If the handler interrupted a fork,
 * or a call of glebe on volatile memory whose buffer was lost, the answer is WOULD_WAIT and nothing
 * changes. The handler can then map a page there (mmap with MAP_FIXED), which is not volatile. A
 * handler must not make the call for a SIGBUS that a process sent.
 *
 * Memory of MAP_SHARED is MAP_ANONYMOUS, a memfd, or a file on tmpfs. The process that makes the
 * first call on a mapping, and the children that it forks later, see the same volatile and taken
 * pages while one of the processes that made a call lives. Other processes that map the same memory
 * do not see them, and lose the taken pages; the patches differ in this. The kernel takes none of
 * this memory: glebe_vrange_purge does, or the thread of glebe_vrange_reclaim. A touch of a taken
 * page is no SIGBUS: it finds zeros, and the call that makes the page non-volatile reports the
 * loss. While any part of the memory is volatile, keep it mapped, at the same place of the file.
 * Each such mapping takes a descriptor, and 8 bytes for each page that was ever volatile, until a
 * call finds that other memory is mapped there. Further errors: UNDER_WAY, NO_HOLDER_LEFT (64
 * processes made calls), OS. */
int glebe_vrange(void *start, size_t length, int mode, int *purged);

/* Does what glebe_vrange does, but to the whole range or with an error. Further errors: UNALIGNED
 * for a length that is no whole number of pages, UNMAPPED, LOCKED, HUGETLB, SHARED (of a file on
 * disk), FILE_PRIVATE, READ_ONLY, SPECIAL (also for glebe's own memory) and ADOPTED. Returns 0.
 * After an error, no memory has become volatile, but volatile memory may still be volatile. */
int glebe_vrange_strict(void *start, size_t length, int mode, int *purged);

/* Takes up to `target_bytes`, rounded up to pages, of the MAP_SHARED memory that glebe_vrange made
 * volatile in this process or in one that it was forked from. Writes the bytes taken to
 * `purged_bytes`, which may be null. Takes the oldest volatile memory first, mapping by mapping.
 * Passes over a mapping if this process has unmapped a part of it. Errors: WOULD_WAIT, OS. */
int glebe_vrange_purge(uint64_t target_bytes, uint64_t *purged_bytes);

/* Starts a thread that calls glebe_vrange_purge whenever memory is short, by the rules of a
 * reclaimer, until the process ends. `margin_bytes` is the member of glebe_reclaimer_options; 0:
 * its default. Without this call no such thread exists. A forked child has no thread until it makes
 * the call too. Errors: STARTED, WOULD_WAIT; BLIND if neither a cgroup nor the machine says how
 * much memory exists; OS. */
int glebe_vrange_reclaim(uint64_t margin_bytes);

/* ---- Shared volatile memory ------------------------------------------------------------------ */

/* Volatile memory of a file that several processes map: a memfd, or a file on tmpfs. The marks
 * belong to the file, and every process that uses it sees the same marks. A *granule*, a part of
 * the file, is marked, pinned and lost as a whole. The kernel takes no page of it by itself. A
 * *purge*, by any of the processes, takes marked granules that no process has *pinned*: lowest
 * priority first, and within a priority in the order that their marks set.
 *
 * Every process may read and write the data at any time. Data that is marked and not pinned may
 * become zeros meanwhile, so pin it first. A purge never takes an unmarked granule. The pins of a
 * process end with the process, however it ends. When the last process ends, all marks end; later
 * unmarks still report losses.
 *
 * Another process that can write the file can change or destroy its contents, but it crashes no
 * call of this interface. If the file was cut, or a process took pinned pages by changing the
 * counts of pins, the answer is TRUNCATED. A call that meets a purge under way waits for a second;
 * then its answer is UNDER_WAY. A forked child counts as another process. A thread inside another
 * call on volatile memory, or inside a fork, gets WOULD_WAIT. */
typedef struct glebe_shared {
    uint64_t id;
} glebe_shared;

/* Options of a shared region. */
typedef struct glebe_shared_options {
    uint64_t size;            /* sizeof(glebe_shared_options) */
    uint64_t granule_bytes;   /* a power of two, at least a base page; 0: a base page */
    uint64_t holders;         /* maximum number of processes that use the file at once, 128 at most;
                                 0: 64. Each handle of the file counts */
    uint64_t pin_quota_bytes; /* bytes that each of them can pin at once; 0: all */
    uint64_t sigbus;          /* 1: in this process, an unpinned touch of a lost marked page is
                                 SIGBUS, and a system call that gets a page without memory returns
                                 EFAULT, whether the page is marked or not; needs userfaultfd. 0:
                                 both find zeros */
    void *address;            /* for glebe_shared_new: the caller's memory that becomes the region;
                                 null: the call makes a file */
} glebe_shared_options;

/* Makes a file without a name, of `len_bytes` of data, rounded up to whole granules, all zeros.
 * Other processes get the file by its descriptor. Nobody can change its length. Errors: NULL,
 * BAD_SIZE; BAD_ARGUMENT for an invalid option; EMPTY, BEYOND for the length; HANDLER_COVERED with
 * `sigbus`; NO_MEMORY, OS, TOO_MANY.
 *
 * With `address`, the region is `len_bytes` of the caller's memory there, whole granules, and the
 * contents stay. The memory is a MAP_SHARED mapping of a memfd, of a file on tmpfs, or with
 * MAP_ANONYMOUS, readable and writable. Until the region is freed, the memory stays mapped in every
 * process that uses it, nobody cuts its file, and no other region uses it. This process and the
 * children that it forks from then on use the region; its descriptor is of no use to other
 * processes. A purge takes pages from every process that maps the memory. Further errors:
 * UNALIGNED; UNMAPPED, LOCKED, HUGETLB, PRIVATE, READ_ONLY, SPECIAL; BAD_FILE for a file on a disk;
 * BAD_ARGUMENT with `sigbus`. */
int glebe_shared_new(uint64_t len_bytes, const glebe_shared_options *options,
                     glebe_shared *shared);

/* Does what glebe_shared_new does, with a new file at `path` on tmpfs. Only this user may open the
 * file, which stays until it is removed. Errors: as glebe_shared_new; BAD_FILE on another file
 * system; HANDLER_COVERED also without `sigbus`; OS if `path` cannot be made. */
int glebe_shared_new_at(const char *path, uint64_t len_bytes,
                        const glebe_shared_options *options, glebe_shared *shared);

/* Opens the file at `path`, which is no symbolic link. Only the option `sigbus` may be set; the
 * file has the others. Errors: NULL, BAD_SIZE, BAD_ARGUMENT; BAD_FILE for a file of another kind;
 * TRUNCATED; NO_HOLDER_LEFT; UNDER_WAY; HANDLER_COVERED; NO_MEMORY, OS, TOO_MANY. */
int glebe_shared_open(const char *path, const glebe_shared_options *options,
                      glebe_shared *shared);

/* Opens the file of a descriptor that is open for reading and writing, as glebe_shared_open does.
 * The descriptor remains the caller's and may be closed. Errors: as glebe_shared_open; BAD_ARGUMENT
 * for a number that is not open. */
int glebe_shared_adopt(int fd, const glebe_shared_options *options, glebe_shared *shared);

/* Leaves the file and unmaps it in this process: do not touch its memory any more. The marks stay
 * while another process uses the file. Returns GLEBE_ERROR_BUSY if this process has pins of it. */
int glebe_shared_free(glebe_shared shared);

/* Writes the descriptor of the file to `fd`, so that another process can get it. Do not close the
 * descriptor: glebe_shared_free does. Errors: NULL. */
int glebe_shared_fd(glebe_shared shared, int *fd);

/* Writes the address and the length in bytes of the data, and the granule. Each pointer may be
 * null. */
int glebe_shared_memory(glebe_shared shared, void **address, uint64_t *len_bytes,
                        uint64_t *granule_bytes);

/* The order of a purge within one priority. */
enum {
    GLEBE_ORDER_FIFO = 0, /* granules marked first */
    GLEBE_ORDER_LIFO = 1  /* granules marked last, and all of them before any of GLEBE_ORDER_FIFO */
};

/* Lets purges take `len_bytes` from `offset_bytes` on, whole granules. Granules that are already
 * marked keep their priority and their place in the order. Errors: UNALIGNED, EMPTY, BEYOND,
 * BAD_ARGUMENT; TRUNCATED, UNDER_WAY, NO_HOLDER_LEFT, NO_MEMORY, OS. After the last five some
 * granules may be marked. */
int glebe_shared_mark(glebe_shared shared, uint64_t offset_bytes, uint64_t len_bytes,
                      uint64_t priority, uint64_t order);

/* Ends the right of purges to a range, marked or not. Writes the runs of lost pages as
 * glebe_volatile_unmark does. With GLEBE_UNMARK_MORE, the next unmark by this process of a range
 * with one of the other runs reports it. If unmarks overlap in time, in any processes, at least one
 * of them reports each loss. Errors: NULL, UNALIGNED, EMPTY, BEYOND; TRUNCATED, UNDER_WAY,
 * NO_HOLDER_LEFT, NO_MEMORY, OS. After the last five the next unmark reports the losses. */
int glebe_shared_unmark(glebe_shared shared, uint64_t offset_bytes, uint64_t len_bytes,
                        glebe_extent *runs, size_t capacity, size_t *count);

/* Takes the marked granules of a range that no process has pinned, now. Writes the bytes taken to
 * `dropped_bytes`, which may be null. Errors: as glebe_shared_mark. */
int glebe_shared_drop_now(glebe_shared shared, uint64_t offset_bytes, uint64_t len_bytes,
                          uint64_t *dropped_bytes);

/* Takes granules that are marked, not pinned, and of priority `up_to` at most, until
 * `target_bytes`, rounded up to whole granules, are free. Writes the bytes taken to `purged_bytes`,
 * which may be null. Returns UNDER_WAY at once if another process or thread purges the file. Looks
 * at every granule that was ever marked. Errors: BAD_ARGUMENT; as glebe_shared_mark. */
int glebe_shared_purge(glebe_shared shared, uint64_t target_bytes, uint64_t up_to,
                       uint64_t *purged_bytes);

/* Granules that no purge takes. */
typedef struct glebe_pin {
    uint64_t id;
} glebe_pin;

enum {
    GLEBE_PIN_KEPT = 0, /* all bytes are there */
    GLEBE_PIN_LOST = 1  /* some bytes were lost: see glebe_pin_lost */
};

/* Pins `len_bytes` from `offset_bytes` on, whole granules, marked or not. Gives the granules
 * memory, so that no touch of them fails for lack of memory. Returns GLEBE_PIN_*. A process can pin
 * a granule 65535 times at once. The call makes no system call if all of the range has memory and
 * no purge is under way. Errors: NULL, UNALIGNED, EMPTY, BEYOND; PINS_EXHAUSTED, QUOTA, with the
 * limit in the text; TRUNCATED, UNDER_WAY, NO_HOLDER_LEFT, NO_MEMORY, OS, TOO_MANY. */
int glebe_pin_new(glebe_shared shared, uint64_t offset_bytes, uint64_t len_bytes, glebe_pin *pin);

/* Ends a pin. */
int glebe_pin_free(glebe_pin pin);

/* Writes the address of the first pinned byte, and the number of pinned bytes. Either pointer may
 * be null. Other processes may change these bytes at any time. */
int glebe_pin_memory(glebe_pin pin, void **address, uint64_t *len_bytes);

/* Writes the runs of pages that were lost when the pin was made, in pages from the start of the
 * region. These pages hold zeros, or data that a process has written since. The call does not
 * change what the next unmark or pin reports. Errors: NULL. */
int glebe_pin_lost(glebe_pin pin, glebe_extent *runs, size_t capacity, size_t *count);

/* Declares that the lost pages of a pin hold valid contents again. Later calls do not report them
 * as lost. Marked pages count as just marked. Errors: TRUNCATED, UNDER_WAY, OS. */
int glebe_pin_restored(glebe_pin pin);

/* Copies bytes out of the pinned memory, from `offset_bytes` after its start on. Other processes
 * may change the bytes meanwhile. Never raises SIGBUS. Errors: NULL, BEYOND, TRUNCATED. After
 * TRUNCATED the buffer may hold anything. */
int glebe_pin_read(glebe_pin pin, uint64_t offset_bytes, void *buffer, size_t len_bytes);

/* Copies bytes into the pinned memory. Errors: as glebe_pin_read. */
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

/* Fills `stats`: the actions of this handle, and the present state of the file for all processes.
 * Looks at every granule that was ever marked. Errors: NULL, BAD_SIZE. */
int glebe_shared_get_stats(glebe_shared shared, glebe_shared_stats *stats);

/* Returns the statistics as text, in one of GLEBE_FORMAT_* except GLEBE_FORMAT_CLASSES. Names in
 * OpenMetrics begin with glebe_shared_. Errors: NULL, BAD_ARGUMENT. */
int glebe_shared_format_stats(glebe_shared shared, uint64_t format, char *text,
                              size_t text_len_bytes, size_t *needed_bytes);

/* ---- Contiguous memory ----------------------------------------------------------------------- */

/* mmap(2) with the flag that the MAP_CONTIG patches (2017) proposed. Maps `len` bytes, rounded up
 * to base pages, that are physically contiguous, or fails. The memory is populated, filled with
 * zeros and held in its page frames. It cannot grow in place (do not let mremap move it), and no
 * core dump contains it. In a forked child the memory is not mapped: a touch of it is SIGSEGV.
 * glebe proves the contiguity: a caller that may not see page frames gets at most the memory of one
 * huge page.
 *
 * `flags` are MAP_PRIVATE and MAP_ANONYMOUS, and `fd` is -1. Further flags are allowed. MAP_HUGETLB
 * selects the pool of the page size that is added to it, or the pool of the smallest size.
 * MAP_FIXED_NOREPLACE maps the memory at `addr`, where nothing may be mapped. MAP_POPULATE,
 * MAP_LOCKED and MAP_NORESERVE change nothing. Without MAP_FIXED_NOREPLACE the call ignores `addr`.
 * `off` is a multiple of a page and changes nothing.
 *
 * Returns the address, or MAP_FAILED with errno. glebe_last_error() has the text, with the longest
 * run that is possible, or the process that the call waited for. The values of errno:
 *   - ENOMEM: no contiguous run of this length.
 *   - EINVAL: a length of 0, or an invalid flag, protection, descriptor or offset.
 *   - EPERM: nothing would hold the pages: they need a pool of huge pages, or RLIMIT_MEMLOCK for a
 *     pin.
 *   - EACCES: this process cannot have the protection (PROT_EXEC if PR_SET_MDWE or a security
 *     module denies it).
 *   - EEXIST: something is mapped at `addr`.
 *   - ETIMEDOUT: another process changed the hugetlb pools for longer than glebe_mmap_contig_limits
 *     allows. */
void *glebe_mmap_contig(void *addr, size_t len, int prot, int flags, int fd, int64_t off);

/* Sets limits for each later call of glebe_mmap_contig in this process. `search_bytes` limits how
 * much of the machine's memory the call searches for a run, and `search_ms` for how long.
 * `lock_wait_ms` limits the wait for other processes that change the hugetlb pools. 0 has the same
 * meaning as in glebe_reserve_options. Returns 0. */
int glebe_mmap_contig_limits(uint64_t search_bytes, uint64_t search_ms, uint64_t lock_wait_ms);

/* Unmaps a whole mapping of glebe_mmap_contig. `len` is the length asked for or the length mapped.
 * The kernel gets back the pages that were added to a hugetlb pool for the mapping. munmap(2)
 * removes only the addresses: pinned pages are then freed when the process ends, and no call here
 * may use the mapping any more. Errors: UNMAPPED, BAD_LEN, FORKED. */
int glebe_munmap_contig(void *addr, size_t len);

/* Fills `contig` for the byte at `addr` of a mapping of glebe_mmap_contig, similar to
 * posix_mem_offset(3). Errors: UNMAPPED, FORKED, NULL, BAD_SIZE. */
int glebe_contig_query(const void *addr, glebe_contig *contig);

/* Does what glebe_reserve_verify does, for the mapping of glebe_mmap_contig that contains the byte
 * at `addr`. Errors: UNMAPPED, FORKED, NULL, OS. */
int glebe_contig_verify(const void *addr, glebe_drift *drifts, size_t capacity, size_t *count);

/* Does what glebe_reserve_nodes does, for the mapping of glebe_mmap_contig that contains the byte
 * at `addr`. Errors: UNMAPPED, FORKED, NULL, OS. */
int glebe_contig_nodes(const void *addr, glebe_on_node *nodes, size_t capacity, size_t *count);

/* ---- Leases ---------------------------------------------------------------------------------- */

/* Huge pages of a daemon (`glebe serve --leases`), mapped until the lease ends. They are populated,
 * and zeroed at first. A lease needs no privilege. It ends with glebe_lease_free, or when the
 * process and its forked children have ended, also by SIGKILL. No other process ever sees its
 * bytes, except forked children and processes that got its files.
 *
 * Memory whose lease has ended, or that the daemon took back, reads as zeros wherever it is still
 * mapped: glebe's SIGBUS handler replaces it at the first touch. A system call on it may fail with
 * EFAULT instead. */
typedef struct glebe_lease {
    uint64_t id;
} glebe_lease;

/* Options of a new lease. */
typedef struct glebe_lease_options {
    uint64_t size;        /* sizeof(glebe_lease_options) */
    uint64_t contiguous;  /* 1: only memory in one physical run */
    uint64_t align_bytes; /* alignment of the first physical byte, a power of two; 0: a huge page */
    uint64_t one_file;    /* 1: one file, to pass it on; the daemon zeroes it at the request */
    uint64_t revocable;   /* 1: the daemon may take the memory back: glebe_lease_recalled */
    uint64_t on_node;     /* 1: only memory of the NUMA node `node` */
    uint64_t node;        /* number of the node; 0 without on_node */
    const char *name;     /* name in lists, cut to 32 bytes; null: the program's */
    const char *socket;   /* path of the daemon's socket; null: $GLEBE_LEASES, else the usual one */
} glebe_lease_options;

/* Leases `len_bytes`, rounded up to whole huge pages. If the daemon refuses, writes the number that
 * the request exceeds to `limit_bytes`, unless that is null: the longest free run in bytes, or the
 * user's limit. Asks again for up to 2 s while the daemon takes memory back, or adds some. Errors:
 * NULL, BAD_SIZE, BAD_ARGUMENT, TOO_MANY; NO_DAEMON; NO_MEMORY; QUOTA; UNDER_WAY if a later call
 * may succeed; HANDLER_COVERED; OS, OTHER if the connection fails. */
int glebe_lease_new(uint64_t len_bytes, const glebe_lease_options *options, glebe_lease *lease,
                    uint64_t *limit_bytes);

/* Unmaps the memory and gives it back. */
int glebe_lease_free(glebe_lease lease);

/* Writes the address of a lease's memory to `address` and its length to `len_bytes`. Either pointer
 * may be null. */
int glebe_lease_memory(glebe_lease lease, void **address, uint64_t *len_bytes);

/* Writes the lease's number in lists to `number`. Errors: NULL. */
int glebe_lease_number(glebe_lease lease, uint64_t *number);

/* Writes the physical runs of a lease. A run whose frame is hidden is one huge page. Errors: NULL,
 * BAD_ARGUMENT. */
int glebe_lease_runs(glebe_lease lease, glebe_run *runs, size_t capacity, size_t *count);

/* Writes the descriptors of the lease's files in order, to map or pass on. All files have the same
 * length. Do not close the descriptors: glebe_lease_free does. Errors: NULL, BAD_ARGUMENT. */
int glebe_lease_files(glebe_lease lease, int *fds, size_t capacity, size_t *count);

enum {
    GLEBE_LEASE_KEPT = 0,
    GLEBE_LEASE_RECALLED = 1 /* the daemon takes the memory soon: save the bytes, free the lease */
};

/* Waits until the daemon asks for a revocable lease, at most `wait_ms`. Returns one of
 * GLEBE_LEASE_*. After GLEBE_LEASE_RECALLED `left_ms`, which may be null, has the time until the
 * daemon takes the memory. The daemon asks once. glebe_lease_free waits for this call. Errors:
 * REVOKED if the daemon took the memory, so its bytes are lost; OS, OTHER if the connection
 * fails. */
int glebe_lease_recalled(glebe_lease lease, uint64_t wait_ms, uint64_t *left_ms);

/* ---- Shared caches --------------------------------------------------------------------------- */

/* Values by key, both any bytes, for all processes of the user: who opens the same name has the
 * same cache. The memory is the idle memory of a daemon (`glebe serve --leases`) or, where no
 * daemon runs, of a volatile file. Any value may vanish at any time. A forked child opens the cache
 * again. */
typedef struct glebe_shared_cache {
    uint64_t id;
} glebe_shared_cache;

/* Options of a shared cache. */
typedef struct glebe_shared_cache_options {
    uint64_t size;        /* sizeof(glebe_shared_cache_options) */
    uint64_t cache_bytes; /* most bytes of a new cache; 0: 256 MiB */
    const char *socket;   /* path of the daemon's socket; null: $GLEBE_LEASES, else the usual one */
    const char *folder;   /* directory of the file without a daemon, on tmpfs; null: glebe-caches in
                             $XDG_RUNTIME_DIR, else in /dev/shm; with `socket`, no file */
} glebe_shared_cache_options;

/* Opens the user's cache `name`, of 1 to 32 bytes of UTF-8, or makes it. Errors: NULL, BAD_SIZE,
 * BAD_ARGUMENT, TOO_MANY; NO_DAEMON, with `socket` and no `folder`; QUOTA if the user has too many
 * caches; HANDLER_COVERED; BAD_FILE; NO_MEMORY; OS, OTHER. */
int glebe_shared_cache_open(const char *name, const glebe_shared_cache_options *options,
                            glebe_shared_cache *cache);

/* Closes the cache. Its values stay for other processes and later ones. */
int glebe_shared_cache_free(glebe_shared_cache cache);

/* Stores a value, in place of the key's earlier one. Returns GLEBE_PUT_STORED, or GLEBE_PUT_FULL if
 * there is no memory for it; the key then has no value, unless the daemon does not answer. Errors:
 * NULL; TOO_LONG if the key has more than 64 KiB, or both more than glebe_shared_cache_limit; the
 * key then has no value, unless the daemon does not answer. */
int glebe_shared_cache_put(glebe_shared_cache cache, const void *key, size_t key_len_bytes,
                           const void *value, size_t value_len_bytes);

/* Copies a value out; returns GLEBE_GET_*. Writes its length to `value_len_bytes`, also with
 * BUFFER_TOO_SMALL, which leaves the buffer as it is; after a miss, 0. Errors: NULL,
 * BUFFER_TOO_SMALL. */
int glebe_shared_cache_get(glebe_shared_cache cache, const void *key, size_t key_len_bytes,
                           void *buffer, size_t buffer_len_bytes, size_t *value_len_bytes);

enum {
    GLEBE_REMOVE_DONE = 0,
    GLEBE_REMOVE_NONE = 1 /* the key had no value */
};

/* Removes a value; returns GLEBE_REMOVE_*. Errors: NULL. */
int glebe_shared_cache_remove(glebe_shared_cache cache, const void *key, size_t key_len_bytes);

/* Writes the most bytes of a key with its value to `limit_bytes`. Errors: NULL. */
int glebe_shared_cache_limit(glebe_shared_cache cache, uint64_t *limit_bytes);

/* Writes the cache's length to `len_bytes`, and to `of_daemon` 1 if the memory is a daemon's, or 0
 * if it is a file's. Either pointer may be null. */
int glebe_shared_cache_memory(glebe_shared_cache cache, uint64_t *len_bytes, uint64_t *of_daemon);

/* Ends the cache of this name: all values are gone, for all processes. The handle stays. Errors:
 * OS, OTHER if the daemon does not answer or the file stays. */
int glebe_shared_cache_end(glebe_shared_cache cache);

/* ---- Object pools ---------------------------------------------------------------------------- */

/* A pool of objects of 1 byte to a page. The pool packs objects across page borders into zspages,
 * runs of a few pages with slots of one size. Compaction moves objects and gives whole pages back
 * to the system; an object keeps its number. Calls on different size classes share no lock, and a
 * read takes no lock of the pool.
 *
 * A pool has memory of its own, or uses the part of a reserve that first class does not hold. On a
 * reserve its objects are second class. New objects are stored in ordinary memory, the staging.
 * When the staging is full, objects move to lent pages. If first class or another tenant takes
 * these pages, the objects are lost. The first call that asks for a lost object reports the loss;
 * later its number gives GLEBE_ERROR_STALE. */
typedef struct glebe_zpool {
    uint64_t id;
} glebe_zpool;

/* An object in its pool. The number of a removed object gives GLEBE_ERROR_STALE. A number of
 * another pool, or of no pool, gives GLEBE_ERROR_FOREIGN. No number gives another object's bytes.
 * (Pool numbers repeat after 16383 pools on x86-64, and later elsewhere.) */
typedef struct glebe_zobject {
    uint64_t id; /* never 0 */
} glebe_zobject;

/* Options of a new pool. */
typedef struct glebe_zpool_options {
    uint64_t size;                 /* sizeof(glebe_zpool_options) */
    uint64_t limit_bytes;          /* the most memory that the pool may hold, everything counted; 0
                                      or UINT64_MAX: the machine's memory. With a reserve, leave
                                      this and the next two members 0 */
    uint64_t evict_oldest;         /* 1: at the limit, after compaction has freed what it could, the
                                      pool evicts old unread objects, a zspage at a time; 0: the
                                      call returns GLEBE_ERROR_FULL */
    uint64_t manual_compaction;    /* 1: compaction only on request, and before the pool refuses or
                                      evicts; 0: also a little in a remove or replace, if enough
                                      pages can be freed */
    uint64_t codec;                /* GLEBE_CODEC_* */
    uint64_t zstd_level;           /* with GLEBE_CODEC_ZSTD: zstd's levels, from 1 on; 0: 1 */
    glebe_reserve reserve;         /* the reserve whose idle pages the pool uses; 0: memory of its
                                      own */
    uint64_t move_on_recall;       /* with a reserve, for pages that first class takes: 1: the pool
                                      first copies them to other lent pages, if there are any; 0:
                                      they are lost at once and cost first class nothing */
    uint64_t staging_bytes;        /* with a reserve: bytes of the staging, at least 64 pages; 0: a
                                      64th of the reserve */
} glebe_zpool_options;

/* Makes an empty pool. A pool with memory of its own reserves addresses and takes memory as objects
 * arrive. Without a limit it reserves at most half of the addresses that the process may still have
 * (ulimit -v). A reserve cannot be freed while a pool uses it. Errors: NULL, BAD_SIZE,
 * BAD_ARGUMENT, LIMIT_BELOW_HELD (an empty pool holds some tables), NO_MEMORY, OS, TOO_MANY. */
int glebe_zpool_new(const glebe_zpool_options *options, glebe_zpool *pool);

/* Ends a pool and all its objects. Its memory returns to the system, lent pages to the reserve. */
int glebe_zpool_free(glebe_zpool pool);

/* Stores a copy of `len_bytes` at `bytes` and writes its number to `object`. Errors: NULL, EMPTY,
 * TOO_LONG, NO_MEMORY, OS; FULL at the limit, or if the staging is full and no page can be lent. */
int glebe_zpool_insert(glebe_zpool pool, const void *bytes, size_t len_bytes,
                       glebe_zobject *object);

/* Copies an object to the start of `buffer`, which has room for `buffer_len_bytes`, and writes its
 * length to `len_bytes`. If the buffer is too small, the call writes the length and returns
 * GLEBE_ERROR_BUFFER_TOO_SMALL. A page is always enough. With a `buffer_len_bytes` of 0 the call
 * only writes the length, and that is no error. If a reserve lost the object, the call returns
 * GLEBE_GET_MISS and no length. After a miss or an error the buffer may hold anything. Errors:
 * NULL, STALE, FOREIGN, CORRUPT. */
int glebe_zpool_read(glebe_zpool pool, glebe_zobject object, void *buffer,
                     size_t buffer_len_bytes, size_t *len_bytes);

/* Stores other bytes under the same number. This also works for an object that was lost and that no
 * call has asked for since. A read meanwhile gets the old bytes or the new bytes. An error leaves
 * the object unchanged. Errors: NULL, EMPTY, TOO_LONG, STALE, FOREIGN, FULL, NO_MEMORY, OS. */
int glebe_zpool_replace(glebe_zpool pool, glebe_zobject object, const void *bytes,
                        size_t len_bytes);

/* Removes an object, also one that was lost unnoticed. Errors: STALE, FOREIGN. */
int glebe_zpool_remove(glebe_zpool pool, glebe_zobject object);

/* The work of a compaction. The structure never grows. */
typedef struct glebe_compacted {
    uint64_t moved; /* objects */
    uint64_t freed_pages;
} glebe_compacted;

/* Moves objects together and frees the empty pages. The call ends when nothing is left to free, or,
 * with a limit, after `max_pages` were freed or `max_us` microseconds have passed; 0 means no
 * limit. Objects that other threads read meanwhile stay. On a reserve, the call compacts the
 * staging first, then sparse lent zspages. `compacted` may be null. Errors: BAD_ARGUMENT for both
 * limits at once. */
int glebe_zpool_compact(glebe_zpool pool, uint64_t max_pages, uint64_t max_us,
                        glebe_compacted *compacted);

/* Changes the limit. If the pool holds more, it compacts and, if it may, evicts. Errors:
 * BAD_ARGUMENT for a pool on a reserve; LIMIT_BELOW_HELD. After LIMIT_BELOW_HELD the limit is
 * unchanged, but evicted objects stay evicted. */
int glebe_zpool_set_limit(glebe_zpool pool, uint64_t limit_bytes);

/* Looks at the pages of the next `zspages` zspages of a pool on a reserve, from where the last call
 * ended, and ends the objects in lost pages. Inserts do this too, step by step. A pool with memory
 * of its own loses no objects. */
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
    /* These are only for a pool on a reserve; `lost` there equals `evicted`. */
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

/* Fills `stats`. The values are exact while no other call is under way: held_bytes is used_pages,
 * kept_pages and metadata_bytes together, and inserted is objects, removed and evicted together.
 * But freeable_pages omits size classes that the pool no longer uses. Errors: NULL, BAD_SIZE. */
int glebe_zpool_get_stats(glebe_zpool pool, glebe_zpool_stats *stats);

/* Returns the statistics as text, in one of GLEBE_FORMAT_*. For a pool on a reserve, the names in
 * OpenMetrics of its further statistics begin with glebe_object_pool_. Errors: NULL,
 * BAD_ARGUMENT. */
int glebe_zpool_format_stats(glebe_zpool pool, uint64_t format, char *text, size_t text_len_bytes,
                             size_t *needed_bytes);

/* ---- Swap: memory larger than its budget ----------------------------------------------------- */

/* A store has objects of 1 byte to 2 MiB, and a *budget*: the bytes of objects that may be in
 * memory. An object keeps its address until it is removed. While it is pinned, it is in memory.
 * While it is not pinned, it may leave memory; a compressed copy is then in memory of the store or,
 * if that is full, in a file. The program pins the objects that it uses. It has no other access to
 * them, so there are no signals and no faults. Pinned objects count against the budget and cannot
 * leave memory. */
typedef struct glebe_swap_store {
    uint64_t id;
} glebe_swap_store;

/* The name of an object of a store. The structure never grows. A call with the name of a removed
 * object returns GLEBE_ERROR_STALE. The name never means another object. */
typedef struct glebe_swap_object {
    uint64_t id;
    uint64_t store; /* the store's number, unique in the process */
} glebe_swap_object;

/* Memory of a store or region that stays in place until any thread frees the pin. */
typedef struct glebe_swap_pin {
    uint64_t id;
} glebe_swap_pin;

/* A swap cache: memory that may be lost at any moment, for copies of data in a file. See
 * glebe_swap_cache_new. */
typedef struct glebe_swap_cache {
    uint64_t id;
} glebe_swap_cache;

/* Options of a new store or region. */
typedef struct glebe_swap_options {
    uint64_t size;             /* sizeof(glebe_swap_options) */
    uint64_t pool_limit_bytes; /* the most memory for compressed data, everything counted; 0: the
                                  budget, and 1 MiB at least */
    uint64_t capacity_bytes;   /* of a store: the most bytes of all objects, each rounded up to
                                  pages; 0: sixteen budgets. Of a region: 0 */
    uint64_t codec;            /* GLEBE_CODEC_* */
    uint64_t zstd_level;       /* for GLEBE_CODEC_ZSTD; 0: the usual level */
    uint64_t drop_copies;      /* 0: an object that was loaded and not written since keeps its
                                  compressed copy while there is room, so it can leave memory
                                  without a new compression; 1: it does not */
    const char *file_directory; /* a file in this directory takes copies that the pool has no room
                                   for; null: the store refuses new objects then. The file has no
                                   name, only this process has it, and it disappears with the
                                   process */
    uint64_t file_bytes;        /* the most bytes of the file */
    uint64_t encrypt;           /* 1: the file is encrypted with a key that only this process has;
                                   0: it is not */
    glebe_swap_cache cache;     /* of a store with a file: this swap cache also holds copies of the
                                   file's data, and a load reads the file only if first class or
                                   another user of the cache took the copy; 0: none. Of a region:
                                   0 */
} glebe_swap_options;

/* Makes a store with at most `budget_bytes` in memory. Errors: NULL, BAD_SIZE, TOO_MANY;
 * BAD_ARGUMENT, also for encryption or a swap cache without a file; BAD_LEN for a budget or a
 * capacity of less than a page; LIMIT_BELOW_HELD for a limit that an empty pool exceeds; OS,
 * NO_MEMORY. */
int glebe_swap_store_new(uint64_t budget_bytes, const glebe_swap_options *options,
                         glebe_swap_store *store);

/* Ends a store and its objects. Errors: BUSY while it has pins. */
int glebe_swap_store_free(glebe_swap_store store);

/* Stores a copy of `len_bytes` as an object. Other objects leave memory to make room. Errors: NULL,
 * BAD_LEN; BUDGET and FULL if the store cannot make room; NO_RUN if the addresses of the capacity
 * have no free run that is long enough; OS, NO_MEMORY. */
int glebe_swap_store_insert(glebe_swap_store store, const void *bytes, size_t len_bytes,
                            glebe_swap_object *object);

/* Makes an object of `len_bytes` zeros, pinned for writing: its memory is at `address` until `pin`
 * is freed. Errors: as glebe_swap_store_insert; TOO_MANY. */
int glebe_swap_store_create(glebe_swap_store store, size_t len_bytes, glebe_swap_object *object,
                            void **address, glebe_swap_pin *pin);

/* Pins an object for reading, and loads it if it is not in memory. Its bytes are at `address` until
 * `pin` is freed. Writes their number to `len_bytes`, which may be null. Several pins for reading
 * may exist at once. Errors: NULL, STALE, FOREIGN, DEAD, TOO_MANY; PINNED while a pin for writing
 * exists; PINS_EXHAUSTED; BUDGET and FULL if the store cannot make room; CORRUPT if the copy
 * differs from the stored bytes; OS, NO_MEMORY. After CORRUPT the object can only be removed. */
int glebe_swap_store_pin(glebe_swap_store store, glebe_swap_object object, const void **address,
                         size_t *len_bytes, glebe_swap_pin *pin);

/* Pins an object for writing, as glebe_swap_store_pin does for reading. No other pin of the object
 * may exist meanwhile: PINNED also while pins for reading exist. */
int glebe_swap_store_pin_mut(glebe_swap_store store, glebe_swap_object object, void **address,
                             size_t *len_bytes, glebe_swap_pin *pin);

/* Ends a pin of a store or region. Do not touch its memory any more without another pin. */
int glebe_swap_pin_free(glebe_swap_pin pin);

/* Copies an object out, writes its length to `len_bytes`, and removes the object. This needs no
 * room in the budget. If the object is longer than `buffer_len_bytes`, it stays, and the call
 * writes the length and returns BUFFER_TOO_SMALL. With a `buffer_len_bytes` of 0 the call only
 * writes the length, and that is no error. Errors: NULL, STALE, FOREIGN, DEAD, PINNED, CORRUPT, OS.
 * An error keeps the object. */
int glebe_swap_store_take(glebe_swap_store store, glebe_swap_object object, void *buffer,
                          size_t buffer_len_bytes, size_t *len_bytes);

/* Removes an object, also a dead or damaged one. Errors: STALE, FOREIGN, PINNED. */
int glebe_swap_store_remove(glebe_swap_store store, glebe_swap_object object);

/* Declares that the program does not need an object soon, so the object is among the next to leave.
 * Errors: STALE, FOREIGN. */
int glebe_swap_store_cold(glebe_swap_store store, glebe_swap_object object);

/* Loads an object that the program will need soon. Errors: as glebe_swap_store_pin, without
 * PINNED. */
int glebe_swap_store_will_need(glebe_swap_store store, glebe_swap_object object);

/* Declares that the program no longer needs an object's bytes. They are never compressed or written
 * again, and their memory is freed at once or with the last pin. The object exists until it is
 * removed, and cannot be pinned. Errors: STALE, FOREIGN. */
int glebe_swap_store_dead(glebe_swap_store store, glebe_swap_object object);

/* Changes the budget. Objects leave memory if more is in memory. Errors: BAD_LEN for less than a
 * page; LIMIT_BELOW_HELD for less than the pinned memory, whose size the text has; FULL. After
 * these the budget is unchanged. */
int glebe_swap_store_set_budget(glebe_swap_store store, uint64_t budget_bytes);

/* Changes the limit of compressed data in memory. The store drops kept copies if necessary. Errors:
 * LIMIT_BELOW_HELD, which leaves the limit unchanged. */
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

/* Fills `stats`. The time is proportional to the number of objects. Errors: NULL, BAD_SIZE. */
int glebe_swap_store_get_stats(glebe_swap_store store, glebe_swap_stats *stats);

/* Returns the statistics as text, in one of GLEBE_FORMAT_* except GLEBE_FORMAT_CLASSES. Errors:
 * NULL, BAD_ARGUMENT. */
int glebe_swap_store_format_stats(glebe_swap_store store, uint64_t format, char *text,
                                  size_t text_len_bytes, size_t *needed_bytes);

/* A region is ordinary memory, used by address, with at most a budget of it in memory. The rest is
 * stored as in a store. A touch of a page that is not in memory raises SIGBUS, and glebe's handler
 * loads the page in the thread that touched it. A region needs userfaultfd(2), without privilege;
 * twice its length of addresses; and 32 bytes for each page that was ever touched. The rules for
 * its use:
 *   - A system call that gets an address of a page that is not in memory returns EFAULT, and a
 *     device cannot load the page: give both memory that glebe_swap_region_resident pins.
 *   - A touch kills a thread that blocks SIGBUS, and a thread whose alternate signal stack is too
 *     small: glebe_swap_region_arm_thread checks both.
 *   - A touch of a page whose copy is damaged, or whose file cannot be read, raises SIGBUS to the
 *     handler that was installed before glebe's. Without an earlier handler the signal ends the
 *     process. si_addr is the address, si_errno the reason.
 *   - If no page can leave memory, a touch exceeds the budget, which over_budget_pages counts;
 *     calls fail instead.
 *   - A SIGBUS handler that is installed later is in front of glebe's, and must pass on signals
 *     that are not its own.
 *   - A forked child does not have the memory: a touch there is SIGSEGV.
 *   - The program may advise on parts (madvise), lock and protect them. Locked and read-only pages
 *     may stay in memory, above the budget if necessary. If the process locks all its mappings
 *     (mlockall), pages are locked as they arrive, and twice the region's length counts against
 *     RLIMIT_MEMLOCK.
 *   - Do not give memory of a region to an allocator, and do not touch it under a lock that an
 *     allocator takes. */
typedef struct glebe_swap_region {
    uint64_t id;
} glebe_swap_region;

/* Makes a region of `len_bytes` zeros, rounded up to whole pages, with at most `budget_bytes` in
 * memory: four pages or more, because one instruction may touch that many. Errors: as
 * glebe_swap_store_new; OS also if userfaultfd(2) is refused. */
int glebe_swap_region_new(uint64_t len_bytes, uint64_t budget_bytes,
                          const glebe_swap_options *options, glebe_swap_region *region);

/* Ends a region. Do not touch its memory any more. Errors: BUSY while it has pins. */
int glebe_swap_region_free(glebe_swap_region region);

/* Writes the address and the length in bytes of a region, and to `moves_pages` 1 if pages leave by
 * UFFDIO_MOVE (Linux 6.8), else 0. With 0, devices may write only to pinned memory. Each pointer
 * may be null. */
int glebe_swap_region_memory(glebe_swap_region region, void **address, uint64_t *len_bytes,
                             uint64_t *moves_pages);

/* Loads `len_bytes` from `offset_bytes` on and keeps them in memory until `pin` is freed. Until
 * then the program, system calls and devices may read and write them. Their pages count against the
 * budget; an eighth of it, and four pages or more, are kept for all other pages. No other pin, and
 * no read or write below, can use one of the pages meanwhile. Errors: NULL, BEYOND, TOO_MANY;
 * PINNED by another pin; BUDGET, FULL, CORRUPT, OS, NO_MEMORY. */
int glebe_swap_region_resident(glebe_swap_region region, uint64_t offset_bytes, uint64_t len_bytes,
                               void **address, glebe_swap_pin *pin);

/* Copies bytes out of a region. Never raises SIGBUS for the region. Errors: as
 * glebe_swap_region_resident. After an error the buffer may hold anything. */
int glebe_swap_region_read(glebe_swap_region region, uint64_t offset_bytes, void *buffer,
                           size_t len_bytes);

/* Copies bytes into a region. Never raises SIGBUS for the region. Errors: as
 * glebe_swap_region_resident. After an error the first pages may be written. */
int glebe_swap_region_write(glebe_swap_region region, uint64_t offset_bytes, const void *bytes,
                            size_t len_bytes);

/* Declares that the program does not need pages soon. If memory is short, the pages that are whole
 * in the range are the next to leave it. A touch until then does not change that. If many ranges
 * wait, glebe forgets the oldest. Errors: BEYOND. */
int glebe_swap_region_cold(glebe_swap_region region, uint64_t offset_bytes, uint64_t len_bytes);

/* Loads pages that the program will need soon: the pages that hold the first of the bytes, up to
 * the room in the budget. They may leave memory again. Errors: BEYOND, BUDGET, FULL, CORRUPT, OS,
 * NO_MEMORY. */
int glebe_swap_region_will_need(glebe_swap_region region, uint64_t offset_bytes,
                                uint64_t len_bytes);

/* Gives up the bytes of the pages that are whole in the range. These pages are zeros from then on,
 * and take neither memory nor room in pool and file. A damaged page can then be used again. Errors:
 * BEYOND; PINNED by a pin, OS, NO_MEMORY. After the last three the first pages may be zeros. */
int glebe_swap_region_discard(glebe_swap_region region, uint64_t offset_bytes, uint64_t len_bytes);

/* Prepares the calling thread to touch the region: allocates what its first touch would allocate in
 * the handler, and tests for what would end the process there. Errors: SIGNAL. */
int glebe_swap_region_arm_thread(glebe_swap_region region);

/* Changes the budget. Pages leave memory if more is in memory. Errors: as
 * glebe_swap_store_set_budget. */
int glebe_swap_region_set_budget(glebe_swap_region region, uint64_t budget_bytes);

/* Fills `stats`; members that a region lacks are 0. The time is proportional to the number of
 * pages. Errors: NULL, BAD_SIZE. */
int glebe_swap_region_get_stats(glebe_swap_region region, glebe_swap_stats *stats);

/* Does what glebe_swap_store_format_stats does. */
int glebe_swap_region_format_stats(glebe_swap_region region, uint64_t format, char *text,
                                   size_t text_len_bytes, size_t *needed_bytes);

/* A swap cache is memory for the pages of areas: the idle part of a reserve, or memory of its own.
 * An area has the pages of a program's own pager, by index, compressed, with or without a file. A
 * page is *saved* if the file has it. Lent pages of a reserve hold only copies of saved pages, so a
 * recall has nothing to write. Pages that are not saved are in ordinary memory of the area, and two
 * numbers limit their compressed bytes:
 *   - write-back: bytes that wait to be written; a later store that finds no room writes them;
 *   - put-back: bytes that need not be written, with a file or without.
 * Both are 0 at first, which is write-through: the file has a page when its store returns. */
typedef struct glebe_swap_area {
    uint64_t id;
} glebe_swap_area;

/* Options of a new swap cache. */
typedef struct glebe_swap_cache_options {
    uint64_t size;         /* sizeof(glebe_swap_cache_options) */
    glebe_reserve reserve; /* the reserve whose idle memory the cache uses; 0: memory of its own */
    uint64_t limit_bytes;  /* without a reserve: the most memory, everything counted */
    uint64_t codec;        /* GLEBE_CODEC_*, of the areas in the cache */
    uint64_t zstd_level;   /* for GLEBE_CODEC_ZSTD; 0: the usual level */
    uint64_t encrypt;      /* 1: areas in the cache encrypt what they write to their files, each
                              with a key that only this process has; 0: they do not. A store in the
                              cache has its own option for this */
} glebe_swap_cache_options;

/* Makes a swap cache. A reserve cannot end while it has a swap cache, or an area or store in one.
 * Errors: NULL, BAD_SIZE, TOO_MANY; BAD_ARGUMENT without a limit or a reserve, or with both;
 * LIMIT_BELOW_HELD for a limit that an empty pool exceeds; OS, NO_MEMORY. */
int glebe_swap_cache_new(const glebe_swap_cache_options *options, glebe_swap_cache *cache);

/* Ends the handle. Areas and stores in the cache remain. */
int glebe_swap_cache_free(glebe_swap_cache cache);

/* Writes a write-back that suits most areas to `write_back_bytes`: a sixteenth of the reserve or of
 * the limit, and at most 16 MiB. Errors: NULL. */
int glebe_swap_cache_usual_write_back(glebe_swap_cache cache, uint64_t *write_back_bytes);

/* Options of a new area. */
typedef struct glebe_swap_area_options {
    uint64_t size;              /* sizeof(glebe_swap_area_options) */
    const char *file_directory; /* directory of the area's file, which has no name, only this
                                   process has, and disappears with the process; null: without a
                                   file, the area stores nothing until
                                   glebe_swap_area_set_put_back */
    uint64_t file_bytes;        /* the most bytes of the file */
} glebe_swap_area_options;

/* Makes an area of `pages`. Errors: NULL, BAD_SIZE, BAD_ARGUMENT, TOO_MANY; BAD_LEN for 0 or too
 * many pages; OS, NO_MEMORY. */
int glebe_swap_area_new(glebe_swap_cache cache, uint64_t pages,
                        const glebe_swap_area_options *options, glebe_swap_area *area);

/* Ends an area and its pages. */
int glebe_swap_area_free(glebe_swap_area area);

/* Stores bytes as the pages from index `first` on, in place of the earlier pages. The bytes are
 * whole pages; several of them share a write. Errors that change nothing: NULL, BAD_LEN, BEYOND.
 * Further errors: FULL if file and put-back have no room, OS, NO_MEMORY. After these each of the
 * pages is unchanged, stored, or dropped. */
int glebe_swap_area_store(glebe_swap_area area, uint64_t first, const void *bytes,
                          size_t len_bytes);

/* Copies a page out; returns GLEBE_GET_*. `len_bytes` must be glebe_page_bytes(). Errors: NULL,
 * BAD_LEN, BEYOND; CORRUPT if it differs from the stored page; OS. After these the buffer may hold
 * anything. */
int glebe_swap_area_load(glebe_swap_area area, uint64_t index, void *page, size_t len_bytes);

/* Copies a page out as glebe_swap_area_load does, and after a hit removes it. */
int glebe_swap_area_take(glebe_swap_area area, uint64_t index, void *page, size_t len_bytes);

/* Drops one page; returns GLEBE_INVALIDATED or GLEBE_NOT_THERE. Errors: BEYOND. */
int glebe_swap_area_invalidate_page(glebe_swap_area area, uint64_t index);

/* Drops all pages, and writes their number to `pages`, unless that is null. */
int glebe_swap_area_invalidate(glebe_swap_area area, uint64_t *pages);

/* Sets write-back; without a file it has no effect. The call writes the bytes above the new number
 * before it returns. Errors: FULL, OS, which leave write-back unchanged. */
int glebe_swap_area_set_write_back(glebe_swap_area area, uint64_t write_back_bytes);

/* Sets put-back. The call writes the bytes above the new number before it returns, except for those
 * that write-back lets wait. Errors: as glebe_swap_area_set_write_back; LIMIT_BELOW_HELD without a
 * file, if more is stored. */
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

/* Fills `stats`. The time is proportional to the number of pages. Errors: NULL, BAD_SIZE. */
int glebe_swap_area_get_stats(glebe_swap_area area, glebe_swap_area_stats *stats);

/* Does what glebe_swap_store_format_stats does. */
int glebe_swap_area_format_stats(glebe_swap_area area, uint64_t format, char *text,
                                 size_t text_len_bytes, size_t *needed_bytes);

/* ---- Reclaimers ------------------------------------------------------------------------------ */

/* A reclaimer takes memory back from parts of the program before the kernel has to kill it. It
 * reads the memory limits of the cgroups above the process, and the memory of the machine. While
 * the tightest of these leaves less than a margin, the reclaimer takes the missing bytes. It takes
 * them in this order:
 * 1. marked volatile memory: the lowest priority first, and within a priority the oldest;
 * 2. memory that compaction of object pools frees;
 * 3. objects of pools that may evict;
 * 4. memory that budgets were granted;
 * 5. memory of reserves that first class does not hold.
 *
 * The program adds parts. A part has one reclaimer, and leaves it when the part is freed.
 * glebe_volatile_free waits for a look that is under way. Memory of an object pool or reserve that
 * is freed during a look returns to the system at the end of the look.
 *
 * A reclaimer looks when glebe_reclaimer_poll is called, or in a thread of its own after
 * glebe_reclaimer_start. A look takes some tens of microseconds, plus the time to take memory. A
 * thread that is inside another call on volatile memory or inside a fork gets WOULD_WAIT. */
typedef struct glebe_reclaimer {
    uint64_t id;
} glebe_reclaimer;

/* Options of a new reclaimer. */
typedef struct glebe_reclaimer_options {
    uint64_t size;         /* sizeof(glebe_reclaimer_options) */
    uint64_t margin_bytes; /* takes memory while less than this is available; 0: a sixteenth of the
                              limit, but 4 MiB at least and 256 MiB at most. Never more than a
                              quarter of the limit */
    uint64_t lead_ms;      /* the margin grows by the rise of usage in this time; 0: 100 */
    uint64_t withhold_ms;  /* refills are withheld this long after memory was short; 0: 1000 */
    uint64_t yield_files;  /* 0: in a cgroup with a limit, the reclaimer keeps marked memory so
                              small that the kernel drops no file page for it; 1: the kernel
                              chooses */
} glebe_reclaimer_options;

/* Makes a reclaimer without parts. Errors: NULL, BAD_SIZE, BAD_ARGUMENT, TOO_MANY; BLIND if neither
 * a cgroup nor the machine says how much memory exists; OS, NO_MEMORY. */
int glebe_reclaimer_new(const glebe_reclaimer_options *options, glebe_reclaimer *reclaimer);

/* Ends a reclaimer and its thread, after the look under way. Its parts remain, and another
 * reclaimer may get them. Its budgets again allow all their bytes. Errors: WOULD_WAIT. */
int glebe_reclaimer_free(glebe_reclaimer reclaimer);

/* Adds the marked memory of a region. Errors: TAKEN, WOULD_WAIT, OS. */
int glebe_reclaimer_add_volatile(glebe_reclaimer reclaimer, glebe_volatile region);

/* Adds the memory that a purge of a shared region would take: marked memory of all processes that
 * none has pinned. If several processes add regions of one file, each takes the bytes that its own
 * look finds missing. Errors: TAKEN, WOULD_WAIT, NO_MEMORY, OS; BAD_ARGUMENT if no descriptor is
 * left; BAD_FILE for a region of the caller's memory; HANDLER_COVERED as glebe_shared_open. */
int glebe_reclaimer_add_shared(glebe_reclaimer reclaimer, glebe_shared shared);

/* Adds an object pool with memory of its own: the memory that compaction frees, and with
 * evict_oldest the old unread objects. Errors: TAKEN, WOULD_WAIT; BAD_ARGUMENT for a pool on a
 * reserve. */
int glebe_reclaimer_add_zpool(glebe_reclaimer reclaimer, glebe_zpool pool);

/* Adds a reserve that was made with room_bytes. At least `least_bytes` stay in it. The reclaimer
 * takes memory by glebe_reserve_shrink. The memory does not return by itself: call
 * glebe_reserve_grow. Errors: TAKEN, WOULD_WAIT; FIXED_LEN for a reserve without room_bytes; OS. */
int glebe_reclaimer_add_reserve(glebe_reclaimer reclaimer, glebe_reserve reserve,
                                uint64_t least_bytes);

/* A limit for a cache of the program's own. The program reports the bytes that the cache holds,
 * reads how many it may hold, and frees the rest. Bytes that the reclaimer asked for count as on
 * their way for one second; after that it asks other parts. A budget is for memory that returns to
 * the system when the cache frees it. */
typedef struct glebe_budget {
    uint64_t id;
} glebe_budget;

/* Makes a budget of `most_bytes`, which it allows while memory is not short. Errors: NULL,
 * TOO_MANY. */
int glebe_budget_new(uint64_t most_bytes, glebe_budget *budget);

/* Ends a budget. */
int glebe_budget_free(glebe_budget budget);

/* Reports the bytes that the cache holds now. */
int glebe_budget_set_held(glebe_budget budget, uint64_t held_bytes);

/* Writes the bytes that the cache may hold now to `allowed_bytes`; without a reclaimer, the whole
 * budget. Errors: NULL. */
int glebe_budget_allowed(glebe_budget budget, uint64_t *allowed_bytes);

/* Adds a budget. Errors: TAKEN, WOULD_WAIT. */
int glebe_reclaimer_add_budget(glebe_reclaimer reclaimer, glebe_budget budget);

/* The result of a look. */
typedef struct glebe_reclaimed {
    uint64_t size;           /* sizeof(glebe_reclaimed); set to the bytes filled */
    uint64_t asked_bytes;    /* bytes that the look wanted; 0: memory was not short */
    uint64_t volatile_bytes; /* marked memory that was taken */
    uint64_t waste_bytes;    /* memory that compaction of object pools freed */
    uint64_t objects_bytes;  /* memory that was freed with objects of pools */
    uint64_t budgets_bytes;  /* bytes by which budgets were lowered; their owners free them */
    uint64_t reserve_bytes;  /* memory that reserves gave back */
    uint64_t measured_bytes; /* the fall of usage meanwhile, by all users of the memory */
    uint64_t failed;         /* parts that failed to shed and were passed over */
} glebe_reclaimed;

/* Looks at how much memory is available, and takes the missing bytes. Writes the result to
 * `reclaimed`, which may be null. Waits for a look under way. Errors: BAD_SIZE, WOULD_WAIT, BLIND,
 * OS. After BLIND nothing was taken, and the next look is due in a second. */
int glebe_reclaimer_poll(glebe_reclaimer reclaimer, glebe_reclaimed *reclaimed);

/* Waits until the next look is due, a signal arrives, or `most_ms` have passed. A look is due at
 * the latest a second after the last one. Errors: WOULD_WAIT, OS. */
int glebe_reclaimer_wait(glebe_reclaimer reclaimer, uint64_t most_ms);

/* Writes a descriptor to `fd` that is readable, for poll(2) or epoll(7), while a look is due. Do
 * not read or close the descriptor: glebe_reclaimer_free closes it. Errors: NULL. */
int glebe_reclaimer_fd(glebe_reclaimer reclaimer, int *fd);

/* Starts a thread that looks whenever a look is due, until the reclaimer is freed. Errors: STARTED,
 * WOULD_WAIT, OS, NO_MEMORY. */
int glebe_reclaimer_start(glebe_reclaimer reclaimer);

enum {
    GLEBE_REFILLS_ALLOWED = 0,
    GLEBE_REFILLS_WITHHELD = 1 /* memory is short, or was short a moment ago */
};

/* Returns one of GLEBE_REFILLS_*: says if caches may fill up again. A cache that computes lost data
 * anew without asking undoes the work of the reclaimer. The call costs a few loads. */
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

/* Returns the statistics as text, in one of GLEBE_FORMAT_* except GLEBE_FORMAT_CLASSES. Names in
 * OpenMetrics begin with glebe_reclaim_. Errors: NULL, BAD_ARGUMENT. */
int glebe_reclaimer_format_stats(glebe_reclaimer reclaimer, uint64_t format, char *text,
                                 size_t text_len_bytes, size_t *needed_bytes);

#ifdef __cplusplus
}
#endif

#endif
