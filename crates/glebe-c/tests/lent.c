/* Object pools on a reserve from C99, with each codec of the page cache. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define MIB ((uint64_t)1 << 20)
#define OBJECTS 2000

static size_t page;

/* Writes the bytes of object `n`, which compress to about a third, and returns their number. */
static size_t bytes_of(size_t n, unsigned char *bytes) {
    size_t len = page / 2 + n * 131 % (page / 2), i;
    uint32_t state = (uint32_t)n * 2654435761u + 1;
    for (i = 0; i < len; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = i < len / 3 ? (unsigned char)(state >> 24) : (unsigned char)n;
    }
    return len;
}

static glebe_reserve create(uint64_t page_cache, int code) {
    glebe_reserve_options options;
    glebe_reserve reserve = {0};
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_PLAIN;
    options.page_cache = page_cache;
    REFUSED(glebe_reserve_new(8 * MIB, &options, &reserve), code);
    return reserve;
}

static glebe_zpool pool_on(glebe_reserve reserve, uint64_t on_recall) {
    glebe_zpool_options options;
    glebe_zpool pool = {0};
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.reserve = reserve;
    options.move_on_recall = on_recall;
    options.staging_bytes = 1;
    OK(glebe_zpool_new(&options, &pool));
    return pool;
}

static void modes_of_the_page_cache(void) {
    static const uint64_t modes[] = {GLEBE_CODEC_AUTO, GLEBE_CODEC_LZ4, GLEBE_CODEC_ZSTD};
    size_t at;
    create(GLEBE_CODEC_ZSTD + 1, GLEBE_ERROR_BAD_ARGUMENT);
    for (at = 0; at < sizeof modes / sizeof *modes; at++) {
        glebe_reserve reserve = create(modes[at], GLEBE_OK);
        glebe_cache pool;
        unsigned char *bytes = malloc(page), *back = malloc(page);
        OK(glebe_cache_new(reserve, "pages", &pool));
        memset(bytes, (int)at + 1, page);
        CHECK(glebe_cache_put(pool, 1, 2, bytes, page) == GLEBE_PUT_STORED);
        CHECK(glebe_cache_get(pool, 1, 2, back, page) == GLEBE_GET_HIT);
        CHECK(memcmp(bytes, back, page) == 0);
        free(bytes);
        free(back);
        OK(glebe_cache_free(pool));
        OK(glebe_reserve_free(reserve));
    }
}

static void what_is_refused(glebe_reserve reserve) {
    glebe_zpool_options options;
    glebe_zpool pool = {0};
    glebe_zobject object = {0};
    unsigned char bytes[4] = {1, 2, 3, 4};
    size_t len = 7;
    memset(&options, 0, sizeof options);
    options.reserve = reserve;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_SIZE);
    options.size = sizeof options;
    REFUSED(glebe_zpool_new(&options, NULL), GLEBE_ERROR_NULL);
    options.move_on_recall = 2;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options.move_on_recall = 0;
    options.zstd_level = 3;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options.zstd_level = 0;
    options.limit_bytes = MIB; /* only for a pool with its own memory, like the next two */
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "limit_bytes with a reserve") != NULL);
    options.limit_bytes = 0;
    options.evict_oldest = 1;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options.evict_oldest = 0;
    options.manual_compaction = 1;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options.manual_compaction = 0;
    REFUSED(glebe_zpool_insert(pool, bytes, 4, &object), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_zpool_new(&options, &pool));
    REFUSED(glebe_zpool_set_limit(pool, MIB), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_zpool_insert(pool, bytes, 0, &object), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_zpool_insert(pool, NULL, 4, &object), GLEBE_ERROR_NULL);
    REFUSED(glebe_zpool_insert(pool, bytes, page + 1, &object), GLEBE_ERROR_TOO_LONG);
    REFUSED(glebe_zpool_read(pool, HANDLE(glebe_zobject, 0), bytes, 4, &len), GLEBE_ERROR_FOREIGN);
    OK(glebe_zpool_insert(pool, bytes, 4, &object));
    REFUSED(glebe_zpool_read(pool, object, bytes, 3, &len), GLEBE_ERROR_BUFFER_TOO_SMALL);
    CHECK(len == 4);
    REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BUSY);
    OK(glebe_zpool_remove(pool, object));
    REFUSED(glebe_zpool_remove(pool, object), GLEBE_ERROR_STALE);
    REFUSED(glebe_zpool_replace(pool, object, bytes, 4), GLEBE_ERROR_STALE);
    REFUSED(glebe_zpool_read(pool, object, NULL, 0, &len), GLEBE_ERROR_STALE);
    OK(glebe_zpool_free(pool));
    REFUSED(glebe_zpool_free(pool), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_zpool_sweep(pool, 1), GLEBE_ERROR_BAD_HANDLE);
}

/* Returns the number of objects that are intact. */
static size_t there(glebe_zpool pool, const glebe_zobject *objects) {
    unsigned char *expected = malloc(page), *found = malloc(page);
    size_t n, count = 0, len = 0, found_len;
    for (n = 0; n < OBJECTS; n++) {
        int answer = glebe_zpool_read(pool, objects[n], found, page, &found_len);
        if (answer == GLEBE_GET_HIT) {
            len = bytes_of(n, expected);
            CHECK(found_len == len && memcmp(found, expected, len) == 0);
            OK(glebe_zpool_read(pool, objects[n], NULL, 0, &found_len));
            CHECK(found_len == len);
            count++;
        } else if (answer == GLEBE_GET_MISS) {
            REFUSED(glebe_zpool_read(pool, objects[n], NULL, 0, &found_len), GLEBE_ERROR_STALE);
        } else {
            CHECK(answer == GLEBE_ERROR_STALE);
        }
    }
    free(expected);
    free(found);
    return count;
}

static void lost_or_moved(glebe_reserve reserve, uint64_t on_recall) {
    static glebe_zobject objects[OBJECTS];
    glebe_zpool pool = pool_on(reserve, on_recall);
    glebe_zpool_stats stats;
    glebe_compacted compacted;
    glebe_block block = {0}, below = {0}, last = {0};
    unsigned char *bytes = malloc(page);
    static char text[1 << 16];
    size_t n, left, needed = 0;

    memset(&stats, 0, sizeof stats);
    REFUSED(glebe_zpool_get_stats(pool, &stats), GLEBE_ERROR_BAD_SIZE);
    stats.size = sizeof stats;
    for (n = 0; n < OBJECTS; n++) {
        size_t len = bytes_of(n, bytes);
        OK(glebe_zpool_insert(pool, bytes, len, &objects[n]));
    }
    CHECK(there(pool, objects) == OBJECTS);
    OK(glebe_zpool_get_stats(pool, &stats));
    CHECK(stats.lost == 0 && stats.lent_pages > 100 && stats.objects == OBJECTS);
    CHECK(stats.sealed_pages == stats.lent_pages);

    /* First class takes the whole reserve. With on_recall 1 it takes one half and then the other,
     * so that objects can move. */
    if (on_recall == 1) {
        OK(glebe_alloc_with(reserve, 4 * MIB / page, 1, GLEBE_ANY, &block));
        OK(glebe_free(block));
        /* Two pages of the lower half are held, so only the upper half has a free run of 4 MiB. */
        OK(glebe_alloc_with(reserve, 4 * MIB / page - 2, 1, GLEBE_ANY, &below));
        OK(glebe_alloc_with(reserve, 2, 1, GLEBE_ANY, &last));
        OK(glebe_free(below));
        OK(glebe_alloc_with(reserve, 4 * MIB / page, 1, GLEBE_ANY, &block));
        OK(glebe_free(last));
    } else {
        OK(glebe_alloc_with(reserve, 8 * MIB / page, 1, GLEBE_ANY, &block));
    }
    OK(glebe_zpool_sweep(pool, 1000));
    left = there(pool, objects);
    OK(glebe_zpool_get_stats(pool, &stats));
    if (on_recall == 1) {
        /* Objects that find no room are lost. */
        CHECK(stats.lost == OBJECTS - left && stats.moved_pages > 0);
        CHECK(left > OBJECTS / 2);
    } else {
        CHECK(left < OBJECTS && left > 0 && stats.lost == OBJECTS - left);
    }
    OK(glebe_free(block));

    for (n = 0; n < OBJECTS; n++) {
        if (n % 4 != 0) {
            int answer = glebe_zpool_remove(pool, objects[n]);
            CHECK(answer == GLEBE_OK || answer == GLEBE_ERROR_STALE);
        }
    }
    OK(glebe_zpool_compact(pool, 0, 0, &compacted));
    CHECK(compacted.freed_pages > 0);
    there(pool, objects);
    OK(glebe_zpool_format_stats(pool, GLEBE_FORMAT_TEXT, NULL, 0, &needed));
    CHECK(needed > 100 && needed < sizeof text);
    OK(glebe_zpool_format_stats(pool, GLEBE_FORMAT_JSON, text, sizeof text, &needed));
    CHECK(text[0] == '{' && strlen(text) + 1 == needed && strstr(text, "lent_pages") != NULL);
    CHECK(strstr(text, "\"pages_per_zspage\"") != NULL);
    OK(glebe_zpool_format_stats(pool, GLEBE_FORMAT_OPENMETRICS, text, sizeof text, &needed));
    CHECK(strstr(text, "\nglebe_zpool_class_used{size=") != NULL);
    OK(glebe_zpool_format_stats(pool, GLEBE_FORMAT_CLASSES, text, sizeof text, &needed));
    CHECK(strncmp(text, " class  size", 12) == 0 && strstr(text, " freeable\n") != NULL);
    REFUSED(glebe_zpool_format_stats(pool, 4, text, sizeof text, &needed),
            GLEBE_ERROR_BAD_ARGUMENT);
    for (n = 0; n < OBJECTS; n += 4) {
        if (glebe_zpool_replace(pool, objects[n], "other", 5) == GLEBE_OK) {
            size_t len = 0;
            CHECK(glebe_zpool_read(pool, objects[n], bytes, page, &len) == GLEBE_GET_HIT);
            CHECK(len == 5 && memcmp(bytes, "other", 5) == 0);
            break;
        }
    }
    free(bytes);
    OK(glebe_zpool_free(pool));
}

static void fork_is_noticed(glebe_reserve reserve) {
    glebe_zpool pool = pool_on(reserve, 0);
    glebe_zobject object = {0};
    int status = 1;
    pid_t child;
    OK(glebe_zpool_insert(pool, "parent's", 8, &object));
    child = fork();
    if (child == 0) {
        char buffer[8];
        size_t len;
        int is = glebe_zpool_read(pool, object, buffer, 8, &len);
        _exit(is == GLEBE_ERROR_FORKED ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(glebe_zpool_free(pool));
}

int main(void) {
    glebe_reserve reserve;
    page = (size_t)glebe_page_bytes();
    modes_of_the_page_cache();
    reserve = create(GLEBE_CODEC_AUTO, GLEBE_OK);
    what_is_refused(reserve);
    lost_or_moved(reserve, 0);
    lost_or_moved(reserve, 1);
    fork_is_noticed(reserve);
    OK(glebe_reserve_free(reserve));
    puts("lent.c: ok");
    return 0;
}
