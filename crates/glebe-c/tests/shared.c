/* Shared volatile memory from C99: two processes, and errors. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define GRANULES ((uint64_t)16)

static uint64_t page;

static glebe_shared create(const glebe_shared_options *options) {
    glebe_shared shared = {0};
    OK(glebe_shared_new(GRANULES * page, options, &shared));
    CHECK(shared.id != 0);
    return shared;
}

static unsigned char *data_of(glebe_shared shared) {
    void *address = NULL;
    OK(glebe_shared_memory(shared, &address, NULL, NULL));
    return address;
}

static void fill(glebe_shared shared) {
    uint64_t n;
    for (n = 0; n < GRANULES; n++) memset(data_of(shared) + n * page, (int)n + 1, (size_t)page);
}

static void mark(glebe_shared shared, uint64_t first, uint64_t count, uint64_t priority) {
    OK(glebe_shared_mark(shared, first * page, count * page, priority, GLEBE_ORDER_FIFO));
}

static uint64_t purge(glebe_shared shared, uint64_t granules) {
    uint64_t purged = 99;
    OK(glebe_shared_purge(shared, granules * page, GLEBE_PRIORITY_HIGHEST, &purged));
    return purged / page;
}

static glebe_pin pin(glebe_shared shared, uint64_t first, uint64_t count, int answer) {
    glebe_pin pin = {0};
    CHECK(glebe_pin_new(shared, first * page, count * page, &pin) == answer && pin.id != 0);
    return pin;
}

static int ends_well(pid_t child) {
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void nothing_there(void) {
    glebe_shared none = {0};
    uint64_t purged = 0;
    size_t count = 0;
    REFUSED(glebe_shared_free(none), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_shared_mark(none, 0, page, 0, 0), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_shared_unmark(none, 0, page, NULL, 0, &count), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_shared_purge(none, 1, 0, &purged), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_pin_free(HANDLE(glebe_pin, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_pin_restored(HANDLE(glebe_pin, UINT64_MAX)), GLEBE_ERROR_BAD_HANDLE);
}

static void options_are_checked(void) {
    const int bad = GLEBE_ERROR_BAD_ARGUMENT;
    glebe_shared_options options;
    glebe_shared shared = {77};
    uint64_t len = 0, granule = 0;

    memset(&options, 0, sizeof options);
    REFUSED(glebe_shared_new(page, &options, &shared), GLEBE_ERROR_BAD_SIZE);
    options.size = sizeof options;
    REFUSED(glebe_shared_new(page, &options, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_shared_new(0, &options, &shared), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_shared_new(UINT64_MAX, &options, &shared), GLEBE_ERROR_BEYOND);
    options.granule_bytes = 3 * page;
    REFUSED(glebe_shared_new(page, &options, &shared), bad);
    options.granule_bytes = page / 2;
    REFUSED(glebe_shared_new(page, &options, &shared), bad);
    options.granule_bytes = 4 * page;
    options.holders = 129;
    REFUSED(glebe_shared_new(page, &options, &shared), bad);
    options.holders = (uint64_t)1 << 32;
    REFUSED(glebe_shared_new(page, &options, &shared), bad);
    options.holders = 2;
    options.pin_quota_bytes = page;
    REFUSED(glebe_shared_new(page, &options, &shared), bad);
    CHECK(strstr(glebe_last_error(), "quota") != NULL);
    options.pin_quota_bytes = 4 * page;
    options.sigbus = 2;
    REFUSED(glebe_shared_new(page, &options, &shared), bad);
    CHECK(shared.id == 77);
    options.sigbus = 0;
    OK(glebe_shared_new(5 * page, &options, &shared));
    OK(glebe_shared_memory(shared, NULL, &len, &granule));
    CHECK(len == 8 * page && granule == 4 * page);
    OK(glebe_shared_free(shared));
    REFUSED(glebe_shared_free(shared), GLEBE_ERROR_BAD_HANDLE);
}

static void what_is_purged_is_told(void) {
    glebe_shared shared = create(NULL);
    glebe_extent runs[GRANULES];
    unsigned char buffer[8];
    uint64_t dropped = 0, len = 0;
    size_t count = 99;
    void *at = NULL;
    glebe_pin pinned;

    fill(shared);
    CHECK(purge(shared, GRANULES) == 0); /* nothing is marked */
    mark(shared, 0, 8, GLEBE_PRIORITY_NORMAL);
    mark(shared, 8, 2, GLEBE_PRIORITY_LOWEST);
    pinned = pin(shared, 0, 2, GLEBE_PIN_KEPT);
    CHECK(purge(shared, 3) == 3); /* 8, 9 and 2: 0 and 1 are pinned */
    OK(glebe_shared_drop_now(shared, 4 * page, 2 * page, &dropped));
    CHECK(dropped == 2 * page);
    OK(glebe_pin_free(pinned));
    REFUSED(glebe_pin_free(pinned), GLEBE_ERROR_BAD_HANDLE);

    pinned = pin(shared, 0, 5, GLEBE_PIN_LOST);
    OK(glebe_pin_lost(pinned, runs, GRANULES, &count));
    CHECK(count == 2 && runs[0].start_pages == 2 && runs[0].len_pages == 1);
    CHECK(runs[1].start_pages == 4 && runs[1].len_pages == 1);
    OK(glebe_pin_memory(pinned, &at, &len));
    CHECK(at == data_of(shared) && len == 5 * page);
    OK(glebe_pin_read(pinned, 2 * page - 4, buffer, 8));
    CHECK(memcmp(buffer, "\2\2\2\2\0\0\0\0", 8) == 0);
    OK(glebe_pin_write(pinned, 2 * page, "made anew", 9));
    CHECK(memcmp(data_of(shared) + 2 * page, "made anew", 9) == 0);
    OK(glebe_pin_restored(pinned));
    OK(glebe_pin_read(pinned, 5 * page, NULL, 0));
    REFUSED(glebe_pin_read(pinned, 5 * page - 7, buffer, 8), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_pin_write(pinned, UINT64_MAX, "8 bytes!", 8), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_pin_read(pinned, 0, NULL, 8), GLEBE_ERROR_NULL);
    REFUSED(glebe_pin_write(pinned, 0, NULL, 8), GLEBE_ERROR_NULL);
    REFUSED(glebe_pin_lost(pinned, NULL, 1, &count), GLEBE_ERROR_NULL);
    OK(glebe_pin_free(pinned));

    /* Restored granules are not reported: only 5, 8 and 9, first to an array that is too short. */
    CHECK(glebe_shared_unmark(shared, 0, GRANULES * page, NULL, 0, &count) == GLEBE_UNMARK_MORE);
    CHECK(count == 2);
    CHECK(glebe_shared_unmark(shared, 0, 8 * page, runs, 1, &count) == GLEBE_UNMARK_TOLD);
    CHECK(count == 1 && runs[0].start_pages == 5 && runs[0].len_pages == 1);
    CHECK(glebe_shared_unmark(shared, 0, GRANULES * page, runs, 1, &count) == GLEBE_UNMARK_TOLD);
    CHECK(count == 1 && runs[0].start_pages == 8 && runs[0].len_pages == 2);
    OK(glebe_shared_unmark(shared, 0, GRANULES * page, runs, 1, &count));
    CHECK(count == 0 && data_of(shared)[15 * page] == 16);
    OK(glebe_shared_free(shared));
}

static void the_order(void) {
    glebe_shared shared = create(NULL);
    glebe_extent runs[GRANULES];
    size_t count = 0;
    uint64_t n, purged = 99;

    fill(shared);
    for (n = 0; n < 4; n++) mark(shared, n, 1, GLEBE_PRIORITY_NORMAL);
    for (n = 4; n < 8; n++) {
        OK(glebe_shared_mark(shared, n * page, page, GLEBE_PRIORITY_NORMAL, GLEBE_ORDER_LIFO));
    }
    mark(shared, 8, 1, GLEBE_PRIORITY_HIGHEST);
    OK(glebe_shared_purge(shared, 1, GLEBE_PRIORITY_LOWEST, &purged));
    CHECK(purged == 0);
    CHECK(purge(shared, 6) == 6); /* 7, 6, 5, 4, 0, 1 */
    OK(glebe_shared_unmark(shared, 0, GRANULES * page, runs, GRANULES, &count));
    CHECK(count == 2 && runs[0].start_pages == 0 && runs[0].len_pages == 2);
    CHECK(runs[1].start_pages == 4 && runs[1].len_pages == 4);
    OK(glebe_shared_free(shared));
}

static void ranges_are_checked(void) {
    glebe_shared shared = create(NULL);
    const uint64_t bad[][3] = {
        {1, 1, 0}, {0, 1, 0}, {0, 0, 0}, {0, 17, 1}, {16, 1, 1}, {UINT64_MAX, 1, 1}};
    const int codes[] = {GLEBE_ERROR_UNALIGNED, GLEBE_ERROR_UNALIGNED, GLEBE_ERROR_EMPTY,
                         GLEBE_ERROR_BEYOND,    GLEBE_ERROR_BEYOND,    GLEBE_ERROR_BEYOND};
    glebe_pin out = {77};
    size_t n, count = 99;

    for (n = 0; n < sizeof codes / sizeof *codes; n++) {
        const uint64_t unit = bad[n][2] ? page : 1;
        const uint64_t at = bad[n][0] == UINT64_MAX ? UINT64_MAX - page + 1 : bad[n][0] * unit;
        const uint64_t len = bad[n][1] * unit;
        REFUSED(glebe_shared_mark(shared, at, len, 0, 0), codes[n]);
        REFUSED(glebe_shared_unmark(shared, at, len, NULL, 0, &count), codes[n]);
        REFUSED(glebe_shared_drop_now(shared, at, len, NULL), codes[n]);
        REFUSED(glebe_pin_new(shared, at, len, &out), codes[n]);
    }
    REFUSED(glebe_shared_mark(shared, 0, page, 8, 0), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_shared_mark(shared, 0, page, 256, 0), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_shared_mark(shared, 0, page, 0, 2), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_shared_purge(shared, page, 8, NULL), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_shared_unmark(shared, 0, page, NULL, 1, &count), GLEBE_ERROR_NULL);
    REFUSED(glebe_shared_unmark(shared, 0, page, NULL, 0, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_pin_new(shared, 0, page, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_shared_fd(shared, NULL), GLEBE_ERROR_NULL);
    CHECK(out.id == 77 && count == 99);
    OK(glebe_shared_free(shared));
}

static void pins_have_limits(void) {
    enum { MOST = 65535 };
    glebe_shared_options options;
    glebe_shared shared;
    glebe_pin *pins = calloc(MOST, sizeof *pins), one = {0};
    int n;

    CHECK(pins != NULL);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.pin_quota_bytes = 2 * page;
    shared = create(&options);
    for (n = 0; n < MOST; n++) OK(glebe_pin_new(shared, 0, page, &pins[n]));
    REFUSED(glebe_pin_new(shared, 0, page, &one), GLEBE_ERROR_PINS_EXHAUSTED);
    CHECK(strstr(glebe_last_error(), "65535") != NULL);
    REFUSED(glebe_pin_new(shared, page, 2 * page, &one), GLEBE_ERROR_QUOTA);
    OK(glebe_pin_new(shared, page, page, &one));
    REFUSED(glebe_shared_free(shared), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "65536 pins") != NULL);
    for (n = 0; n < MOST; n++) OK(glebe_pin_free(pins[n]));
    REFUSED(glebe_shared_free(shared), GLEBE_ERROR_BUSY);
    OK(glebe_pin_free(one));
    OK(glebe_shared_free(shared));
    REFUSED(glebe_pin_new(shared, 0, page, &one), GLEBE_ERROR_BAD_HANDLE);
    free(pins);
}

/* A child inherits the handle but no pins; each process sees the other's calls. */
static void two_processes(void) {
    glebe_shared shared = create(NULL);
    glebe_extent runs[GRANULES];
    glebe_pin pinned, own;
    uint64_t len = 0;
    size_t count = 0;
    char go = 0;
    int to[2], from[2];
    pid_t child;

    CHECK(pipe(to) == 0 && pipe(from) == 0);
    fill(shared);
    mark(shared, 0, 8, GLEBE_PRIORITY_NORMAL);
    pinned = pin(shared, 0, 1, GLEBE_PIN_KEPT);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        REFUSED(glebe_pin_free(pinned), GLEBE_ERROR_FORKED);
        REFUSED(glebe_pin_restored(pinned), GLEBE_ERROR_FORKED);
        REFUSED(glebe_pin_memory(pinned, NULL, &len), GLEBE_ERROR_FORKED);
        REFUSED(glebe_pin_lost(pinned, NULL, 0, &count), GLEBE_ERROR_FORKED);
        REFUSED(glebe_pin_read(pinned, 0, &go, 1), GLEBE_ERROR_FORKED);
        REFUSED(glebe_pin_write(pinned, 0, &go, 1), GLEBE_ERROR_FORKED);
        CHECK(purge(shared, 2) == 2); /* 1 and 2: the parent has pinned 0 */
        own = pin(shared, 3, 1, GLEBE_PIN_KEPT);
        OK(glebe_pin_write(own, 0, "of the child", 12));
        REFUSED(glebe_shared_free(shared), GLEBE_ERROR_BUSY);
        OK(glebe_pin_free(own));
        own = pin(shared, 4, 2, GLEBE_PIN_KEPT);
        CHECK(write(from[1], "x", 1) == 1 && read(to[0], &go, 1) == 1);
        OK(glebe_pin_free(own));
        /* The child may leave while the parent has pins. */
        OK(glebe_shared_free(shared));
        REFUSED(glebe_shared_free(shared), GLEBE_ERROR_BAD_HANDLE);
        _exit(0);
    }
    CHECK(read(from[0], &go, 1) == 1);
    CHECK(purge(shared, 1) == 1); /* 3 */
    CHECK(purge(shared, 2) == 2); /* 6 and 7: the child has pinned 4 and 5 */
    CHECK(purge(shared, GRANULES) == 0);
    CHECK(write(to[1], "x", 1) == 1);
    CHECK(ends_well(child));
    CHECK(purge(shared, GRANULES) == 2); /* 4 and 5 */
    OK(glebe_pin_free(pinned));
    OK(glebe_shared_unmark(shared, 0, GRANULES * page, runs, GRANULES, &count));
    CHECK(count == 1 && runs[0].start_pages == 1 && runs[0].len_pages == 7);
    CHECK(data_of(shared)[0] == 1 && data_of(shared)[page] == 0);
    OK(glebe_shared_free(shared));
}

static void killed_with_a_pin(void) {
    glebe_shared shared = create(NULL);
    char told = 0;
    int from[2], status = 0;
    pid_t child;

    CHECK(pipe(from) == 0);
    fill(shared);
    mark(shared, 0, 4, GLEBE_PRIORITY_NORMAL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        pin(shared, 0, 4, GLEBE_PIN_KEPT);
        CHECK(write(from[1], "x", 1) == 1);
        for (;;) pause();
    }
    CHECK(read(from[0], &told, 1) == 1);
    CHECK(purge(shared, GRANULES) == 0);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK(purge(shared, GRANULES) == 4);
    OK(glebe_shared_free(shared));
}

/* A second handle of a file acts like another process: it sees the same marks. */
static void descriptors(void) {
    glebe_shared_options options;
    glebe_shared shared, same = {0}, none = {77};
    size_t count = 0;
    glebe_pin pinned;
    int fd = -1, other;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.holders = 2;
    shared = create(&options);
    OK(glebe_shared_fd(shared, &fd));
    REFUSED(glebe_shared_adopt(fd, &options, &none), GLEBE_ERROR_BAD_ARGUMENT);
    other = dup(fd);
    OK(glebe_shared_adopt(other, NULL, &same));
    CHECK(close(other) == 0);
    REFUSED(glebe_shared_adopt(fd, NULL, &none), GLEBE_ERROR_NO_HOLDER_LEFT);
    fill(shared);
    CHECK(data_of(same) != data_of(shared) && data_of(same)[3 * page] == 4);
    mark(same, 0, 2, GLEBE_PRIORITY_LOWEST);
    pinned = pin(same, 0, 1, GLEBE_PIN_KEPT);
    CHECK(purge(shared, 2) == 1);
    OK(glebe_pin_free(pinned));
    OK(glebe_shared_free(shared));
    /* Marks last while any handle of the file is open. */
    CHECK(purge(same, 2) == 1);
    CHECK(glebe_shared_unmark(same, 0, 2 * page, NULL, 0, &count) == GLEBE_UNMARK_MORE);
    OK(glebe_shared_free(same));

    REFUSED(glebe_shared_adopt(-1, NULL, &none), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_shared_adopt(1 << 20, NULL, &none), GLEBE_ERROR_BAD_ARGUMENT);
    other = open("/", O_RDONLY | O_DIRECTORY);
    REFUSED(glebe_shared_adopt(other, NULL, &none), GLEBE_ERROR_BAD_FILE);
    CHECK(close(other) == 0);
    other = memfd_create("other", 0);
    REFUSED(glebe_shared_adopt(other, NULL, &none), GLEBE_ERROR_BAD_FILE);
    CHECK(ftruncate(other, (off_t)(64 * page)) == 0);
    REFUSED(glebe_shared_adopt(other, NULL, &none), GLEBE_ERROR_BAD_FILE);
    CHECK(write(other, "no such file", 12) == 12);
    REFUSED(glebe_shared_adopt(other, NULL, &none), GLEBE_ERROR_BAD_FILE);
    REFUSED(glebe_shared_adopt(other, NULL, NULL), GLEBE_ERROR_NULL);
    CHECK(close(other) == 0 && none.id == 77);
}

static void covering(int signal) {
    (void)signal;
    _exit(2);
}

/* Named files: an existing one, links, other kinds of files, and a truncated file. */
static void paths(void) {
    char path[64], link[80];
    glebe_shared shared = {77}, same = {0};
    glebe_pin pinned = {0};
    unsigned char buffer[8];
    size_t count = 0;
    int fd;
    pid_t child;

    sprintf(path, "/dev/shm/glebe-c-%d", (int)getpid());
    sprintf(link, "%s-link", path);
    if (access("/dev/shm", W_OK) != 0) {
        fprintf(stderr, "skipped: files with a name: no /dev/shm\n");
        return;
    }
    REFUSED(glebe_shared_open(path, NULL, &shared), GLEBE_ERROR_OS);
    REFUSED(glebe_shared_open(NULL, NULL, &shared), GLEBE_ERROR_NULL);
    REFUSED(glebe_shared_new_at(NULL, page, NULL, &shared), GLEBE_ERROR_NULL);
    REFUSED(glebe_shared_new_at("/dev/shm/none/it", page, NULL, &shared), GLEBE_ERROR_OS);
    REFUSED(glebe_shared_open("/dev/null", NULL, &shared), GLEBE_ERROR_BAD_FILE);
    REFUSED(glebe_shared_open("/dev/shm", NULL, &shared), GLEBE_ERROR_BAD_FILE);
    CHECK(shared.id == 77);
    OK(glebe_shared_new_at(path, GRANULES * page, NULL, &shared));
    REFUSED(glebe_shared_new_at(path, page, NULL, &same), GLEBE_ERROR_OS);
    CHECK(symlink(path, link) == 0);
    REFUSED(glebe_shared_open(link, NULL, &same), GLEBE_ERROR_BAD_FILE);
    OK(glebe_shared_open(path, NULL, &same));
    fill(same);
    mark(shared, 0, GRANULES, GLEBE_PRIORITY_NORMAL);
    CHECK(purge(same, 1) == 1);
    OK(glebe_shared_free(same));

    /* With another handler in front of glebe's, glebe could not report a truncation. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        signal(SIGBUS, covering);
        REFUSED(glebe_shared_open(path, NULL, &same), GLEBE_ERROR_HANDLER_COVERED);
        _exit(0);
    }
    CHECK(ends_well(child));

    pinned = pin(shared, 4, 1, GLEBE_PIN_KEPT);
    fd = open(path, O_RDWR);
    CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && close(fd) == 0);
    REFUSED(glebe_pin_read(pinned, 0, buffer, 8), GLEBE_ERROR_TRUNCATED);
    CHECK(data_of(shared)[8 * page] == 0);
    REFUSED(glebe_shared_mark(shared, 0, page, 0, 0), GLEBE_ERROR_TRUNCATED);
    REFUSED(glebe_shared_unmark(shared, 0, page, NULL, 0, &count), GLEBE_ERROR_TRUNCATED);
    REFUSED(glebe_pin_write(pinned, 0, "bytes", 5), GLEBE_ERROR_TRUNCATED);
    REFUSED(glebe_shared_open(path, NULL, &same), GLEBE_ERROR_BAD_FILE);
    OK(glebe_pin_free(pinned));
    OK(glebe_shared_free(shared));
    CHECK(unlink(path) == 0 && unlink(link) == 0);
}

static sigjmp_buf touched;

static void on_touch(int signal) {
    (void)signal;
    siglongjmp(touched, 1);
}

/* Makes a region with `sigbus`. Returns 0 if the machine cannot. */
static int made_with_sigbus(glebe_shared *shared) {
    glebe_shared_options options;
    int answer;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.sigbus = 1;
    answer = glebe_shared_new(GRANULES * page, &options, shared);
    if (answer == GLEBE_OK) return 1;
    CHECK(answer == GLEBE_ERROR_OS || answer == GLEBE_ERROR_HANDLER_COVERED);
    fprintf(stderr, "skipped: touches of lost pages: %s\n", glebe_last_error());
    return 0;
}

static void touches(void) {
    glebe_shared shared = {0};
    struct sigaction action;
    volatile unsigned char *at;
    glebe_pin pinned;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_touch;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    if (!made_with_sigbus(&shared)) {
        signal(SIGBUS, SIG_DFL);
        return;
    }
    at = data_of(shared);
    fill(shared);
    mark(shared, 0, 4, GLEBE_PRIORITY_NORMAL);
    CHECK(purge(shared, 2) == 2);
    if (sigsetjmp(touched, 1) == 0) {
        (void)at[page];
        CHECK(!"a touch of a lost page is SIGBUS");
    }
    CHECK(at[2 * page] == 3 && at[5 * page] == 6);
    pinned = pin(shared, 0, 2, GLEBE_PIN_LOST);
    CHECK(at[page] == 0);
    OK(glebe_pin_free(pinned));
    OK(glebe_shared_free(shared));
}

/* Zeroes all pin counts and frees the data, as any process can that may write the file. */
static void tamper(int fd) {
    struct stat file;
    uint64_t data_at, at;
    unsigned char *zeros = calloc(1, page);

    CHECK(zeros != NULL && fstat(fd, &file) == 0);
    data_at = (uint64_t)file.st_size - GRANULES * page;
    /* The header and the granules' words take two pages. Two pages before the data are unused. */
    for (at = 2 * page; at < data_at - 2 * page; at += page)
        CHECK(pwrite(fd, zeros, page, (off_t)at) == (ssize_t)page);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)data_at,
                    (off_t)(GRANULES * page)) == 0);
    free(zeros);
}

/* No call on a pin ends by SIGBUS, whatever another process does to the file. */
static void uncounted_pins(void) {
    glebe_shared shared = {0};
    glebe_pin pinned;
    char buffer[8];
    pid_t child;
    int fd = -1;

    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (!made_with_sigbus(&shared)) _exit(0);
        fill(shared);
        mark(shared, 0, GRANULES, GLEBE_PRIORITY_NORMAL);
        pinned = pin(shared, 0, GRANULES, GLEBE_PIN_KEPT);
        OK(glebe_shared_fd(shared, &fd));
        tamper(fd);
        REFUSED(glebe_pin_read(pinned, 2 * page, buffer, 8), GLEBE_ERROR_TRUNCATED);
        REFUSED(glebe_pin_write(pinned, 3 * page, "bytes", 5), GLEBE_ERROR_TRUNCATED);
        _exit(0);
    }
    CHECK(ends_well(child));
}

static void memory_of_the_callers(void) {
    const size_t len = GRANULES * page;
    glebe_shared_options options;
    glebe_shared shared = {77};
    glebe_reclaimer reclaimer = {0};
    glebe_extent run = {0, 0};
    unsigned char *at, *other;
    size_t count = 0;
    pid_t child;

    at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    other = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && other != MAP_FAILED);
    memset(at, 5, len);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.address = other;
    REFUSED(glebe_shared_new(len, &options, &shared), GLEBE_ERROR_PRIVATE);
    options.address = at + 1;
    REFUSED(glebe_shared_new(len, &options, &shared), GLEBE_ERROR_UNALIGNED);
    options.address = at;
    REFUSED(glebe_shared_new(len + 1, &options, &shared), GLEBE_ERROR_UNALIGNED);
    REFUSED(glebe_shared_new_at("/dev/shm/none", len, &options, &shared),
            GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_shared_open("/dev/shm/none", &options, &shared), GLEBE_ERROR_BAD_ARGUMENT);
    options.sigbus = 1;
    REFUSED(glebe_shared_new(len, &options, &shared), GLEBE_ERROR_BAD_ARGUMENT);
    options.sigbus = 0;
    CHECK(munmap(other, len) == 0 && shared.id == 77);
    options.address = other;
    REFUSED(glebe_shared_new(len, &options, &shared), GLEBE_ERROR_UNMAPPED);

    options.address = at;
    OK(glebe_shared_new(len, &options, &shared));
    CHECK(data_of(shared) == at && at[3 * page] == 5);
    OK(glebe_reclaimer_new(NULL, &reclaimer));
    REFUSED(glebe_reclaimer_add_shared(reclaimer, shared), GLEBE_ERROR_BAD_FILE);
    OK(glebe_reclaimer_free(reclaimer));
    mark(shared, 2, 2, GLEBE_PRIORITY_NORMAL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        _exit(purge(shared, 1) == 1 && at[2 * page] == 0 ? 0 : 1);
    }
    CHECK(ends_well(child));
    CHECK(at[2 * page] == 0 && at[3 * page] == 5);
    OK(glebe_shared_unmark(shared, 0, len, &run, 1, &count));
    CHECK(count == 1 && run.start_pages == 2 && run.len_pages == 1);
    OK(glebe_shared_free(shared));
    CHECK(at[3 * page] == 5 && munmap(at, len) == 0);
}

static void statistics(void) {
    glebe_shared shared = create(NULL);
    const char *parts[] = {"marks", "\"marks\"", "glebe_shared_marks_total 1"};
    uint64_t older[3] = {2 * sizeof(uint64_t), 0, 5};
    glebe_shared_stats stats;
    char text[8192];
    size_t needed = 0;
    uint64_t format;
    glebe_pin pinned;

    fill(shared);
    mark(shared, 0, 4, GLEBE_PRIORITY_NORMAL);
    CHECK(purge(shared, 1) == 1);
    pinned = pin(shared, 2, 3, GLEBE_PIN_KEPT);
    stats.size = sizeof stats;
    OK(glebe_shared_get_stats(shared, &stats));
    CHECK(stats.size == sizeof stats && stats.total_pages == GRANULES && stats.marks == 1);
    CHECK(stats.marked_pages == 4 && stats.marked_ever == 4 && stats.lost_pages == 1);
    CHECK(stats.freed == 1 && stats.pins == 1 && stats.pinned_pages == 3);
    OK(glebe_pin_free(pinned));
    OK(glebe_shared_get_stats(shared, (glebe_shared_stats *)older));
    CHECK(older[0] == 2 * sizeof(uint64_t) && older[1] == 1 && older[2] == 5);
    REFUSED(glebe_shared_get_stats(shared, NULL), GLEBE_ERROR_NULL);
    for (format = GLEBE_FORMAT_TEXT; format <= GLEBE_FORMAT_OPENMETRICS; format++) {
        OK(glebe_shared_format_stats(shared, format, text, sizeof text, &needed));
        CHECK(needed == strlen(text) + 1 && strstr(text, parts[format]) != NULL);
    }
    REFUSED(glebe_shared_format_stats(shared, GLEBE_FORMAT_CLASSES, text, sizeof text, &needed),
            GLEBE_ERROR_BAD_ARGUMENT);
    OK(glebe_shared_free(shared));
}

int main(void) {
    page = glebe_page_bytes();
    nothing_there();
    options_are_checked();
    what_is_purged_is_told();
    the_order();
    ranges_are_checked();
    pins_have_limits();
    two_processes();
    killed_with_a_pin();
    descriptors();
    touches();
    uncounted_pins();
    paths();
    memory_of_the_callers();
    statistics();
    puts("shared.c: ok");
    return 0;
}
