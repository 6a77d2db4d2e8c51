/* Lets the system take tiles of a picture when it needs memory, and draws lost tiles anew.
 * cc volatile.c $(pkg-config --cflags --libs glebe) && ./a.out */
#include <glebe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILES 16
#define TILE_PAGES 16

static void check(int answer) {
    if (answer < 0) {
        fprintf(stderr, "%s: %s\n", glebe_error_name(answer), glebe_last_error());
        exit(1);
    }
}

static void draw(unsigned char *picture, uint64_t tile, size_t tile_bytes) {
    memset(picture + tile * tile_bytes, (int)tile + 1, tile_bytes);
}

int main(void) {
    const size_t tile_bytes = TILE_PAGES * (size_t)glebe_page_bytes();
    glebe_extent lost[TILE_PAGES];
    glebe_volatile region;
    void *address;
    unsigned char *picture;
    uint64_t tile, drawn = 0;

    check(glebe_volatile_new(TILES * tile_bytes, NULL, &region));
    check(glebe_volatile_memory(region, &address, NULL, NULL, NULL));
    picture = address;
    for (tile = 0; tile < TILES; tile++) draw(picture, tile, tile_bytes);

    /* The program does not need the tiles now: the kernel may take all of them. */
    check(glebe_volatile_mark(region, 0, TILES * tile_bytes, GLEBE_PRIORITY_NORMAL));
    /* Drops two tiles, as the kernel does when memory is short. */
    check(glebe_volatile_drop_now(region, 3 * tile_bytes, 2 * tile_bytes, NULL));

    /* The program needs the tiles again: unmark reports the lost ones. */
    for (tile = 0; tile < TILES; tile++) {
        size_t runs;
        check(glebe_volatile_unmark(region, tile * tile_bytes, tile_bytes, lost, TILE_PAGES,
                                    &runs));
        if (runs > 0) {
            draw(picture, tile, tile_bytes);
            drawn++;
        }
        if (picture[tile * tile_bytes] != tile + 1) return 1;
    }
    printf("%llu of %d tiles were drawn anew\n", (unsigned long long)drawn, TILES);
    check(glebe_volatile_free(region));
    return 0;
}
