/* Asks for huge pages as programs do, and checks what the kernel would promise. The argument names
 * a case. Prints what does not hold. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "glebe_huge.h"

#define PAGE (2ul << 20)
#define HUGE (MAP_ANONYMOUS | MAP_HUGETLB)
#define BOTH (PROT_READ | PROT_WRITE)
#define DONTNEED_LOCKED 24 /* MADV_DONTNEED_LOCKED */

static int failures;

#define CHECK(holds)                                                                               \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            printf("line %d: %s (%s)\n", __LINE__, #holds, strerror(errno));                       \
            fflush(stdout);                                                                        \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

static char *map(void *at, size_t pages, int prot, int flags)
{
    return mmap(at, pages * PAGE, prot, flags | HUGE, -1, 0);
}

static char *must(char *memory)
{
    if (memory == MAP_FAILED) {
        printf("no memory: %s\n", strerror(errno));
        exit(2);
    }
    return memory;
}

/* The first and the last byte of each page. */
static int all_are(const char *memory, size_t pages, char value)
{
    for (size_t nth = 0; nth < pages; nth++)
        if (memory[nth * PAGE] != value || memory[nth * PAGE + PAGE - 1] != value)
            return 0;
    return 1;
}

/* The status of a child that returns the number of failures. */
static int status_of(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void zeroed(void)
{
    for (int round = 0; round < 3; round++) {
        char *memory = must(map(NULL, 8, BOTH, MAP_PRIVATE));
        CHECK((uintptr_t)memory % PAGE == 0);
        CHECK(all_are(memory, 8, 0));
        memset(memory, 1, 8 * PAGE);
        CHECK(munmap(memory, 8 * PAGE) == 0);
    }
}

static void sizes(void)
{
    char *memory = must(mmap(NULL, 1, BOTH, HUGE | MAP_PRIVATE | (21 << MAP_HUGE_SHIFT), -1, 0));
    memory[PAGE - 1] = 1;
    CHECK(munmap(memory, 4096) == -1 && errno == EINVAL);
    CHECK(munmap(memory, PAGE) == 0);
    CHECK(map(NULL, 0, BOTH, MAP_PRIVATE) == MAP_FAILED && errno == EINVAL);
    CHECK(map((void *)4096, 1, BOTH, MAP_PRIVATE | MAP_FIXED) == MAP_FAILED && errno == EINVAL);
    /* No machine has pages of 2^47 bytes. */
    CHECK(mmap(NULL, 1, BOTH, HUGE | MAP_PRIVATE | (47 << MAP_HUGE_SHIFT), -1, 0) == MAP_FAILED);
}

static void private_fork(void)
{
    char *memory = must(map(NULL, 4, BOTH, MAP_PRIVATE));
    memset(memory, 7, 4 * PAGE);
    CHECK(mprotect(memory + 3 * PAGE, PAGE, PROT_NONE) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(all_are(memory, 3, 7));
        memset(memory, 9, 3 * PAGE);
        CHECK(mprotect(memory + 3 * PAGE, PAGE, BOTH) == 0);
        CHECK(all_are(memory + 3 * PAGE, 1, 7));
        pid_t grandchild = fork();
        if (grandchild == 0) {
            CHECK(all_are(memory, 3, 9));
            memset(memory, 10, PAGE);
            char *own = must(map(NULL, 1, BOTH, MAP_PRIVATE));
            CHECK(all_are(own, 1, 0));
            _exit(failures);
        }
        CHECK(status_of(grandchild) == 0);
        CHECK(all_are(memory, 3, 9));
        _exit(failures);
    }
    CHECK(status_of(child) == 0);
    CHECK(all_are(memory, 3, 7));
    CHECK(mprotect(memory + 3 * PAGE, PAGE, BOTH) == 0);
    CHECK(all_are(memory, 4, 7));
}

static void shared_fork(void)
{
    char *memory = must(map(NULL, 4, BOTH, MAP_SHARED));
    pid_t child = fork();
    if (child == 0) {
        memset(memory, 9, 2 * PAGE);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
    CHECK(all_are(memory, 2, 9) && all_are(memory + 2 * PAGE, 2, 0));
    /* The child keeps what the parent unmaps. */
    int ready[2], go[2];
    char byte = 0;
    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    child = fork();
    if (child == 0) {
        CHECK(read(go[0], &byte, 1) == 1);
        CHECK(all_are(memory, 2, 9));
        memset(memory, 1, 4 * PAGE);
        CHECK(munmap(memory, 4 * PAGE) == 0);
        _exit(failures);
    }
    CHECK(munmap(memory, 4 * PAGE) == 0);
    usleep(100000);
    CHECK(write(go[1], &byte, 1) == 1);
    CHECK(status_of(child) == 0);
}

static void no_fork(void)
{
    char *memory = must(map(NULL, 2, BOTH, MAP_PRIVATE));
    memory[0] = 1;
    pid_t child = fork();
    if (child == 0) {
        memory[0] = 2;
        _exit(0);
    }
    int status = status_of(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(memory[0] == 1);
}

static void own_no_fork(void)
{
    char *memory = must(map(NULL, 2, BOTH, MAP_PRIVATE));
    CHECK(madvise(memory, PAGE, MADV_DONTFORK) == 0);
    memset(memory, 1, 2 * PAGE);
    pid_t child = fork();
    if (child == 0) {
        CHECK(all_are(memory + PAGE, 1, 1));
        if (failures)
            _exit(failures);
        memory[0] = 2;
        _exit(0);
    }
    int status = status_of(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(madvise(memory, PAGE, MADV_DOFORK) == 0);
    child = fork();
    if (child == 0)
        _exit(!all_are(memory, 2, 1));
    CHECK(status_of(child) == 0);
}

static void vforked(void)
{
    char *memory = must(map(NULL, 2, BOTH, MAP_PRIVATE));
    memset(memory, 3, 2 * PAGE);
    CHECK(system("exit 3") == 3 << 8);
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    CHECK(status_of(child) == 0);
    CHECK(all_are(memory, 2, 3));
}

static void dontneed(void)
{
    char *memory = must(map(NULL, 4, BOTH, MAP_PRIVATE));
    memset(memory, 7, 4 * PAGE);
    CHECK(mprotect(memory + PAGE, PAGE, PROT_NONE) == 0);
    CHECK(madvise(memory, 2 * PAGE, MADV_DONTNEED) == 0);
    CHECK(mprotect(memory + PAGE, PAGE, PROT_READ) == 0);
    CHECK(all_are(memory, 2, 0) && all_are(memory + 2 * PAGE, 2, 7));
    CHECK(madvise(memory + 3 * PAGE, PAGE, DONTNEED_LOCKED) == 0 && memory[3 * PAGE] == 0);
    memset(memory + 3 * PAGE, 7, PAGE);
    CHECK(madvise(memory + 4096, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    CHECK(madvise(memory + 2 * PAGE, PAGE, MADV_FREE) == -1 && errno == EINVAL);
    CHECK(madvise(memory + 2 * PAGE, PAGE, MADV_REMOVE) == -1);
    CHECK(all_are(memory + 2 * PAGE, 2, 7));
    char *shared = must(map(NULL, 2, BOTH, MAP_SHARED));
    memset(shared, 7, 2 * PAGE);
    CHECK(madvise(shared, 2 * PAGE, MADV_DONTNEED) == 0);
    CHECK(all_are(shared, 2, 7));
    CHECK(madvise(shared, PAGE, MADV_REMOVE) == 0);
    CHECK(all_are(shared, 1, 0) && all_are(shared + PAGE, 1, 7));
    memset(shared, 8, 2 * PAGE);
    CHECK(all_are(shared, 2, 8));
}

static void fixed(void)
{
    char *room = must(mmap(NULL, 10 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *start = (char *)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
    CHECK(map(start, 4, BOTH, MAP_PRIVATE | MAP_FIXED) == start);
    memset(start, 1, 4 * PAGE);
    /* Over the second page: again huge, then ordinary, then no access, as a JVM does. */
    CHECK(map(start + PAGE, 1, BOTH, MAP_PRIVATE | MAP_FIXED) == start + PAGE);
    CHECK(all_are(start + PAGE, 1, 0) && start[0] == 1 && all_are(start + 2 * PAGE, 2, 1));
    int plain = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(start + PAGE, PAGE, BOTH, plain, -1, 0) == start + PAGE);
    CHECK(all_are(start + PAGE, 1, 0));
    memset(start + PAGE, 2, PAGE);
    CHECK(mmap(start, 4 * PAGE, PROT_NONE, plain | MAP_NORESERVE, -1, 0) == start);
    CHECK(map(start, 8, BOTH, MAP_PRIVATE | MAP_FIXED) == start);
    CHECK(all_are(start, 8, 0));
    CHECK(map(start, 1, BOTH, MAP_PRIVATE | MAP_FIXED_NOREPLACE) == MAP_FAILED);
    CHECK(all_are(start, 8, 0));
    CHECK(munmap(start, 8 * PAGE) == 0);
    CHECK(map(start, 1, BOTH, MAP_PRIVATE) == start);
    CHECK(map(start, 1, BOTH, MAP_PRIVATE) != start);
    CHECK(map(start + PAGE, 1, BOTH, MAP_PRIVATE | MAP_FIXED_NOREPLACE) == start + PAGE);
}

static void executable(void)
{
    char *memory = must(map(NULL, 1, BOTH | PROT_EXEC, MAP_PRIVATE));
#if defined(__x86_64__)
    memcpy(memory, "\xb8\x2a\x00\x00\x00\xc3", 6);
#elif defined(__aarch64__)
    memcpy(memory, "\x40\x05\x80\x52\xc0\x03\x5f\xd6", 8);
    __builtin___clear_cache(memory, memory + 8);
#else
    return;
#endif
    int (*function)(void);
    memcpy(&function, &memory, sizeof function);
    CHECK(function() == 42);
}

static void parts(void)
{
    char *memory = must(map(NULL, 8, BOTH, MAP_PRIVATE));
    memset(memory, 5, 8 * PAGE);
    CHECK(munmap(memory, PAGE) == 0 && munmap(memory + 4 * PAGE, 2 * PAGE) == 0);
    CHECK(all_are(memory + PAGE, 3, 5) && all_are(memory + 6 * PAGE, 2, 5));
    /* What the kernel puts there is the program's own. */
    int plain = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(memory, PAGE, BOTH, plain, -1, 0) == memory);
    memory[0] = 1;
    CHECK(madvise(memory, PAGE, MADV_DONTNEED) == 0 && memory[0] == 0);
    CHECK(munmap(memory, 8 * PAGE) == 0);
    CHECK(munmap(memory, 8 * PAGE) == 0);
}

static void moved(void)
{
    char *memory = must(map(NULL, 4, BOTH, MAP_PRIVATE));
    for (size_t nth = 0; nth < 4; nth++)
        memset(memory + nth * PAGE, 1 + (int)nth, PAGE);
    char *room = must(mmap(NULL, 10 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *to = (char *)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
    CHECK(mremap(memory, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(memory, 4 * PAGE, 4 * PAGE, 0) == memory);
    CHECK(mremap(memory, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + PAGE) ==
          MAP_FAILED);
    CHECK(mremap(memory, 4 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    for (size_t nth = 0; nth < 3; nth++)
        CHECK(all_are(to + nth * PAGE, 1, 1 + (char)nth));
    CHECK(mremap(to, 3 * PAGE, 2 * PAGE, 0) == to);
    CHECK(all_are(to + PAGE, 1, 2));
    pid_t child = fork();
    if (child == 0) {
        CHECK(all_are(to, 1, 1) && all_are(to + PAGE, 1, 2));
        memset(to, 0, 2 * PAGE);
        _exit(failures);
    }
    CHECK(status_of(child) == 0);
    CHECK(all_are(to, 1, 1));
    CHECK(munmap(to, 2 * PAGE) == 0);
}

static void protect(void)
{
    char *memory = must(map(NULL, 2, PROT_NONE, MAP_PRIVATE));
    CHECK(mprotect(memory, PAGE, BOTH) == 0);
    memory[0] = 1;
    pid_t child = fork();
    if (child == 0) {
        memory[PAGE] = 1;
        _exit(0);
    }
    int status = status_of(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(mprotect(memory + 4096, 4096, PROT_READ) == -1 && errno == EINVAL);
    CHECK(mprotect(memory + 4096, 4096, BOTH) == 0);
    struct rlimit none = {0, 0};
    if (geteuid() == 0 || setrlimit(RLIMIT_MEMLOCK, &none) == 0) {
        CHECK(mlock(memory, PAGE) == (geteuid() == 0 ? 0 : -1));
        CHECK(munlock(memory, PAGE) == 0);
    }
}

static char *in_handler;

static void handle(int signal)
{
    (void)signal;
    int error = errno;
    char *memory = map(NULL, 1, BOTH, MAP_PRIVATE);
    if (memory != MAP_FAILED) {
        memory[0] = 1;
        in_handler = memory;
        munmap(memory, PAGE);
    }
    errno = error;
}

static void signals(void)
{
    struct sigaction action = {.sa_handler = handle};
    struct itimerval often = {{0, 300}, {0, 300}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int nth = 0; nth < 300; nth++) {
        char *memory = must(map(NULL, 2, BOTH, nth % 2 ? MAP_PRIVATE : MAP_SHARED));
        memory[PAGE] = 1;
        CHECK(munmap(memory, 2 * PAGE) == 0);
    }
    often = (struct itimerval){{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    CHECK(in_handler != NULL);
}

static void *storm(void *seed)
{
    unsigned state = (unsigned)(uintptr_t)seed;
    for (int nth = 0; nth < 60; nth++) {
        size_t pages = 1 + (size_t)rand_r(&state) % 3;
        char *memory = map(NULL, pages, BOTH, rand_r(&state) % 4 ? MAP_PRIVATE : MAP_SHARED);
        if (memory == MAP_FAILED)
            continue;
        CHECK(all_are(memory, pages, 0));
        memset(memory, 1, pages * PAGE);
        if (rand_r(&state) % 8 == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit(!all_are(memory, pages, 1));
            CHECK(status_of(child) == 0);
        }
        CHECK(munmap(memory, pages * PAGE) == 0);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t all[6];
    for (uintptr_t nth = 0; nth < 6; nth++)
        CHECK(pthread_create(&all[nth], NULL, storm, (void *)(nth + 1)) == 0);
    for (int nth = 0; nth < 6; nth++)
        CHECK(pthread_join(all[nth], NULL) == 0);
}

static void smaps(void)
{
    char *memory = must(map(NULL, 4, BOTH, MAP_PRIVATE));
    memset(memory, 1, 4 * PAGE);
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, to, kib, huge = 0, is_inside = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            is_inside = from >= (uintptr_t)memory && to <= (uintptr_t)memory + 4 * PAGE;
        else if (is_inside && (sscanf(line, "Private_Hugetlb: %lu kB", &kib) == 1 ||
                               sscanf(line, "Shared_Hugetlb: %lu kB", &kib) == 1))
            huge += kib;
    }
    CHECK(file && huge == 4 * PAGE >> 10);
}

static void descriptors(void)
{
    char *one = must(map(NULL, 2, BOTH, MAP_PRIVATE)), *two = must(map(NULL, 2, BOTH, MAP_SHARED));
    int low = dup(1);
    CHECK(low >= 0 && low < 20);
    closefrom(3);
    CHECK(close_range(3, ~0u, 0) == 0);
    for (int fd = 3; fd < 2000; fd++) {
        close(fd);
        CHECK(dup2(0, fd) == fd || errno == EBADF);
    }
    usleep(50000);
    memset(one, 1, 2 * PAGE);
    memset(two, 1, 2 * PAGE);
    CHECK(all_are(one, 2, 1) && all_are(two, 2, 1));
    char *three = must(map(NULL, 2, BOTH, MAP_PRIVATE));
    CHECK(all_are(three, 2, 0));
}

static void few_files(void)
{
    struct rlimit few = {32, 32};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    char *memory = must(map(NULL, 16, BOTH, MAP_PRIVATE | MAP_POPULATE));
    CHECK(all_are(memory, 16, 0));
}

static void executed(const char *own)
{
    char *memory = must(map(NULL, 4, BOTH, MAP_PRIVATE));
    memset(memory, 1, 4 * PAGE);
    execl(own, own, "zeroed", (char *)NULL);
    CHECK(0);
}

/* Holds memory until it is killed. */
static void held(void)
{
    memset(must(map(NULL, 8, BOTH, MAP_PRIVATE)), 1, 8 * PAGE);
    memset(must(map(NULL, 8, BOTH, MAP_SHARED)), 1, 8 * PAGE);
    printf("held\n");
    fflush(stdout);
    pause();
}

/* Asks for more than there is. */
static void refused(void)
{
    CHECK(map(NULL, 1ul << 20, BOTH, MAP_PRIVATE) == MAP_FAILED && errno == ENOMEM);
    char *memory = map(NULL, 4, BOTH, MAP_PRIVATE);
    CHECK(memory != MAP_FAILED);
}

/* Offers memory, and says so. Keeps it after a line of standard input, and says what that gave. */
static void offered(void)
{
    char byte, *memory = must(map(NULL, 8, BOTH, MAP_PRIVATE));
    char *shared = must(map(NULL, 1, BOTH, MAP_SHARED));
    memset(memory, 7, 8 * PAGE);
    CHECK(glebe_huge_offer(memory, PAGE) == -1 && errno == EINVAL);
    CHECK(glebe_huge_offer(shared, PAGE) == -1 && errno == EINVAL);
    CHECK(glebe_huge_offer(&byte, 1) == -1 && errno == EINVAL);
    CHECK(glebe_huge_keep(memory, 8 * PAGE) == 0);
    if (glebe_huge_offer(memory, 8 * PAGE) != 0) {
        printf("refused: %s\n", strerror(errno));
        return;
    }
    CHECK(all_are(memory, 8, 7));
    printf("offered\n");
    fflush(stdout);
    CHECK(read(0, &byte, 1) == 1);
    int lost = glebe_huge_keep(memory, 8 * PAGE);
    CHECK(all_are(memory, 8, lost ? 0 : 7));
    memset(memory, 8, 8 * PAGE);
    CHECK(munmap(memory, 8 * PAGE) == 0);
    printf("kept: %d\n", lost);
}

/* Offers memory, says so, and forks after a line of standard input. The daemon may have taken it. */
static void offered_fork(void)
{
    char byte, *memory = must(map(NULL, 8, BOTH, MAP_PRIVATE));
    memset(memory, 7, 8 * PAGE);
    CHECK(glebe_huge_offer(memory, 8 * PAGE) == 0);
    printf("offered\n");
    fflush(stdout);
    CHECK(read(0, &byte, 1) == 1);
    pid_t child = fork();
    if (child == 0)
        _exit(!all_are(memory, 8, 0));
    CHECK(status_of(child) == 0);
    CHECK(all_are(memory, 8, 0));
    CHECK(madvise(memory, 8 * PAGE, MADV_DONTNEED) == 0);
    printf("forked\n");
}

static void say(const char *line)
{
    printf("%s\n", line);
    fflush(stdout);
}

/* Waits for a byte of standard input. */
static void wait_for_word(void)
{
    char byte;
    CHECK(read(0, &byte, 1) == 1);
}

static void forked(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(status_of(child) == 0);
}

/* Offers memory beside ordinary memory. Says what `glebe_huge_keep` gives after a fork. */
static void told_late(void)
{
    char *room = must(mmap(NULL, 12 * PAGE, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *memory = (char *)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
    CHECK(map(memory, 8, BOTH, MAP_PRIVATE | MAP_FIXED) == memory);
    CHECK(map(memory + 9 * PAGE, 1, BOTH, MAP_PRIVATE | MAP_FIXED) == memory + 9 * PAGE);
    memset(memory, 7, 8 * PAGE);
    CHECK(glebe_huge_offer(memory, 8 * PAGE) == 0);
    /* This keeps no memory elsewhere. */
    CHECK(madvise(memory + 8 * PAGE, PAGE, MADV_DONTNEED) == 0);
    say("offered");
    wait_for_word();
    forked();
    int lost = glebe_huge_keep(memory, 8 * PAGE);
    CHECK(all_are(memory, 8, lost ? 0 : 7));
    printf("kept: %d\n", lost);
    CHECK(glebe_huge_keep(memory, 8 * PAGE) == 0 || errno == EINVAL);
}

/* As before, but moves a half of the memory, and maps other memory in place of the rest. */
static void told_elsewhere(void)
{
    char *room = must(mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *to = (char *)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
    char *memory = must(map(NULL, 8, BOTH, MAP_PRIVATE));
    CHECK(glebe_huge_offer(memory, 8 * PAGE) == 0);
    say("offered");
    wait_for_word();
    forked();
    CHECK(mremap(memory, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    CHECK(map(memory, 8, BOTH, MAP_PRIVATE | MAP_FIXED) == memory);
    CHECK(glebe_huge_keep(memory, 8 * PAGE) == 0);
    printf("kept: %d\n", glebe_huge_keep(to, 4 * PAGE));
}

/* Offers four mappings, of which the daemon takes two. */
static void told_partly(void)
{
    char *room = must(mmap(NULL, 9 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *memory = (char *)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
    for (char *at = memory; at < memory + 8 * PAGE; at += 2 * PAGE)
        CHECK(map(at, 2, BOTH, MAP_PRIVATE | MAP_FIXED) == at);
    memset(memory, 7, 8 * PAGE);
    CHECK(glebe_huge_offer(memory, 8 * PAGE) == 0);
    say("offered");
    wait_for_word();
    printf("kept: %d\n", glebe_huge_keep(memory, 8 * PAGE));
    fflush(stdout);
    int lost = 0;
    for (char *at = memory; at < memory + 8 * PAGE; at += 2 * PAGE) {
        CHECK(all_are(at, 2, 0) || all_are(at, 2, 7));
        lost += all_are(at, 2, 0);
    }
    CHECK(lost == 2);
}

/* `glebe_huge_keep` does not tell of losses that MADV_DONTNEED has zeroed: the program may have
 * used the memory since. */
static void told_dontneed(void)
{
    char *memory = must(map(NULL, 8, BOTH, MAP_PRIVATE));
    memset(memory, 7, 8 * PAGE);
    CHECK(glebe_huge_offer(memory, 8 * PAGE) == 0);
    say("offered");
    wait_for_word();
    CHECK(madvise(memory, 4 * PAGE, MADV_DONTNEED) == 0);
    CHECK(all_are(memory, 4, 0));
    memset(memory, 8, 4 * PAGE);
    /* Ordinary memory cannot be offered. */
    CHECK(glebe_huge_offer(memory, 4 * PAGE) == 0 || errno == EINVAL);
    CHECK(glebe_huge_keep(memory, 4 * PAGE) == 0 || errno == EINVAL);
    CHECK(all_are(memory, 4, 8));
    printf("kept: %d\n", glebe_huge_keep(memory + 4 * PAGE, 4 * PAGE));
    CHECK(all_are(memory + 4 * PAGE, 4, 0));
}

/* The number of an ended connection is the program's again. */
static void restarted(void)
{
    char *one = must(map(NULL, 1, BOTH, MAP_PRIVATE));
    int own = 900;
    while (fcntl(own + 1, F_GETFD) >= 0)
        own++;
    say("mapped");
    wait_for_word();
    char *two = must(map(NULL, 1, BOTH, MAP_PRIVATE));
    CHECK(close(own) == -1 && errno == EBADF);
    CHECK(munmap(one, PAGE) == 0 && munmap(two, PAGE) == 0);
    CHECK(fcntl(1, F_DUPFD, own) == own);
    CHECK(dup2(0, own) == own);
    CHECK(close(own) == 0);
    printf("closed\n");
}

/* Stops the daemon, which runs in the parent. */
static void stop_daemon(void)
{
    CHECK(kill(getppid(), SIGSTOP) == 0);
    usleep(100000);
}

static time_t seconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec;
}

/* A fork asks the kernel which memory is gone, and waits for a silent daemon once. */
static void silent_taken(void)
{
    char *all[4];
    for (int nth = 0; nth < 4; nth++) {
        all[nth] = must(map(NULL, 2, BOTH, MAP_PRIVATE));
        memset(all[nth], 7, 2 * PAGE);
        CHECK(glebe_huge_offer(all[nth], 2 * PAGE) == 0);
        CHECK(mprotect(all[nth], 2 * PAGE, nth % 2 ? BOTH : PROT_NONE) == 0);
    }
    say("offered");
    wait_for_word();
    stop_daemon();
    time_t begin = seconds();
    pid_t child = fork();
    if (child == 0) {
        int kept = 0;
        for (int nth = 0; nth < 4; nth++) {
            CHECK(mprotect(all[nth], 2 * PAGE, BOTH) == 0);
            int is_kept = all_are(all[nth], 2, 7);
            CHECK(is_kept || all_are(all[nth], 2, 0));
            kept += is_kept;
        }
        CHECK(kept == 2);
        _exit(failures);
    }
    /* The kernel's own pool may have a free page. */
    map(NULL, 1, BOTH, MAP_PRIVATE);
    CHECK(seconds() - begin < 10);
    CHECK(kill(getppid(), SIGCONT) == 0);
    CHECK(status_of(child) == 0);
    int lost = 0;
    for (int nth = 0; nth < 4; nth++) {
        int is_lost = glebe_huge_keep(all[nth], 2 * PAGE);
        CHECK(mprotect(all[nth], 2 * PAGE, BOTH) == 0);
        CHECK(all_are(all[nth], 2, is_lost ? 0 : 7));
        lost += is_lost;
    }
    printf("lost: %d\n", lost);
}

/* A silent daemon obeys an offer later. */
static void silent_offer(void)
{
    char *memory = must(map(NULL, 8, BOTH, MAP_PRIVATE));
    memset(memory, 7, 8 * PAGE);
    stop_daemon();
    CHECK(glebe_huge_offer(memory, 8 * PAGE) == -1 && errno == EAGAIN);
    CHECK(kill(getppid(), SIGCONT) == 0);
    say("offered");
    wait_for_word();
    int lost = glebe_huge_keep(memory, 8 * PAGE);
    printf("kept: %d\n", lost);
    fflush(stdout);
    CHECK(all_are(memory, 8, lost ? 0 : 7));
}

/* Memory that the daemon grants too late goes back at once. */
static void silent_map(void)
{
    char *memory = must(map(NULL, 1, BOTH, MAP_PRIVATE));
    CHECK(munmap(memory, PAGE) == 0);
    stop_daemon();
    /* The kernel's own pool may have a free page. */
    map(NULL, 1, BOTH, MAP_PRIVATE);
    CHECK(kill(getppid(), SIGCONT) == 0);
    say("refused");
    wait_for_word();
}

/* A request that fails here, not at the daemon, changes nothing. */
static void local_failure(void)
{
    char *one = must(map(NULL, 2, BOTH, MAP_PRIVATE));
    memset(one, 1, 2 * PAGE);
    CHECK(map(one, 2, BOTH, MAP_PRIVATE | MAP_FIXED_NOREPLACE) == MAP_FAILED && errno == EEXIST);
    closefrom(3);
    usleep(50000);
    CHECK(all_are(one, 2, 1));
    CHECK(all_are(must(map(NULL, 2, BOTH, MAP_PRIVATE)), 2, 0));
    /* The kernel rounds the length of MADV_DONTNEED down to whole huge pages. */
    CHECK(madvise(one, PAGE + 4096, MADV_DONTNEED) == 0);
    CHECK(all_are(one, 1, 0) && all_are(one + PAGE, 1, 1));
}

/* Without a descriptor nobody could wait for the child's copy. */
static void crowded_fork(void)
{
    char *memory = must(map(NULL, 2, BOTH, MAP_PRIVATE));
    memset(memory, 7, 2 * PAGE);
    while (dup(2) >= 0)
        ;
    CHECK(errno == EMFILE);
    pid_t child = fork();
    if (child == 0) {
        memory[0] = 1;
        _exit(0);
    }
    int status = status_of(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(all_are(memory, 2, 7));
}

/* Wrong requests fail as the kernel's do, also where huge pages are required. */
static void wrong(void)
{
    char *one = must(map(NULL, 2, BOTH, MAP_PRIVATE | MAP_STACK));
    CHECK(map(one, 1, BOTH, MAP_PRIVATE | MAP_FIXED_NOREPLACE) == MAP_FAILED && errno == EEXIST);
    CHECK(map(NULL, 1, BOTH, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(open((char *)1, O_RDONLY) == -1 && errno == EFAULT);
    CHECK(fopen((char *)1, "r") == NULL && errno == EFAULT);
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"zeroed", zeroed},           {"sizes", sizes},
        {"private_fork", private_fork}, {"shared_fork", shared_fork},
        {"no_fork", no_fork},         {"own_no_fork", own_no_fork},
        {"vforked", vforked},         {"dontneed", dontneed},
        {"fixed", fixed},             {"executable", executable},
        {"parts", parts},             {"moved", moved},
        {"protect", protect},         {"signals", signals},
        {"threads", threads},         {"smaps", smaps},
        {"descriptors", descriptors}, {"few_files", few_files},
        {"held", held},               {"refused", refused},
        {"offered", offered},         {"offered_fork", offered_fork},
        {"local_failure", local_failure}, {"crowded_fork", crowded_fork},
        {"wrong", wrong},             {"told_late", told_late},
        {"told_elsewhere", told_elsewhere}, {"restarted", restarted},
        {"silent_map", silent_map},   {"silent_taken", silent_taken}, {"silent_offer", silent_offer},
        {"told_dontneed", told_dontneed}, {"told_partly", told_partly},
    };
    const char *wanted = count > 1 ? words[1] : "";
    for (size_t nth = 0; nth < sizeof cases / sizeof *cases; nth++)
        if (strcmp(cases[nth].name, wanted) == 0) {
            cases[nth].run();
            return failures != 0;
        }
    if (strcmp(wanted, "executed") == 0)
        executed(words[0]);
    else if (strcmp(wanted, "nothing") != 0)
        return 3;
    return failures != 0;
}
