/* glebe_vrange() makes memory of MAP_SHARED volatile, in a process and its children. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define PAGES 8
#define TMPFS_MAGIC 0x01021994

static size_t page;

static int open_at(const char *folder) {
    char name[64];
    int file;
    snprintf(name, sizeof name, "%s/glebe-family-XXXXXX", folder);
    file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0 && ftruncate(file, (off_t)(PAGES * page)) == 0);
    return file;
}

static unsigned char *map(int file) {
    int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void *at = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, flags, file, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void fill(unsigned char *bytes) {
    size_t n;
    for (n = 0; n < PAGES; n++) memset(bytes + n * page, (int)n + 1, page);
}

static void mark(unsigned char *bytes, size_t first, size_t count) {
    CHECK(glebe_vrange(bytes + first * page, count * page, GLEBE_VRANGE_VOLATILE, NULL) ==
          (int)(count * page));
}

/* Makes pages non-volatile. Returns 1 if the call reported a loss. */
static int unmark(unsigned char *bytes, size_t first, size_t count) {
    int purged = 9;
    CHECK(glebe_vrange(bytes + first * page, count * page, GLEBE_VRANGE_NONVOLATILE, &purged) ==
          (int)(count * page));
    CHECK(purged == 0 || purged == 1);
    return purged;
}

static size_t purge(size_t pages) {
    uint64_t purged = 99;
    OK(glebe_vrange_purge(pages * page, &purged));
    CHECK(purged % page == 0);
    return (size_t)purged / page;
}

/* Returns true if exactly these pages are zeros and all others are unchanged. */
static int lost_are(const unsigned char *bytes, size_t first, size_t count) {
    size_t n, b;
    for (n = 0; n < PAGES; n++) {
        unsigned char wanted = (unsigned char)(n >= first && n < first + count ? 0 : n + 1);
        for (b = 0; b < page; b++) {
            if (bytes[n * page + b] != wanted) return 0;
        }
    }
    return 1;
}

static void in_child(void (*body)(unsigned char *), unsigned char *bytes) {
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        body(bytes);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void end(unsigned char *bytes) {
    unmark(bytes, 0, PAGES);
    CHECK(munmap(bytes, PAGES * page) == 0);
}

/* -------- One process -------- */

static void a_purge_takes_what_is_volatile(int file) {
    unsigned char *bytes = map(file);
    fill(bytes);
    CHECK(purge(PAGES) == 0);
    mark(bytes, 4, 2);
    mark(bytes, 1, 2);
    CHECK(lost_are(bytes, 0, 0) && unmark(bytes, 4, 1) == 0);
    mark(bytes, 4, 1);
    /* A purge takes pages in the order in which they became volatile. */
    CHECK(purge(1) == 1 && lost_are(bytes, 5, 1));
    CHECK(unmark(bytes, 0, 5) == 0 && unmark(bytes, 5, 3) == 1 && unmark(bytes, 5, 3) == 0);
    CHECK(purge(PAGES) == 0 && lost_are(bytes, 5, 1));
    fill(bytes);
    mark(bytes, 0, PAGES);
    CHECK(purge(1000) == PAGES && purge(1000) == 0 && lost_are(bytes, 0, PAGES));
    /* A lost page that the program writes again keeps its bytes, and its loss is still reported. */
    fill(bytes);
    CHECK(purge(1000) == 0 && unmark(bytes, 2, 1) == 1 && lost_are(bytes, 0, 0));
    end(bytes);
    if (file >= 0) CHECK(close(file) == 0);
}

/* A strict call is all or nothing, also over private and shared memory. */
static void both_kinds_in_one_call(void) {
    unsigned char *bytes = map(-1);
    int purged = 9;
    CHECK(mmap(bytes + 2 * page, 3 * page, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == bytes + 2 * page);
    fill(bytes);
    OK(glebe_vrange_strict(bytes, PAGES * page, GLEBE_VRANGE_VOLATILE, NULL));
    CHECK(purge(3) == 2 + 1 && madvise(bytes + 3 * page, page, MADV_DONTNEED) == 0);
    OK(glebe_vrange_strict(bytes, 3 * page, GLEBE_VRANGE_NONVOLATILE, &purged));
    CHECK(purged == 1 && bytes[0] == 0 && bytes[page] == 0 && bytes[2 * page] == 3);
    CHECK(unmark(bytes, 3, 1) == 1 && unmark(bytes, 4, 1) == 0);
    CHECK(unmark(bytes, 5, 1) == 1 && unmark(bytes, 6, 2) == 0 && bytes[7 * page] == 8);
    /* A failed call undoes its changes. */
    fill(bytes);
    CHECK(mprotect(bytes + 4 * page, page, PROT_READ) == 0);
    REFUSED(glebe_vrange_strict(bytes, PAGES * page, GLEBE_VRANGE_VOLATILE, NULL),
            GLEBE_ERROR_READ_ONLY);
    CHECK(purge(PAGES) == 0);
    mark(bytes, 0, 4);
    CHECK(glebe_vrange(bytes, PAGES * page, 0, NULL) == (int)(4 * page));
    CHECK(purge(PAGES) == 2 && bytes[4 * page] == 5);
    CHECK(mprotect(bytes + 4 * page, page, PROT_READ | PROT_WRITE) == 0);
    end(bytes);
}

static void what_cannot_be_is_refused(void) {
    unsigned char *bytes;
    void *address = NULL;
    glebe_shared shared = {0};
    struct statfs about;
    int file = open_at("/tmp");
    CHECK(fstatfs(file, &about) == 0);
    bytes = map(file);
    if (about.f_type == TMPFS_MAGIC) {
        puts("skipped: a file on disk (/tmp is none)");
    } else {
        CHECK(glebe_vrange(bytes, page, GLEBE_VRANGE_VOLATILE, NULL) == 0);
        REFUSED(glebe_vrange_strict(bytes, page, GLEBE_VRANGE_VOLATILE, NULL), GLEBE_ERROR_SHARED);
        CHECK(purge(PAGES) == 0);
    }
    CHECK(munmap(bytes, PAGES * page) == 0 && close(file) == 0);
    /* Memory of a shared region of glebe. */
    OK(glebe_shared_new(page, NULL, &shared));
    OK(glebe_shared_memory(shared, &address, NULL, NULL));
    CHECK(glebe_vrange(address, page, GLEBE_VRANGE_VOLATILE, NULL) == 0);
    REFUSED(glebe_vrange_strict(address, page, GLEBE_VRANGE_VOLATILE, NULL), GLEBE_ERROR_SPECIAL);
    OK(glebe_shared_free(shared));
    bytes = map(-1);
    CHECK(mprotect(bytes, page, PROT_READ) == 0);
    REFUSED(glebe_vrange_strict(bytes, page, GLEBE_VRANGE_VOLATILE, NULL), GLEBE_ERROR_READ_ONLY);
    CHECK(munmap(bytes, PAGES * page) == 0);
}

/* A purge takes no other memory that was mapped at the same address, and no loss is reported. */
static void other_memory_is_left_alone(void) {
    unsigned char *bytes = map(-1), *other = map(-1);
    fill(bytes);
    fill(other);
    mark(bytes, 0, PAGES);
    CHECK(purge(1) == 1);
    CHECK(mremap(other, PAGES * page, PAGES * page, MREMAP_MAYMOVE | MREMAP_FIXED, bytes) == bytes);
    CHECK(purge(PAGES) == 0 && lost_are(bytes, 0, 0));
    mark(bytes, 6, 2);
    CHECK(purge(PAGES) == 2 && unmark(bytes, 0, 6) == 0 && unmark(bytes, 6, 2) == 1);
    end(bytes);
}

static void a_hole_is_no_error(void) {
    unsigned char *bytes = map(-1);
    fill(bytes);
    mark(bytes, 0, PAGES);
    CHECK(munmap(bytes + 2 * page, page) == 0);
    CHECK(purge(PAGES) == 0 && unmark(bytes, 0, PAGES) == 0 && bytes[page] == 2);
    CHECK(munmap(bytes, PAGES * page) == 0);
}

/* -------- Children -------- */

static void purges_and_sees(unsigned char *bytes) {
    CHECK(lost_are(bytes, 0, 0) && purge(3) == 3);
    CHECK(lost_are(bytes, 2, 3));
}

static void unmarks(unsigned char *bytes) {
    CHECK(unmark(bytes, 0, 4) == 1);
}

static void marks(unsigned char *bytes) {
    mark(bytes, 5, 1);
}

static void all_see_the_same(int file) {
    unsigned char *bytes = map(file);
    fill(bytes);
    mark(bytes, 2, 4);
    in_child(purges_and_sees, bytes);
    CHECK(lost_are(bytes, 2, 3));
    /* Either process gets the report of a loss, once. */
    in_child(unmarks, bytes);
    CHECK(unmark(bytes, 0, 4) == 0 && unmark(bytes, 4, 1) == 1 && unmark(bytes, 5, 1) == 0);
    /* The parent may unmark and purge what its child marked. */
    fill(bytes);
    in_child(marks, bytes);
    CHECK(purge(PAGES) == 1 && lost_are(bytes, 5, 1) && unmark(bytes, 0, PAGES) == 1);
    end(bytes);
    if (file >= 0) CHECK(close(file) == 0);
}

static void a_killed_child_leaves_it_whole(void) {
    unsigned char *bytes = map(-1);
    int n, ready[2], status = 0;
    mark(bytes, 0, PAGES);
    unmark(bytes, 0, PAGES);
    for (n = 0; n < 20; n++) {
        char byte;
        pid_t child;
        CHECK(pipe(ready) == 0);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            for (;;) {
                fill(bytes);
                mark(bytes, 0, PAGES);
                if (purge(4) > 0 && ready[1] >= 0) {
                    CHECK(write(ready[1], "x", 1) == 1);
                    ready[1] = -1;
                }
                unmark(bytes, 0, PAGES);
            }
        }
        CHECK(read(ready[0], &byte, 1) == 1);
        usleep(500 + 200 * (useconds_t)n);
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(close(ready[0]) == 0 && close(ready[1]) == 0);
        /* The child may have been killed at any step. */
        unmark(bytes, 0, PAGES);
        fill(bytes);
        CHECK(unmark(bytes, 0, PAGES) == 0 && purge(PAGES) == 0);
        mark(bytes, 3, 2);
        CHECK(purge(PAGES) == 2 && lost_are(bytes, 3, 2) && unmark(bytes, 0, PAGES) == 1);
    }
    end(bytes);
}

/* -------- Threads and forks -------- */

static void *marks_and_unmarks(void *bytes) {
    int n;
    for (n = 0; n < 300; n++) {
        mark(bytes, 0, PAGES);
        unmark(bytes, 0, PAGES);
    }
    return NULL;
}

static void nothing(unsigned char *bytes) {
    mark(bytes, 0, 1);
    unmark(bytes, 0, 1);
}

static void forks_wait_for_nobody(void) {
    pthread_t threads[2];
    unsigned char *bytes[2];
    int n;
    for (n = 0; n < 2; n++) {
        bytes[n] = map(-1);
        CHECK(pthread_create(&threads[n], NULL, marks_and_unmarks, bytes[n]) == 0);
    }
    for (n = 0; n < 50; n++) {
        in_child(nothing, bytes[n % 2]);
        CHECK(glebe_vrange_purge(page, NULL) == GLEBE_OK);
    }
    for (n = 0; n < 2; n++) {
        CHECK(pthread_join(threads[n], NULL) == 0);
        end(bytes[n]);
    }
}

static int threads(void) {
    char line[256];
    int count = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status != NULL);
    while (fgets(line, sizeof line, status)) sscanf(line, "Threads: %d", &count);
    CHECK(fclose(status) == 0 && count > 0);
    return count;
}

static void starts_its_own(unsigned char *bytes) {
    (void)bytes;
    CHECK(threads() == 1);
    OK(glebe_vrange_reclaim(0));
    REFUSED(glebe_vrange_reclaim(0), GLEBE_ERROR_STARTED);
    CHECK(threads() == 2);
}

static void a_thread_is_started_once_and_on_request(void) {
#ifdef GLEBE_VRANGE_RECLAIM
    CHECK(threads() == 2);
#else
    CHECK(threads() == 1);
    OK(glebe_vrange_reclaim(1 << 20));
#endif
    REFUSED(glebe_vrange_reclaim(0), GLEBE_ERROR_STARTED);
    CHECK(threads() == 2);
    in_child(starts_its_own, NULL);
}

int main(void) {
    struct statfs about;
    int memory = memfd_create("family", MFD_CLOEXEC);
    page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK(memory >= 0 && ftruncate(memory, (off_t)(PAGES * page)) == 0);
    alarm(100);
    a_purge_takes_what_is_volatile(-1);
    a_purge_takes_what_is_volatile(memory);
    if (statfs("/dev/shm", &about) == 0 && about.f_type == TMPFS_MAGIC) {
        a_purge_takes_what_is_volatile(open_at("/dev/shm"));
        all_see_the_same(open_at("/dev/shm"));
    } else {
        puts("skipped: a file on tmpfs (/dev/shm is none)");
    }
    both_kinds_in_one_call();
    what_cannot_be_is_refused();
    other_memory_is_left_alone();
    a_hole_is_no_error();
    all_see_the_same(-1);
    a_killed_child_leaves_it_whole();
    forks_wait_for_nobody();
    a_thread_is_started_once_and_on_request();
    puts("family.c: ok");
    return 0;
}
