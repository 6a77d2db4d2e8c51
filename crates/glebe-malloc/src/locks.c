/* mimalloc's locks that threads share, for the steps around a fork: it has none itself, so that a
 * child would wait for ever for what a thread held that did not come along. By its own headers, of
 * the version that is pinned. Left out: a lock of its map of pages, held for some microseconds once
 * for each 512 MiB of addresses, and that of its messages: they cannot be named from outside. */
#include <stddef.h>
#include <mimalloc.h>
#include <mimalloc/internal.h>

#define LOCKS 5

static void shared_locks(mi_lock_t *locks[LOCKS]) {
    mi_heap_t *heap = mi_heap_main();
    locks[0] = &heap->theaps_lock;
    locks[1] = &heap->arena_pages_lock;
    locks[2] = &heap->os_abandoned_pages_lock;
    locks[3] = &heap->subproc->heaps_lock;
    locks[4] = &heap->subproc->arena_reserve_lock;
}

static void release(mi_lock_t *const *locks, size_t count) {
    while (count) mi_lock_release(locks[--count]);
}

/* Takes all, or none where one is held. */
bool glebe_engine_try_lock(void) {
    mi_lock_t *locks[LOCKS];
    shared_locks(locks);
    for (size_t n = 0; n < LOCKS; n++) {
        if (!mi_lock_try_acquire(locks[n])) {
            release(locks, n);
            return false;
        }
    }
    return true;
}

void glebe_engine_unlock(void) {
    mi_lock_t *locks[LOCKS];
    shared_locks(locks);
    release(locks, LOCKS);
}

/* In a process with one thread, which holds none but those of its own calls under way. */
void glebe_engine_renew_locks(void) {
    mi_lock_t *locks[LOCKS];
    shared_locks(locks);
    for (size_t n = 0; n < LOCKS; n++) mi_lock_init(locks[n]);
}
