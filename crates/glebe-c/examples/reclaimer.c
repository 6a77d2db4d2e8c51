/* Gives cache memory back before the kernel has to kill the program: marked pictures, which the
 * program can draw again, and the oldest objects of a pool.
 * cc reclaimer.c $(pkg-config --cflags --libs glebe) && ./a.out */
#include <glebe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

static void check(int answer) {
    if (answer < 0) {
        fprintf(stderr, "%s: %s\n", glebe_error_name(answer), glebe_last_error());
        exit(1);
    }
}

int main(void) {
    glebe_zpool_options pool_options;
    glebe_reclaimed taken;
    glebe_reclaimer reclaimer;
    glebe_volatile pictures;
    glebe_zpool objects;
    glebe_zobject object;
    void *address;

    check(glebe_volatile_new(4 * MIB, NULL, &pictures));
    memset(&pool_options, 0, sizeof pool_options);
    pool_options.size = sizeof pool_options;
    pool_options.evict_oldest = 1;
    check(glebe_zpool_new(&pool_options, &objects));

    /* When memory is short, the reclaimer takes marked pictures first, then old objects. */
    check(glebe_reclaimer_new(NULL, &reclaimer));
    check(glebe_reclaimer_add_volatile(reclaimer, pictures));
    check(glebe_reclaimer_add_zpool(reclaimer, objects));
    check(glebe_reclaimer_start(reclaimer));

    check(glebe_volatile_memory(pictures, &address, NULL, NULL, NULL));
    memset(address, 1, 4 * MIB);
    check(glebe_volatile_mark(pictures, 0, 4 * MIB, GLEBE_PRIORITY_NORMAL));
    check(glebe_zpool_insert(objects, "an object", 10, &object));

    /* A program can also ask for a look, for example before a large allocation. */
    taken.size = sizeof taken;
    check(glebe_reclaimer_poll(reclaimer, &taken));
    printf("%llu bytes were missing, %llu of pictures went, %llu of objects\n",
           (unsigned long long)taken.asked_bytes, (unsigned long long)taken.volatile_bytes,
           (unsigned long long)taken.objects_bytes);
    if (glebe_reclaimer_refills(reclaimer) == GLEBE_REFILLS_ALLOWED) {
        printf("what was lost may be made again\n");
    }

    check(glebe_reclaimer_free(reclaimer));
    check(glebe_zpool_free(objects));
    check(glebe_volatile_free(pictures));
    return 0;
}
