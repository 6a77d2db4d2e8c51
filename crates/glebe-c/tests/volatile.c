/* Volatile memory from C99: results and errors. Pages are lost by glebe_volatile_drop_now(), or for
 * glebe_vrange() by madvise(). */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define PAGES 64

static size_t page;

static glebe_volatile map(uint64_t engine, uint64_t pages) {
    glebe_volatile_options options;
    glebe_volatile region = {0};
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.engine = engine;
    OK(glebe_volatile_new(pages * page, &options, &region));
    CHECK(region.id != 0);
    return region;
}

static int has_engine(uint64_t engine) {
    glebe_volatile_options options;
    glebe_volatile region = {0};
    int code;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.engine = engine;
    code = glebe_volatile_new(page, &options, &region);
    CHECK(code == GLEBE_OK || code == GLEBE_ERROR_OS);
    if (code == GLEBE_OK) OK(glebe_volatile_free(region));
    return code == GLEBE_OK;
}

/* Makes a region over `address` (null: over its own memory), with a refill unless that is null. */
static int refilled(void *address, uint64_t len_bytes, const glebe_volatile_options *asked,
                    glebe_refill refill, void *data, glebe_volatile *region) {
    glebe_volatile_options options;
    memset(&options, 0, sizeof options);
    if (asked != NULL) options = *asked;
    options.size = sizeof options;
    options.address = address;
    options.refill = refill;
    options.data = data;
    return glebe_volatile_new(len_bytes, &options, region);
}

static int over(void *address, uint64_t len_bytes, const glebe_volatile_options *options,
                glebe_volatile *region) {
    return refilled(address, len_bytes, options, NULL, NULL, region);
}

static unsigned char *address_of(glebe_volatile region) {
    void *address = NULL;
    OK(glebe_volatile_memory(region, &address, NULL, NULL, NULL));
    CHECK((uintptr_t)address % page == 0);
    return address;
}

static void fill(unsigned char *bytes, size_t pages) {
    size_t n;
    for (n = 0; n < pages; n++) memset(bytes + n * page, (int)(n + 1), page);
}

static int has(const unsigned char *bytes, size_t n, int value) {
    size_t i;
    for (i = 0; i < page; i++) {
        if (bytes[n * page + i] != value) return 0;
    }
    return 1;
}

static void drop(glebe_volatile region, uint64_t first, uint64_t pages) {
    uint64_t dropped = 0;
    OK(glebe_volatile_drop_now(region, first * page, pages * page, &dropped));
    CHECK(dropped == pages * page);
}

static void options_are_checked(void) {
    glebe_volatile_options options;
    glebe_volatile region = {77};
    uint64_t older[2], len_bytes = 0, granule = 0, engine = 0;
    struct {
        glebe_volatile_options known;
        uint64_t later;
    } newer;

    memset(&options, 0, sizeof options);
    REFUSED(glebe_volatile_new(page, NULL, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_volatile_new(page, &options, &region), GLEBE_ERROR_BAD_SIZE);
    options.size = sizeof options;
    REFUSED(glebe_volatile_new(0, &options, &region), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_volatile_new(UINT64_MAX, &options, &region), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_new((uint64_t)1 << 60, &options, &region), GLEBE_ERROR_NO_MEMORY);
    options.engine = 3;
    REFUSED(glebe_volatile_new(page, &options, &region), GLEBE_ERROR_BAD_ARGUMENT);
    options.engine = GLEBE_ENGINE_TAG;
    options.huge = 2;
    REFUSED(glebe_volatile_new(page, &options, &region), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(region.id == 77);
    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    newer.later = 1;
    REFUSED(glebe_volatile_new(page, &newer.known, &region), GLEBE_ERROR_BAD_ARGUMENT);
    newer.later = 0;
    OK(glebe_volatile_new(page, &newer.known, &region));
    OK(glebe_volatile_free(region));
    older[0] = sizeof older;
    older[1] = GLEBE_ENGINE_TAG;
    OK(glebe_volatile_new(page + 1, (const glebe_volatile_options *)older, &region));
    OK(glebe_volatile_memory(region, NULL, &len_bytes, &granule, &engine));
    CHECK(len_bytes == 2 * page && granule == page && engine == GLEBE_ENGINE_TAG);
    OK(glebe_volatile_free(region));
    OK(glebe_volatile_new(page, NULL, &region));
    OK(glebe_volatile_free(region));

    /* The cap is two pages: marking three loses the page marked first. */
    options.huge = 0;
    options.engine = GLEBE_ENGINE_AUTO;
    options.cap_bytes = 2 * page;
    options.max_age_ns = UINT64_MAX;
    OK(glebe_volatile_new(4 * page, &options, &region));
    fill(address_of(region), 4);
    {
        glebe_extent run;
        size_t count = 9;
        uint64_t n;
        for (n = 0; n < 3; n++)
            OK(glebe_volatile_mark(region, (2 - n) * page, page, GLEBE_PRIORITY_NORMAL));
        OK(glebe_volatile_unmark(region, 0, 4 * page, &run, 1, &count));
        CHECK(count == 1 && run.start_pages == 2 && run.len_pages == 1);
    }
    OK(glebe_volatile_free(region));
}

static void huge_granules(void) {
    glebe_volatile_options options;
    glebe_volatile region = {0};
    uint64_t granule = 0, len_bytes = 0;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.huge = 1;
    if (glebe_volatile_new(1, &options, &region) == GLEBE_ERROR_OS) {
        printf("skipped: huge granules: %s\n", glebe_last_error());
        return;
    }
    OK(glebe_volatile_memory(region, NULL, &len_bytes, &granule, NULL));
    CHECK(granule > page && len_bytes == granule);
    REFUSED(glebe_volatile_mark(region, 0, page, 0), GLEBE_ERROR_UNALIGNED);
    OK(glebe_volatile_mark(region, 0, granule, 0));
    OK(glebe_volatile_free(region));
}

static void losses_are_told(uint64_t engine) {
    glebe_volatile region = map(engine, PAGES);
    unsigned char *bytes = address_of(region), *buffer = malloc(2 * page);
    glebe_extent runs[4];
    size_t count = 0;
    uint64_t lost = 99, n;

    CHECK(buffer != NULL);
    fill(bytes, PAGES);
    OK(glebe_volatile_mark(region, 0, PAGES * page, GLEBE_PRIORITY_HIGHEST));
    OK(glebe_volatile_mark(region, 0, page, GLEBE_PRIORITY_LOWEST)); /* already marked */
    drop(region, 3, 2);
    drop(region, 8, 1);
    drop(region, 40, 8);
    CHECK(glebe_volatile_read(region, 2 * page, buffer, page, &lost) == GLEBE_READ_DONE);
    CHECK(has(buffer, 0, 3) && lost == 99);
    CHECK(glebe_volatile_read(region, 2 * page, buffer, 2 * page, &lost) == GLEBE_READ_LOST);
    CHECK(lost == 3 * page);
    CHECK(glebe_volatile_read(region, 3 * page, buffer, 1, NULL) == GLEBE_READ_LOST);

    OK(glebe_volatile_unmark(region, 0, 16 * page, runs, 4, &count));
    CHECK(count == 2 && runs[0].start_pages == 3 && runs[0].len_pages == 2);
    CHECK(runs[1].start_pages == 8 && runs[1].len_pages == 1);
    for (n = 0; n < 16; n++)
        CHECK(has(bytes, n, n == 3 || n == 4 || n == 8 ? 0 : (int)n + 1));
    OK(glebe_volatile_unmark(region, 0, 16 * page, runs, 4, &count));
    CHECK(count == 0);
    OK(glebe_volatile_read(region, 5 * page, buffer, 2 * page, NULL));
    CHECK(has(buffer, 0, 6) && has(buffer, 1, 7));
    memset(buffer, 0xee, page);
    memcpy(bytes + 15 * page, buffer, page);
    OK(glebe_volatile_read(region, 15 * page, buffer, page, NULL));
    CHECK(has(buffer, 0, 0xee));

    /* From page 38 on: two pages kept, eight lost, the rest kept. */
    OK(glebe_volatile_unmark(region, 38 * page, 17 * page, runs, 4, &count));
    CHECK(count == 1 && runs[0].start_pages == 40 && runs[0].len_pages == 8);
    CHECK(has(bytes, 39, 40) && has(bytes, 40, 0) && has(bytes, 47, 0) && has(bytes, 48, 49));
    OK(glebe_volatile_free(region));
    free(buffer);
}

static void surplus_runs_are_kept(uint64_t engine) {
    glebe_volatile region = map(engine, PAGES);
    glebe_extent runs[3] = {{9, 9}, {9, 9}, {9, 9}};
    size_t count = 0;
    uint64_t n;

    fill(address_of(region), PAGES);
    OK(glebe_volatile_mark(region, 0, PAGES * page, GLEBE_PRIORITY_NORMAL));
    for (n = 1; n < 20; n += 2) drop(region, n, 1); /* 10 runs */
    CHECK(glebe_volatile_unmark(region, 0, PAGES * page, NULL, 0, &count) == GLEBE_UNMARK_MORE);
    CHECK(count == 10);
    CHECK(glebe_volatile_unmark(region, 0, PAGES * page, runs, 2, &count) == GLEBE_UNMARK_MORE);
    CHECK(count == 10 && runs[0].start_pages == 1 && runs[1].start_pages == 3);
    CHECK(runs[2].start_pages == 9);
    /* A call on a part reports only losses inside this part. */
    OK(glebe_volatile_unmark(region, 8 * page, 4 * page, runs, 3, &count));
    CHECK(count == 2 && runs[0].start_pages == 9 && runs[1].start_pages == 11);
    /* A new loss next to one that was not reported joins its run. */
    OK(glebe_volatile_mark(region, 6 * page, page, GLEBE_PRIORITY_NORMAL));
    drop(region, 6, 1);
    OK(glebe_volatile_unmark(region, 4 * page, 4 * page, runs, 1, &count));
    CHECK(count == 1 && runs[0].start_pages == 5 && runs[0].len_pages == 3);
    CHECK(glebe_volatile_unmark(region, 0, PAGES * page, runs, 3, &count) == GLEBE_UNMARK_MORE);
    CHECK(count == 4 && runs[0].start_pages == 13 && runs[2].start_pages == 17);
    OK(glebe_volatile_unmark(region, 0, PAGES * page, runs, 3, &count));
    CHECK(count == 1 && runs[0].start_pages == 19);
    OK(glebe_volatile_unmark(region, 0, PAGES * page, runs, 3, &count));
    CHECK(count == 0);
    OK(glebe_volatile_free(region));
}

static void ranges_are_checked(uint64_t engine) {
    glebe_volatile region = map(engine, 4);
    uint64_t huge = ~(uint64_t)0 - page + 1, n = 7;
    unsigned char byte = 0;
    glebe_extent run = {7, 7};
    size_t count = 7;

    fill(address_of(region), 4);
    REFUSED(glebe_volatile_mark(region, 0, 0, 0), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_volatile_mark(region, 1, page, 0), GLEBE_ERROR_UNALIGNED);
    REFUSED(glebe_volatile_mark(region, 0, page + 1, 0), GLEBE_ERROR_UNALIGNED);
    REFUSED(glebe_volatile_mark(region, 0, 5 * page, 0), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_mark(region, huge, page, 0), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_mark(region, page, huge, 0), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_mark(region, 0, page, 8), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_volatile_mark(region, 0, page, 256), GLEBE_ERROR_BAD_ARGUMENT);
    OK(glebe_volatile_mark(region, 0, 4 * page, 0));
    drop(region, 0, 1);
    REFUSED(glebe_volatile_unmark(region, 0, 0, &run, 1, &count), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_volatile_unmark(region, page, huge, &run, 1, &count), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_unmark(region, 0, 5 * page, &run, 1, &count), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_unmark(region, 1, page, &run, 1, &count), GLEBE_ERROR_UNALIGNED);
    REFUSED(glebe_volatile_unmark(region, 0, page, NULL, 1, &count), GLEBE_ERROR_NULL);
    REFUSED(glebe_volatile_unmark(region, 0, page, &run, 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_volatile_drop_now(region, 0, 0, &n), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_volatile_drop_now(region, page, huge, &n), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_drop_now(region, 1, page, &n), GLEBE_ERROR_UNALIGNED);
    REFUSED(glebe_volatile_read(region, 0, NULL, 1, &n), GLEBE_ERROR_NULL);
    REFUSED(glebe_volatile_read(region, 4 * page, &byte, 1, &n), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_read(region, UINT64_MAX, &byte, 1, &n), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_volatile_read(region, 0, &byte, SIZE_MAX, &n), GLEBE_ERROR_BAD_ARGUMENT);
    OK(glebe_volatile_read(region, 0, NULL, 0, NULL));
    CHECK(run.start_pages == 7 && count == 7 && n == 7);
    /* The refused calls unmarked nothing. */
    OK(glebe_volatile_unmark(region, 0, 4 * page, &run, 1, &count));
    CHECK(count == 1 && run.start_pages == 0 && run.len_pages == 1);
    OK(glebe_volatile_free(region));
}

static void all_refused(glebe_volatile region, int code) {
    glebe_volatile_stats stats;
    glebe_extent run;
    unsigned char bits[8];
    void *address = NULL;
    size_t count = 0;
    uint64_t n = 0;
    stats.size = sizeof stats;
    REFUSED(glebe_volatile_memory(region, &address, NULL, NULL, NULL), code);
    REFUSED(glebe_volatile_mark(region, 0, page, 0), code);
    REFUSED(glebe_volatile_unmark(region, 0, page, &run, 1, &count), code);
    REFUSED(glebe_volatile_read(region, 0, bits, 8, &n), code);
    REFUSED(glebe_volatile_drop_now(region, 0, page, &n), code);
    REFUSED(glebe_volatile_get_stats(region, &stats), code);
    REFUSED(glebe_volatile_free(region), code);
}

static void handles_are_checked(void) {
    glebe_volatile region = map(GLEBE_ENGINE_AUTO, 1), later;
    glebe_reserve_options options;
    glebe_reserve reserve = {0};
    int bit;
    for (bit = 0; bit < 64; bit++) {
        all_refused(HANDLE(glebe_volatile, region.id ^ (uint64_t)1 << bit), GLEBE_ERROR_BAD_HANDLE);
    }
    all_refused(HANDLE(glebe_volatile, 0), GLEBE_ERROR_BAD_HANDLE);
    all_refused(HANDLE(glebe_volatile, UINT64_MAX), GLEBE_ERROR_BAD_HANDLE);
    CHECK(strstr(glebe_last_error(), "is no volatile region") != NULL);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_PLAIN;
    OK(glebe_reserve_new(2 << 20, &options, &reserve));
    all_refused(HANDLE(glebe_volatile, reserve.id), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reserve_free(HANDLE(glebe_reserve, region.id)), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_reserve_free(reserve));
    OK(glebe_volatile_free(region));
    later = map(GLEBE_ENGINE_AUTO, 1);
    CHECK(later.id != region.id);
    all_refused(region, GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_volatile_free(later));
}

static void statistics(uint64_t engine) {
    glebe_volatile region = map(engine, 8);
    glebe_volatile_stats stats;
    glebe_extent run;
    unsigned char byte;
    size_t count = 0;
    uint64_t older[3] = {2 * sizeof(uint64_t), 0, 5};

    fill(address_of(region), 8);
    OK(glebe_volatile_mark(region, 0, 6 * page, 0));
    drop(region, 1, 1);
    CHECK(glebe_volatile_read(region, page, &byte, 1, NULL) == GLEBE_READ_LOST);
    OK(glebe_volatile_unmark(region, 0, 3 * page, &run, 1, &count));
    stats.size = sizeof stats;
    OK(glebe_volatile_get_stats(region, &stats));
    CHECK(stats.size == sizeof stats && stats.total_pages == 8 && stats.marked_pages == 3);
    CHECK(stats.marks == 1 && stats.unmarks == 1 && stats.marked_ever == 6);
    CHECK(stats.purged + stats.rescued == 3 && stats.purged >= 1 && stats.dropped_now == 1);
    CHECK(stats.reads_lost == 1 && stats.overwritten == 0 && stats.dropped_by_cap == 0);
    CHECK(stats.resident_pages <= 3);
    /* Five pages are not marked, one of them lost; three are marked, and may not be counted yet. */
    CHECK(stats.unreclaimable_pages >= 4 && stats.unreclaimable_pages <= 7);
    OK(glebe_volatile_get_stats(region, (glebe_volatile_stats *)older));
    CHECK(older[0] == 2 * sizeof(uint64_t) && older[1] == 1 && older[2] == 5);
    REFUSED(glebe_volatile_get_stats(region, NULL), GLEBE_ERROR_NULL);
    stats.size = 0;
    REFUSED(glebe_volatile_get_stats(region, &stats), GLEBE_ERROR_BAD_SIZE);
    OK(glebe_volatile_free(region));
}

static void fork_takes_regions_along(uint64_t engine) {
    glebe_volatile region = map(engine, 4);
    unsigned char *bytes = address_of(region);
    glebe_extent run = {9, 9};
    size_t count = 0;
    int status = 0;
    pid_t child;

    fill(bytes, 4);
    OK(glebe_volatile_mark(region, 0, 4 * page, 0));
    drop(region, 1, 1);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        drop(region, 2, 1);
        OK(glebe_volatile_unmark(region, 0, 4 * page, &run, 1, &count));
        CHECK(count == 1 && run.start_pages == 1 && run.len_pages == 2);
        CHECK(has(bytes, 0, 1) && has(bytes, 1, 0) && has(bytes, 2, 0) && has(bytes, 3, 4));
        OK(glebe_volatile_free(map(engine, 1)));
        OK(glebe_volatile_free(region));
        all_refused(region, GLEBE_ERROR_BAD_HANDLE);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_volatile_unmark(region, 0, 4 * page, &run, 1, &count));
    CHECK(count == 1 && run.start_pages == 1 && run.len_pages == 1);
    CHECK(has(bytes, 0, 1) && has(bytes, 1, 0) && has(bytes, 2, 3) && has(bytes, 3, 4));
    OK(glebe_volatile_free(region));
}

/* A child made without the C library may have locks held forever, so its calls are refused. */
static void cloned_children_are_refused(void) {
    glebe_volatile region = map(GLEBE_ENGINE_AUTO, 1), other = {77};
    int status = 0;
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        all_refused(region, GLEBE_ERROR_FORKED);
        REFUSED(glebe_volatile_new(page, NULL, &other), GLEBE_ERROR_FORKED);
        REFUSED(over(&other, page, NULL, &other), GLEBE_ERROR_FORKED);
        REFUSED(glebe_vrange((void *)(8 * page), page, 1, NULL), GLEBE_ERROR_FORKED);
        REFUSED(glebe_vrange_strict((void *)(8 * page), page, 0, NULL), GLEBE_ERROR_FORKED);
        _exit(other.id == 77 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_volatile_free(region));
}

static unsigned char *anonymous(size_t pages, int protection, int flags) {
    void *at = mmap(NULL, pages * page, protection, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void memory_of_the_callers(uint64_t engine) {
    unsigned char *bytes = anonymous(8, PROT_READ | PROT_WRITE, MAP_PRIVATE), *other;
    glebe_volatile_options options;
    glebe_volatile region = {0}, second = {77};
    glebe_extent run = {9, 9};
    size_t count = 0;
    uint64_t len_bytes = 0;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.engine = engine;
    fill(bytes, 8);
    OK(over(bytes + 1, 7 * page, &options, &region));
    OK(glebe_volatile_memory(region, NULL, &len_bytes, NULL, NULL));
    CHECK(len_bytes == 6 * page && address_of(region) == bytes + page);
    REFUSED(over(bytes, 8 * page, &options, &second), GLEBE_ERROR_ADOPTED);
    REFUSED(over(bytes + page, page, NULL, &second), GLEBE_ERROR_ADOPTED);
    OK(over(bytes, page, &options, &second));
    OK(glebe_volatile_free(second));
    OK(glebe_volatile_mark(region, page, 3 * page, 0));
    drop(region, 2, 1);
    OK(glebe_volatile_unmark(region, 0, 6 * page, &run, 1, &count));
    CHECK(count == 1 && run.start_pages == 2 && run.len_pages == 1);
    CHECK(has(bytes, 2, 3) && has(bytes, 3, 0) && has(bytes, 4, 5));
    OK(glebe_volatile_mark(region, 0, page, 0));
    OK(glebe_volatile_free(region));
    fill(bytes, 8); /* the caller's memory again */
    OK(over(bytes, 8 * page, &options, &region));
    OK(glebe_volatile_free(region));

    second.id = 77;
    REFUSED(over(bytes, page, &options, NULL), GLEBE_ERROR_NULL);
    REFUSED(over(bytes, 0, &options, &second), GLEBE_ERROR_EMPTY);
    REFUSED(over(bytes + 1, 2 * page - 2, &options, &second), GLEBE_ERROR_EMPTY);
    REFUSED(over(bytes, UINT64_MAX, &options, &second), GLEBE_ERROR_BEYOND);
    CHECK(mprotect(bytes, page, PROT_READ) == 0);
    REFUSED(over(bytes, 8 * page, &options, &second), GLEBE_ERROR_READ_ONLY);
    CHECK(munmap(bytes + page, page) == 0);
    REFUSED(over(bytes + page, page, &options, &second), GLEBE_ERROR_UNMAPPED);
    CHECK(munmap(bytes, 8 * page) == 0);
    other = anonymous(2, PROT_READ | PROT_WRITE, MAP_SHARED);
    REFUSED(over(other, 2 * page, &options, &second), GLEBE_ERROR_SHARED);
    CHECK(munmap(other, 2 * page) == 0);
    other = anonymous(2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    if (mlock(other, page) == 0) {
        REFUSED(over(other, 2 * page, &options, &second), GLEBE_ERROR_LOCKED);
    }
    CHECK(munmap(other, 2 * page) == 0 && second.id == 77);
}

static void *fork_and_find(void *region) {
    glebe_extent run = {9, 9};
    size_t count = 9;
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        OK(glebe_volatile_unmark(*(glebe_volatile *)region, 0, 4 * page, &run, 1, &count));
        _exit(count == 1 && run.start_pages == 1 && run.len_pages == 1 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return region;
}

/* A fork works in a thread that has not called glebe before. */
static void forked_in_anothers_thread(uint64_t engine) {
    glebe_volatile region = map(engine, 4);
    pthread_t thread;
    void *answer = NULL;
    fill(address_of(region), 4);
    OK(glebe_volatile_mark(region, 0, 4 * page, 0));
    drop(region, 1, 1);
    CHECK(pthread_create(&thread, NULL, fork_and_find, &region) == 0);
    CHECK(pthread_join(thread, &answer) == 0 && answer == &region);
    OK(glebe_volatile_free(region));
}

/* A program started by exec inherits no handle and no descriptor of glebe. */
static void executed(const char *handle) {
    char path[64], target[256];
    int fd;
    all_refused(HANDLE(glebe_volatile, strtoull(handle, NULL, 10)), GLEBE_ERROR_BAD_HANDLE);
    for (fd = 3; fd < 1024; fd++) {
        ssize_t len;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        len = readlink(path, target, sizeof target - 1);
        if (len < 0) continue;
        target[len] = 0;
        CHECK(strstr(target, "userfaultfd") == NULL && strstr(target, "pagemap") == NULL);
    }
    OK(glebe_volatile_free(map(GLEBE_ENGINE_AUTO, 1)));
}

static void executed_programs_inherit_nothing(void) {
    glebe_volatile region = map(GLEBE_ENGINE_AUTO, 4);
    char handle[32];
    int status = 0;
    pid_t child;
    snprintf(handle, sizeof handle, "%llu", (unsigned long long)region.id);
    OK(glebe_volatile_mark(region, 0, 4 * page, 0));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "volatile", handle, (char *)NULL);
        _exit(2);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_volatile_free(region));
}

static void refused_over(void *at, size_t len, const glebe_volatile_options *options, int code) {
    glebe_volatile region = {77};
    int purged = 7;
    REFUSED(over(at, len, options, &region), code);
    CHECK(region.id == 77);
    REFUSED(glebe_vrange_strict(at, len, GLEBE_VRANGE_VOLATILE, &purged), code);
    CHECK(purged == 7);
}

static void other_memory_is_refused(uint64_t engine) {
    glebe_volatile_options options;
    glebe_volatile shared = {0};
    unsigned char *bytes;
    unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
    int file = open("/proc/self/exe", O_RDONLY);

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.engine = engine;
    CHECK(file >= 0);
    bytes = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(bytes != MAP_FAILED && close(file) == 0);
    refused_over(bytes, page, &options, GLEBE_ERROR_FILE_PRIVATE);
    CHECK(munmap(bytes, page) == 0);
    bytes = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) {
        puts("skipped: no hugetlb mapping");
    } else {
        refused_over(bytes, 2 << 20, &options, GLEBE_ERROR_HUGETLB);
        CHECK(munmap(bytes, 2 << 20) == 0);
    }
    if (vdso != 0) refused_over((void *)vdso, page, &options, GLEBE_ERROR_SPECIAL);
    /* Memory partly of another kind, partly unmapped, and partly in another region. */
    bytes = anonymous(4, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    CHECK(mmap(bytes + 2 * page, page, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == bytes + 2 * page);
    /* Only glebe_vrange() accepts shared memory. */
    REFUSED(over(bytes, 4 * page, &options, &shared), GLEBE_ERROR_SHARED);
    CHECK(munmap(bytes + 2 * page, page) == 0);
    refused_over(bytes, 4 * page, &options, GLEBE_ERROR_UNMAPPED);
    {
        glebe_volatile other = {0};
        OK(over(bytes + page, page, &options, &other));
        refused_over(bytes, 2 * page, &options, GLEBE_ERROR_ADOPTED);
        OK(glebe_volatile_free(other));
    }
    CHECK(munmap(bytes, 4 * page) == 0);
}

static void glebes_own_memory(uint64_t engine) {
    glebe_volatile region = map(engine, 2), other = {77};
    glebe_reserve_options options;
    glebe_reserve reserve = {0};
    glebe_block block = {0};
    unsigned char *own = address_of(region), *before;
    void *first = NULL;
    int purged = 7;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_PLAIN;
    OK(glebe_reserve_new(4 << 20, &options, &reserve));
    OK(glebe_alloc(reserve, 1, &block));
    OK(glebe_block_memory(block, &first, NULL));
    REFUSED(over(own, page, NULL, &other), GLEBE_ERROR_SPECIAL);
    REFUSED(over(first, page, NULL, &other), GLEBE_ERROR_SPECIAL);
    REFUSED(glebe_vrange_strict(own, page, GLEBE_VRANGE_VOLATILE, &purged), GLEBE_ERROR_SPECIAL);
    REFUSED(glebe_vrange_strict(first, page, GLEBE_VRANGE_VOLATILE, &purged),
            GLEBE_ERROR_SPECIAL);
    CHECK(strstr(glebe_last_error(), "glebe's own") != NULL);
    CHECK(glebe_vrange(own, page, GLEBE_VRANGE_VOLATILE, &purged) == 0);
    CHECK(glebe_vrange(first, page, GLEBE_VRANGE_VOLATILE, &purged) == 0);
    before = mmap(own - page, page, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (before == own - page) {
        CHECK(glebe_vrange(before, 3 * page, GLEBE_VRANGE_VOLATILE, NULL) == (int)page);
        REFUSED(glebe_vrange_strict(before, 3 * page, 0, &purged), GLEBE_ERROR_SPECIAL);
        CHECK(glebe_vrange(before, page, GLEBE_VRANGE_NONVOLATILE, NULL) == (int)page);
        CHECK(munmap(before, page) == 0);
    }
    CHECK(other.id == 77);
    OK(glebe_free(block));
    OK(glebe_reserve_free(reserve));
    OK(glebe_volatile_free(region));
}

/* A cap of 0 and an age of 0 mean no limit. */
static void no_cap(uint64_t engine) {
    glebe_volatile region = map(engine, 4);
    glebe_volatile_stats stats;
    fill(address_of(region), 4);
    OK(glebe_volatile_mark(region, 0, 2 * page, 0));
    OK(glebe_volatile_mark(region, 2 * page, 2 * page, 0));
    stats.size = sizeof stats;
    OK(glebe_volatile_get_stats(region, &stats));
    CHECK(stats.dropped_by_cap == 0 && stats.marked_pages == 4);
    OK(glebe_volatile_free(region));
}

static void the_map_budget_ends(void) {
    unsigned long limit = 0;
    int status = 0;
    pid_t child;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    CHECK(file != NULL && fscanf(file, "%lu", &limit) == 1 && fclose(file) == 0);
    limit /= 8;
    if (limit > 20000) {
        puts("skipped: the map budget: vm.max_map_count is large");
        return;
    }
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        unsigned char *bytes = anonymous(2 * limit + 2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
        glebe_volatile_options options;
        glebe_volatile region = {0};
        glebe_extent run;
        size_t count = 0;
        unsigned long n;
        alarm(120);
        memset(&options, 0, sizeof options);
        options.size = sizeof options;
        options.engine = GLEBE_ENGINE_SCAN;
        OK(over(bytes, (2 * limit + 2) * page, &options, &region));
        for (n = 0; n < limit; n++) OK(glebe_volatile_mark(region, 2 * n * page, page, 0));
        REFUSED(glebe_volatile_mark(region, 2 * n * page, page, 0), GLEBE_ERROR_MAP_BUDGET);
        bytes[2 * n * page] = 1; /* not marked */
        OK(glebe_volatile_unmark(region, 0, page, &run, 1, &count));
        OK(glebe_volatile_mark(region, 2 * n * page, page, 0));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static sigjmp_buf back;
static void *volatile touched;

static void on_bus(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    touched = info->si_addr;
    siglongjmp(back, 1);
}

static sig_atomic_t volatile refills;

/* `data` is a copy of the region. Page 6 gets no refill. */
static const void *refill(uint64_t offset_bytes, size_t len_bytes, void *data) {
    refills++;
    if (len_bytes != page || offset_bytes == 6 * page) return NULL;
    return (const unsigned char *)data + offset_bytes;
}

static void touches_are_refilled(int is_over) {
    unsigned char *copy = malloc(8 * page), *bytes, *own = NULL;
    glebe_volatile_options options;
    glebe_volatile region = {77};
    glebe_extent run = {9, 9};
    struct sigaction action;
    size_t count = 9;

    CHECK(copy != NULL);
    fill(copy, 8);
    if (is_over) own = anonymous(8, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.engine = GLEBE_ENGINE_SCAN;
    REFUSED(refilled(own, 8 * page, &options, refill, copy, NULL), GLEBE_ERROR_NULL);
    REFUSED(refilled(own, 0, &options, refill, copy, &region), GLEBE_ERROR_EMPTY);
    CHECK(region.id == 77);
    /* The earlier handler gets the touches that are not refilled. */
    if (!is_over) {
        memset(&action, 0, sizeof action);
        action.sa_sigaction = on_bus;
        action.sa_flags = SA_SIGINFO;
        CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    }
    OK(refilled(own, 8 * page, &options, refill, copy, &region));
    /* A new handler in front of glebe's may not pass signals on, so the next region is refused. */
    if (!is_over) {
        struct sigaction glebes;
        glebe_volatile second = {77};
        CHECK(sigaction(SIGBUS, &action, &glebes) == 0);
        REFUSED(refilled(NULL, page, &options, refill, copy, &second),
                GLEBE_ERROR_HANDLER_COVERED);
        CHECK(second.id == 77 && sigaction(SIGBUS, &glebes, NULL) == 0);
    }
    bytes = address_of(region);
    CHECK(!is_over || bytes == own);
    fill(bytes, 8);
    OK(glebe_volatile_mark(region, 0, 8 * page, 0));
    drop(region, 2, 2);
    drop(region, 6, 1);
    refills = 0;
    CHECK(has(bytes, 2, 3) && has(bytes, 1, 2) && refills == 1);
    if (sigsetjmp(back, 1) == 0) {
        CHECK(((volatile unsigned char *)bytes)[6 * page + 7] != 0);
        CHECK(0);
    }
    CHECK(touched == bytes + 6 * page + 7 && refills == 2);
    OK(glebe_volatile_unmark(region, 0, 4 * page, &run, 1, &count));
    CHECK(count == 1 && run.start_pages == 3 && run.len_pages == 1 && has(bytes, 2, 3));
    OK(glebe_volatile_unmark(region, 0, 8 * page, &run, 1, &count));
    CHECK(count == 1 && run.start_pages == 6 && run.len_pages == 1 && has(bytes, 6, 0));
    CHECK(refills == 2);
    OK(glebe_volatile_free(region));
    if (is_over) CHECK(munmap(own, 8 * page) == 0);
    free(copy);
}

static void vrange_as_the_patches_have_it(void) {
    int length = (int)(8 * page), purged = 9;
    unsigned char *bytes = anonymous(8, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    struct sigaction action, before;

    fill(bytes, 8);
    CHECK(glebe_vrange(bytes, 8 * page + 1, GLEBE_VRANGE_VOLATILE, &purged) == length);
    CHECK(purged == 0 && has(bytes, 7, 8));
    CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_NONVOLATILE, &purged) == length);
    CHECK(purged == 0 && has(bytes, 0, 1));
    CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_NONVOLATILE, &purged) == length);

    CHECK(glebe_vrange(bytes, 4 * page, GLEBE_VRANGE_VOLATILE, NULL) == length / 2);
    CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_VOLATILE, NULL) == length);
    CHECK(madvise(bytes + 3 * page, 2 * page, MADV_DONTNEED) == 0);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGBUS, &action, &before) == 0);
    if (sigsetjmp(back, 1) == 0) {
        CHECK(*(volatile unsigned char *)(bytes + 3 * page + 5) != 0);
        CHECK(0);
    }
    CHECK(touched == bytes + 3 * page + 5);
    CHECK(sigaction(SIGBUS, &before, NULL) == 0);
    /* First an intact part, then a range with a loss, which became volatile in two calls. */
    CHECK(glebe_vrange(bytes, 2 * page, GLEBE_VRANGE_NONVOLATILE, &purged) == (int)(2 * page));
    CHECK(purged == 0 && has(bytes, 1, 2));
    CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_NONVOLATILE, &purged) == length);
    CHECK(purged == 1 && has(bytes, 2, 3) && has(bytes, 3, 0) && has(bytes, 4, 0));
    CHECK(has(bytes, 5, 6));
    CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_NONVOLATILE, &purged) == length);
    CHECK(purged == 0);

    /* A hole inside the range counts, a hole at its end does not; a range of holes gives 0. */
    CHECK(munmap(bytes + 2 * page, page) == 0 && munmap(bytes + 6 * page, 2 * page) == 0);
    fill(bytes, 2);
    CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_VOLATILE, &purged) == (int)(6 * page));
    CHECK(glebe_vrange(bytes + 2 * page, 2 * page, GLEBE_VRANGE_NONVOLATILE, &purged) ==
          (int)(2 * page));
    CHECK(glebe_vrange(bytes + 6 * page, 2 * page, GLEBE_VRANGE_VOLATILE, &purged) == 0);
    CHECK(madvise(bytes + page, page, MADV_DONTNEED) == 0);
    CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_NONVOLATILE, &purged) == (int)(6 * page));
    CHECK(purged == 1 && has(bytes, 0, 1) && has(bytes, 1, 0));

    /* The call stops before memory that cannot be volatile, and gives 0 if that is first. */
    CHECK(mprotect(bytes + 4 * page, page, PROT_READ) == 0);
    CHECK(glebe_vrange(bytes + 3 * page, 3 * page, GLEBE_VRANGE_VOLATILE, NULL) == (int)page);
    CHECK(glebe_vrange(bytes + 4 * page, 2 * page, GLEBE_VRANGE_VOLATILE, NULL) == 0);
    CHECK(glebe_vrange(bytes + 3 * page, page, GLEBE_VRANGE_NONVOLATILE, &purged) == (int)page);
    CHECK(purged == 0);

    /* Newly mapped memory is not volatile, and can be made so. */
    CHECK(glebe_vrange(bytes, page, GLEBE_VRANGE_VOLATILE, NULL) == (int)page);
    CHECK(mmap(bytes, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == bytes);
    CHECK(has(bytes, 0, 0));
    CHECK(glebe_vrange(bytes, page, GLEBE_VRANGE_VOLATILE, NULL) == (int)page);
    CHECK(madvise(bytes, page, MADV_DONTNEED) == 0);
    CHECK(glebe_vrange(bytes, page, GLEBE_VRANGE_NONVOLATILE, &purged) == (int)page);
    CHECK(purged == 1 && has(bytes, 0, 0));

    purged = 7;
    REFUSED(glebe_vrange(bytes + 1, page, 0, &purged), GLEBE_ERROR_UNALIGNED);
    REFUSED(glebe_vrange(bytes, page - 1, 0, &purged), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_vrange(bytes, 0, 1, &purged), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_vrange(bytes, SIZE_MAX, 0, &purged), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_vrange(bytes, page, 2, &purged), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_vrange(bytes, page, -1, &purged), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(purged == 7 && munmap(bytes, 8 * page) == 0);
}

static void vrange_strictly(void) {
    unsigned char *bytes = anonymous(8, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    glebe_volatile region = {0};
    int purged = 9, status = 0;
    pid_t child;

    fill(bytes, 8);
    OK(glebe_vrange_strict(bytes, 4 * page, GLEBE_VRANGE_VOLATILE, &purged));
    CHECK(purged == 0);
    OK(glebe_vrange_strict(bytes + 2 * page, 4 * page, GLEBE_VRANGE_VOLATILE, NULL));
    CHECK(madvise(bytes + 5 * page, page, MADV_DONTNEED) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        OK(glebe_vrange_strict(bytes, 8 * page, GLEBE_VRANGE_NONVOLATILE, &purged));
        _exit(purged == 1 && has(bytes, 0, 1) && has(bytes, 5, 0) ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REFUSED(over(bytes, page, NULL, &region), GLEBE_ERROR_ADOPTED);
    OK(glebe_vrange_strict(bytes, 5 * page, GLEBE_VRANGE_NONVOLATILE, &purged));
    CHECK(purged == 0 && has(bytes, 4, 5));
    OK(glebe_vrange_strict(bytes, 8 * page, GLEBE_VRANGE_NONVOLATILE, &purged));
    CHECK(purged == 1 && has(bytes, 5, 0) && has(bytes, 6, 7));

    /* Another region, a hole, or read-only memory in the range: nothing becomes volatile. */
    purged = 7;
    OK(over(bytes + 2 * page, page, NULL, &region));
    REFUSED(glebe_vrange_strict(bytes, 8 * page, 0, &purged), GLEBE_ERROR_ADOPTED);
    CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_VOLATILE, NULL) == (int)(2 * page));
    CHECK(glebe_vrange(bytes, 2 * page, GLEBE_VRANGE_NONVOLATILE, NULL) == (int)(2 * page));
    OK(glebe_volatile_free(region));
    /* A refused call undoes what it had made volatile. */
    OK(glebe_vrange_strict(bytes + page, page, 0, NULL));
    OK(over(bytes + 3 * page, page, NULL, &region));
    REFUSED(glebe_vrange_strict(bytes, 4 * page, 0, &purged), GLEBE_ERROR_ADOPTED);
    OK(glebe_volatile_free(region));
    OK(over(bytes, page, NULL, &region));
    OK(glebe_volatile_free(region));
    OK(glebe_vrange_strict(bytes + page, page, 1, NULL));
    CHECK(mprotect(bytes + 6 * page, page, PROT_READ) == 0);
    REFUSED(glebe_vrange_strict(bytes, 8 * page, 0, &purged), GLEBE_ERROR_READ_ONLY);
    CHECK(munmap(bytes + 4 * page, page) == 0);
    REFUSED(glebe_vrange_strict(bytes, 8 * page, 0, &purged), GLEBE_ERROR_UNMAPPED);
    REFUSED(glebe_vrange_strict(bytes, 8 * page, 1, &purged), GLEBE_ERROR_UNMAPPED);
    CHECK(madvise(bytes, 4 * page, MADV_DONTNEED) == 0);
    CHECK(has(bytes, 0, 0)); /* zeros and no SIGBUS */
    REFUSED(glebe_vrange_strict(bytes, page + 1, 0, &purged), GLEBE_ERROR_UNALIGNED);
    REFUSED(glebe_vrange_strict(bytes + 1, page, 0, &purged), GLEBE_ERROR_UNALIGNED);
    REFUSED(glebe_vrange_strict(bytes, 0, 0, &purged), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_vrange_strict(bytes, SIZE_MAX, 0, &purged), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_vrange_strict(bytes, page, 2, &purged), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(purged == 7 && munmap(bytes, 8 * page) == 0);
}

static volatile sig_atomic_t answered, said_purged;

/* Handles a touch of a lost page as programs of the patches do, or by mapping a new page. */
static void make_good(int signal, siginfo_t *info, void *context) {
    unsigned char *at = info->si_addr;
    int purged = 9;
    (void)signal;
    (void)context;
    at -= (uintptr_t)at % page;
    answered = glebe_vrange(at, page, GLEBE_VRANGE_NONVOLATILE, &purged);
    said_purged = purged;
    if (answered != (int)page)
        mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(at, 7, page);
}

static void *lose_and_make_good(void *unused) {
    unsigned char *bytes = anonymous(8, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    int round, n, purged = 9, length = (int)(8 * page);
    (void)unused;
    for (round = 0; round < 20; round++) {
        fill(bytes, 8);
        CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_VOLATILE, NULL) == length);
        CHECK(madvise(bytes + 2 * page, 3 * page, MADV_DONTNEED) == 0);
        for (n = 0; n < 8; n++) CHECK(*(volatile unsigned char *)(bytes + n * page) != 0);
        CHECK(has(bytes, 1, 2) && has(bytes, 2, 7) && has(bytes, 4, 7) && has(bytes, 5, 6));
        CHECK(glebe_vrange(bytes, 8 * page, GLEBE_VRANGE_NONVOLATILE, &purged) == length);
        CHECK(purged == 0 && has(bytes, 3, 7));
    }
    CHECK(munmap(bytes, 8 * page) == 0);
    return NULL;
}

static unsigned char *volatile touched_in_fork;

/* Was registered before glebe's fork steps, so it runs after them, while they hold glebe's
 * locks. */
static void touch_in_fork(void) {
    if (touched_in_fork != NULL) CHECK(*(volatile unsigned char *)touched_in_fork == 7);
}

/* A handler may make the call if the program's own code touched the page. Inside another call or a
 * fork the call is refused, because the thread would wait for itself. */
static void vrange_in_a_handler(void) {
    struct sigaction action;
    int status = 0;
    pid_t process = fork();
    CHECK(process >= 0);
    if (process == 0) {
        pthread_t threads[2];
        unsigned char *bytes = anonymous(2, PROT_READ | PROT_WRITE, MAP_PRIVATE);
        glebe_volatile region;
        glebe_extent *runs;
        size_t count = 0;
        pid_t child;
        int n, purged = 9;
        alarm(60);
        memset(&action, 0, sizeof action);
        action.sa_sigaction = make_good;
        action.sa_flags = SA_SIGINFO;
        CHECK(sigaction(SIGBUS, &action, NULL) == 0);
        lose_and_make_good(NULL);
        CHECK(answered == (int)page && said_purged == 1);
        for (n = 0; n < 2; n++)
            CHECK(pthread_create(&threads[n], NULL, lose_and_make_good, NULL) == 0);
        for (n = 0; n < 10; n++) {
            child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                alarm(20);
                lose_and_make_good(NULL);
                _exit(0);
            }
            CHECK(waitpid(child, &status, 0) == child);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        for (n = 0; n < 2; n++) CHECK(pthread_join(threads[n], NULL) == 0);

        /* A touch inside a fork. */
        CHECK(glebe_vrange(bytes, 2 * page, GLEBE_VRANGE_VOLATILE, NULL) == (int)(2 * page));
        CHECK(madvise(bytes, 2 * page, MADV_DONTNEED) == 0);
        touched_in_fork = bytes;
        child = fork();
        touched_in_fork = NULL;
        CHECK(child >= 0);
        if (child == 0) _exit(has(bytes, 0, 7) ? 0 : 1);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(answered == GLEBE_ERROR_WOULD_WAIT && said_purged == 9 && has(bytes, 0, 7));
        CHECK(strstr(glebe_last_error(), "a refill") != NULL);

        /* A touch inside a call, whose array is lost. */
        region = map(GLEBE_ENGINE_SCAN, 1);
        OK(glebe_volatile_mark(region, 0, page, 0));
        drop(region, 0, 1);
        answered = 0;
        runs = (glebe_extent *)(bytes + page);
        OK(glebe_volatile_unmark(region, 0, page, runs, 1, &count));
        CHECK(answered == GLEBE_ERROR_WOULD_WAIT && count == 1 && runs->len_pages == 1);
        memset(runs, 7, sizeof *runs);
        /* Later calls work again. */
        CHECK(glebe_vrange(bytes, 2 * page, GLEBE_VRANGE_NONVOLATILE, &purged) ==
              (int)(2 * page));
        CHECK(purged == 0 && has(bytes, 0, 7) && has(bytes, 1, 7));
        lose_and_make_good(NULL);
        CHECK(answered == (int)page && said_purged == 1);
        exit(0);
    }
    CHECK(waitpid(process, &status, 0) == process);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static volatile sig_atomic_t is_going;

static void *vrange_again_and_again(void *bytes) {
    int n;
    for (n = 0; n < 10; n++) {
        glebe_vrange(bytes, 4 * page, GLEBE_VRANGE_VOLATILE, NULL);
        glebe_vrange(bytes, 4 * page, GLEBE_VRANGE_NONVOLATILE, NULL);
    }
    is_going = 0;
    return NULL;
}

/* Forks while another thread makes the first calls of a process, and later ones: no child may find
 * a lock held forever. The results of the thread's calls do not matter. */
static void first_calls_beside_forks(void) {
    unsigned char *bytes = anonymous(8, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    int round, n, status = 0;
    for (round = 0; round < 4; round++) {
        pid_t fresh = fork();
        CHECK(fresh >= 0);
        if (fresh == 0) {
            pthread_t thread;
            /* Many mappings make the read of their list slow. */
            for (n = 0; n < 1000; n++)
                anonymous(1, n % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE);
            alarm(120);
            is_going = 1;
            CHECK(pthread_create(&thread, NULL, vrange_again_and_again, bytes) == 0);
            while (is_going) {
                pid_t child = fork();
                CHECK(child >= 0);
                if (child == 0) {
                    int done;
                    alarm(20);
                    done = glebe_vrange(bytes + 4 * page, 4 * page, GLEBE_VRANGE_VOLATILE, NULL);
                    _exit(done < 0 && done != GLEBE_ERROR_OS && done != GLEBE_ERROR_FORKED);
                }
                CHECK(waitpid(child, &status, 0) == child);
                CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            }
            CHECK(pthread_join(thread, NULL) == 0);
            exit(0);
        }
        CHECK(waitpid(fresh, &status, 0) == fresh);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(munmap(bytes, 8 * page) == 0);
}

int main(int argc, char **argv) {
    uint64_t engine;
    page = (size_t)glebe_page_bytes();
    if (argc > 1) {
        executed(argv[1]);
        return 0;
    }
    CHECK(pthread_atfork(touch_in_fork, NULL, NULL) == 0);
    first_calls_beside_forks();
    all_refused(HANDLE(glebe_volatile, 1), GLEBE_ERROR_BAD_HANDLE); /* before the first region */
    options_are_checked();
    huge_granules();
    for (engine = GLEBE_ENGINE_SCAN; engine <= GLEBE_ENGINE_TAG; engine++) {
        if (!has_engine(engine)) continue;
        losses_are_told(engine);
        surplus_runs_are_kept(engine);
        ranges_are_checked(engine);
        statistics(engine);
        fork_takes_regions_along(engine);
        forked_in_anothers_thread(engine);
        memory_of_the_callers(engine);
        other_memory_is_refused(engine);
        no_cap(engine);
        glebes_own_memory(engine);
    }
    executed_programs_inherit_nothing();
    handles_are_checked();
    cloned_children_are_refused();
    if (has_engine(GLEBE_ENGINE_SCAN)) {
        touches_are_refilled(0);
        touches_are_refilled(1);
        vrange_as_the_patches_have_it();
        vrange_strictly();
        vrange_in_a_handler();
        the_map_budget_ends();
    }
    puts("volatile.c: ok");
    return 0;
}
