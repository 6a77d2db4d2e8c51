/* A bad day each, by name: `days NAME`. Prints the statistics at its end as name=value, and returns
 * 0 if all that it had was right. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "glebe_malloc.h"

#define MIB (1ul << 20)
#define SKIPPED 77
#define BLOCKS 400
#define BLOCK (512 << 10)

static char *blocks[BLOCKS];
static volatile sig_atomic_t asked;
static volatile sig_atomic_t forked;

static struct glebe_malloc_stats stats(void) {
    struct glebe_malloc_stats now = {.size = sizeof now};
    if (glebe_malloc_get_stats(&now)) abort();
    return now;
}

static void fail(const char *what) {
    printf("failed: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

/* Fills so many blocks, and frees them. */
static void fill(int count) {
    for (int n = 0; n < count; n++) {
        if (!(blocks[n] = malloc(BLOCK))) fail("malloc");
        memset(blocks[n], n + 1, BLOCK);
    }
}

static void empty(int count) {
    for (int n = 0; n < count; n++) {
        if (blocks[n][BLOCK / 2] != (char)(n + 1)) fail("a block has changed");
        free(blocks[n]);
    }
}

/* Waits for the keeper: until it has looked, and marked or given back what was freed. Ends by
 * itself where there is none. */
static void settle(void) {
    for (int n = 0; n < 4000; n++) {
        free(malloc(64));
        usleep(5000);
        struct glebe_malloc_stats now = stats();
        if (now.looks > 1 && (now.free_bytes < 4 * MIB || now.refused)) return;
    }
}

static void ask(int number) {
    stats();
    asked++;
    (void)number;
}

/* A child each hundredth time: it does nothing. */
static void ask_and_fork(int number) {
    ask(number);
    if (asked % 100) return;
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0 || waitpid(child, NULL, 0) != child) fail("fork");
    forked++;
}

static void on(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (sigaction(number, &action, NULL)) fail("sigaction");
}

/* A handler asks for the statistics a thousand times a second, and forks, whatever the thread does:
 * trims, frees that give back, allocations. */
static void ticks(int flags) {
    fill(BLOCKS);
    empty(BLOCKS);
    settle();
    on(SIGALRM, ask_and_fork, flags);
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int turn = 0; turn < 2000 && (turn < 20 || forked < 5); turn++) {
        fill(BLOCKS / 4);
        empty(BLOCKS / 4);
        malloc_trim(0);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    if (!asked || forked < 5) fail("no handler ran");
}

static int in_fork;
static void raise_in_fork(void) {
    if (in_fork) raise(SIGUSR2);
}

/* A handler asks while its thread forks, after the library's own step. */
static void handler_in_fork(void) {
    on(SIGUSR2, ask, 0);
    fill(BLOCKS);
    empty(BLOCKS);
    settle();
    if (!stats().volatile_bytes) fail("nothing is marked");
    in_fork = 1;
    pid_t child = fork();
    if (child == 0) _exit(asked == 1 ? 0 : 3);
    int status;
    if (waitpid(child, &status, 0) != child || status || asked != 1) fail("fork");
}

/* Large objects come from the heap's own memory, and are used again without a fault each page. */
static void large(size_t mib, size_t touched) {
    fill(BLOCKS);
    for (int turn = 0; turn < 3; turn++) {
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        char *object = malloc(mib * MIB);
        if (!object) fail("malloc");
        if (stats().live_bytes < mib * MIB) fail("a large object is elsewhere");
        memset(object, 1, touched * MIB);
        free(object);
        getrusage(RUSAGE_SELF, &after);
        printf("turn%d=%ld\n", turn, after.ru_minflt - before.ru_minflt);
    }
    empty(BLOCKS);
}

static unsigned long smaps(const char *name) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[200];
    unsigned long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0) kib = strtoul(line + strlen(name), NULL, 10);
    if (file) fclose(file);
    return kib << 10;
}

/* What the kernel may take and what it took is what the statistics say. */
static void volatile_memory(void) {
    fill(BLOCKS);
    char *first = blocks[0], *last = blocks[BLOCKS - 1] + BLOCK;
    empty(BLOCKS);
    settle();
    struct glebe_malloc_stats before = stats();
    unsigned long lazy = smaps("LazyFree:"), rss = smaps("Rss:");
    printf("lazy=%lu\nrss=%lu\n", lazy, rss);
    printf("resident_before=%lu\nless_before=%lu\n", before.volatile_resident_bytes,
           before.rss_less_reclaimable_bytes);
    /* Half of it goes, as if others had needed it. */
    char *from = (char *)(((size_t)first + 2 * MIB - 1) & ~(2 * MIB - 1));
    if (last > from + 100 * MIB) madvise(from, 100 * MIB, MADV_PAGEOUT);
    printf("lazy_after=%lu\n", smaps("LazyFree:"));
    stats();
}

static void *allocate(void *with) {
    for (int n = 0; n < 20; n++) {
        char *object = malloc(1000 + 5000 * (size_t)n);
        if (!object) fail("malloc");
        memset(object, n, 1000);
        free(object);
    }
    return with;
}

static void threads(void) {
    static pthread_t all[1000];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int n = 0; n < 1000; n++)
        if ((errno = pthread_create(&all[n], &small, allocate, NULL))) fail("pthread_create");
    for (int n = 0; n < 1000; n++) pthread_join(all[n], NULL);
}

int main(int count, char **arguments) {
    /* Before the library's own step is added: so it runs after that. */
    pthread_atfork(raise_in_fork, NULL, NULL);
    const char *day = count > 1 ? arguments[1] : "";
    if (strcmp(day, "ticks") == 0) ticks(0);
    else if (strcmp(day, "ticks-restart") == 0) ticks(SA_RESTART);
    else if (strcmp(day, "fork") == 0) handler_in_fork();
    else if (strcmp(day, "large") == 0) large(strtoul(arguments[2], NULL, 10), 1);
    else if (strcmp(day, "large-filled") == 0) large(1100, 1100);
    else if (strcmp(day, "volatile") == 0) volatile_memory();
    else if (strcmp(day, "threads") == 0) threads();
    else if (strcmp(day, "limit") == 0) {
        free(malloc(100));
        struct rlimit few = {4ul << 30, 4ul << 30};
        if (setrlimit(RLIMIT_AS, &few)) fail("setrlimit");
        pthread_t thread;
        if ((errno = pthread_create(&thread, NULL, allocate, NULL))) fail("pthread_create");
        pthread_join(thread, NULL);
    } else if (strcmp(day, "lock") == 0) {
        if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)) return SKIPPED;
    } else if (strcmp(day, "shrink") == 0) {
        fill(BLOCKS);
        empty(BLOCKS);
        settle();
        puts("ready");
        fflush(stdout);
        if (getchar() != '\n') fail("getchar");
        fill(BLOCKS / 4);
        empty(BLOCKS / 4);
    }
    /* What every day ends with. */
    for (int turn = 0; turn < 3; turn++) {
        fill(BLOCKS / 4);
        empty(BLOCKS / 4);
    }
    settle();
    char text[4096];
    long len = glebe_malloc_format_stats(text, sizeof text, GLEBE_MALLOC_TEXT);
    if (len < 0 || len >= (long)sizeof text) return 1;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char name[100];
        unsigned long value;
        if (sscanf(line, "%99s %lu", name, &value) == 2) printf("%s=%lu\n", name, value);
    }
    return 0;
}
