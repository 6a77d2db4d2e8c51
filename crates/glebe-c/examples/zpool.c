/* Keeps strings compressed and packed, in the pool's own memory and in idle pages of a reserve.
 * cc zpool.c $(pkg-config --cflags --libs glebe) && ./a.out */
#include <glebe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTS 10000

static glebe_zobject objects[OBJECTS];

static void check(int answer) {
    if (answer < 0) {
        fprintf(stderr, "%s: %s\n", glebe_error_name(answer), glebe_last_error());
        exit(1);
    }
}

static size_t text_of(size_t n, char *text, size_t room) {
    size_t len = 0;
    while (len + 40 < room) len += (size_t)snprintf(text + len, room - len, "line %lu, ",
                                              (unsigned long)n);
    return len;
}

static void fill_and_read(glebe_zpool pool, const char *where) {
    char text[500], found[500];
    size_t n, len, found_len, lost = 0;
    glebe_zpool_stats stats;

    for (n = 0; n < OBJECTS; n++) {
        len = text_of(n, text, sizeof text);
        check(glebe_zpool_insert(pool, text, len, &objects[n]));
    }
    for (n = 0; n < OBJECTS; n++) {
        len = text_of(n, text, sizeof text);
        /* Only a pool on a reserve loses objects: to first class and to other tenants. */
        switch (glebe_zpool_read(pool, objects[n], found, sizeof found, &found_len)) {
        case GLEBE_GET_HIT:
            if (found_len != len || memcmp(found, text, len) != 0) exit(1);
            break;
        case GLEBE_GET_MISS:
        case GLEBE_ERROR_STALE: lost++; break;
        default: fprintf(stderr, "%s\n", glebe_last_error()); exit(1);
        }
    }
    stats.size = sizeof stats;
    check(glebe_zpool_get_stats(pool, &stats));
    printf("%s: %llu KiB of text in %llu KiB, %lu lost\n", where,
           (unsigned long long)stats.inserted_bytes >> 10,
           (unsigned long long)stats.stored_bytes >> 10, (unsigned long)lost);
}

int main(void) {
    glebe_zpool_options options;
    glebe_reserve reserve;
    glebe_zpool pool;

    check(glebe_zpool_new(NULL, &pool));
    fill_and_read(pool, "own memory");
    check(glebe_zpool_free(pool));

    check(glebe_reserve_new((uint64_t)16 << 20, NULL, &reserve));
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.reserve = reserve;
    check(glebe_zpool_new(&options, &pool));
    fill_and_read(pool, "idle pages of a reserve");
    check(glebe_zpool_free(pool));
    check(glebe_reserve_free(reserve));
    return 0;
}
