/* Contiguous memory from C: its properties, errors, and what a child sees of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
#define BOTH (PROT_READ | PROT_WRITE)
#define FAILS(call, number)                                                                     \
    do {                                                                                        \
        errno = 0;                                                                              \
        CHECK((call) == MAP_FAILED);                                                            \
        if (errno != (number)) fprintf(stderr, "errno %d\n", errno);                            \
        CHECK(errno == (number) && glebe_last_error()[0] != '\0');                              \
    } while (0)

static size_t page;

/* Returns contiguous memory, or null if this user cannot have it: no pool, or no pin. */
static unsigned char *have(size_t len, int prot, int flags, int fd) {
    void *at = glebe_mmap_contig(NULL, len, prot, flags, fd, 0);
    if (at != MAP_FAILED) return at;
    CHECK(errno == ENOMEM || errno == EPERM);
    fprintf(stderr, "skipped: %s\n", glebe_last_error());
    return NULL;
}

static glebe_contig query(const void *at) {
    glebe_contig contig = {0};
    contig.size = sizeof contig;
    OK(glebe_contig_query(at, &contig));
    CHECK(contig.size == sizeof contig);
    return contig;
}

/* Runs `body` in a child. Returns true if the child exits with 0 or, if `signal` is not 0, is
 * killed by it. */
static int child_ends(int (*body)(unsigned char *), unsigned char *at, int signal) {
    int status = 0;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(body(at));
    CHECK(waitpid(pid, &status, 0) == pid);
    if (signal) return WIFSIGNALED(status) && WTERMSIG(status) == signal;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int touch(unsigned char *at) {
    return *(volatile unsigned char *)at == 7 ? 0 : 1;
}

static int call(unsigned char *at) {
    glebe_contig contig = {0};
    contig.size = sizeof contig;
    if (glebe_contig_query(at, &contig) != GLEBE_ERROR_FORKED) return 1;
    return glebe_munmap_contig(at, page) == GLEBE_ERROR_FORKED ? 0 : 2;
}

static void memory_is_whole(size_t len, int flags, int fd) {
    unsigned char *at = have(len, BOTH, flags, fd);
    if (!at) return;
    for (size_t n = 0; n < len; n++) CHECK(at[n] == 0);
    memset(at, 7, len);
    glebe_contig first = query(at), inside = query(at + len - 1);
    CHECK(first.contiguous_bytes >= len && first.held_by != GLEBE_HELD_BY_NOTHING);
    CHECK(first.mapped_bytes >= len && first.run_bytes >= len);
    CHECK(inside.offset_bytes == first.offset_bytes + len - 1);
    CHECK(inside.contiguous_bytes == first.contiguous_bytes - (len - 1));
    if (first.pfn != GLEBE_PFN_HIDDEN) CHECK(inside.pfn == first.pfn + (len - 1) / page);
    CHECK(mremap(at, first.mapped_bytes, first.mapped_bytes * 2, 0) == MAP_FAILED);
    CHECK(child_ends(touch, at, SIGSEGV) && child_ends(call, at, 0));
    CHECK(at[0] == 7 && at[len - 1] == 7);
    REFUSED(glebe_munmap_contig(at, first.mapped_bytes + page), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_munmap_contig(at + page, len), GLEBE_ERROR_UNMAPPED);
    OK(glebe_munmap_contig(at, len));
    REFUSED(glebe_munmap_contig(at, len), GLEBE_ERROR_UNMAPPED);
    REFUSED(glebe_contig_query(at, &first), GLEBE_ERROR_UNMAPPED);
}

static void what_cannot_be_is_refused(int zero) {
    FAILS(glebe_mmap_contig(NULL, 0, BOTH, ANONYMOUS, -1, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, SIZE_MAX, BOTH, ANONYMOUS, -1, 0), ENOMEM);
    FAILS(glebe_mmap_contig(NULL, (size_t)1 << 46, BOTH, ANONYMOUS, -1, 0), ENOMEM);
    FAILS(glebe_mmap_contig(NULL, page, 1 << 20, ANONYMOUS, -1, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, MAP_SHARED | MAP_ANONYMOUS, -1, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, MAP_ANONYMOUS, -1, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, ANONYMOUS | MAP_FIXED, -1, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, ANONYMOUS | MAP_GROWSDOWN, -1, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, MAP_PRIVATE, -1, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, MAP_PRIVATE, zero, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, ANONYMOUS, zero, 0), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, ANONYMOUS, -1, 1), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, ANONYMOUS, -1, -(int64_t)page), EINVAL);
    FAILS(glebe_mmap_contig(NULL, page, BOTH, ANONYMOUS | MAP_HUGETLB | 45 << 26, -1, 0), ENOMEM);
    glebe_contig contig = {0};
    REFUSED(glebe_contig_query(&page, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_contig_query(&page, &contig), GLEBE_ERROR_BAD_SIZE);
    contig.size = sizeof contig;
    REFUSED(glebe_contig_query(&page, &contig), GLEBE_ERROR_UNMAPPED);
    REFUSED(glebe_contig_query(NULL, &contig), GLEBE_ERROR_UNMAPPED);
    REFUSED(glebe_munmap_contig(NULL, page), GLEBE_ERROR_UNMAPPED);
}

static int store(unsigned char *at) {
    *(volatile unsigned char *)at = 1;
    return 1;
}

static void protections_hold(void) {
    unsigned char *at = have(page, PROT_READ, ANONYMOUS, -1);
    if (!at) return;
    CHECK(at[page - 1] == 0);
    /* A vfork child shares this memory, which a forked child would not have. */
    pid_t pid = vfork();
    if (pid == 0) _exit(store(at));
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    OK(glebe_munmap_contig(at, page));
    at = have(page, PROT_NONE, ANONYMOUS, -1);
    if (at) OK(glebe_munmap_contig(at, page));
}

/* Returns the bytes of all mappings but the heap, which the allocator may grow. */
static size_t mapped(void) {
    char line[4096];
    size_t bytes = 0;
    uintptr_t start, end;
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (!strstr(line, "[heap]") &&
            sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2)
            bytes += end - start;
    fclose(file);
    return bytes;
}

/* Asks for executable memory again while it is refused with ENOMEM or EPERM, because all processes
 * of a user share the limit of locked memory. */
static void *executable(int prot) {
    void *at = MAP_FAILED;
    for (int tries = 0; tries < 3000; tries++) {
        at = glebe_mmap_contig(NULL, page, prot, ANONYMOUS, -1, 0);
        if (at != MAP_FAILED || (errno != ENOMEM && errno != EPERM)) break;
        usleep(10000);
        errno = ENOMEM;
    }
    return at;
}

/* If other processes use all huge pages, the call fails with ENOMEM instead of EACCES. */
static void execution_fails(int with_huge) {
    const int prots[] = {PROT_EXEC, PROT_READ | PROT_EXEC, BOTH | PROT_EXEC};
    for (size_t n = 0; n < sizeof prots / sizeof prots[0]; n++) {
        if (with_huge) {
            CHECK(glebe_mmap_contig(NULL, page, prots[n], ANONYMOUS | MAP_HUGETLB, -1, 0) ==
                  MAP_FAILED);
            if (errno == ENOMEM) fprintf(stderr, "disturbed: %s\n", glebe_last_error());
            else CHECK(errno == EACCES);
        }
        FAILS(executable(prots[n]), EACCES);
        CHECK(strstr(glebe_last_error(), "mprotect("));
    }
}

/* PR_SET_MDWE forbids memory that was writable to become executable. A refused call leaves no
 * mapping behind. */
static int execution_is_refused(unsigned char *huge) {
    if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)) return 77;
    execution_fails(huge != NULL);
    /* The calls above made mappings that later calls use again. */
    size_t before = mapped();
    execution_fails(huge != NULL);
    CHECK(mapped() == before);
    unsigned char *at = have(page, BOTH, ANONYMOUS, -1);
    CHECK(at);
    OK(glebe_munmap_contig(at, query(at).mapped_bytes));
    return 0;
}

static void protections_that_cannot_be_are_refused(void) {
    unsigned char *at = have(page, PROT_READ | PROT_EXEC, ANONYMOUS, -1);
    if (!at) return;
    OK(glebe_munmap_contig(at, query(at).mapped_bytes));
    unsigned char *huge = have(page, BOTH | PROT_EXEC, ANONYMOUS | MAP_HUGETLB, -1);
    if (huge) OK(glebe_munmap_contig(huge, query(huge).mapped_bytes));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(execution_is_refused(huge));
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) fprintf(stderr, "skipped: no PR_SET_MDWE before Linux 6.3\n");
    else CHECK(WEXITSTATUS(status) == 0);
}

static void an_address_is_kept_or_refused(void) {
    unsigned char *at = have(page, BOTH, ANONYMOUS, -1);
    if (!at) return;
    size_t len = query(at).mapped_bytes;
    FAILS(glebe_mmap_contig(at, page, BOTH, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    OK(glebe_munmap_contig(at, len));
    void *again = glebe_mmap_contig(at, page, BOTH, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(again == at || (again == MAP_FAILED && errno != EEXIST));
    if (again == at) OK(glebe_munmap_contig(at, page));
}

/* While a child holds the lock of the hugetlb pools, a call waits only until its time limit. */
static void a_wait_for_the_pools_ends(void) {
    /* Each living process, also this one, has locked a byte behind this range. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = (off_t)1 << 40};
    size_t len = (size_t)4 << 30; /* more than is idle */
    char holder[32], byte = 1;
    int ready[2];
    if (geteuid() != 0 || access("/run/glebe/hugetlb.lock", W_OK)) {
        fprintf(stderr, "skipped: no lock of root's\n");
        return;
    }
    CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int file = open("/run/glebe/hugetlb.lock", O_RDWR);
        if (file < 0 || fcntl(file, F_SETLKW, &lock) || write(ready[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    OK(glebe_mmap_contig_limits(0, 0, 20));
    errno = 0;
    void *at = glebe_mmap_contig(NULL, len, BOTH, ANONYMOUS | MAP_HUGETLB, -1, 0);
    CHECK(at == MAP_FAILED);
    snprintf(holder, sizeof holder, "process %d", (int)pid);
    if (errno == ENOMEM) fprintf(stderr, "skipped: %s\n", glebe_last_error());
    else CHECK(errno == ETIMEDOUT && strstr(glebe_last_error(), holder));
    OK(glebe_mmap_contig_limits(0, 0, 0));
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    CHECK(close(ready[0]) == 0 && close(ready[1]) == 0);
}

static void a_search_keeps_to_its_bounds(void) {
    size_t len = (size_t)256 << 20;
    OK(glebe_mmap_contig_limits(1, 1, 0));
    void *at = glebe_mmap_contig(NULL, len, BOTH, ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (at != MAP_FAILED) OK(glebe_munmap_contig(at, len)); /* the first pages were a run */
    else if (geteuid() != 0) CHECK(errno == ENOMEM);
    else CHECK(errno == ENOMEM && strstr(glebe_last_error(), "256 MiB"));
    OK(glebe_mmap_contig_limits(0, 0, 0));
}

int main(void) {
    page = glebe_page_bytes();
    int zero = open("/dev/zero", O_RDWR);
    CHECK(zero >= 0);
    what_cannot_be_is_refused(zero);
    memory_is_whole(page, ANONYMOUS, -1);
    memory_is_whole(16 * page, ANONYMOUS | MAP_POPULATE | MAP_LOCKED, -1);
    memory_is_whole((size_t)3072 << 10, ANONYMOUS, -1); /* no power of two */
    memory_is_whole((size_t)4 << 20, ANONYMOUS | MAP_HUGETLB, -1);
    protections_hold();
    protections_that_cannot_be_are_refused();
    an_address_is_kept_or_refused();
    a_wait_for_the_pools_ends();
    a_search_keeps_to_its_bounds();
    CHECK(close(zero) == 0);
    printf("contig.c: ok\n");
    return 0;
}
