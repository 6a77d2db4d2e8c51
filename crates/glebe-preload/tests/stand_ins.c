/* With -DSTAND_INS: a library that replaces functions that a malloc calls. The variable STAND_INS
   names the function that allocates, or is "all". It allocates at each thread's first call, or with
   STAND_INS_ALWAYS at every call. Without -DSTAND_INS: a program that checks its objects. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#ifdef STAND_INS

#define KEPT 64

static __thread int is_inside;
static __thread unsigned calls;
static __thread char *kept[KEPT];
static unsigned met;

unsigned stand_ins_met(void) {
    return __atomic_load_n(&met, __ATOMIC_RELAXED);
}

static void spoilt(const char *what) {
    is_inside = 1;
    if (write(2, what, strlen(what)) < 0) _exit(8);
    _exit(9);
}

/* Reads environ, because getenv is replaced here. */
static const char *variable(const char *name) {
    size_t len = strlen(name);
    for (char **at = environ; *at; at++)
        if (!strncmp(*at, name, len) && (*at)[len] == '=') return *at + len + 1;
    return "";
}

static void allocate(const char *name, char *seen) {
    static const char *asked, *always;
    if (is_inside || !environ) return;
    is_inside = 1;
    if (!asked) {
        asked = variable("STAND_INS");
        always = variable("STAND_INS_ALWAYS");
    }
    int is_asked = !strcmp(asked, "all") || !strcmp(asked, name);
    if (is_asked && (!*seen || *always)) {
        __atomic_fetch_add(&met, 1, __ATOMIC_RELAXED);
        for (int n = *seen ? 2 : KEPT; n > 0; n--, calls++) {
            char **at = &kept[calls * 7 % KEPT];
            size_t size = 16 + calls * 7 % KEPT * 40;
            for (int k = 0; *at && k < 16; k++)
                if ((*at)[k] != 'k') spoilt("an object of a stand-in is spoilt\n");
            if (calls % 3) {
                free(*at);
                *at = calls % 5 ? malloc(size) : aligned_alloc(64, (size + 63) / 64 * 64);
            } else {
                *at = realloc(*at, size);
            }
            if (!*at) spoilt("no memory for a stand-in\n");
            memset(*at, 'k', size);
        }
        *seen = 1;
    }
    is_inside = 0;
}

/* Defines a function that may allocate, and then calls the next library's function. */
#define STAND_IN(type, name, takes, gives)                                                         \
    type name takes {                                                                              \
        static __thread char seen;                                                                 \
        static type(*behind) takes;                                                                \
        if (!behind) {                                                                             \
            int was = is_inside;                                                                   \
            is_inside = 1;                                                                         \
            behind = (type(*) takes)dlsym(RTLD_NEXT, #name);                                       \
            is_inside = was;                                                                       \
        }                                                                                          \
        allocate(#name, &seen);                                                                    \
        return behind gives;                                                                       \
    }

STAND_IN(int, clock_gettime, (clockid_t clock, struct timespec *time), (clock, time))
STAND_IN(char *, getenv, (const char *name), (name))
STAND_IN(char *, secure_getenv, (const char *name), (name))
STAND_IN(unsigned long, getauxval, (unsigned long type), (type))
STAND_IN(long, sysconf, (int name), (name))
STAND_IN(int, sysinfo, (struct sysinfo * info), (info))
STAND_IN(void *, mmap, (void *at, size_t len, int access, int flags, int fd, off_t offset),
         (at, len, access, flags, fd, offset))
STAND_IN(int, munmap, (void *at, size_t len), (at, len))
STAND_IN(int, mprotect, (void *at, size_t len, int access), (at, len, access))
STAND_IN(int, madvise, (void *at, size_t len, int advice), (at, len, advice))
STAND_IN(ssize_t, read, (int fd, void *to, size_t len), (fd, to, len))
STAND_IN(ssize_t, write, (int fd, const void *from, size_t len), (fd, from, len))
STAND_IN(int, close, (int fd), (fd))
STAND_IN(pid_t, getpid, (void), ())
STAND_IN(int, pthread_mutex_lock, (pthread_mutex_t * lock), (lock))
STAND_IN(int, pthread_mutex_trylock, (pthread_mutex_t * lock), (lock))
STAND_IN(int, pthread_mutex_init, (pthread_mutex_t * lock, const pthread_mutexattr_t *with),
         (lock, with))
STAND_IN(int, pthread_key_create, (pthread_key_t * key, void (*end)(void *)), (key, end))
STAND_IN(int, pthread_setspecific, (pthread_key_t key, const void *value), (key, value))
STAND_IN(int, pthread_sigmask, (int how, const sigset_t *set, sigset_t *was), (how, set, was))

int open(const char *path, int flags, ...) {
    static __thread char seen;
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    allocate("open", &seen);
    return openat(AT_FDCWD, path, flags, mode);
}

#else

#define OBJECTS 1000
#define THREADS 3

unsigned stand_ins_met(void) __attribute__((weak));

static void *objects(void *argument) {
    char **object = calloc(OBJECTS, sizeof *object);
    intptr_t wrong = 0, own = (intptr_t)argument;
    for (int round = 0; round < 2; round++) {
        for (int n = 0; n < OBJECTS; n++) {
            size_t size = (1 + (size_t)n * 7 % 3000) << round, at = 0;
            size_t had = round ? size / 2 : 0;
            object[n] = realloc(object[n], size);
            while (at < had && object[n][at] == (char)(n + own)) at++;
            wrong += at < had;
            memset(object[n], (char)(n + own), size);
        }
    }
    for (int n = 0; n < OBJECTS; n++) {
        size_t size = (1 + (size_t)n * 7 % 3000) << 1, at = 0;
        while (at < size && object[n][at] == (char)(n + own)) at++;
        wrong += at < size;
        free(object[n]);
    }
    free(object);
    for (int n = 0; n < 4; n++) {
        char *large = malloc(20000000);
        for (size_t at = 0; at < 20000000; at += 4096) large[at] = 1;
        free(large);
    }
    return (void *)wrong;
}

int main(void) {
    pthread_t threads[THREADS];
    intptr_t wrong = (intptr_t)objects((void *)7);
    for (intptr_t n = 0; n < THREADS; n++)
        if (pthread_create(&threads[n], NULL, objects, (void *)n)) return 2;
    for (int n = 0; n < THREADS; n++) {
        void *found;
        pthread_join(threads[n], &found);
        wrong += (intptr_t)found;
    }
    printf("wrong=%ld\nmet=%u\n", (long)wrong, stand_ins_met ? stand_ins_met() : 0);
    return 0;
}

#endif
