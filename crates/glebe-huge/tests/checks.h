/* Checks of the programs that run with the library. A program runs the check that its first argument names. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE ((size_t)2 << 20)
#define must(is)                                                                          \
    do {                                                                                  \
        if (!(is)) {                                                                      \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #is, strerror(errno)); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)
#define fails(call, number) must((errno = 0, (call)) == -1 && errno == (number))

struct check {
    const char *name;
    void (*run)(void);
};

static sigjmp_buf back;

static void jump(int signal)
{
    siglongjmp(back, signal);
}

/* Returns the signal that a write, or a read, raises. */
static inline int touch(volatile char *at, int is_write)
{
    struct sigaction now = {.sa_handler = jump}, old[2];
    sigaction(SIGSEGV, &now, &old[0]);
    sigaction(SIGBUS, &now, &old[1]);
    int signal = sigsetjmp(back, 1);
    if (signal == 0) {
        if (is_write)
            *at = 1;
        else
            (void)*at;
    }
    sigaction(SIGSEGV, &old[0], NULL);
    sigaction(SIGBUS, &old[1], NULL);
    return signal;
}

/* Returns the KiB of huge pages that the mapping at an address has. */
static inline long huge_kib(const void *at)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, end;
    long kib = 0;
    int is_here = 0;
    must(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        long value;
        if (sscanf(line, "%lx-%lx ", &from, &end) == 2)
            is_here = from <= (uintptr_t)at && (uintptr_t)at < end;
        else if (is_here && (sscanf(line, "Shared_Hugetlb: %ld", &value) == 1 ||
                             sscanf(line, "Private_Hugetlb: %ld", &value) == 1))
            kib += value;
    }
    fclose(maps);
    return kib;
}

/* Returns the exit status of a check in a child. */
static inline int in_child(void (*run)(void *), void *with)
{
    pid_t child = fork();
    int status;
    must(child >= 0);
    if (child == 0) {
        run(with);
        exit(0);
    }
    must(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline int checked(const char *name, const struct check *all, int count)
{
    for (int nth = 0; nth < count; nth++) {
        if (strcmp(all[nth].name, name) == 0) {
            all[nth].run();
            return 0;
        }
    }
    fprintf(stderr, "no check has the name %s\n", name);
    return 1;
}
