/* Runs threads that use about 200 KiB each at the same time, in objects of 64 to 4096 bytes. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 100
#define OBJECTS 100

static pthread_barrier_t all;

static void *use(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument * 7919u + 1;
    char *objects[OBJECTS] = {0};
    for (int turn = 0; turn < 6 * OBJECTS; turn++) {
        int at = rand_r(&seed) % OBJECTS;
        size_t size = 64 + (size_t)rand_r(&seed) % 4033;
        free(objects[at]);
        if (!(objects[at] = malloc(size))) abort();
        memset(objects[at], at, size);
    }
    pthread_barrier_wait(&all);
    for (int at = 0; at < OBJECTS; at++) free(objects[at]);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_attr_t attributes;
    pthread_barrier_init(&all, NULL, THREADS);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    for (uintptr_t n = 0; n < THREADS; n++)
        if (pthread_create(&threads[n], &attributes, use, (void *)n)) return 3;
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    return 0;
}
