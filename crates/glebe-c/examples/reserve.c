/* Uses a reserve as a cache until the program needs its memory.
 * cc reserve.c $(pkg-config --cflags --libs glebe) && ./a.out */
#include <glebe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEN_BYTES ((uint64_t)16 << 20)

static void check(int answer) {
    if (answer < 0) {
        fprintf(stderr, "%s: %s\n", glebe_error_name(answer), glebe_last_error());
        exit(1);
    }
}

int main(void) {
    const size_t page = (size_t)glebe_page_bytes();
    unsigned char *buffer = malloc(page);
    glebe_reserve reserve;
    glebe_cache tiles;
    glebe_block block;
    void *address;
    uint64_t pages, index, len_bytes, hits = 0;

    if (buffer == NULL) return 1;
    check(glebe_reserve_new(LEN_BYTES, NULL, &reserve));

    /* Second class: a cache keeps pages in idle memory, by object and index. */
    check(glebe_cache_new(reserve, "tiles", &tiles));
    for (index = 0; index < 1000; index++) {
        memset(buffer, (int)index, page);
        check(glebe_cache_put(tiles, 1, index, buffer, page));
    }

    /* First class: takes the longest free run at once, even where the cache has pages. */
    check(glebe_reserve_largest_run(reserve, &pages));
    check(glebe_alloc(reserve, pages, &block));
    check(glebe_block_memory(block, &address, &len_bytes));
    memset(address, 0, (size_t)len_bytes);

    for (index = 0; index < 1000; index++)
        hits += glebe_cache_get(tiles, 1, index, buffer, page) == GLEBE_GET_HIT;
    printf("a block of %llu KiB; of 1000 cached pages %llu are left\n",
           (unsigned long long)len_bytes >> 10, (unsigned long long)hits);

    check(glebe_free(block));
    check(glebe_cache_free(tiles));
    check(glebe_reserve_free(reserve));
    free(buffer);
    return 0;
}
