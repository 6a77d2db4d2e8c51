/* Forks while the start of a keeper is due. The argument names the pthread_atfork step that
   allocates; "twice" tests a grandchild instead. With FIRST the steps are registered before the
   process's first object. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 200
#define SIZE ((size_t)512 << 10)
#define PAGE 4096

static const char *where = "";
static char *blocks[3 * COUNT];

#define CHECK(is)                                                       \
    do {                                                                \
        if (!(is)) {                                                    \
            dprintf(1, "line %d, %s: not %s\n", __LINE__, where, #is);  \
            _exit(1);                                                   \
        }                                                               \
    } while (0)

static void allocate(const char *at) {
    if (strcmp(where, at)) return;
    char *block = malloc(100);
    memset(block, 1, 100);
    free(block);
}

static void prepare(void) { allocate("prepare"); }
static void parent(void) { allocate("parent"); }
static void child(void) { allocate("child"); }

static void add_steps(void) {
    if (pthread_atfork(prepare, parent, child)) abort();
}

#ifdef FIRST
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = add_steps;
#endif

static int threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = -2;
    while (readdir(tasks)) count++;
    closedir(tasks);
    return count;
}

/* Waits up to 20 seconds for one keeper. Reading the list of threads also allocates, which starts a
   keeper that is due. */
static int has_keeper(void) {
    for (int n = 0; n < 2000 && threads() < 2; n++) usleep(10000);
    return threads() == 2;
}

static void fill(int from, int to) {
    for (int n = from; n < to; n++) {
        blocks[n] = malloc(SIZE);
        for (size_t at = 0; at < SIZE; at += PAGE) blocks[n][at] = (char)(n | 1);
    }
}

static int is_whole(int from, int to) {
    for (int n = from; n < to; n++)
        for (size_t at = 0; at < SIZE; at += PAGE)
            if (blocks[n][at] != (char)(n | 1)) return 0;
    return 1;
}

static void drop(int from, int to) {
    for (int n = from; n < to; n++) free(blocks[n]);
}

static int has_zeros(void) {
    int zeros = 1;
    for (int n = 0; n < COUNT; n++) {
        blocks[n] = calloc(1, SIZE);
        for (size_t at = 0; at < SIZE; at += PAGE) zeros &= blocks[n][at] == 0;
        memset(blocks[n], 1, SIZE);
    }
    drop(0, COUNT);
    return zeros;
}

static void ends_well(pid_t pid) {
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
}

/* Runs in a child with much of its parent's memory: the child starts one keeper of its own. */
static void live_on(void) {
    CHECK(is_whole(COUNT / 2, COUNT));
    drop(COUNT / 2, COUNT);
    free(malloc(64));
    CHECK(has_keeper());
    fill(0, COUNT);
    drop(0, COUNT / 2);
    usleep(100000);
    CHECK(has_keeper() && is_whole(COUNT / 2, COUNT));
}

static void fork_when_due_in_a_child(void) {
    fill(0, COUNT);
    CHECK(has_keeper());
    pid_t one = fork();
    if (!one) {
        alarm(60);
        CHECK(threads() == 1);
        drop(0, COUNT / 2);
        pid_t two = fork();
        if (!two) {
            alarm(60);
            live_on();
            _exit(0);
        }
        ends_well(two);
        live_on();
        _exit(0);
    }
    ends_well(one);
}

static void fork_when_first_due(void) {
    char *large = malloc(COUNT * SIZE);
    pid_t one = fork();
    if (!one) {
        alarm(60);
        fill(0, COUNT);
        live_on();
        _exit(0);
    }
    ends_well(one);
    free(large);
    free(malloc(64));
    CHECK(has_keeper());
    fork_when_due_in_a_child();
}

/* A grandchild shares pages with this process, whose only child has ended. Both then write to and
   free blocks, and neither may see the other's bytes. */
static void fork_twice(void) {
    int done[2];
    fill(0, COUNT);
    CHECK(has_keeper() && pipe(done) == 0);
    pid_t one = fork();
    if (!one) {
        if (fork()) _exit(0);
        alarm(60);
        fill(COUNT, 3 * COUNT);
        CHECK(has_keeper() && is_whole(0, 3 * COUNT));
        drop(0, 2 * COUNT);
        usleep(100000);
        CHECK(has_zeros() && is_whole(2 * COUNT, 3 * COUNT));
        _exit(write(done[1], "", 1) != 1);
    }
    ends_well(one);
    close(done[1]);
    drop(0, COUNT);
    for (int n = 0; n < 5; n++) {
        free(malloc(64));
        usleep(100000);
        CHECK(has_zeros());
    }
    CHECK(read(done[0], &one, 1) == 1);
}

int main(int count, char **arguments) {
#ifndef FIRST
    add_steps();
#endif
    where = count > 1 ? arguments[1] : "";
    alarm(100);
    if (!strcmp(where, "twice"))
        fork_twice();
    else
        fork_when_first_due();
    return 0;
}
