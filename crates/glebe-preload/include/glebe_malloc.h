/* glebe-malloc: the calls that a program may make to the allocator that it runs with.
 *
 * libglebe_malloc.so defines the calls when it is loaded in front of the program (LD_PRELOAD, or
 * `glebe run --malloc`). The program need not link with the library, because the calls are weak:
 * without the library they are null.
 *
 *     if (glebe_malloc_trim) glebe_malloc_trim(0);
 *
 * Other languages find the calls with dlsym(RTLD_DEFAULT, "glebe_malloc_trim"). Any thread may make
 * every call; a signal handler may make every call but trim. Amounts are bytes. The heap gives
 * memory back in slices of 64 KiB.
 */
#ifndef GLEBE_MALLOC_H
#define GLEBE_MALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GLEBE_MALLOC_WEAK __attribute__((weak))
#else
#define GLEBE_MALLOC_WEAK
#endif

/* New members are added at the end. The version changes if a member changes its meaning. */
struct glebe_malloc_stats {
    uint64_t size;    /* in: bytes of the structure; out: bytes that were filled */
    uint64_t version; /* out: 1 */
    /* slices that hold objects */
    uint64_t live_bytes;
    /* free and not marked: the kernel cannot take it */
    uint64_t free_bytes;
    /* free and marked: the kernel may take it, and may have taken part */
    uint64_t volatile_bytes;
    /* marked memory that is still in memory */
    uint64_t volatile_resident_bytes;
    /* resident memory of the process */
    uint64_t rss_bytes;
    /* rss without the memory that the kernel may take now */
    uint64_t rss_less_reclaimable_bytes;
    /* free memory that was marked */
    uint64_t marked_bytes;
    /* marked memory that the kernel was found to have taken */
    uint64_t purged_bytes;
    /* free memory given back at once: memory was short, or a trim */
    uint64_t given_back_bytes;
    /* memory used again that the kernel had not taken, if known */
    uint64_t reused_warm_bytes;
    /* memory used for the first time, or after the kernel took it */
    uint64_t reused_cold_bytes;
    /* looks at how short memory is */
    uint64_t looks;
    /* system calls that marked or gave back */
    uint64_t calls;
    /* calls that the kernel refused */
    uint64_t refused;
    /* addresses of the heap; 0 if only mimalloc runs: then only rss is known */
    uint64_t address_bytes;
    /* slices of mimalloc's own tables, mostly never touched */
    uint64_t table_bytes;
    /* 1 if the unit of marking is a huge page; known once there is a keeper */
    uint64_t huge_pages;
    /* 1 while there is a thread that marks and gives back */
    uint64_t keeper;
    /* 1 if that thread has its own table of open files */
    uint64_t own_files;
    /* 1 if that thread can see how short memory is */
    uint64_t gauge;
    /* 1 if the tightest limit was a memory cgroup's */
    uint64_t group;
    /* 1 if the kernel says which marked memory it took; 0 if not */
    uint64_t audit;
    /* calls of dlopen that lost RTLD_DEEPBIND */
    uint64_t deepbind_opens;
};

enum glebe_malloc_format {
    GLEBE_MALLOC_TEXT = 0,
    GLEBE_MALLOC_JSON = 1,
    GLEBE_MALLOC_OPENMETRICS = 2
};

/* Fills at most stats->size bytes of *stats. Returns 0, or EINVAL if stats is null or shorter than
 * its first two members. */
GLEBE_MALLOC_WEAK int glebe_malloc_get_stats(struct glebe_malloc_stats *stats);

/* Writes the statistics to text as snprintf does: at most len bytes, with a zero at the end.
 * Returns the length of the whole text without the zero, or -1 with errno EINVAL for an unknown
 * format. */
GLEBE_MALLOC_WEAK long glebe_malloc_format_stats(char *text, size_t len, int format);

/* Gives free memory back to the system until at most keep free bytes are left. Returns the bytes
 * given back. */
GLEBE_MALLOC_WEAK size_t glebe_malloc_trim(size_t keep);

#ifdef __cplusplus
}
#endif

#endif
