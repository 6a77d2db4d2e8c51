/* A table larger than the memory it may use: pinned rows are in memory, the others are compressed.
 * cc swap.c $(pkg-config --cflags --libs glebe) && ./a.out */
#include <glebe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define BLOCKS 256
#define ROWS (64 * 1024 / sizeof(uint64_t)) /* in a block of 64 KiB */

static void check(int answer) {
    if (answer < 0) {
        fprintf(stderr, "%s: %s\n", glebe_error_name(answer), glebe_last_error());
        exit(1);
    }
}

int main(void) {
    static glebe_swap_object blocks[BLOCKS];
    glebe_swap_options options;
    glebe_swap_stats stats;
    glebe_swap_store store;
    glebe_swap_pin pin;
    const void *read;
    void *written;
    uint64_t sum = 0, expected = 0, block, row;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.file_directory = "/tmp"; /* for blocks that do not fit even when compressed */
    options.file_bytes = 64 * MIB;
    check(glebe_swap_store_new(4 * MIB, &options, &store)); /* a quarter of the table */
    for (block = 0; block < BLOCKS; block++) {
        check(glebe_swap_store_create(store, ROWS * sizeof(uint64_t), &blocks[block], &written,
                                      &pin));
        for (row = 0; row < ROWS; row++) {
            ((uint64_t *)written)[row] = block * row;
            expected += block * row;
        }
        check(glebe_swap_pin_free(pin)); /* from here on the store may move the block out */
    }
    for (block = 0; block < BLOCKS; block++) {
        check(glebe_swap_store_pin(store, blocks[block], &read, NULL, &pin));
        for (row = 0; row < ROWS; row++) sum += ((const uint64_t *)read)[row];
        check(glebe_swap_pin_free(pin));
        check(glebe_swap_store_dead(store, blocks[block])); /* nobody needs the rows again */
    }
    stats.size = sizeof stats;
    check(glebe_swap_store_get_stats(store, &stats));
    printf("the sum of %d MiB is %s; %llu blocks came back, %llu of them from the file\n", 16,
           sum == expected ? "right" : "wrong", (unsigned long long)stats.loaded,
           (unsigned long long)stats.read_back);
    check(glebe_swap_store_free(store));
    return sum == expected ? 0 : 1;
}
