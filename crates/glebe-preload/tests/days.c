/* Runs one scenario that is hard for an allocator: `days NAME`. Prints the statistics at the end as
 * name=value. Returns 0 if all checks passed, or 77 if the machine cannot run the scenario. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "glebe_malloc.h"

#define MIB (1ul << 20)
#define SKIPPED 77
#define BLOCKS 400
#define BLOCK (512 << 10)

#ifdef OWN_VARIABLES
/* Thread-local bytes of each thread. */
static __thread volatile char own_variables[OWN_VARIABLES];
#endif

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

static int share(int all) {
    const char *is_long = getenv("GLEBE_LONG");
    return is_long && *is_long && strcmp(is_long, "0") ? all : all / 3;
}

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

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Waits until the keeper has looked, and was refused or has left less than 4 MiB of free memory
 * unmarked. Pages between live objects may stay free, so the wait also ends once free memory has
 * not shrunk during 3 looks and 2 seconds. Returns at once if glebe has no heap, and after about 20
 * seconds in any case. */
static void settle(void) {
    unsigned long least = ~0ul, looks = 0;
    double since = 0;
    for (int n = 0; n < 4000; n++) {
        free(malloc(64));
        usleep(5000);
        struct glebe_malloc_stats now = stats();
        if (!now.address_bytes) return;
        if (now.looks && (now.free_bytes < 4 * MIB || now.refused)) return;
        if (now.free_bytes < least) {
            least = now.free_bytes;
            looks = now.looks;
            since = seconds(CLOCK_MONOTONIC);
        }
        if (now.looks >= looks + 3 && seconds(CLOCK_MONOTONIC) > since + 2) return;
    }
}

static void ask(int number) {
    stats();
    asked++;
    (void)number;
}

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

/* A signal handler asks for the statistics 1000 times a second, and forks at each hundredth signal,
 * while the thread asks, fills, frees and trims. */
static void ticks(int flags) {
    fill(BLOCKS);
    empty(BLOCKS);
    settle();
    on(SIGALRM, ask_and_fork, flags);
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int turn = 0; turn < 1000000 && forked < 5; turn++) stats();
    for (int turn = 0; turn < 2000 && (turn < 20 || forked < 10); turn++) {
        fill(BLOCKS / 4);
        empty(BLOCKS / 4);
        malloc_trim(0);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    if (forked < 10) fail("no handler ran");
}

static int in_fork;
static void raise_in_fork(void) {
    if (in_fork) raise(SIGUSR2);
}

/* A handler asks for the statistics while its thread forks, before the library's prepare step. */
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

/* Large objects use the heap's own memory. Prints the page faults of each turn: few, if an object
 * reuses the memory of the one before. */
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
    /* Evicts 100 MiB, if the blocks span more, as memory pressure would. */
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

#define THREADS 1000

static void threads(int count) {
    static pthread_t all[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    if (count > THREADS) fail("threads");
    for (int n = 0; n < count; n++)
        if ((errno = pthread_create(&all[n], &small, allocate, NULL))) fail("pthread_create");
    for (int n = 0; n < count; n++) pthread_join(all[n], NULL);
}

static volatile int is_over;

static void *start_threads(void *with) {
    while (!is_over) {
        pthread_t threads[4];
        for (int n = 0; n < 4; n++)
            if ((errno = pthread_create(&threads[n], NULL, allocate, NULL))) fail("create");
        for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    }
    return with;
}

static void children_with_threads(void) {
    pthread_t churns[2], own;
    for (int n = 0; n < 2; n++)
        if ((errno = pthread_create(&churns[n], NULL, start_threads, NULL))) fail("create");
    for (int n = 0; n < 40; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            if ((errno = pthread_create(&own, NULL, allocate, NULL))) fail("create");
            pthread_join(own, NULL);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status) fail("a child's thread");
    }
    is_over = 1;
    for (int n = 0; n < 2; n++) pthread_join(churns[n], NULL);
}

/* The keeper is due to start, but a vfork child, which shares this memory, allocates next. */
static void borrow(void) {
    blocks[0] = malloc(100 * MIB);
    memset(blocks[0], 1, 100 * MIB);
    pid_t child = vfork();
    if (child == 0) {
        free(malloc(64));
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    if (child < 0 || waitpid(child, NULL, 0) != child) fail("vfork");
    free(blocks[0]);
}

/* Seconds for which the keeper relies on the cgroups that it found. */
#define FOUND_FOR 5

/* Changes to a root folder without /proc and /sys, and waits until the keeper has looked for
 * cgroups there. */
static void confine(void) {
    fill(BLOCKS);
    empty(BLOCKS);
    settle();
    if (chdir("/") || chroot("/dev/shm")) exit(SKIPPED);
    double end = seconds(CLOCK_MONOTONIC) + FOUND_FOR;
    unsigned long looks = 0;
    /* Waits for two looks after `end`, because the first may have begun before `end`. */
    for (int turn = 0; !looks || stats().looks < looks + 2; turn++) {
        if (turn == 1000) fail("the keeper does not look");
        fill(BLOCKS / 4);
        empty(BLOCKS / 4);
        usleep(50000);
        if (!looks && seconds(CLOCK_MONOTONIC) > end) looks = stats().looks;
    }
}

static void free_all(void *with) {
    char **mine = with;
    for (int n = 0; n < 8; n++) free(mine[n]);
}

static void *until_cancelled(void *with) {
    char *mine[8] = {0};
    pthread_cleanup_push(free_all, mine);
    for (int n = 0;; n++) {
        free(mine[n % 8]);
        if (!(mine[n % 8] = malloc(n % 3 ? 5000 : 300000))) fail("malloc");
        mine[n % 8][0] = 1;
        pthread_testcancel();
    }
    pthread_cleanup_pop(1);
    return with;
}

/* Memory of threads that are cancelled while they allocate and free must not pile up. */
static void cancel(void) {
    for (int n = 0, turns = share(300); n < turns; n++) {
        pthread_t threads[2];
        for (int k = 0; k < 2; k++)
            if ((errno = pthread_create(&threads[k], NULL, until_cancelled, NULL))) fail("create");
        usleep(500);
        for (int k = 0; k < 2; k++) pthread_cancel(threads[k]);
        for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
    }
    if (stats().live_bytes > 64 * MIB) fail("memory of ended threads is lost");
}

static void *trim_on(void *with) {
    while (!is_over) {
        char *object = malloc(32 * MIB);
        if (!object) fail("malloc");
        memset(object, 1, 32 * MIB);
        free(object);
        malloc_trim(0);
    }
    return with;
}

/* Runs as SCHED_FIFO beside another thread and the keeper, all on one processor. While this thread
 * waits for their calls, it must let them run. If it spun, the kernel would stop it only after
 * about a second. */
static void first_in_line(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    /* New threads inherit the affinity. */
    if (sched_setaffinity(0, sizeof one, &one)) fail("sched_setaffinity");
    fill(BLOCKS);
    empty(BLOCKS);
    settle();
    pthread_t other;
    if ((errno = pthread_create(&other, NULL, trim_on, NULL))) fail("pthread_create");
    struct sched_param rank = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &rank)) exit(SKIPPED);
    double before = seconds(CLOCK_THREAD_CPUTIME_ID);
    for (int turn = 0; turn < 300; turn++) {
        fill(BLOCKS / 10);
        empty(BLOCKS / 10);
        malloc_trim(0);
        double now = seconds(CLOCK_THREAD_CPUTIME_ID);
        if (now - before > 0.4) fail("it spins");
        before = now;
        usleep(turn % 4 * 1000);
    }
    rank.sched_priority = 0;
    if (sched_setscheduler(0, SCHED_OTHER, &rank)) fail("sched_setscheduler");
    is_over = 1;
    pthread_join(other, NULL);
}

#define MAPPINGS 2000000
#define FEW (BLOCKS / 10)

/* The kernel refuses further mappings. Freed memory must be reused. Until mappings are removed,
 * mimalloc may fail to grow its tables, and the keeper to start. */
static void mappings(void) {
    static char *taken[MAPPINGS];
    size_t count = 0, page = (size_t)sysconf(_SC_PAGESIZE);
    /* So few blocks do not start the keeper. */
    fill(FEW);
    empty(FEW);
    /* Neighbours with different protection stay separate mappings. */
    while (count < MAPPINGS) {
        char *at = mmap(NULL, page, count % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
        if (at == MAP_FAILED) break;
        taken[count++] = at;
    }
    if (count == MAPPINGS) exit(SKIPPED);
    for (int turn = 0; turn < 3; turn++) {
        int had = 0;
        for (; had < BLOCKS && (blocks[had] = malloc(BLOCK)); had++)
            memset(blocks[had], had + 1, BLOCK);
        if (had < FEW) fail("memory that was freed is not used again");
        empty(had);
        malloc_trim(0);
    }
    while (count) munmap(taken[--count], page);
    fill(BLOCKS);
    empty(BLOCKS);
}

/* Holds the loader's list of libraries and the standard streams locked while the keeper starts,
 * looks and marks: the keeper must not wait for a lock that a caller of malloc may hold. */
static int with_libraries_locked(struct dl_phdr_info *info, size_t size, void *with) {
    flockfile(stdout);
    flockfile(stderr);
    fill(BLOCKS);
    empty(BLOCKS);
    settle();
    struct glebe_malloc_stats now = stats();
    if (!now.keeper) fail("no keeper started");
    if (!now.looks || (now.free_bytes >= 4 * MIB && !now.refused)) fail("the keeper waits");
    funlockfile(stderr);
    funlockfile(stdout);
    return (void)info, (void)size, (void)with, 1;
}

int main(int count, char **arguments) {
    /* Prepare steps run in reverse order of registration: this one before the library's. */
    pthread_atfork(raise_in_fork, NULL, NULL);
    const char *day = count > 1 ? arguments[1] : "";
#ifdef OWN_VARIABLES
    own_variables[count] = 1;
#endif
    if (strcmp(day, "ticks") == 0) ticks(0);
    else if (strcmp(day, "ticks-restart") == 0) ticks(SA_RESTART);
    else if (strcmp(day, "fork") == 0) handler_in_fork();
    else if (strcmp(day, "large") == 0) large(strtoul(arguments[2], NULL, 10), 1);
    else if (strcmp(day, "large-filled") == 0) large(1100, (size_t)share(1100));
    else if (strcmp(day, "volatile") == 0) volatile_memory();
    else if (strcmp(day, "threads") == 0) threads(count > 2 ? atoi(arguments[2]) : THREADS);
    else if (strcmp(day, "cancel") == 0) cancel();
    else if (strcmp(day, "children") == 0) children_with_threads();
    else if (strcmp(day, "chroot") == 0) confine();
    else if (strcmp(day, "vfork") == 0) borrow();
    else if (strcmp(day, "first") == 0) first_in_line();
    else if (strcmp(day, "mappings") == 0) mappings();
    else if (strcmp(day, "locked") == 0) dl_iterate_phdr(with_libraries_locked, NULL);
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
    for (int turn = 0; turn < 3; turn++) {
        fill(BLOCKS / 4);
        empty(BLOCKS / 4);
    }
    settle();
    char text[4096];
    long len = glebe_malloc_format_stats(text, sizeof text, GLEBE_MALLOC_JSON);
    if (len < 0 || len >= (long)sizeof text) return 1;
    for (char *member = strtok(text, "{,}"); member; member = strtok(NULL, "{,}")) {
        char name[100];
        unsigned long value;
        if (sscanf(member, "\"%99[^\"]\":%lu", name, &value) == 2) printf("%s=%lu\n", name, value);
    }
    return 0;
}
