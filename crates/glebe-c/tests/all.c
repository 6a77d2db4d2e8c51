/* Reserves, blocks, views and the page cache from C99: results and errors. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define MIB ((uint64_t)1 << 20)

static glebe_reserve create(uint64_t source, uint64_t len_bytes) {
    glebe_reserve_options options;
    glebe_reserve reserve = {0};
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = source;
    options.preferred_run_bytes = len_bytes;
    options.threads = 1;
    OK(glebe_reserve_new(len_bytes, &options, &reserve));
    CHECK(reserve.id != 0);
    return reserve;
}

/* Few or no frames have these alignments. A call must not return a block without the alignment. */
static void far_alignments(void) {
    glebe_reserve reserve = create(GLEBE_SOURCE_PLAIN, 4 * MIB);
    glebe_block block = {0};
    char number[64];
    int log, code;
    for (log = 19; log < 64; log++) {
        code = glebe_alloc_with(reserve, 1, (uint64_t)1 << log, 0, &block);
        CHECK(code == GLEBE_OK || code == GLEBE_ERROR_NO_RUN);
        if (code == GLEBE_OK) {
            OK(glebe_free(block));
        } else {
            sprintf(number, "multiple of %llu pages", 1ULL << log);
            CHECK(strstr(glebe_last_error(), number) != NULL);
        }
    }
    OK(glebe_reserve_free(reserve));
}

static void messages(void) {
    char version[64];
    sprintf(version, "%d.%d.%d", GLEBE_VERSION_MAJOR, GLEBE_VERSION_MINOR, GLEBE_VERSION_PATCH);
    CHECK(strcmp(glebe_version(), GLEBE_VERSION) == 0 && strcmp(version, GLEBE_VERSION) == 0);
    CHECK(strcmp(glebe_error_name(GLEBE_ERROR_BUSY), "GLEBE_ERROR_BUSY") == 0);
    CHECK(strcmp(glebe_error_name(-1000), "unknown") == 0);
    CHECK(glebe_page_bytes() == (uint64_t)sysconf(_SC_PAGESIZE));
    CHECK(glebe_last_error()[0] == 0);
}

static void nothing_there(void) {
    REFUSED(glebe_free(HANDLE(glebe_block, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_free(HANDLE(glebe_block, UINT64_MAX)), GLEBE_ERROR_BAD_HANDLE);
    CHECK(strstr(glebe_last_error(), "0xffffffffffffffff is no block") != NULL);
    REFUSED(glebe_reserve_free(HANDLE(glebe_reserve, 0)), GLEBE_ERROR_BAD_HANDLE);
}

static void options_are_checked(void) {
    const uint64_t len_bytes = 4 * MIB;
    glebe_reserve_options options;
    glebe_reserve reserve = {77};
    struct {
        glebe_reserve_options known;
        uint64_t later;
    } newer;
    uint64_t older[2];

    memset(&options, 0, sizeof options);
    REFUSED(glebe_reserve_new(len_bytes, &options, &reserve), GLEBE_ERROR_BAD_SIZE);
    options.size = sizeof options;
    REFUSED(glebe_reserve_new(len_bytes, &options, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_new(len_bytes, NULL, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_new(0, &options, &reserve), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_reserve_new(0, NULL, &reserve), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_reserve_new(UINT64_MAX, &options, &reserve), GLEBE_ERROR_NO_MEMORY);
    options.source = 5;
    REFUSED(glebe_reserve_new(len_bytes, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.source = GLEBE_SOURCE_HUGETLB;
    options.hugetlb_page_bytes = 3;
    REFUSED(glebe_reserve_new(len_bytes, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.hugetlb_page_bytes = 1;
    REFUSED(glebe_reserve_new(len_bytes, &options, &reserve), GLEBE_ERROR_NO_SOURCE);
    options.source = GLEBE_SOURCE_PLAIN;
    REFUSED(glebe_reserve_new(len_bytes, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.hugetlb_page_bytes = 0;
    options.grow_pool = 3;
    REFUSED(glebe_reserve_new(len_bytes, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.grow_pool = GLEBE_GROW_NO;
    options.page_cache = 4;
    REFUSED(glebe_reserve_new(len_bytes, &options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.page_cache = GLEBE_CODEC_AUTO;
    options.required_run_bytes = (uint64_t)1 << 62;
    REFUSED(glebe_reserve_new(len_bytes, &options, &reserve), GLEBE_ERROR_NOT_CONTIGUOUS);
    CHECK(reserve.id == 77);

    options.required_run_bytes = 0;
    options.zero_ahead_pages = 1;
    memset(&newer, 0, sizeof newer);
    newer.known = options;
    newer.known.size = sizeof newer;
    OK(glebe_reserve_new(len_bytes, &newer.known, &reserve));
    OK(glebe_reserve_free(reserve));
    newer.later = 1;
    REFUSED(glebe_reserve_new(len_bytes, &newer.known, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    older[0] = sizeof older;
    older[1] = GLEBE_SOURCE_PLAIN;
    OK(glebe_reserve_new(2 * MIB, (const glebe_reserve_options *)older, &reserve));
    OK(glebe_reserve_free(reserve));
    REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BAD_HANDLE);
}

static void the_shortest_way(void) {
    glebe_reserve reserve = {0};
    OK(glebe_reserve_new(2 * MIB, NULL, &reserve));
    OK(glebe_reserve_free(reserve));
}

/* A page size of 0 means the smallest page size of the hugetlb pools. */
static void a_pool_of_the_default_page_size(void) {
    glebe_reserve_options options;
    glebe_memory memory;
    glebe_reserve reserve = {77};
    int answer;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_HUGETLB;
    answer = glebe_reserve_new(2 * MIB, &options, &reserve);
    if (answer != GLEBE_OK) {
        CHECK(answer == GLEBE_ERROR_NO_MEMORY || answer == GLEBE_ERROR_NO_SOURCE ||
              answer == GLEBE_ERROR_OS);
        CHECK(reserve.id == 77);
        fprintf(stderr, "skipped: %s\n", glebe_last_error());
        return;
    }
    memory.size = sizeof memory;
    OK(glebe_reserve_memory(reserve, &memory));
    CHECK(memory.source == GLEBE_SOURCE_HUGETLB);
    CHECK(memory.hugetlb_page_bytes >= 2 * glebe_page_bytes());
    OK(glebe_reserve_free(reserve));
}

static void what_it_is_made_of(glebe_reserve reserve, uint64_t len_bytes) {
    glebe_memory memory;
    glebe_run *runs;
    size_t count = 99, again = 0, run;
    uint64_t covered = 0, longest = 1, largest = 0;

    memory.size = sizeof memory;
    OK(glebe_reserve_memory(reserve, &memory));
    CHECK(memory.size == sizeof memory);
    CHECK(memory.len_pages == len_bytes / glebe_page_bytes());
    CHECK(memory.source >= GLEBE_SOURCE_HUGETLB && memory.source <= GLEBE_SOURCE_BLOCKS);
    CHECK(memory.source != GLEBE_SOURCE_HUGETLB || memory.pinned == 1);
    CHECK((memory.hugetlb_page_bytes != 0) == (memory.source == GLEBE_SOURCE_HUGETLB));
    CHECK(memory.writers == GLEBE_WRITERS_COUNTED || memory.writers == GLEBE_WRITERS_RESTARTABLE);
    REFUSED(glebe_reserve_memory(reserve, NULL), GLEBE_ERROR_NULL);
    memory.size = 7;
    REFUSED(glebe_reserve_memory(reserve, &memory), GLEBE_ERROR_BAD_SIZE);

    OK(glebe_reserve_runs(reserve, NULL, 0, &count));
    runs = calloc(count + 1, sizeof *runs);
    CHECK(runs != NULL);
    runs[count].pfn = 5;
    OK(glebe_reserve_runs(reserve, runs, count + 1, &again));
    CHECK(again == count && runs[count].pfn == 5);
    for (run = 0; run < count; run++) {
        covered += runs[run].len_pages;
        longest = runs[run].len_pages > longest ? runs[run].len_pages : longest;
        CHECK(run == 0 || runs[run].start_pages >= runs[run - 1].start_pages);
    }
    CHECK(covered <= memory.len_pages && longest == memory.longest_run_pages);
    if (count > 1) {
        memset(runs, 0xff, (count + 1) * sizeof *runs);
        OK(glebe_reserve_runs(reserve, runs, 1, &again));
        CHECK(again == count && runs[0].start_pages == 0 && runs[1].start_pages == UINT64_MAX);
    }
    free(runs);
    REFUSED(glebe_reserve_runs(reserve, NULL, 1, &count), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_runs(reserve, NULL, 0, NULL), GLEBE_ERROR_NULL);
    OK(glebe_reserve_largest_run(reserve, &largest));
    CHECK(largest >= 1 && largest <= memory.len_pages);
    REFUSED(glebe_reserve_largest_run(reserve, NULL), GLEBE_ERROR_NULL);
}

static void blocks(glebe_reserve reserve, glebe_reserve other) {
    glebe_block block = {0}, second = {0}, third = {0};
    void *address = NULL;
    uint64_t len_bytes = 0, largest = 0, i;

    OK(glebe_alloc(reserve, 1, &block));
    OK(glebe_block_memory(block, &address, &len_bytes));
    CHECK(len_bytes == glebe_page_bytes() && (uintptr_t)address % len_bytes == 0);
    memset(address, 0xa5, len_bytes);
    OK(glebe_block_memory(block, NULL, NULL));

    OK(glebe_alloc_with(reserve, 1, 1, GLEBE_NO_WAIT, &second));
    OK(glebe_alloc_with(reserve, 16, 16, GLEBE_ZEROED | GLEBE_ANY | GLEBE_NO_WAIT, &third));
    CHECK(second.id != block.id && third.id != second.id);
    OK(glebe_block_memory(third, &address, &len_bytes));
    CHECK(len_bytes == 16 * glebe_page_bytes());
    for (i = 0; i < len_bytes; i++) CHECK(((unsigned char *)address)[i] == 0);

    OK(glebe_reserve_largest_run(reserve, &largest));
    REFUSED(glebe_alloc(reserve, largest + 1, &third), GLEBE_ERROR_NO_RUN);
    CHECK(strstr(glebe_last_error(), "the longest has") != NULL);
    REFUSED(glebe_alloc(reserve, UINT64_MAX, &third), GLEBE_ERROR_NO_RUN);
    REFUSED(glebe_alloc(reserve, 0, &third), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_alloc_with(reserve, 1, 3, GLEBE_NO_WAIT, &third), GLEBE_ERROR_BAD_ALIGN);
    REFUSED(glebe_alloc_with(reserve, 1, 0, 0, &third), GLEBE_ERROR_BAD_ALIGN);
    REFUSED(glebe_alloc_with(reserve, 1, 1, 8, &third), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_alloc_with(reserve, 1, 1, (uint64_t)1 << 40, &third), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_alloc(reserve, 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_alloc_with(reserve, 1, 1, GLEBE_NO_WAIT, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_alloc_with(reserve, 1, 1, 0, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_alloc(HANDLE(glebe_reserve, block.id), 1, &third), GLEBE_ERROR_BAD_HANDLE);

    /* Handles of another kind, freed handles, and invalid ones. */
    REFUSED(glebe_free(HANDLE(glebe_block, reserve.id)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(),
                 "3 blocks, 0 promises, 0 caches, 0 object pools") != NULL);
    OK(glebe_free(third));
    REFUSED(glebe_free(third), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_free(second));
    OK(glebe_alloc(other, 1, &third));
    REFUSED(glebe_free(second), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_block_memory(second, &address, NULL), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_block_memory(second, NULL, &len_bytes), GLEBE_ERROR_BAD_HANDLE);
    for (i = 0; i < 64; i++) {
        second.id = block.id ^ (uint64_t)1 << i;
        REFUSED(glebe_free(second), GLEBE_ERROR_BAD_HANDLE);
    }
    OK(glebe_free(third));
    OK(glebe_free(block));
}

static void promises(glebe_reserve reserve) {
    glebe_promise promise = {0}, dropped = {0};
    glebe_block block = {0};
    uint64_t len_bytes = 0;

    OK(glebe_promise_new(reserve, 1, 1, &promise));
    OK(glebe_promise_new(reserve, 1, 1, &dropped));
    REFUSED(glebe_promise_new(reserve, 1, 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_promise_new(reserve, 0, 1, &promise), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "0 blocks, 2 promises") != NULL);
    OK(glebe_promise_free(dropped));
    REFUSED(glebe_promise_free(dropped), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_promise_take(dropped, &block), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_promise_take(promise, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_free(HANDLE(glebe_block, promise.id)), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_promise_take(promise, &block));
    REFUSED(glebe_promise_take(promise, &block), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_block_memory(block, NULL, &len_bytes));
    CHECK(len_bytes == glebe_page_bytes());
    OK(glebe_free(block));
}

/* Repeats a put that was interrupted too often, as on a busy machine. */
static void store(glebe_cache pool, uint64_t object, uint64_t index, const void *page) {
    int answer;
    do {
        answer = glebe_cache_put(pool, object, index, page, (size_t)glebe_page_bytes());
    } while (answer == GLEBE_PUT_BUSY);
    CHECK(answer == GLEBE_PUT_STORED);
}

static void runs(glebe_cache pool) {
    size_t page = (size_t)glebe_page_bytes(), len = 2 * page + 7, at;
    unsigned char *in = malloc(len), *out = malloc(len);
    int answer;

    CHECK(in != NULL && out != NULL);
    for (at = 0; at < len; at++) in[at] = (unsigned char)(at * 7 + at / page);
    CHECK(glebe_cache_get_run(pool, 9, 4, out, len) == GLEBE_GET_MISS);
    do {
        answer = glebe_cache_put_run(pool, 9, 4, in, len);
    } while (answer == GLEBE_PUT_BUSY);
    CHECK(answer == GLEBE_PUT_STORED);
    CHECK(glebe_cache_get_run(pool, 9, 4, out, len) == GLEBE_GET_HIT);
    CHECK(memcmp(in, out, len) == 0);
    CHECK(glebe_cache_get(pool, 9, 5, out, page) == GLEBE_GET_HIT);
    CHECK(memcmp(in + page, out, page) == 0);
    CHECK(glebe_cache_invalidate_page(pool, 9, 5) == GLEBE_INVALIDATED);
    CHECK(glebe_cache_get_run(pool, 9, 4, out, len) == GLEBE_GET_MISS);
    CHECK(glebe_cache_get_run(pool, 9, 4, out, page) == GLEBE_GET_HIT);
    CHECK(glebe_cache_put_run(pool, 9, 0, NULL, 0) == GLEBE_PUT_STORED);
    REFUSED(glebe_cache_put_run(pool, 9, 4, NULL, len), GLEBE_ERROR_NULL);
    REFUSED(glebe_cache_get_run(pool, 9, 4, NULL, len), GLEBE_ERROR_NULL);
    free(in);
    free(out);
}

static void cache(glebe_reserve reserve) {
    size_t page = (size_t)glebe_page_bytes();
    unsigned char *in = malloc(page), *out = malloc(page);
    glebe_cache pool = {0}, same = {0};

    CHECK(in != NULL && out != NULL);
    memset(in, 7, page);
    OK(glebe_cache_new(reserve, "tiles", &pool));
    OK(glebe_cache_new(reserve, "tiles", &same));
    REFUSED(glebe_cache_new(reserve, NULL, &pool), GLEBE_ERROR_NULL);
    REFUSED(glebe_cache_new(reserve, "tiles", NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_cache_new(reserve, "\xff", &pool), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "2 caches") != NULL);

    CHECK(glebe_cache_get(pool, 1, 0, out, page) == GLEBE_GET_MISS);
    store(pool, 1, 0, in);
    CHECK(glebe_cache_get(same, 1, 0, out, page) == GLEBE_GET_HIT);
    CHECK(memcmp(in, out, page) == 0);
    REFUSED(glebe_cache_put(pool, 1, 0, in, page - 1), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_cache_put(pool, 1, 0, in, SIZE_MAX), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_cache_get(pool, 1, 0, out, 0), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_cache_put(pool, 1, 0, NULL, page), GLEBE_ERROR_NULL);
    REFUSED(glebe_cache_get(pool, 1, 0, NULL, page), GLEBE_ERROR_NULL);

    runs(pool);
    CHECK(glebe_cache_invalidate_page(pool, 1, 0) == GLEBE_INVALIDATED);
    CHECK(glebe_cache_invalidate_page(pool, 1, 0) == GLEBE_NOT_THERE);
    store(pool, 2, 5, in);
    OK(glebe_cache_invalidate_object(pool, 2));
    CHECK(glebe_cache_get(pool, 2, 5, out, page) == GLEBE_GET_MISS);
    store(pool, 3, 5, in);
    OK(glebe_cache_invalidate(pool));
    CHECK(glebe_cache_get(pool, 3, 5, out, page) == GLEBE_GET_MISS);

    OK(glebe_cache_free(pool));
    REFUSED(glebe_cache_free(pool), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_cache_put(pool, 1, 0, in, page), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_cache_get(pool, 1, 0, out, page), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_cache_put_run(pool, 1, 0, in, page), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_cache_get_run(pool, 1, 0, out, page), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_cache_invalidate_page(pool, 1, 0), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_cache_invalidate_object(pool, 1), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_cache_invalidate(pool), GLEBE_ERROR_BAD_HANDLE);
    store(same, 1, 0, in);
    OK(glebe_cache_free(same));
    free(in);
    free(out);
}

static void statistics(glebe_reserve reserve) {
    glebe_reserve_stats stats;
    struct {
        glebe_reserve_stats known;
        uint64_t later;
    } newer;
    uint64_t older[3] = {2 * sizeof(uint64_t), 0, 5};

    stats.size = sizeof stats;
    OK(glebe_reserve_get_stats(reserve, &stats));
    CHECK(stats.size == sizeof stats);
    CHECK(stats.stored == 7 && stats.loaded == 7 && stats.missed == 5);
    CHECK(stats.invalidated_objects == 1 && stats.invalidated_pools == 1);
    CHECK(stats.allocs == 4 && stats.alloc_failures == 2 && stats.held_pages == 0);
    CHECK(stats.total_pages == stats.live_pages + stats.held_pages + stats.free_pages);
    CHECK(stats.alloc_max_ns >= stats.alloc_p50_ns && stats.alloc_max_ns > 0);
    newer.known.size = sizeof newer;
    newer.later = 9;
    OK(glebe_reserve_get_stats(reserve, &newer.known));
    CHECK(newer.known.size == sizeof stats && newer.later == 0);
    OK(glebe_reserve_get_stats(reserve, (glebe_reserve_stats *)older));
    CHECK(older[0] == 2 * sizeof(uint64_t) && older[1] == stats.stored && older[2] == 5);
    REFUSED(glebe_reserve_get_stats(reserve, NULL), GLEBE_ERROR_NULL);
    stats.size = 0;
    REFUSED(glebe_reserve_get_stats(reserve, &stats), GLEBE_ERROR_BAD_SIZE);
}

/* Calls in a child on every inherited handle fail with FORKED and change nothing in the parent. */
static void fork_is_noticed(glebe_reserve reserve) {
    size_t page = (size_t)glebe_page_bytes(), count = 0;
    void *buffer = calloc(1, page), *address = NULL;
    glebe_block block = {0}, out = {0};
    glebe_view view = {0};
    glebe_extent extent = {0, 1};
    glebe_promise promise = {0};
    glebe_cache pool = {0};
    int fd;
    uint64_t n = 0;
    int status = 0;
    pid_t child;

    CHECK(buffer != NULL);
    OK(glebe_alloc(reserve, 1, &block));
    fd = memfd_create("pages", 0);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)page) == 0);
    OK(glebe_view_new(fd, &extent, 1, &view));
    OK(glebe_promise_new(reserve, 1, 1, &promise));
    OK(glebe_cache_new(reserve, "fork", &pool));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int round;
        glebe_memory memory;
        glebe_reserve_stats stats;
        glebe_reserve own = {0};
        glebe_promise promise_out;
        glebe_cache cache_out;
        memory.size = sizeof memory;
        stats.size = sizeof stats;
        alarm(20);
        /* Tries all calls before the child has its own reserve, and again after. */
        for (round = 0; round < 2; round++) {
            REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_FORKED);
            CHECK(strstr(glebe_last_error(), "forked") != NULL);
            REFUSED(glebe_reserve_memory(reserve, &memory), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reserve_largest_run(reserve, &n), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reserve_runs(reserve, NULL, 0, &count), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reserve_get_stats(reserve, &stats), GLEBE_ERROR_FORKED);
            REFUSED(glebe_alloc(reserve, 1, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_alloc_with(reserve, 1, 1, GLEBE_NO_WAIT, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_alloc_with(reserve, 1, 1, 0, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_free(block), GLEBE_ERROR_FORKED);
            REFUSED(glebe_view_free(view), GLEBE_ERROR_FORKED);
            REFUSED(glebe_view_memory(view, &address, NULL), GLEBE_ERROR_FORKED);
            REFUSED(glebe_view_memory(view, NULL, &n), GLEBE_ERROR_FORKED);
            REFUSED(glebe_view_extents(view, NULL, 0, &count), GLEBE_ERROR_FORKED);
            REFUSED(glebe_block_memory(block, &address, NULL), GLEBE_ERROR_FORKED);
            REFUSED(glebe_block_memory(block, NULL, &n), GLEBE_ERROR_FORKED);
            REFUSED(glebe_promise_new(reserve, 1, 1, &promise_out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_promise_take(promise, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_promise_free(promise), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_new(reserve, "fork", &cache_out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_put(pool, 1, 1, buffer, page), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_get(pool, 1, 1, buffer, page), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_put_run(pool, 1, 1, buffer, page), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_get_run(pool, 1, 1, buffer, page), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_invalidate_page(pool, 1, 1), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_invalidate_object(pool, 1), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_invalidate(pool), GLEBE_ERROR_FORKED);
            REFUSED(glebe_cache_free(pool), GLEBE_ERROR_FORKED);
            if (round == 0) own = create(GLEBE_SOURCE_PLAIN, 2 * MIB);
        }
        OK(glebe_alloc(own, 1, &out));
        OK(glebe_free(out));
        OK(glebe_reserve_free(own));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_cache_free(pool));
    OK(glebe_promise_free(promise));
    OK(glebe_view_free(view));
    OK(glebe_free(block));
    free(buffer);
}

int main(void) {
    glebe_reserve reserve, other;
    glebe_block gone;
    messages();
    nothing_there();
    options_are_checked();
    the_shortest_way();
    a_pool_of_the_default_page_size();
    reserve = create(GLEBE_SOURCE_AUTO, 4 * MIB);
    other = create(GLEBE_SOURCE_PLAIN, 2 * MIB);
    what_it_is_made_of(reserve, 4 * MIB);
    what_it_is_made_of(other, 2 * MIB);
    blocks(reserve, other);
    promises(reserve);
    cache(reserve);
    statistics(reserve);
    fork_is_noticed(reserve);
    OK(glebe_reserve_free(reserve));
    OK(glebe_reserve_free(other));
    REFUSED(glebe_alloc(other, 1, &gone), GLEBE_ERROR_BAD_HANDLE);
    far_alignments();
    puts("all.c: ok");
    return 0;
}
