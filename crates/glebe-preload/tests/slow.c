/* Makes all threads but the first hold mimalloc's locks longer: each unlock first waits 1 ms. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int (*unlock)(pthread_mutex_t *);
static _Atomic long slow_unlocks;

__attribute__((constructor)) static void begin(void) {
    unlock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
}

__attribute__((destructor)) static void end(void) {
    printf("slow_unlocks=%ld\n", slow_unlocks);
}

static int is_the_librarys(void *at) {
    Dl_info about;
    return dladdr(at, &about) && strstr(about.dli_fname, "libglebe_malloc");
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    if (!unlock) begin();
    if (gettid() != getpid() && is_the_librarys(__builtin_return_address(0))) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        slow_unlocks++;
    }
    return unlock(mutex);
}
