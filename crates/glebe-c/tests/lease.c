/* Leases from C99: refusals, and with a daemon's socket as argument all calls.
 * Usage: lease [SOCKET BYTES], where BYTES is all that the daemon can lend. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define MIB ((uint64_t)1 << 20)
#define HUGE (2 * MIB)

static const char *path = "/nonexistent/leases";

static glebe_lease_options with_socket(void) {
    glebe_lease_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.name = "lease.c";
    options.socket = path;
    return options;
}

static void every_call_is_refused(glebe_lease lease, int code) {
    size_t count = 0;
    uint64_t number = 0;
    REFUSED(glebe_lease_memory(lease, NULL, NULL), code);
    REFUSED(glebe_lease_number(lease, &number), code);
    REFUSED(glebe_lease_runs(lease, NULL, 0, &count), code);
    REFUSED(glebe_lease_files(lease, NULL, 0, &count), code);
    REFUSED(glebe_lease_recalled(lease, 0, NULL), code);
    REFUSED(glebe_lease_free(lease), code);
}

static void wrong_options_are_refused(void) {
    glebe_lease_options options = with_socket();
    glebe_lease lease = {0};
    uint64_t limit = 5;
    REFUSED(glebe_lease_new(1, &options, NULL, NULL), GLEBE_ERROR_NULL);
    options.size = 3;
    REFUSED(glebe_lease_new(1, &options, &lease, NULL), GLEBE_ERROR_BAD_SIZE);
    options = with_socket();
    options.contiguous = 2;
    REFUSED(glebe_lease_new(1, &options, &lease, NULL), GLEBE_ERROR_BAD_ARGUMENT);
    options = with_socket();
    options.node = 1;
    REFUSED(glebe_lease_new(1, &options, &lease, NULL), GLEBE_ERROR_BAD_ARGUMENT);
    options.on_node = 1;
    options.node = (uint64_t)1 << 32;
    REFUSED(glebe_lease_new(1, &options, &lease, NULL), GLEBE_ERROR_BAD_ARGUMENT);
    options = with_socket();
    options.socket = "/nonexistent/leases";
    REFUSED(glebe_lease_new(1, &options, &lease, &limit), GLEBE_ERROR_NO_DAEMON);
    CHECK(strstr(glebe_last_error(), "glebe serve --leases"));
    CHECK(limit == 5 && lease.id == 0);
    every_call_is_refused(lease, GLEBE_ERROR_BAD_HANDLE);
    every_call_is_refused(HANDLE(glebe_lease, 1234567), GLEBE_ERROR_BAD_HANDLE);
    CHECK(strcmp(glebe_error_name(GLEBE_ERROR_REVOKED), "GLEBE_ERROR_REVOKED") == 0);
}

/* Leases memory; waits up to 10 s for memory of earlier leases. */
static glebe_lease leased(uint64_t len_bytes, const glebe_lease_options *options) {
    glebe_lease lease = {0};
    int tries;
    for (tries = 0; tries < 1000; tries++) {
        int code = glebe_lease_new(len_bytes, options, &lease, NULL);
        if (code == GLEBE_OK) return lease;
        CHECK(code == GLEBE_ERROR_UNDER_WAY || code == GLEBE_ERROR_NO_MEMORY);
        usleep(10000);
    }
    CHECK(!"memory comes back");
    return lease;
}

static unsigned char *bytes_of(glebe_lease lease, uint64_t len_bytes) {
    void *address = NULL;
    uint64_t len = 0;
    OK(glebe_lease_memory(lease, &address, &len));
    CHECK(len == len_bytes);
    return address;
}

static void has_zeroed_memory_in_runs_and_files(void) {
    glebe_lease_options options = with_socket();
    glebe_lease lease = leased(3 * MIB, &options), other = leased(1, &options);
    unsigned char *bytes = bytes_of(lease, 2 * HUGE);
    uint64_t n, number = 0, larger = 0, pages = 0;
    glebe_run runs[2];
    struct stat file;
    size_t count = 0;
    int fds[2] = {-1, -5};

    for (n = 0; n < 2 * HUGE; n++) CHECK(bytes[n] == 0);
    memset(bytes, 7, 2 * HUGE);
    OK(glebe_lease_number(lease, &number));
    OK(glebe_lease_number(other, &larger));
    CHECK(0 < number && number < larger);
    REFUSED(glebe_lease_number(lease, NULL), GLEBE_ERROR_NULL);
    OK(glebe_lease_runs(lease, runs, 2, &count));
    CHECK(count == 1 || count == 2);
    for (n = 0; n < count; n++) {
        CHECK(runs[n].start_pages == pages);
        pages += runs[n].len_pages;
    }
    CHECK(pages * glebe_page_bytes() == 2 * HUGE);
    REFUSED(glebe_lease_runs(lease, NULL, 1, &count), GLEBE_ERROR_NULL);
    OK(glebe_lease_files(lease, fds, 1, &count));
    CHECK(count == 2 && fds[1] == -5 && fstat(fds[0], &file) == 0);
    CHECK((uint64_t)file.st_size == HUGE);
    CHECK(glebe_lease_recalled(lease, 0, NULL) == GLEBE_LEASE_KEPT);
    OK(glebe_lease_free(lease));
    OK(glebe_lease_free(other));
    every_call_is_refused(lease, GLEBE_ERROR_BAD_HANDLE);
    CHECK(fstat(fds[0], &file) == -1);
}

static void has_one_file_or_run_on_request(void) {
    glebe_lease_options options = with_socket();
    glebe_lease lease;
    glebe_run run;
    size_t count = 0;
    unsigned char *mapped;
    int fd = -1;

    options.one_file = 1;
    lease = leased(2 * HUGE, &options);
    OK(glebe_lease_files(lease, &fd, 1, &count));
    CHECK(count == 1);
    mapped = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED);
    mapped[2 * HUGE - 1] = 9;
    CHECK(bytes_of(lease, 2 * HUGE)[2 * HUGE - 1] == 9);
    CHECK(munmap(mapped, 2 * HUGE) == 0);
    OK(glebe_lease_free(lease));

    options = with_socket();
    options.contiguous = 1;
    options.align_bytes = HUGE;
    lease.id = 0;
    switch (glebe_lease_new(2 * HUGE, &options, &lease, NULL)) {
    case GLEBE_OK:
        OK(glebe_lease_runs(lease, &run, 1, &count));
        CHECK(count == 1 && run.len_pages * glebe_page_bytes() == 2 * HUGE);
        OK(glebe_lease_free(lease));
        break;
    default:
        CHECK(strstr(glebe_last_error(), "run") || strstr(glebe_last_error(), "taken back"));
    }
}

static void refusals_have_their_limit(uint64_t all) {
    glebe_lease_options options = with_socket();
    glebe_lease lease = {0};
    uint64_t limit = all + 1;
    REFUSED(glebe_lease_new(MIB << 30, &options, &lease, &limit), GLEBE_ERROR_NO_MEMORY);
    CHECK(limit <= all && strstr(glebe_last_error(), "longest run"));
    REFUSED(glebe_lease_new(0, &options, &lease, &limit), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(limit == HUGE);
    options.align_bytes = 3;
    REFUSED(glebe_lease_new(1, &options, &lease, NULL), GLEBE_ERROR_BAD_ARGUMENT);
    options = with_socket();
    options.on_node = 1;
    options.node = UINT32_MAX;
    REFUSED(glebe_lease_new(1, &options, &lease, &limit), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(limit == 0 && lease.id == 0 && strstr(glebe_last_error(), "NUMA node"));
}

/* Touches the parent's memory until the parent has freed the lease, and then once more. */
static int in_child(glebe_lease lease, volatile unsigned char *bytes) {
    glebe_lease_options options = with_socket();
    glebe_lease own = {0};
    every_call_is_refused(lease, GLEBE_ERROR_FORKED);
    own = leased(1, &options);
    bytes_of(own, HUGE)[0] = 1;
    OK(glebe_lease_free(own));
    bytes[0] = 3;
    while (bytes[0] != 0) usleep(1000);
    bytes[1] = 5;
    return bytes[1] == 5 && bytes[2] == 0 ? 0 : 1;
}

static void a_child_shares_the_memory_and_then_reads_zeros(void) {
    glebe_lease_options options = with_socket();
    glebe_lease lease = leased(HUGE, &options);
    volatile unsigned char *bytes = bytes_of(lease, HUGE);
    int status = -1;
    pid_t pid;
    bytes[2] = 4;
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(in_child(lease, bytes));
    while (bytes[0] != 3) usleep(1000);
    OK(glebe_lease_free(lease));
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void memory_that_is_taken_back_reads_as_zeros(uint64_t all) {
    glebe_lease_options options = with_socket();
    glebe_lease lease, other = {0};
    volatile unsigned char *bytes;
    uint64_t left = 12345, n;
    int code, status;
    pid_t pid;
    options.revocable = 1;
    lease = leased(all, &options);
    bytes = bytes_of(lease, all);
    for (n = 0; n < all; n += HUGE) bytes[n] = 7;
    CHECK(glebe_lease_recalled(lease, 0, &left) == GLEBE_LEASE_KEPT && left == 12345);
    pid = fork();
    if (pid == 0) {
        /* This call waits until the daemon has taken the memory. A revocable lease would not. A
           slow machine may need more than the 2 s that one call waits. */
        options.revocable = 0;
        do {
            code = glebe_lease_new(1, &options, &other, NULL);
        } while (code == GLEBE_ERROR_UNDER_WAY);
        OK(code);
        OK(glebe_lease_free(other));
        _exit(0);
    }
    code = glebe_lease_recalled(lease, UINT64_MAX, &left);
    /* A slow machine notices too late. */
    CHECK(code == GLEBE_ERROR_REVOKED || (code == GLEBE_LEASE_RECALLED && left < 12345));
    while ((code = glebe_lease_recalled(lease, 1000, NULL)) == GLEBE_LEASE_KEPT) {
    }
    CHECK(code == GLEBE_ERROR_REVOKED);
    while (bytes[0] != 0) usleep(1000);
    for (n = 0; n < all; n += HUGE) CHECK(bytes[n] == 0);
    bytes[all - 1] = 1;
    CHECK(bytes[all - 1] == 1);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    other = leased(1, &options);
    OK(glebe_lease_free(other));
    OK(glebe_lease_free(lease));

    /* A lease that nobody asked about in time is told to be gone at once. */
    lease = leased(all - HUGE, &options);
    OK(glebe_lease_free(leased(2 * HUGE, NULL)));
    REFUSED(glebe_lease_recalled(lease, 0, NULL), GLEBE_ERROR_REVOKED);
    OK(glebe_lease_free(lease));
}

int main(int count, char **arguments) {
    wrong_options_are_refused();
    if (count == 3) {
        uint64_t all = strtoull(arguments[2], NULL, 10);
        path = arguments[1];
        CHECK(setenv("GLEBE_LEASES", path, 1) == 0);
        has_zeroed_memory_in_runs_and_files();
        has_one_file_or_run_on_request();
        refusals_have_their_limit(all);
        a_child_shares_the_memory_and_then_reads_zeros();
        memory_that_is_taken_back_reads_as_zeros(all);
    }
    printf("lease.c: ok\n");
    return 0;
}
