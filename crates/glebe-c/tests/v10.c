/* A program of the volatile ranges patches, v10, built with -include glebe_vrange.h: their call,
 * all other system calls, and SIGBUS handlers. Pages are lost by madvise(). */
#ifdef DEFINES_GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef INCLUDES_IT_LAST
#include "glebe_vrange.h"
#endif

#include "all.h"

#define SYS_vrange 314
#define VRANGE_VOLATILE 0    /* names that */
#define VRANGE_NOVOLATILE 1  /* such programs use */
#define PAGES 8

static size_t page;

static int vrange(unsigned long start, size_t length, int mode, int *purged) {
    return (int)syscall(SYS_vrange, start, length, mode, purged);
}

static unsigned char *anonymous(size_t pages) {
    void *at = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Returns PAGES volatile pages and loses `pages` of them from `first` on. */
static unsigned char *lose(size_t first, size_t pages) {
    unsigned char *bytes = anonymous(PAGES);
    memset(bytes, 'A', PAGES * page);
    CHECK(vrange((unsigned long)bytes, PAGES * page, VRANGE_VOLATILE, NULL) == (int)(PAGES * page));
    CHECK(madvise(bytes + first * page, pages * page, MADV_DONTNEED) == 0);
    return bytes;
}

static void end(unsigned char *bytes) {
    vrange((unsigned long)bytes, PAGES * page, VRANGE_NOVOLATILE, NULL);
    CHECK(munmap(bytes, PAGES * page) == 0);
}

/* -------- The call -------- */

static void the_call_marks_and_tells(void) {
    long (*call)(long, ...) = syscall;
    unsigned char *bytes = lose(2, 1);
    unsigned long start = (unsigned long)bytes;
    int purged = 9;
    errno = 77;
    CHECK(vrange(start, 2 * page, VRANGE_NOVOLATILE, &purged) == (int)(2 * page) && purged == 0);
    CHECK(errno == 77);
    CHECK(call(314, start, PAGES * page, 1, &purged) == (long)(PAGES * page));
    CHECK(purged == 1 && bytes[page] == 'A' && bytes[2 * page] == 0 && bytes[3 * page] == 'A');
    end(bytes);
    /* Nothing is mapped here: the call returns 0. */
    CHECK(vrange(start, page, VRANGE_VOLATILE, &purged) == 0 && purged == 0);
}

/* Holes inside the range count, a hole at its end does not; other memory ends the call. */
static void holes_and_other_memory(void) {
    unsigned char *bytes = anonymous(PAGES);
    unsigned long start = (unsigned long)bytes;
    int purged = 9, flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(munmap(bytes + 2 * page, page) == 0 && munmap(bytes + 6 * page, 2 * page) == 0);
    CHECK(vrange(start, PAGES * page, VRANGE_VOLATILE, NULL) == (int)(6 * page));
    CHECK(vrange(start + 6 * page, 2 * page, VRANGE_VOLATILE, NULL) == 0);
    CHECK(vrange(start, PAGES * page + 1, VRANGE_NOVOLATILE, &purged) == (int)(6 * page));
    CHECK(mmap(bytes + 4 * page, page, PROT_READ, flags, -1, 0) == bytes + 4 * page);
    CHECK(vrange(start, PAGES * page, VRANGE_VOLATILE, NULL) == (int)(4 * page));
    CHECK(vrange(start + 4 * page, 2 * page, VRANGE_VOLATILE, NULL) == 0 && purged == 0);
    end(bytes);
}

#define FAILS(call, number)                                                                       \
    do {                                                                                          \
        errno = 0;                                                                                \
        CHECK((call) == -1 && errno == (number));                                                 \
    } while (0)

static void arguments_are_checked(void) {
    unsigned char *bytes = lose(1, 1), *other = anonymous(3);
    unsigned long start = (unsigned long)bytes;
    int *bad[4], purged = 9;
    size_t n;
    FAILS(vrange(start + 1, page, VRANGE_NOVOLATILE, &purged), EINVAL);
    FAILS(vrange(start, page - 1, VRANGE_NOVOLATILE, &purged), EINVAL);
    FAILS(vrange(start, SIZE_MAX, VRANGE_NOVOLATILE, &purged), EINVAL);
    FAILS(vrange(start, page, 2, &purged), EINVAL);
    FAILS(vrange(start, page, -1, &purged), EINVAL);
    CHECK(strstr(glebe_last_error(), "mode") != NULL && purged == 9);

    CHECK(mprotect(other, page, PROT_READ) == 0);
    memset(other + page, 3, page);
    bad[0] = (int *)8;
    bad[1] = (int *)other;                           /* read only */
    bad[2] = (int *)(void *)(other + 2 * page - 2);  /* half of it is accessible */
    bad[3] = (int *)(void *)(bytes + page);          /* lost */
    CHECK(mprotect(other + 2 * page, page, PROT_NONE) == 0);
    for (n = 0; n < 4; n++) {
        FAILS(vrange(start, PAGES * page, VRANGE_NOVOLATILE, bad[n]), EFAULT);
        CHECK(strstr(glebe_last_error(), "purged") != NULL);
        CHECK(glebe_vrange(bytes, page, VRANGE_NOVOLATILE, bad[n]) == GLEBE_ERROR_BAD_ARGUMENT);
        CHECK(glebe_vrange_strict(bytes, page, 1, bad[n]) == GLEBE_ERROR_BAD_ARGUMENT);
        CHECK(other[2 * page - 1] == 3);
    }
    /* The calls above changed nothing. The next one writes an unaligned int. */
    CHECK(vrange(start, PAGES * page, 1, (int *)(void *)(other + page + 1)) == (int)(PAGES * page));
    CHECK(other[page] == 3 && other[page + 1] == 1 && other[page + 4] == 0 && other[page + 5] == 3);
    CHECK(munmap(other, 3 * page) == 0);
    end(bytes);
}

/* `purged` may be inside the range, because no page is lost before the call has written
 * `purged`. */
static void the_answer_may_lie_in_the_range(void) {
    unsigned char *bytes = lose(1, 1);
    int *purged = (int *)(void *)bytes;
    CHECK(vrange((unsigned long)bytes, PAGES * page, 1, purged) == (int)(PAGES * page));
    CHECK(*purged == 1);
    CHECK(vrange((unsigned long)bytes, PAGES * page, 0, purged) == (int)(PAGES * page));
    CHECK(*purged == 0);
    end(bytes);
}

/* -------- Other system calls -------- */

static void others_are_the_kernels(void) {
    long (*call)(long, ...) = syscall;
    char text[8] = "", name[] = "/tmp/glebe-v10-XXXXXX";
    struct {
        unsigned size, policy;
        unsigned long long flags;
        unsigned nice, priority;
        unsigned long long runtime, deadline, period;
    } attributes;
    unsigned char *mapped;
    int pipes[2], file = mkstemp(name);

    CHECK(syscall(SYS_getpid) == getpid() && call(SYS_getpid) == getpid());
    CHECK((syscall)(SYS_getppid) == getppid() && pipe(pipes) == 0);
    CHECK(syscall(SYS_write, pipes[1], "seven", 6) == 6 && call(SYS_read, pipes[0], text, 8) == 6);
    CHECK(strcmp(text, "seven") == 0);
    FAILS(syscall(SYS_close, -1), EBADF);
    FAILS(syscall(-1, 1, 2, 3, 4), ENOSYS);
    errno = 77;
    CHECK(syscall(SYS_pwrite64, file, "second", 6, page) == 6 && errno == 77);
    /* The sixth argument selects the page of the file. */
    mapped = (unsigned char *)syscall(SYS_mmap, NULL, page, PROT_READ, MAP_SHARED, file, page);
    CHECK(memcmp(mapped, "second", 7) == 0 && munmap(mapped, page) == 0);
    mapped = (unsigned char *)call(SYS_mmap, NULL, page, PROT_READ, MAP_SHARED, file, page);
    CHECK(memcmp(mapped, "second", 7) == 0 && munmap(mapped, page) == 0);
    CHECK(close(file) == 0 && unlink(name) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);

#if defined(__x86_64__)
    /* The call that has number 314 on x86-64 today. */
    memset(&attributes, 0, sizeof attributes);
    CHECK(syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0);
    CHECK(SYS_sched_setattr == SYS_vrange && attributes.size != 0);
    CHECK(syscall(SYS_sched_setattr, 0, &attributes, 0) == 0);
    CHECK(syscall(SYS_sched_setattr, getpid(), &attributes, 0) == 0);
    FAILS(syscall(SYS_sched_setattr, 1 << 21, NULL, 0), EINVAL);
#else
    (void)attributes;
#endif
}

/* -------- Handlers of SIGBUS -------- */

static unsigned char *volatile said;
static volatile int calls, answered, said_purged;

/* A handler as such programs have it, which takes si_addr for the address of a page. */
static void refill(int signal, siginfo_t *info, void *context) {
    int purged = 9;
    (void)context;
    CHECK(signal == SIGBUS && info->si_code == BUS_ADRERR);
    said = info->si_addr;
    calls++;
    errno = 5;
    answered = vrange((unsigned long)info->si_addr, page, VRANGE_NOVOLATILE, &purged);
    said_purged = purged;
    memset(info->si_addr, 'R', page);
}

/* Maps a new page; si_addr is the exact byte here. */
static void patch(int signal, siginfo_t *info, void *context) {
    unsigned char *at = info->si_addr;
    (void)signal;
    (void)context;
    said = at;
    calls++;
    at -= (uintptr_t)at % page;
    mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static unsigned char *volatile whole;

/* A handler that gets no address makes all pages non-volatile. */
static void unmark_all(int signal) {
    int purged = 9;
    CHECK(signal == SIGBUS);
    calls++;
    answered = vrange((unsigned long)whole, PAGES * page, VRANGE_NOVOLATILE, &purged);
    said_purged = purged;
}

static void with(void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
}

static unsigned char touch(const unsigned char *at) {
    return *(const volatile unsigned char *)at;
}

static void a_touch_is_refilled(void) {
    unsigned char *bytes = lose(2, 3);
    int purged = 9;
    calls = 0;
    CHECK(touch(bytes + page + 9) == 'A' && calls == 0);
    CHECK(touch(bytes + 3 * page + 123) == 'R' && calls == 1 && said == bytes + 3 * page);
    CHECK(answered == (int)page && said_purged == 1);
    ((volatile unsigned char *)bytes)[5 * page - 1] = 'W';
    CHECK(calls == 2 && said == bytes + 4 * page);
    CHECK(touch(bytes + 5 * page - 1) == 'W' && touch(bytes + 4 * page) == 'R' && calls == 2);
    CHECK(vrange((unsigned long)bytes, PAGES * page, 1, &purged) == (int)(PAGES * page));
    CHECK(purged == 1 && touch(bytes + 2 * page) == 0 && calls == 2);
    end(bytes);
}

static void plainly(int is_signal) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = unmark_all;
    if (is_signal) CHECK(signal(SIGBUS, unmark_all) != SIG_ERR);
    if (!is_signal) CHECK(sigaction(SIGBUS, &action, NULL) == 0);
}

static void handlers_without_an_address(int is_signal, int is_first) {
    if (is_first) plainly(is_signal);
    whole = lose(1, 2);
    if (!is_first) plainly(is_signal);
    calls = 0;
    CHECK(touch(whole + page + 5) == 0 && touch(whole + 2 * page) == 0 && calls == 1);
    CHECK(answered == (int)(PAGES * page) && said_purged == 1 && touch(whole) == 'A');
    end(whole);
}

/* A touch beyond the end of a file keeps the kernel's si_addr. */
static void other_touches_have_their_address(void) {
    char name[] = "/tmp/glebe-v10-XXXXXX";
    int file = mkstemp(name);
    unsigned char *at;
    CHECK(file >= 0 && unlink(name) == 0 && ftruncate(file, (off_t)page) == 0);
    at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED && ftruncate(file, 0) == 0);
    with(patch, 0);
    calls = 0;
    CHECK(touch(at + 77) == 0 && calls == 1 && said == at + 77);
    CHECK(munmap(at, page) == 0 && close(file) == 0);
}

static void shared_memory(void) {
    unsigned char *at;
    int purged = 9;
    with(patch, 0);
    calls = 0;
    at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && memset(at, 'S', page) == at);
    CHECK(vrange((unsigned long)at, page, VRANGE_VOLATILE, NULL) == (int)page);
    CHECK(glebe_vrange_purge(page, NULL) == GLEBE_OK && touch(at) == 0 && calls == 0);
    CHECK(vrange((unsigned long)at, page, VRANGE_NOVOLATILE, &purged) == (int)page && purged == 1);
    CHECK(munmap(at, page) == 0);
}

static void a_touch_is_refilled_once(void) {
    unsigned char *bytes = lose(2, 1);
    calls = 0;
    CHECK(touch(bytes + 2 * page + 1) == 'R' && calls == 1);
    end(bytes);
}

static void programs_are_told_their_own_handlers(void) {
    struct sigaction action, old;
    with(refill, SA_RESETHAND);
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_sigaction == refill);
    CHECK((old.sa_flags & (SA_SIGINFO | (int)SA_RESETHAND)) == (SA_SIGINFO | (int)SA_RESETHAND));
    a_touch_is_refilled_once();
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
    with(refill, 0);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = patch;
    action.sa_flags = SA_SIGINFO;
    sigaddset(&action.sa_mask, SIGUSR1);
    CHECK(sigaction(SIGBUS, &action, &old) == 0 && old.sa_sigaction == refill);
    CHECK(sigaction(SIGBUS, &old, &action) == 0 && action.sa_sigaction == patch);
    CHECK(sigismember(&action.sa_mask, SIGUSR1) == 1);
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_sigaction == refill);
    /* Handlers of other signals are left as they are. */
    action.sa_sigaction = patch;
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    CHECK(sigaction(SIGUSR2, NULL, &old) == 0 && old.sa_sigaction == patch);
    FAILS(sigaction(SIGKILL, &action, NULL), EINVAL);
    FAILS(sigaction(1000, NULL, &old), EINVAL);
    CHECK(signal(SIGUSR2, SIG_DFL) != SIG_ERR);
    a_touch_is_refilled();
}

static void children_inherit(void) {
    unsigned char *bytes = lose(2, 2);
    int status = 0;
    pid_t child;
    with(refill, 0); /* after the loss */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int purged = 9;
        alarm(20);
        calls = 0;
        CHECK(touch(bytes + 2 * page + 7) == 'R' && calls == 1 && said == bytes + 2 * page);
        CHECK(vrange((unsigned long)bytes, PAGES * page, 1, &purged) == (int)(PAGES * page));
        CHECK(purged == 1 && touch(bytes) == 'A');
        a_touch_is_refilled();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    calls = 0;
    CHECK(touch(bytes + 3 * page + 7) == 'R' && calls == 1 && said == bytes + 3 * page);
    end(bytes);
}

/* A handler may leave by siglongjmp without making the page non-volatile. */
static sigjmp_buf back;

static void leave(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void a_handler_may_jump(void) {
    unsigned char *bytes = lose(0, 1);
    volatile int jumps = 0;
    CHECK(signal(SIGBUS, leave) != SIG_ERR);
    if (sigsetjmp(back, 1) == 0) {
        touch(bytes);
    } else {
        jumps++;
    }
    CHECK(jumps == 1);
    end(bytes);
}

static void *many_touches(void *unused) {
    int n;
    (void)unused;
    for (n = 0; n < 50; n++) {
        unsigned char *bytes = lose(2, 2);
        CHECK(touch(bytes + 2 * page + 1) == 'R' && touch(bytes + 3 * page + 2) == 'R');
        end(bytes);
    }
    return NULL;
}

static void threads_are_told_their_own(void) {
    pthread_t threads[3];
    int n;
    with(refill, 0);
    for (n = 0; n < 3; n++) CHECK(pthread_create(&threads[n], NULL, many_touches, NULL) == 0);
    for (n = 0; n < 3; n++) CHECK(pthread_join(threads[n], NULL) == 0);
}

/* Runs each way of installing a handler in a child where nothing is volatile yet. */
static void handlers_before_the_first_mark(void) {
    int way, status = 0;
    for (way = 0; way < 3; way++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            if (way == 2) {
                with(refill, 0);
                a_touch_is_refilled();
            } else {
                handlers_without_an_address(way, 1);
            }
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* Returns true if the machine allows volatile pages, as tried by a child. */
static int can_be_volatile(void) {
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (vrange((unsigned long)anonymous(1), page, VRANGE_VOLATILE, NULL) == (int)page) _exit(0);
        status = errno == EPERM || errno == ENOSYS ? 1 : 2;
        fprintf(stderr, "skipped: volatile ranges (%s)\n", glebe_last_error());
        _exit(status);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

int main(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    others_are_the_kernels();
    if (!can_be_volatile()) {
        puts("v10.c: ok");
        return 0;
    }
    handlers_before_the_first_mark();
    the_call_marks_and_tells();
    holes_and_other_memory();
    arguments_are_checked();
    the_answer_may_lie_in_the_range();
    handlers_without_an_address(0, 0);
    handlers_without_an_address(1, 0);
    with(refill, 0);
    a_touch_is_refilled();
    other_touches_have_their_address();
    shared_memory();
    programs_are_told_their_own_handlers();
    children_inherit();
    a_handler_may_jump();
    threads_are_told_their_own();
    puts("v10.c: ok");
    return 0;
}
