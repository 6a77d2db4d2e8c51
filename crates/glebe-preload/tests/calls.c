/* Checks the calls of glebe_malloc.h. The argument is "none" (the library is not loaded), "alone"
   (it runs mimalloc without a heap of its own) or "heap". */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "glebe_malloc.h"

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct glebe_malloc_stats now(void) {
    struct glebe_malloc_stats stats;
    memset(&stats, 0xee, sizeof stats);
    stats.size = sizeof stats;
    CHECK(glebe_malloc_get_stats(&stats) == 0);
    CHECK(stats.size == sizeof stats && stats.version == 1);
    return stats;
}

static void sizes(void) {
    struct {
        struct glebe_malloc_stats stats;
        uint64_t behind;
    } more;
    memset(&more, 0xee, sizeof more);
    more.stats.size = sizeof more; /* as in a newer program */
    CHECK(glebe_malloc_get_stats(&more.stats) == 0 && more.stats.size == sizeof more.stats);
    CHECK(more.behind == 0xeeeeeeeeeeeeeeee);
    memset(&more, 0xee, sizeof more);
    more.stats.size = 24; /* as in an older program */
    CHECK(glebe_malloc_get_stats(&more.stats) == 0 && more.stats.size == 24);
    CHECK(more.stats.live_bytes != 0xeeeeeeeeeeeeeeee);
    CHECK(more.stats.free_bytes == 0xeeeeeeeeeeeeeeee);
    more.stats.size = 15;
    CHECK(glebe_malloc_get_stats(&more.stats) == EINVAL);
    more.stats.size = 16;
    CHECK(glebe_malloc_get_stats(&more.stats) == 0);
    CHECK(glebe_malloc_get_stats(NULL) == EINVAL);
}

static void texts(void) {
    static char whole[20000], part[100];
    for (int format = 0; format < 3; format++) {
        long len = glebe_malloc_format_stats(NULL, 0, format);
        CHECK(len > 300 && len < (long)sizeof whole);
        /* The numbers may have grown since the first call. */
        long again = glebe_malloc_format_stats(whole, sizeof whole, format);
        CHECK(again > 300 && (long)strlen(whole) == again && whole[again - 1] == '\n');
        memset(part, 0x55, sizeof part);
        CHECK(glebe_malloc_format_stats(part, 60, format) > 300);
        CHECK(strlen(part) == 59 && memcmp(part, whole, 9) == 0 && part[60] == 0x55);
        CHECK(glebe_malloc_format_stats(part, 1, format) > 300 && part[0] == 0);
    }
    errno = 0;
    CHECK(glebe_malloc_format_stats(whole, sizeof whole, 3) == -1 && errno == EINVAL);
}

static void heap(void) {
    const size_t len = 64 << 20;
    struct glebe_malloc_stats before = now();
    char *block = malloc(len);
    memset(block, 1, len);
    struct glebe_malloc_stats with = now();
    CHECK(with.live_bytes >= before.live_bytes + len && with.rss_bytes >= len);
    free(block);
    struct glebe_malloc_stats after = now();
    CHECK(after.live_bytes < before.live_bytes + len / 2);
    CHECK(after.free_bytes + after.volatile_bytes >= len);
    CHECK(after.rss_less_reclaimable_bytes <= after.rss_bytes);
    CHECK(glebe_malloc_trim(0) >= len);
    struct glebe_malloc_stats end = now();
    CHECK(end.free_bytes + end.volatile_bytes < len / 2 && end.rss_bytes < with.rss_bytes - len / 2);
    CHECK(end.given_back_bytes >= len);
    /* A trim leaves at most `keep` bytes free, here at least half of them. */
    block = malloc(len);
    memset(block, 1, len);
    free(block);
    glebe_malloc_trim(len / 2);
    end = now();
    CHECK(end.free_bytes + end.volatile_bytes >= len / 4);
    CHECK(end.free_bytes + end.volatile_bytes <= len / 2);
}

int main(int count, char **arguments) {
    const char *expected = count > 1 ? arguments[1] : "";
    if (strcmp(expected, "none") == 0) {
        CHECK(!glebe_malloc_get_stats && !glebe_malloc_format_stats && !glebe_malloc_trim);
    } else {
        CHECK(glebe_malloc_get_stats && glebe_malloc_format_stats && glebe_malloc_trim);
        sizes();
        texts();
        CHECK((now().address_bytes > 0) == (strcmp(expected, "heap") == 0));
        if (strcmp(expected, "heap") == 0) heap();
        else CHECK(glebe_malloc_trim(0) == 0);
    }
    puts("calls: ok");
    return 0;
}
