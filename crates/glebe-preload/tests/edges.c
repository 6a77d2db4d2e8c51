/* Prints how malloc(3), posix_memalign(3) and related functions behave at their limits: a line for
   each call, with its result and what it did to errno, which is 7 before. The line of a call that
   returns memory omits errno, because C and POSIX allow the call to change errno. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEFORE 7
/* Volatile, because a compiler that knew the values would warn. */
static volatile size_t MOST = PTRDIFF_MAX, ALL = SIZE_MAX, BIG = (size_t)1 << 32;

static void *last;

static const char *of_errno(int number) {
    return number == BEFORE ? "kept" : number == ENOMEM ? "ENOMEM" : number == EINVAL ? "EINVAL" : "other";
}

#define MEMORY(call, size)                                                                         \
    do {                                                                                           \
        errno = BEFORE;                                                                            \
        last = (call);                                                                             \
        int number = errno;                                                                        \
        if (last) memset(last, 0x5a, (size));                                                      \
        if (last) printf("%s: memory\n", #call);                                                    \
        else printf("%s: null, errno %s\n", #call, of_errno(number));                               \
    } while (0)

#define NUMBER(call)                                                                               \
    do {                                                                                           \
        errno = BEFORE;                                                                            \
        long got = (long)(call);                                                                   \
        int number = errno;                                                                        \
        printf("%s: %ld, errno %s\n", #call, got, of_errno(number));                               \
    } while (0)

#define NOTHING(call)                                                                              \
    do {                                                                                           \
        errno = BEFORE;                                                                            \
        call;                                                                                      \
        printf("%s: errno %s\n", #call, of_errno(errno));                                          \
    } while (0)

static int aligned(size_t to) { return last && (uintptr_t)last % to == 0; }

static int all(unsigned char byte, size_t len) {
    for (size_t n = 0; n < len; n++)
        if (((unsigned char *)last)[n] != byte) return 0;
    return 1;
}

static void sizes(void) {
    MEMORY(malloc(0), 0);
    void *first = last;
    MEMORY(malloc(0), 0);
    NUMBER(last != first);
    NOTHING(free(first));
    NOTHING(free(last));
    MEMORY(malloc(1), 1);
    NUMBER(malloc_usable_size(last) >= 1);
    NOTHING(free(last));
    NUMBER(malloc_usable_size(NULL));
    MEMORY(malloc(16), 16);
    NUMBER(aligned(_Alignof(max_align_t)));
    NUMBER(malloc_usable_size(last) >= 16 && malloc_usable_size(last) < 64);
    NOTHING(free(last));
    MEMORY(malloc(MOST), 0);
    MEMORY(malloc(MOST + 1), 0);
    MEMORY(malloc(ALL), 0);
    MEMORY(malloc(100 << 20), 100 << 20);
    NOTHING(free(last));
    NOTHING(free(NULL));
}

static void zeroed(void) {
    MEMORY(calloc(0, 0), 0);
    NOTHING(free(last));
    MEMORY(calloc(0, 10), 0);
    NOTHING(free(last));
    MEMORY(calloc(10, 0), 0);
    NOTHING(free(last));
    MEMORY(calloc(ALL, 2), 0);
    MEMORY(calloc(2, ALL), 0);
    MEMORY(calloc(ALL / 2, 3), 0);
    MEMORY(calloc(1, MOST + 1), 0);
    MEMORY(calloc(BIG, BIG), 0);
    /* calloc must clear memory that was used before. */
    static const size_t lengths[] = {8, 100, 4000, 70000, 3 << 20, 40 << 20};
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        void *old[4];
        for (int k = 0; k < 4; k++) memset(old[k] = malloc(lengths[n]), 0xff, lengths[n]);
        for (int k = 0; k < 4; k++) free(old[k]);
        int zero = 1;
        for (int k = 0; k < 4; k++) {
            last = old[k] = calloc(lengths[n] / 4, 4);
            zero = zero && all(0, lengths[n] / 4 * 4);
        }
        for (int k = 0; k < 4; k++) free(old[k]);
        printf("calloc of %zu used bytes: %s\n", lengths[n], zero ? "zeros" : "DIRTY");
    }
}

static void resized(void) {
    MEMORY(realloc(NULL, 0), 0);
    NOTHING(free(last));
    MEMORY(realloc(NULL, 30), 30);
    MEMORY(realloc(last, 3000), 0);
    NUMBER(all(0x5a, 30));
    memset(last, 0x5a, 3000);
    MEMORY(realloc(last, 5 << 20), 0);
    NUMBER(all(0x5a, 3000));
    MEMORY(realloc(last, 10), 0);
    NUMBER(all(0x5a, 10));
    void *kept = last;
    MEMORY(realloc(kept, MOST + 1), 0);
    MEMORY(realloc(kept, ALL), 0);
    MEMORY(reallocarray(kept, ALL, 2), 0);
    MEMORY(reallocarray(kept, ALL / 4, 8), 0);
    last = kept;
    NUMBER(all(0x5a, 10));
    MEMORY(realloc(kept, 0), 0);
    MEMORY(reallocarray(NULL, 10, 10), 100);
    MEMORY(reallocarray(last, 0, 10), 0);
    MEMORY(reallocarray(NULL, ALL / 2 + 1, 2), 0);
    /* realloc keeps the bytes but not the alignment. */
    MEMORY(aligned_alloc(4096, 5000), 5000);
    MEMORY(realloc(last, 9000), 0);
    NUMBER(all(0x5a, 5000));
    NOTHING(free(last));
}

static int posix(size_t align, size_t size) {
    last = &last;
    int answer = posix_memalign(&last, align, size);
    if (answer != 0) return last == &last ? answer : -1;
    int good = aligned(align);
    memset(last, 1, size);
    free(last);
    return good ? 0 : -2;
}

static void alignments(void) {
    NUMBER(posix(8, 10));
    NUMBER(posix(4096, 0));
    NUMBER(posix(1 << 20, 1));
    NUMBER(posix(64 << 20, 100));
    NUMBER(posix(0, 10) == EINVAL);
    NUMBER(posix(1, 10) == EINVAL);
    NUMBER(posix(4, 10) == EINVAL);
    NUMBER(posix(24, 10) == EINVAL);
    NUMBER(posix(MOST + 1, 10) == ENOMEM);
    NUMBER(posix(64, MOST + 1) == ENOMEM);
    NUMBER(posix(64, ALL) == ENOMEM);
    MEMORY(aligned_alloc(64, 1), 1);
    NUMBER(aligned(64));
    NOTHING(free(last));
    MEMORY(aligned_alloc(64, 100), 100);
    NUMBER(aligned(64) && malloc_usable_size(last) >= 100);
    NOTHING(free(last));
    MEMORY(aligned_alloc(1, 10), 10);
    NOTHING(free(last));
    MEMORY(aligned_alloc(0, 10), 0);
    MEMORY(aligned_alloc(3, 10), 0);
    MEMORY(aligned_alloc(MOST + 2, 10), 0);
    MEMORY(aligned_alloc(MOST + 1, 10), 0);
    MEMORY(aligned_alloc(4096, MOST + 1), 0);
    MEMORY(aligned_alloc(4096, ALL), 0);
    MEMORY(aligned_alloc(2, 0), 0);
    NOTHING(free(last));
    MEMORY(memalign(0, 10), 10);
    NOTHING(free(last));
    MEMORY(memalign(3, 10), 10);
    NOTHING(free(last));
    MEMORY(memalign(33, 10), 10);
    NUMBER(aligned(64));
    NOTHING(free(last));
    MEMORY(memalign(2000, 5000), 5000);
    NUMBER(aligned(2048));
    NOTHING(free(last));
    MEMORY(memalign(MOST + 2, 10), 0);
    MEMORY(memalign(ALL, 10), 0);
    MEMORY(memalign(64, MOST + 1), 0);
    MEMORY(valloc(100), 100);
    NUMBER(aligned((size_t)sysconf(_SC_PAGESIZE)));
    NOTHING(free(last));
    MEMORY(valloc(MOST + 1), 0);
    MEMORY(pvalloc(1), (size_t)sysconf(_SC_PAGESIZE));
    NUMBER(aligned((size_t)sysconf(_SC_PAGESIZE)));
    NOTHING(free(last));
    MEMORY(pvalloc(0), 0);
    NOTHING(free(last));
    MEMORY(pvalloc(ALL), 0);
    MEMORY(pvalloc(ALL - 4094), 0);
}

static void told(void) {
    last = malloc(50 << 20);
    memset(last, 1, 50 << 20);
    struct mallinfo2 with = mallinfo2();
    NUMBER(with.arena >= with.uordblks);
    NUMBER((size_t)mallinfo2().arena == mallinfo2().uordblks + mallinfo2().fordblks);
    NOTHING(free(last));
    NUMBER(mallopt(M_TRIM_THRESHOLD, 1 << 20));
    NUMBER(mallopt(M_ARENA_MAX, 1));
    NUMBER(malloc_trim(0) >= 0);
    NUMBER(malloc_trim(0));
    FILE *nowhere = fopen("/dev/null", "w");
    NUMBER(malloc_info(0, nowhere));
    NUMBER(malloc_info(1, nowhere) == EINVAL);
    fclose(nowhere);
}

static void named(void) {
    static const char *const names[] = {"__libc_malloc", "__libc_calloc", "__libc_realloc", "__libc_free",
        "__libc_memalign", "__libc_valloc", "__libc_pvalloc", "__libc_mallinfo", "__libc_mallopt"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        printf("%s: %s\n", names[n], dlsym(RTLD_DEFAULT, names[n]) ? "there" : "lacking");
    void *(*theirs)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "__libc_malloc");
    MEMORY(theirs(100), 100);
    NOTHING(free(last));
    /* Older C libraries lack the two functions that are new in C23. */
    void (*sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void (*both)(void *, size_t, size_t) =
        (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    printf("C23: %s\n", sized && both ? "there" : "lacking");
    if (sized) NOTHING(sized(malloc(100), 100));
    if (both) NOTHING(both(aligned_alloc(64, 128), 64, 128));
}

int main(void) {
    sizes();
    zeroed();
    resized();
    alignments();
    told();
    named();
    return 0;
}
