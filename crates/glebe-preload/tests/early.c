/* A library whose constructor and destructor use malloc. With PROGRAM: a program whose thread,
   thread-specific destructor and atexit handler use malloc. write prints a word for each step. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) _exit(3);
}

static void use(void) {
    static const size_t sizes[] = {1, 100, 5000, 200000, 3000000};
    for (int n = 0; n < 5; n++) {
        char *block = calloc(1, sizes[n]);
        for (size_t k = 0; k < sizes[n]; k += 97)
            if (block[k]) _exit(4);
        memset(block, 1, sizes[n]);
        block = realloc(block, sizes[n] * 2);
        if (!block || block[sizes[n] - 1] != 1) _exit(5);
        free(block);
    }
}

#ifndef PROGRAM

static char *kept;

__attribute__((constructor)) static void first(void) {
    kept = strcpy(malloc(300000), "constructor\n");
    use();
}

__attribute__((destructor)) static void last(void) {
    use();
    if (kept) say(kept);
    free(kept);
    use();
    say("destructor\n");
}

#else

static void at_exit(void) {
    use();
    say("atexit\n");
}

static void of_key(void *block) {
    use();
    free(block);
    say("key\n");
}

static pthread_key_t key;

static void *thread(void *with) {
    pthread_setspecific(key, malloc(100));
    use();
    return with;
}

/* Frees pointers that mimalloc never returned, at powers of two from 512 MiB to 32 TiB from an
   object, and at the end of the 512 MiB around it, which one part of mimalloc's page map covers.
   Does so only with pages=off: otherwise the heap owns addresses there, and free trusts them. */
static void strays(void) {
    const char *options = getenv("GLEBE_MALLOC");
    if (!options || !strstr(options, "pages=off")) return;
    char *block = malloc(100);
    uintptr_t at = (uintptr_t)block;
    free(block);
    for (int bit = 29; bit < 46; bit++) {
        free((void *)((at ^ (uintptr_t)1 << bit) | 0xffff00));
        free((void *)(at ^ (uintptr_t)1 << bit));
    }
    free((void *)((at | 0x1fffffff) - 15));
}

/* Frees pointers that no allocator has returned: free ignores them and keeps errno. */
static void foreign(void) {
    static char own[100];
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *volatile all[] = {NULL, own, page, page + 8, (void *)0x10000, (void *)((uintptr_t)1 << 46),
                            &page};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        errno = 7;
        free(all[n]);
        if (errno != 7) _exit(6);
    }
    strays();
    say("foreign\n");
}

/* Checks that free keeps errno, also where the kernel refuses to mark or drop locked memory. */
static void locked(void) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) {
        say("unlocked\n");
        return;
    }
    for (int n = 0; n < 200; n++) {
        size_t size = (size_t)1000 << n % 14;
        void *block = n % 5 ? malloc(size) : aligned_alloc((size_t)1 << 20, size);
        if (!block) continue;
        memset(block, 1, size);
        errno = 7;
        free(block);
        if (errno != 7) _exit(7);
    }
    say("locked\n");
}

int main(void) {
    pthread_t id;
    atexit(at_exit);
    pthread_key_create(&key, of_key);
    pthread_create(&id, NULL, thread, NULL);
    pthread_join(id, NULL);
    foreign();
    locked();
    return 0;
}

#endif
