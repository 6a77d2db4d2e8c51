/* The locks that mimalloc's threads share, for the steps around a fork. mimalloc has no steps of
 * its own: a forked child would wait forever for a lock whose holder is not in the child. The
 * headers are those of the pinned version. Two locks have no name outside mimalloc and are missing
 * here: its page map's, held for some microseconds once per 512 MiB of addresses, and its
 * messages'. */
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

/* Takes all locks, or none if one is held. Never waits. */
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

/* Makes all locks free again. Only for a process with one thread, which can hold no locks but those
 * of its own interrupted calls. */
void glebe_engine_renew_locks(void) {
    mi_lock_t *locks[LOCKS];
    shared_locks(locks);
    for (size_t n = 0; n < LOCKS; n++) mi_lock_init(locks[n]);
}
