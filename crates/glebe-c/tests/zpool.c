/* Object pools from C99: results and errors. */
#define _DEFAULT_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define MIB ((uint64_t)1 << 20)
#define OBJECTS 4000

static glebe_zpool create(uint64_t limit_bytes, uint64_t at_limit, uint64_t compaction) {
    glebe_zpool_options options;
    glebe_zpool pool = {0};
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.limit_bytes = limit_bytes;
    options.evict_oldest = at_limit;
    options.manual_compaction = compaction;
    options.codec = GLEBE_CODEC_NONE; /* so that stored lengths are known */
    OK(glebe_zpool_new(&options, &pool));
    CHECK(pool.id != 0);
    return pool;
}

static size_t bytes_of(size_t n, unsigned char *bytes) {
    size_t len = 1 + n * 131 % 2000, i;
    for (i = 0; i < len; i++) bytes[i] = (unsigned char)(n * 31 + i * 7 + (i >> 8));
    return len;
}

static void is_the_object(glebe_zpool pool, glebe_zobject object, size_t n) {
    unsigned char expected[2000], found[2000];
    size_t len = bytes_of(n, expected), found_len = 0;
    OK(glebe_zpool_read(pool, object, found, sizeof found, &found_len));
    CHECK(found_len == len && memcmp(found, expected, len) == 0);
    OK(glebe_zpool_read(pool, object, NULL, 0, &found_len));
    CHECK(found_len == len);
}

static void nothing_there(void) {
    REFUSED(glebe_zpool_free(HANDLE(glebe_zpool, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_zpool_free(HANDLE(glebe_zpool, UINT64_MAX)), GLEBE_ERROR_BAD_HANDLE);
    CHECK(strstr(glebe_last_error(), "is no object pool") != NULL);
}

static void options_are_checked(void) {
    glebe_zpool_options options, zero;
    glebe_zpool pool = {77};
    uint64_t older[2] = {sizeof older, 0};
    struct {
        glebe_zpool_options known;
        uint64_t later;
    } newer;

    memset(&options, 0, sizeof options);
    REFUSED(glebe_zpool_new(NULL, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_SIZE);
    options.size = sizeof options;
    zero = options;
    options.evict_oldest = 2;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strcmp(glebe_last_error(), "0x2 is no value of evict_oldest") == 0);
    options = zero;
    options.manual_compaction = 2;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options = zero;
    options.move_on_recall = 1; /* needs a reserve */
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options = zero;
    options.staging_bytes = 1;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options = zero;
    options.reserve.id = UINT64_MAX;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_HANDLE);
    options = zero;
    options.codec = 4;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options.codec = GLEBE_CODEC_LZ4;
    options.zstd_level = 1;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options.codec = GLEBE_CODEC_ZSTD;
    options.zstd_level = 1000;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "zstd level 1000") != NULL);
    options.zstd_level = UINT64_MAX;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    options = zero;
    options.limit_bytes = 1;
    REFUSED(glebe_zpool_new(&options, &pool), GLEBE_ERROR_LIMIT_BELOW_HELD);
    CHECK(pool.id == 77);

    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    OK(glebe_zpool_new(&newer.known, &pool));
    OK(glebe_zpool_free(pool));
    newer.later = 1;
    REFUSED(glebe_zpool_new(&newer.known, &pool), GLEBE_ERROR_BAD_ARGUMENT);
    OK(glebe_zpool_new((const glebe_zpool_options *)older, &pool));
    OK(glebe_zpool_free(pool));
    REFUSED(glebe_zpool_free(pool), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_zpool_new(NULL, &pool));
    OK(glebe_zpool_free(pool));
}

static void objects(glebe_zpool pool, glebe_zpool other) {
    size_t page = (size_t)glebe_page_bytes(), len = 99, n;
    unsigned char *whole = malloc(page + 1), *found = malloc(page + 1);
    glebe_zobject object = {0}, twin = {0}, full = {0}, again = {55};

    CHECK(whole != NULL && found != NULL);
    memset(whole, 0x5a, page + 1);
    OK(glebe_zpool_insert(pool, "four", 4, &object));
    OK(glebe_zpool_insert(pool, whole, page, &full));
    OK(glebe_zpool_insert(other, "else", 4, &twin));
    CHECK(object.id != 0 && full.id != object.id && twin.id != object.id);

    /* Objects that no pool takes. */
    REFUSED(glebe_zpool_insert(pool, "", 0, &again), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_zpool_insert(pool, NULL, 0, &again), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_zpool_insert(pool, NULL, 1, &again), GLEBE_ERROR_NULL);
    REFUSED(glebe_zpool_insert(pool, "x", 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_zpool_insert(pool, whole, page + 1, &again), GLEBE_ERROR_TOO_LONG);
    REFUSED(glebe_zpool_insert(pool, whole, SIZE_MAX, &again), GLEBE_ERROR_TOO_LONG);
    REFUSED(glebe_zpool_insert(HANDLE(glebe_zpool, object.id), "x", 1, &again),
            GLEBE_ERROR_BAD_HANDLE);
    CHECK(again.id == 55);

    memset(found, 1, page + 1);
    REFUSED(glebe_zpool_read(pool, object, found, 3, &len), GLEBE_ERROR_BUFFER_TOO_SMALL);
    CHECK(len == 4 && found[3] == 1);
    CHECK(strcmp(glebe_last_error(), "a buffer of 3 bytes for an object of 4") == 0);
    len = 0;
    OK(glebe_zpool_read(pool, object, NULL, 0, &len));
    CHECK(len == 4);
    REFUSED(glebe_zpool_read(pool, object, NULL, 4, &len), GLEBE_ERROR_NULL);
    REFUSED(glebe_zpool_read(pool, object, found, 4, NULL), GLEBE_ERROR_NULL);
    OK(glebe_zpool_read(pool, object, found, 4, &len));
    CHECK(len == 4 && memcmp(found, "four", 4) == 0 && found[4] == 1);
    OK(glebe_zpool_read(pool, full, found, page + 1, &len));
    CHECK(len == page && memcmp(found, whole, page) == 0 && found[page] == 1);
    OK(glebe_zpool_read(pool, full, NULL, 0, &len));
    CHECK(len == page);
    REFUSED(glebe_zpool_read(pool, full, NULL, 0, NULL), GLEBE_ERROR_NULL);

    REFUSED(glebe_zpool_replace(pool, object, "", 0), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_zpool_replace(pool, object, NULL, 1), GLEBE_ERROR_NULL);
    REFUSED(glebe_zpool_replace(pool, object, whole, page + 1), GLEBE_ERROR_TOO_LONG);
    OK(glebe_zpool_replace(pool, object, "longer", 6));
    OK(glebe_zpool_read(pool, object, found, page, &len));
    CHECK(len == 6 && memcmp(found, "longer", 6) == 0);

    /* Handles of another pool, null, forged handles, and freed ones. */
    REFUSED(glebe_zpool_read(pool, twin, found, page, &len), GLEBE_ERROR_FOREIGN);
    REFUSED(glebe_zpool_read(pool, twin, NULL, 0, &len), GLEBE_ERROR_FOREIGN);
    REFUSED(glebe_zpool_replace(pool, twin, "x", 1), GLEBE_ERROR_FOREIGN);
    REFUSED(glebe_zpool_remove(pool, twin), GLEBE_ERROR_FOREIGN);
    REFUSED(glebe_zpool_remove(pool, HANDLE(glebe_zobject, 0)), GLEBE_ERROR_FOREIGN);
    REFUSED(glebe_zpool_remove(pool, HANDLE(glebe_zobject, pool.id)), GLEBE_ERROR_FOREIGN);
    for (n = 0; n < 64; n++) {
        const glebe_zobject forged = {object.id ^ (uint64_t)1 << n};
        const int code = glebe_zpool_read(pool, forged, NULL, 0, &len);
        CHECK(code == GLEBE_ERROR_STALE || code == GLEBE_ERROR_FOREIGN || len == page);
    }
    OK(glebe_zpool_remove(pool, object));
    len = 99;
    REFUSED(glebe_zpool_remove(pool, object), GLEBE_ERROR_STALE);
    CHECK(strstr(glebe_last_error(), "gone") != NULL);
    REFUSED(glebe_zpool_read(pool, object, found, page, &len), GLEBE_ERROR_STALE);
    REFUSED(glebe_zpool_read(pool, object, NULL, 0, &len), GLEBE_ERROR_STALE);
    REFUSED(glebe_zpool_replace(pool, object, "x", 1), GLEBE_ERROR_STALE);
    OK(glebe_zpool_insert(pool, "next", 4, &again));
    REFUSED(glebe_zpool_read(pool, object, found, page, &len), GLEBE_ERROR_STALE);
    CHECK(len == 99);
    OK(glebe_zpool_remove(pool, again));
    OK(glebe_zpool_remove(pool, full));
    OK(glebe_zpool_remove(other, twin));
    free(whole);
    free(found);
}

static glebe_zpool_stats stats_of(glebe_zpool pool) {
    glebe_zpool_stats stats;
    stats.size = sizeof stats;
    OK(glebe_zpool_get_stats(pool, &stats));
    return stats;
}

static void compaction(glebe_zpool pool) {
    static glebe_zobject all[OBJECTS];
    unsigned char bytes[2000];
    glebe_compacted done = {7, 7};
    uint64_t before = 0, after = 0, pages = 0, left = 0;
    size_t n;

    for (n = 0; n < OBJECTS; n++)
        OK(glebe_zpool_insert(pool, bytes, bytes_of(n, bytes), &all[n]));
    for (n = 0; n < OBJECTS; n++)
        if (n % 5 != 0) OK(glebe_zpool_remove(pool, all[n]));
    before = stats_of(pool).held_bytes;
    pages = stats_of(pool).freeable_pages;
    CHECK(pages > 100);
    REFUSED(glebe_zpool_compact(pool, 1, 1, &done), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(done.moved == 7 && done.freed_pages == 7);
    left = stats_of(pool).freeable_pages;
    CHECK(left == pages);

    OK(glebe_zpool_compact(pool, 10, 0, &done));
    /* Compaction frees whole zspages. */
    CHECK(done.freed_pages >= 10 && done.freed_pages < 10 + 16 && done.moved > 0);
    left = stats_of(pool).freeable_pages;
    CHECK(left < pages);
    OK(glebe_zpool_compact(pool, 0, 1, NULL));
    OK(glebe_zpool_compact(pool, 0, UINT64_MAX, &done));
    OK(glebe_zpool_compact(pool, 0, 0, &done));
    CHECK(done.freed_pages == 0);
    left = stats_of(pool).freeable_pages;
    CHECK(left == 0);
    after = stats_of(pool).held_bytes;
    CHECK(after + pages * glebe_page_bytes() / 2 < before);
    for (n = 0; n < OBJECTS; n += 5) {
        is_the_object(pool, all[n], n);
        OK(glebe_zpool_remove(pool, all[n]));
        REFUSED(glebe_zpool_remove(pool, all[n]), GLEBE_ERROR_STALE);
    }
}

static void limits(void) {
    const glebe_zpool refuses = create(4 * MIB, 0, 0);
    const glebe_zpool evicts = create(4 * MIB, 1, 0);
    static glebe_zobject all[3 * OBJECTS];
    unsigned char bytes[2000];
    glebe_zobject object = {0};
    uint64_t held = 0;
    size_t n, len = 0, gone = 0;
    int code = GLEBE_OK;

    for (n = 0; code == GLEBE_OK && n < 3 * OBJECTS; n++)
        code = glebe_zpool_insert(refuses, bytes, bytes_of(n, bytes), &object);
    REFUSED(code, GLEBE_ERROR_FULL);
    CHECK(strstr(glebe_last_error(), "its limit is 4 MiB") != NULL);
    CHECK(n > 2 * MIB / 1000 && n < 3 * OBJECTS);
    held = stats_of(refuses).held_bytes;
    CHECK(held <= 4 * MIB);
    is_the_object(refuses, object, n - 2);
    REFUSED(glebe_zpool_set_limit(refuses, MIB), GLEBE_ERROR_LIMIT_BELOW_HELD);
    REFUSED(glebe_zpool_set_limit(refuses, 0), GLEBE_ERROR_LIMIT_BELOW_HELD);
    /* The limit is above what the pool holds now, because the pool may pick other size classes. */
    OK(glebe_zpool_set_limit(refuses, stats_of(refuses).held_bytes + MIB / 8));
    is_the_object(refuses, object, n - 2);

    for (n = 0; n < 3 * OBJECTS; n++)
        OK(glebe_zpool_insert(evicts, bytes, bytes_of(n, bytes), &all[n]));
    OK(glebe_zpool_set_limit(evicts, 2 * MIB));
    held = stats_of(evicts).held_bytes;
    CHECK(held <= 2 * MIB);
    for (n = 0; n < 3 * OBJECTS; n++) {
        code = glebe_zpool_read(evicts, all[n], NULL, 0, &len);
        gone += code == GLEBE_ERROR_STALE;
        if (code != GLEBE_ERROR_STALE) is_the_object(evicts, all[n], n);
    }
    CHECK(gone > OBJECTS && gone < 3 * OBJECTS);
    REFUSED(glebe_zpool_set_limit(evicts, 1), GLEBE_ERROR_LIMIT_BELOW_HELD);
    OK(glebe_zpool_free(refuses));
    OK(glebe_zpool_free(evicts));
}

static void codecs(void) {
    static glebe_zobject all[OBJECTS];
    unsigned char bytes[2000];
    uint64_t stored[4] = {0, 0, 0, 0}, codec;
    size_t n;

    for (codec = GLEBE_CODEC_AUTO; codec <= GLEBE_CODEC_ZSTD; codec++) {
        glebe_zpool_options options;
        glebe_zpool_stats stats;
        glebe_zpool pool = {0};
        memset(&options, 0, sizeof options);
        options.size = sizeof options;
        options.codec = codec;
        options.zstd_level = codec == GLEBE_CODEC_ZSTD ? 3 : 0;
        OK(glebe_zpool_new(&options, &pool));
        for (n = 0; n < OBJECTS; n++)
            OK(glebe_zpool_insert(pool, bytes, bytes_of(n, bytes), &all[n]));
        for (n = 0; n < OBJECTS; n += 7) is_the_object(pool, all[n], n);
        stats.size = sizeof stats;
        OK(glebe_zpool_get_stats(pool, &stats));
        stored[codec] = stats.stored_bytes;
        CHECK(stats.inserted_bytes >= stats.stored_bytes && stats.objects == OBJECTS);
        for (n = 0; n < OBJECTS; n++) is_the_object(pool, all[n], n);
        OK(glebe_zpool_free(pool));
    }
    CHECK(stored[GLEBE_CODEC_AUTO] == stored[GLEBE_CODEC_LZ4]);
    CHECK(stored[GLEBE_CODEC_LZ4] < stored[GLEBE_CODEC_NONE]);
    CHECK(stored[GLEBE_CODEC_ZSTD] < stored[GLEBE_CODEC_NONE]);
}

static void objects_from_memory_that_is_read_only(void) {
    size_t page = (size_t)glebe_page_bytes(), len = 0;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *at = mmap(NULL, page, PROT_READ | PROT_WRITE, flags, -1, 0);
    unsigned char *back = malloc(page);
    glebe_zpool pool = {0};
    glebe_zobject object = {0};
    CHECK(at != MAP_FAILED && back != NULL);
    memset(at, 9, page);
    CHECK(mprotect(at, page, PROT_READ) == 0);
    OK(glebe_zpool_new(NULL, &pool));
    OK(glebe_zpool_insert(pool, at, page, &object));
    OK(glebe_zpool_replace(pool, object, at, page - 1));
    OK(glebe_zpool_read(pool, object, back, page, &len));
    CHECK(len == page - 1 && memcmp(at, back, len) == 0);
    OK(glebe_zpool_free(pool));
    free(back);
    CHECK(munmap(at, page) == 0);
}

static void statistics(void) {
    const glebe_zpool pool = create(8 * MIB, 0, 0);
    static const char *const starts[] = {"inserted", "{", "# ", " class"};
    glebe_zpool_stats stats;
    struct {
        glebe_zpool_stats known;
        uint64_t later;
    } newer;
    uint64_t older[3] = {2 * sizeof(uint64_t), 0, 5}, format;
    glebe_zobject object = {0};
    size_t needed = 0, again = 0, n;
    char *text;

    for (n = 0; n < 10; n++) OK(glebe_zpool_insert(pool, "0123456789", 10, &object));
    OK(glebe_zpool_replace(pool, object, "twenty bytes of text", 20));
    stats.size = sizeof stats;
    OK(glebe_zpool_get_stats(pool, &stats));
    CHECK(stats.size == sizeof stats);
    CHECK(stats.inserted == 11 && stats.removed == 1 && stats.evicted == 0);
    CHECK(stats.objects == 10 && stats.stored_bytes == 110 && stats.limit_bytes == 8 * MIB);
    CHECK(stats.held_bytes == stats.metadata_bytes +
                                  (stats.used_pages + stats.kept_pages) * glebe_page_bytes());
    CHECK(stats.held_bytes_max >= stats.held_bytes && stats.held_bytes <= 8 * MIB);
    CHECK(stats.lent_pages == 0 && stats.lost == 0);
    newer.known.size = sizeof newer;
    newer.later = 9;
    OK(glebe_zpool_get_stats(pool, &newer.known));
    CHECK(newer.known.size == sizeof stats && newer.later == 0);
    OK(glebe_zpool_get_stats(pool, (glebe_zpool_stats *)older));
    CHECK(older[0] == 2 * sizeof(uint64_t) && older[1] == stats.inserted && older[2] == 5);
    REFUSED(glebe_zpool_get_stats(pool, NULL), GLEBE_ERROR_NULL);
    stats.size = 0;
    REFUSED(glebe_zpool_get_stats(pool, &stats), GLEBE_ERROR_BAD_SIZE);

    for (format = 0; format <= GLEBE_FORMAT_CLASSES; format++) {
        OK(glebe_zpool_format_stats(pool, format, NULL, 0, &needed));
        text = calloc(1, needed + 1);
        CHECK(text != NULL && needed > 2);
        text[needed] = 'e';
        REFUSED(glebe_zpool_format_stats(pool, format, text, needed - 1, &again),
                GLEBE_ERROR_BUFFER_TOO_SMALL);
        CHECK(again == needed && text[0] == 0);
        OK(glebe_zpool_format_stats(pool, format, text, SIZE_MAX, &again));
        CHECK(again == needed && strlen(text) == needed - 1 && text[needed] == 'e');
        CHECK(strncmp(text, starts[format], strlen(starts[format])) == 0);
        if (format == GLEBE_FORMAT_OPENMETRICS)
            CHECK(strstr(text, "\nglebe_zpool_inserted_total 11\n") != NULL);
        free(text);
    }
    REFUSED(glebe_zpool_format_stats(pool, 4, NULL, 0, &needed), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_zpool_format_stats(pool, 0, NULL, 1, &needed), GLEBE_ERROR_NULL);
    REFUSED(glebe_zpool_format_stats(pool, 0, NULL, 0, NULL), GLEBE_ERROR_NULL);
    OK(glebe_zpool_free(pool));
}

static void all_refuse(glebe_zpool pool, glebe_zobject object, int code) {
    glebe_zpool_stats stats;
    glebe_compacted done = {7, 7};
    glebe_zobject made = {7};
    size_t len = 7;
    char buffer[8] = "";

    stats.size = sizeof stats;
    REFUSED(glebe_zpool_insert(pool, "x", 1, &made), code);
    REFUSED(glebe_zpool_read(pool, object, NULL, 0, &len), code);
    REFUSED(glebe_zpool_read(pool, object, buffer, sizeof buffer, &len), code);
    REFUSED(glebe_zpool_replace(pool, object, "x", 1), code);
    REFUSED(glebe_zpool_remove(pool, object), code);
    REFUSED(glebe_zpool_compact(pool, 0, 0, &done), code);
    REFUSED(glebe_zpool_set_limit(pool, MIB), code);
    REFUSED(glebe_zpool_sweep(pool, 1), code);
    REFUSED(glebe_zpool_get_stats(pool, &stats), code);
    REFUSED(glebe_zpool_format_stats(pool, 0, buffer, sizeof buffer, &len), code);
    REFUSED(glebe_zpool_free(pool), code);
    CHECK(made.id == 7 && len == 7 && buffer[0] == 0 && done.moved == 7);
}

static void fork_is_noticed(glebe_zpool pool) {
    glebe_zobject object = {0};
    size_t len = 0;
    char buffer[8];
    int status = 0;
    pid_t child;

    OK(glebe_zpool_insert(pool, "parent", 6, &object));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        glebe_zpool own;
        alarm(20);
        all_refuse(pool, object, GLEBE_ERROR_FORKED);
        CHECK(strstr(glebe_last_error(), "forked") != NULL);
        own = create(MIB, 0, 0);
        all_refuse(pool, object, GLEBE_ERROR_FORKED);
        OK(glebe_zpool_insert(own, "child", 5, &object));
        OK(glebe_zpool_free(own));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_zpool_read(pool, object, buffer, sizeof buffer, &len));
    CHECK(len == 6 && memcmp(buffer, "parent", 6) == 0);
    OK(glebe_zpool_remove(pool, object));
}

int main(void) {
    glebe_zpool pool, other;
    glebe_zobject object = {0};
    nothing_there();
    options_are_checked();
    pool = create(64 * MIB, 0, 1);
    other = create(0, 0, 0);
    all_refuse(HANDLE(glebe_zpool, pool.id ^ (uint64_t)1 << 40), HANDLE(glebe_zobject, 1),
               GLEBE_ERROR_BAD_HANDLE);
    objects(pool, other);
    compaction(pool);
    limits();
    codecs();
    objects_from_memory_that_is_read_only();
    statistics();
    fork_is_noticed(pool);
    OK(glebe_zpool_insert(pool, "last", 4, &object));
    OK(glebe_zpool_free(pool));
    all_refuse(pool, object, GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_zpool_remove(other, object), GLEBE_ERROR_FOREIGN);
    OK(glebe_zpool_free(other));
    puts("zpool.c: ok");
    return 0;
}
