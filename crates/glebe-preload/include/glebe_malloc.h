/* glebe-malloc: the calls that a program may make to the allocator that it runs with.
 *
 * libglebe_malloc.so defines them when it is loaded in front of the program (LD_PRELOAD, or
 * `glebe run --malloc`). The program links with nothing: the calls are weak, and null without the
 * library.
 *
 *     if (glebe_malloc_trim) glebe_malloc_trim(0);
 *
 * Other languages find them with dlsym(RTLD_DEFAULT, "glebe_malloc_trim"). Any thread may make
 * every call; a signal handler may make every call but trim. Amounts are bytes in whole slices of
 * 64 KiB.
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
    /* of the marked, what the kernel has not taken */
    uint64_t volatile_resident_bytes;
    /* what the process has in memory */
    uint64_t rss_bytes;
    /* that, less what the kernel may take at any moment */
    uint64_t rss_less_reclaimable_bytes;
    /* free memory that was marked */
    uint64_t marked_bytes;
    /* of the marked, what the kernel was found to have taken */
    uint64_t purged_bytes;
    /* free memory given back at once: memory was short, or by trim */
    uint64_t given_back_bytes;
    /* memory used again that was still there, as far as is known */
    uint64_t reused_warm_bytes;
    /* memory used for the first time, or after it was gone */
    uint64_t reused_cold_bytes;
    /* how often it was looked how short memory is */
    uint64_t looks;
    /* system calls that marked or gave back */
    uint64_t calls;
    /* of these, refused by the kernel */
    uint64_t refused;
    /* addresses of the heap; 0: mimalloc is alone, and only the RSS is told */
    uint64_t address_bytes;
    /* slices of mimalloc's own tables, most of them never touched */
    uint64_t table_bytes;
    /* 1 where a unit of marking is a huge page; known once there is a keeper */
    uint64_t huge_pages;
    /* 1 while there is a thread that marks and gives back */
    uint64_t keeper;
    /* 1 where that thread has a table of open files of its own */
    uint64_t own_files;
    /* 1 where it can tell how short memory is */
    uint64_t gauge;
    /* 1 where the tightest limit was a memory cgroup's */
    uint64_t group;
    /* 1 where the kernel tells what of the marked it took; 0: that is unknown */
    uint64_t audit;
    /* calls of dlopen from which RTLD_DEEPBIND was taken away */
    uint64_t deepbind_opens;
};

enum glebe_malloc_format {
    GLEBE_MALLOC_TEXT = 0,
    GLEBE_MALLOC_JSON = 1,
    GLEBE_MALLOC_OPENMETRICS = 2
};

/* Fills as many bytes of *stats as stats->size says. Returns 0, or EINVAL if stats is null or
 * shorter than its first two members. */
GLEBE_MALLOC_WEAK int glebe_malloc_get_stats(struct glebe_malloc_stats *stats);

/* Writes the statistics to text as snprintf does: at most len bytes, with a zero at the end.
 * Returns the length of the whole text without the zero, or -1 with errno EINVAL for an unknown
 * format. */
GLEBE_MALLOC_WEAK long glebe_malloc_format_stats(char *text, size_t len, int format);

/* Gives free memory back to the system until at most keep bytes are left. Returns the bytes given
 * back. */
GLEBE_MALLOC_WEAK size_t glebe_malloc_trim(size_t keep);

#ifdef __cplusplus
}
#endif

#endif
