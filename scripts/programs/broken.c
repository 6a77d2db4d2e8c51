// Allocators with one fault each, which the programs must notice: a test of the tests.
//     cc -shared -fPIC -DFAULT=NAME broken.c
// NONE has no fault. Each is the C library's allocator with a change.

#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define NONE 0
#define FORGETS 1 /* realloc does not copy */
#define SMEARS 2  /* free zeroes a live block now and then */
#define LEAVES 3  /* calloc does not zero used memory */
#define TALKS 4   /* writes to standard error */
#define STAYS 5   /* starts a process that outlives the program */
#define HANGS 6   /* a call of free does not return */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void __libc_free(void *);
size_t malloc_usable_size(void *);

static unsigned calls;
static void *_Atomic last;

void *malloc(size_t size) {
    void *block = __libc_malloc(size);
    if (FAULT == SMEARS && size > 256) last = block;
    return block;
}

void *calloc(size_t count, size_t size) {
    const size_t all = count * size;
    if (FAULT == LEAVES && all > 4096 && all < 100000) return __libc_malloc(all);
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    if (FAULT != FORGETS || !old || size < 100000) return __libc_realloc(old, size);
    __libc_free(old);
    return __libc_malloc(size);
}

void free(void *block) {
    void *live = last;
    if (FAULT == HANGS && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) > 20000) pause();
    if (FAULT == SMEARS && live && live != block) {
        if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 100 == 0)
            memset(live, 0, malloc_usable_size(live));
    }
    if (live == block) last = NULL;
    __libc_free(block);
}

__attribute__((constructor)) static void begin(void) {
    if (FAULT == TALKS) (void)!write(2, "malloc: hello\n", 14);
    if (FAULT == STAYS && fork() == 0) {
        setsid();
        close_range(0, ~0u, 0);
        sleep(20);
        _exit(0);
    }
}
