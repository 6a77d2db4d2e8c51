/* Allocates blocks of up to 40 slices that live briefly, while the main thread trims without pause,
   so that the heap reuses slices during the call that drops them.
   Usage: churn SECONDS THREADS */
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SLICE = 65536, SLICES_MAX = 40, HELD = 4 };

static atomic_int stop;
static atomic_ullong done;

static void *life(void *with) {
    uint64_t random = (uintptr_t)with * 0x9e3779b97f4a7c15, tag = 0;
    struct {
        char *at;
        size_t size;
        uint64_t tag;
    } held[HELD];
    memset(held, 0, sizeof held);
    while (!atomic_load(&stop)) {
        for (int n = 0; n < HELD; n++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t size = (1 + (random >> 40) % SLICES_MAX) * SLICE - SLICE / 2;
            int is_zero = (random >> 33) % 2;
            /* Trims must not have changed the block. */
            for (size_t k = 0; held[n].at && k < held[n].size; k += PAGE) {
                uint64_t found = *(uint64_t *)(held[n].at + k);
                if (found != held[n].tag) {
                    fprintf(stderr, "churn: %p of %zu at %zu: %llx, not %llx\n", (void *)held[n].at, held[n].size,
                            k, (unsigned long long)found, (unsigned long long)held[n].tag);
                    _exit(1);
                }
            }
            free(held[n].at);
            held[n].at = is_zero ? calloc(1, size) : malloc(size);
            held[n].size = size, held[n].tag = (tag += 2) | (uint64_t)(uintptr_t)with << 48 | 1;
            for (size_t k = 0; k < size; k += PAGE) {
                uint64_t *word = (uint64_t *)(held[n].at + k);
                if (is_zero && *word) {
                    fprintf(stderr, "churn: calloc of %zu is not zero at %zu\n", size, k);
                    _exit(1);
                }
                *word = held[n].tag;
            }
        }
        atomic_fetch_add(&done, HELD);
    }
    for (int n = 0; n < HELD; n++) free(held[n].at);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[16];
    struct timespec now, begin;
    if (count != 3) return 2;
    int all = atoi(arguments[2]);
    for (int n = 0; n < all; n++)
        if (pthread_create(&threads[n], NULL, life, (void *)(uintptr_t)(n + 1))) return 2;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        malloc_trim(0);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9 < atof(arguments[1]));
    atomic_store(&stop, 1);
    for (int n = 0; n < all; n++) pthread_join(threads[n], NULL);
    printf("blocks %llu\n", (unsigned long long)done);
    return 0;
}
