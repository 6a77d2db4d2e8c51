/* Every function of glebe.h from C99: what it does, and what it refuses. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define MIB ((uint64_t)1 << 20)

static glebe_reserve create(uint64_t source, uint64_t len_bytes) {
    glebe_options options;
    glebe_reserve reserve = 0;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.len_bytes = len_bytes;
    options.source = source;
    options.preferred_run_bytes = len_bytes;
    options.threads = 1;
    OK(glebe_reserve_create(&options, &reserve));
    CHECK(reserve != 0);
    return reserve;
}

/* Alignments that few frames or none have: none is passed off as aligned. */
static void far_alignments(void) {
    glebe_reserve reserve = create(GLEBE_SOURCE_PLAIN, 4 * MIB);
    glebe_block block = 0;
    char number[64];
    int log, code;
    for (log = 19; log < 64; log++) {
        code = glebe_alloc(reserve, 1, (uint64_t)1 << log, &block);
        CHECK(code == GLEBE_OK || code == GLEBE_ERROR_NO_RUN);
        if (code == GLEBE_OK) {
            OK(glebe_free(block));
        } else {
            sprintf(number, "multiple of %llu pages", 1ULL << log);
            CHECK(strstr(glebe_last_error(), number) != NULL);
        }
    }
    OK(glebe_reserve_destroy(reserve));
}

static void messages(void) {
    CHECK(strcmp(glebe_version(), GLEBE_VERSION) == 0);
    CHECK(strcmp(glebe_error_name(GLEBE_ERROR_BUSY), "GLEBE_ERROR_BUSY") == 0);
    CHECK(strcmp(glebe_error_name(-1000), "unknown") == 0);
    CHECK(glebe_page_bytes() == (uint64_t)sysconf(_SC_PAGESIZE));
    CHECK(glebe_last_error()[0] == 0);
}

/* Before there is any reserve. */
static void nothing_there(void) {
    REFUSED(glebe_free(0), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_free(UINT64_MAX), GLEBE_ERROR_BAD_HANDLE);
    CHECK(strstr(glebe_last_error(), "0xffffffffffffffff is no block") != NULL);
    REFUSED(glebe_reserve_destroy(0), GLEBE_ERROR_BAD_HANDLE);
}

static void options_are_checked(void) {
    glebe_options options;
    glebe_reserve reserve = 77;
    struct {
        glebe_options known;
        uint64_t later;
    } newer;
    uint64_t older[2];

    memset(&options, 0, sizeof options);
    REFUSED(glebe_reserve_create(NULL, &reserve), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_BAD_SIZE);
    options.size = sizeof options;
    REFUSED(glebe_reserve_create(&options, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_BAD_LEN);
    options.len_bytes = UINT64_MAX;
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_NO_MEMORY);
    options.len_bytes = 4 * MIB;
    options.source = 5;
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.source = GLEBE_SOURCE_HUGETLB;
    options.hugetlb_page_bytes = 3;
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.hugetlb_page_bytes = 1;
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_NO_SOURCE);
    options.source = GLEBE_SOURCE_PLAIN;
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.hugetlb_page_bytes = 0;
    options.grow_pool = 3;
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.grow_pool = GLEBE_GROW_NO;
    options.writers = GLEBE_WRITERS_RESTARTABLE;
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    options.writers = GLEBE_WRITERS_COUNTED;
    options.required_run_bytes = (uint64_t)1 << 62;
    REFUSED(glebe_reserve_create(&options, &reserve), GLEBE_ERROR_NOT_CONTIGUOUS);
    CHECK(reserve == 77);

    options.required_run_bytes = 0;
    options.zero_ahead_pages = 1;
    memset(&newer, 0, sizeof newer);
    newer.known = options;
    newer.known.size = sizeof newer;
    OK(glebe_reserve_create(&newer.known, &reserve));
    OK(glebe_reserve_destroy(reserve));
    newer.later = 1;
    REFUSED(glebe_reserve_create(&newer.known, &reserve), GLEBE_ERROR_BAD_ARGUMENT);
    older[0] = sizeof older;
    older[1] = 2 * MIB;
    OK(glebe_reserve_create((const glebe_options *)older, &reserve));
    OK(glebe_reserve_destroy(reserve));
    REFUSED(glebe_reserve_destroy(reserve), GLEBE_ERROR_BAD_HANDLE);
}

/* Zero is the default of the page size too: the smallest pool's, if that has or gives pages. */
static void a_pool_of_the_default_page_size(void) {
    glebe_options options;
    glebe_memory memory;
    glebe_reserve reserve = 77;
    int answer;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.len_bytes = 2 * MIB;
    options.source = GLEBE_SOURCE_HUGETLB;
    answer = glebe_reserve_create(&options, &reserve);
    if (answer != GLEBE_OK) {
        CHECK(answer == GLEBE_ERROR_NO_MEMORY || answer == GLEBE_ERROR_NO_SOURCE ||
              answer == GLEBE_ERROR_OS);
        CHECK(reserve == 77);
        fprintf(stderr, "skipped: %s\n", glebe_last_error());
        return;
    }
    memory.size = sizeof memory;
    OK(glebe_reserve_memory(reserve, &memory));
    CHECK(memory.source == GLEBE_SOURCE_HUGETLB);
    CHECK(memory.hugetlb_page_bytes >= 2 * glebe_page_bytes());
    OK(glebe_reserve_destroy(reserve));
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
    glebe_block block = 0, second = 0, third = 0;
    void *address = NULL;
    uint64_t len_bytes = 0, grain = 0, largest = 0, i;
    int contiguity = -1;

    OK(glebe_alloc(reserve, 1, 1, &block));
    OK(glebe_block_address(block, &address));
    OK(glebe_block_len(block, &len_bytes));
    CHECK(len_bytes == glebe_page_bytes() && (uintptr_t)address % len_bytes == 0);
    memset(address, 0xa5, len_bytes);
    OK(glebe_block_contiguity(block, &contiguity, &grain));
    CHECK(contiguity == GLEBE_PROVED || contiguity == GLEBE_WITHIN_GRAIN);
    CHECK(grain >= 1);
    OK(glebe_block_contiguity(block, &contiguity, NULL));

    OK(glebe_try_alloc(reserve, 1, 1, &second));
    OK(glebe_alloc_with(reserve, 16, 16, GLEBE_ZEROED | GLEBE_ANY | GLEBE_NO_WAIT, &third));
    CHECK(second != block && third != second);
    OK(glebe_block_address(third, &address));
    OK(glebe_block_len(third, &len_bytes));
    CHECK(len_bytes == 16 * glebe_page_bytes());
    for (i = 0; i < len_bytes; i++) CHECK(((unsigned char *)address)[i] == 0);

    OK(glebe_reserve_largest_run(reserve, &largest));
    REFUSED(glebe_alloc(reserve, largest + 1, 1, &third), GLEBE_ERROR_NO_RUN);
    CHECK(strstr(glebe_last_error(), "the longest has") != NULL);
    REFUSED(glebe_alloc(reserve, UINT64_MAX, 1, &third), GLEBE_ERROR_NO_RUN);
    REFUSED(glebe_alloc(reserve, 0, 1, &third), GLEBE_ERROR_ZERO_PAGES);
    REFUSED(glebe_try_alloc(reserve, 1, 3, &third), GLEBE_ERROR_BAD_ALIGN);
    REFUSED(glebe_alloc(reserve, 1, 0, &third), GLEBE_ERROR_BAD_ALIGN);
    REFUSED(glebe_alloc_with(reserve, 1, 1, 8, &third), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_alloc_with(reserve, 1, 1, (uint64_t)1 << 40, &third), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_alloc(reserve, 1, 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_try_alloc(reserve, 1, 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_alloc_with(reserve, 1, 1, 0, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_alloc(block, 1, 1, &third), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_block_address(block, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_block_len(block, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_block_contiguity(block, NULL, &grain), GLEBE_ERROR_NULL);

    /* Handles of something else, used up, and made up. */
    REFUSED(glebe_free(reserve), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reserve_destroy(reserve), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "3 blocks, 0 promises and 0 pools") != NULL);
    OK(glebe_free(third));
    REFUSED(glebe_free(third), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_free(second));
    OK(glebe_alloc(other, 1, 1, &third));
    REFUSED(glebe_free(second), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_block_address(second, &address), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_block_len(second, &len_bytes), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_block_contiguity(second, &contiguity, &grain), GLEBE_ERROR_BAD_HANDLE);
    for (i = 0; i < 64; i++) REFUSED(glebe_free(block ^ (uint64_t)1 << i), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_free(third));
    OK(glebe_free(block));
}

static void promises(glebe_reserve reserve) {
    glebe_promise promise = 0, dropped = 0;
    glebe_block block = 0;
    uint64_t len_bytes = 0;

    OK(glebe_promise_make(reserve, 1, 1, &promise));
    OK(glebe_promise_make(reserve, 1, 1, &dropped));
    REFUSED(glebe_promise_make(reserve, 1, 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_promise_make(reserve, 0, 1, &promise), GLEBE_ERROR_ZERO_PAGES);
    REFUSED(glebe_reserve_destroy(reserve), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "0 blocks, 2 promises") != NULL);
    OK(glebe_promise_drop(dropped));
    REFUSED(glebe_promise_drop(dropped), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_promise_take(dropped, &block), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_promise_take(promise, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_free(promise), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_promise_take(promise, &block));
    REFUSED(glebe_promise_take(promise, &block), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_block_len(block, &len_bytes));
    CHECK(len_bytes == glebe_page_bytes());
    OK(glebe_free(block));
}

/* A put that is interrupted too often, as on a crowded machine, is made again. */
static void store(glebe_pool pool, uint64_t object, uint64_t index, const void *page) {
    int answer;
    do {
        answer = glebe_pool_put(pool, object, index, page, (size_t)glebe_page_bytes());
    } while (answer == GLEBE_PUT_BUSY);
    CHECK(answer == GLEBE_PUT_STORED);
}

static void cache(glebe_reserve reserve) {
    size_t page = (size_t)glebe_page_bytes();
    unsigned char *in = malloc(page), *out = malloc(page);
    glebe_pool pool = 0, same = 0;

    CHECK(in != NULL && out != NULL);
    memset(in, 7, page);
    OK(glebe_pool_open(reserve, "tiles", &pool));
    OK(glebe_pool_open(reserve, "tiles", &same));
    REFUSED(glebe_pool_open(reserve, NULL, &pool), GLEBE_ERROR_NULL);
    REFUSED(glebe_pool_open(reserve, "tiles", NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_pool_open(reserve, "\xff", &pool), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_reserve_destroy(reserve), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "2 pools") != NULL);

    CHECK(glebe_pool_get(pool, 1, 0, out, page) == GLEBE_GET_MISS);
    store(pool, 1, 0, in);
    CHECK(glebe_pool_get(same, 1, 0, out, page) == GLEBE_GET_HIT);
    CHECK(memcmp(in, out, page) == 0);
    REFUSED(glebe_pool_put(pool, 1, 0, in, page - 1), GLEBE_ERROR_BAD_PAGE_LEN);
    REFUSED(glebe_pool_put(pool, 1, 0, in, SIZE_MAX), GLEBE_ERROR_BAD_PAGE_LEN);
    REFUSED(glebe_pool_get(pool, 1, 0, out, 0), GLEBE_ERROR_BAD_PAGE_LEN);
    REFUSED(glebe_pool_put(pool, 1, 0, NULL, page), GLEBE_ERROR_NULL);
    REFUSED(glebe_pool_get(pool, 1, 0, NULL, page), GLEBE_ERROR_NULL);

    CHECK(glebe_pool_invalidate_page(pool, 1, 0) == GLEBE_INVALIDATED);
    CHECK(glebe_pool_invalidate_page(pool, 1, 0) == GLEBE_NOT_THERE);
    store(pool, 2, 5, in);
    OK(glebe_pool_invalidate_object(pool, 2));
    CHECK(glebe_pool_get(pool, 2, 5, out, page) == GLEBE_GET_MISS);
    store(pool, 3, 5, in);
    OK(glebe_pool_invalidate(pool));
    CHECK(glebe_pool_get(pool, 3, 5, out, page) == GLEBE_GET_MISS);

    OK(glebe_pool_close(pool));
    REFUSED(glebe_pool_close(pool), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_pool_put(pool, 1, 0, in, page), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_pool_get(pool, 1, 0, out, page), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_pool_invalidate_page(pool, 1, 0), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_pool_invalidate_object(pool, 1), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_pool_invalidate(pool), GLEBE_ERROR_BAD_HANDLE);
    store(same, 1, 0, in);
    OK(glebe_pool_close(same));
    free(in);
    free(out);
}

static void statistics(glebe_reserve reserve) {
    glebe_stats stats;
    struct {
        glebe_stats known;
        uint64_t later;
    } newer;
    uint64_t older[4] = {3 * sizeof(uint64_t), 0, 0, 5};

    stats.size = sizeof stats;
    OK(glebe_reserve_stats(reserve, &stats));
    CHECK(stats.size == sizeof stats && stats.version == GLEBE_STATS_VERSION);
    CHECK(stats.stored == 4 && stats.loaded == 1 && stats.missed == 3);
    CHECK(stats.invalidated_objects == 1 && stats.invalidated_pools == 1);
    CHECK(stats.allocs == 4 && stats.alloc_failures == 2 && stats.held_pages == 0);
    CHECK(stats.total_pages == stats.live_pages + stats.held_pages + stats.free_pages);
    CHECK(stats.alloc_max_ns >= stats.alloc_p50_ns && stats.alloc_max_ns > 0);
    newer.known.size = sizeof newer;
    newer.later = 9;
    OK(glebe_reserve_stats(reserve, &newer.known));
    CHECK(newer.known.size == sizeof stats && newer.later == 0);
    OK(glebe_reserve_stats(reserve, (glebe_stats *)older));
    CHECK(older[0] == 3 * sizeof(uint64_t) && older[2] == stats.stored && older[3] == 5);
    REFUSED(glebe_reserve_stats(reserve, NULL), GLEBE_ERROR_NULL);
    stats.size = 0;
    REFUSED(glebe_reserve_stats(reserve, &stats), GLEBE_ERROR_BAD_SIZE);
}

/* All that a child inherits says so, and changes nothing here. */
static void fork_is_noticed(glebe_reserve reserve) {
    size_t page = (size_t)glebe_page_bytes(), count = 0;
    void *buffer = calloc(1, page), *address = NULL;
    glebe_block block = 0, out = 0;
    glebe_promise promise = 0;
    glebe_pool pool = 0;
    uint64_t n = 0;
    int contiguity = 0, status = 0;
    pid_t child;

    CHECK(buffer != NULL);
    OK(glebe_alloc(reserve, 1, 1, &block));
    OK(glebe_promise_make(reserve, 1, 1, &promise));
    OK(glebe_pool_open(reserve, "fork", &pool));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int round;
        glebe_memory memory;
        glebe_stats stats;
        glebe_reserve own = 0;
        memory.size = sizeof memory;
        stats.size = sizeof stats;
        alarm(20);
        /* Once before the child has a reserve of its own, and once after. */
        for (round = 0; round < 2; round++) {
            REFUSED(glebe_reserve_destroy(reserve), GLEBE_ERROR_FORKED);
            CHECK(strstr(glebe_last_error(), "forked") != NULL);
            REFUSED(glebe_reserve_memory(reserve, &memory), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reserve_largest_run(reserve, &n), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reserve_runs(reserve, NULL, 0, &count), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reserve_stats(reserve, &stats), GLEBE_ERROR_FORKED);
            REFUSED(glebe_alloc(reserve, 1, 1, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_try_alloc(reserve, 1, 1, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_alloc_with(reserve, 1, 1, 0, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_free(block), GLEBE_ERROR_FORKED);
            REFUSED(glebe_block_address(block, &address), GLEBE_ERROR_FORKED);
            REFUSED(glebe_block_len(block, &n), GLEBE_ERROR_FORKED);
            REFUSED(glebe_block_contiguity(block, &contiguity, NULL), GLEBE_ERROR_FORKED);
            REFUSED(glebe_promise_make(reserve, 1, 1, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_promise_take(promise, &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_promise_drop(promise), GLEBE_ERROR_FORKED);
            REFUSED(glebe_pool_open(reserve, "fork", &out), GLEBE_ERROR_FORKED);
            REFUSED(glebe_pool_put(pool, 1, 1, buffer, page), GLEBE_ERROR_FORKED);
            REFUSED(glebe_pool_get(pool, 1, 1, buffer, page), GLEBE_ERROR_FORKED);
            REFUSED(glebe_pool_invalidate_page(pool, 1, 1), GLEBE_ERROR_FORKED);
            REFUSED(glebe_pool_invalidate_object(pool, 1), GLEBE_ERROR_FORKED);
            REFUSED(glebe_pool_invalidate(pool), GLEBE_ERROR_FORKED);
            REFUSED(glebe_pool_close(pool), GLEBE_ERROR_FORKED);
            if (round == 0) own = create(GLEBE_SOURCE_PLAIN, 2 * MIB);
        }
        OK(glebe_alloc(own, 1, 1, &out));
        OK(glebe_free(out));
        OK(glebe_reserve_destroy(own));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_pool_close(pool));
    OK(glebe_promise_drop(promise));
    OK(glebe_free(block));
    free(buffer);
}

int main(void) {
    glebe_reserve reserve, other;
    messages();
    nothing_there();
    options_are_checked();
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
    OK(glebe_reserve_destroy(reserve));
    OK(glebe_reserve_destroy(other));
    REFUSED(glebe_alloc(other, 1, 1, &reserve), GLEBE_ERROR_BAD_HANDLE);
    far_alignments();
    puts("all.c: ok");
    return 0;
}
