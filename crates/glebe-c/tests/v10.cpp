// A C++ program of the volatile ranges patches, v10, built with -include glebe_vrange.h.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "all.h"

namespace program {

enum { VRANGE_VOLATILE = 0, VRANGE_NOVOLATILE = 1, SYS_vrange = 314 };

std::size_t page;
unsigned char *said;

// Members with the names of C library functions.
struct Kernel {
    long syscall(long number, long, long, long, long) const { return number + 1; }
    int sigaction(int) const { return 7; }
};

int vrange(unsigned long start, std::size_t length, int mode, int *purged) {
    return static_cast<int>(::syscall(SYS_vrange, start, length, mode, purged));
}

void refill(int, siginfo_t *info, void *) {
    said = static_cast<unsigned char *>(info->si_addr);
    vrange(reinterpret_cast<unsigned long>(said), page, VRANGE_NOVOLATILE, NULL);
    std::memset(said, 'R', page);
}

void run() {
    long (*call)(long, ...) = &::syscall;
    struct sigaction action;
    int purged = 9;
    CHECK(Kernel().syscall(314, 1, 2, 3, 4) == 315 && Kernel().sigaction(1) == 7);
    CHECK(syscall(SYS_getpid) == getpid() && call(SYS_getpid) == getpid());
    CHECK(::syscall(SYS_write, -1, "a", 1) == -1 && errno == EBADF);

    std::memset(&action, 0, sizeof action);
    action.sa_sigaction = refill;
    action.sa_flags = SA_SIGINFO;
    CHECK(::sigaction(SIGBUS, &action, NULL) == 0);
    void *mapped = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    unsigned char *bytes = static_cast<unsigned char *>(mapped);
    unsigned long start = reinterpret_cast<unsigned long>(mapped);
    std::memset(bytes, 'A', 4 * page);
    if (vrange(start, 4 * page, VRANGE_VOLATILE, NULL) == -1) {
        CHECK(errno == EPERM || errno == ENOSYS);
        std::fprintf(stderr, "skipped: volatile ranges (%s)\n", glebe_last_error());
        return;
    }
    CHECK(madvise(bytes + page, 2 * page, MADV_DONTNEED) == 0);
    CHECK(*const_cast<volatile unsigned char *>(bytes + page + 9) == 'R' && said == bytes + page);
    CHECK(call(314, start, 4 * page, 1, &purged) == static_cast<long>(4 * page) && purged == 1);
    CHECK(bytes[0] == 'A' && bytes[page] == 'R' && bytes[2 * page] == 0);
    CHECK(vrange(start, page, 0, reinterpret_cast<int *>(8)) == -1 && errno == EFAULT);
    CHECK(munmap(mapped, 4 * page) == 0);
}

} // namespace program

int main() {
    program::page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    program::run();
    std::puts("v10.cpp: ok");
    return 0;
}
