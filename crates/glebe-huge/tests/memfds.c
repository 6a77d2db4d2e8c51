/* Checks memfd_create(2) with MFD_HUGETLB. */
#include "checks.h"
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4U
#endif

static int made(unsigned flags)
{
    int fd = memfd_create("glebe test", MFD_HUGETLB | flags);
    must(fd >= 0);
    return fd;
}

static size_t length(int fd)
{
    struct stat now;
    must(fstat(fd, &now) == 0);
    return now.st_size;
}

static char *mapped(int fd, size_t len, int how, off_t from)
{
    char *base = mmap(NULL, len, PROT_READ | PROT_WRITE, how, fd, from);
    must(base != MAP_FAILED);
    return base;
}

static void shared(void)
{
    int fd = made(MFD_CLOEXEC);
    must(length(fd) == 0);
    fails(ftruncate(fd, 4096), EINVAL);
    must(ftruncate(fd, 3 * HUGE) == 0 && length(fd) == 3 * HUGE);
    must(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    char *base = mapped(fd, 3 * HUGE, MAP_SHARED, 0), *part = mapped(fd, HUGE, MAP_SHARED, HUGE);
    for (size_t at = 0; at < 3 * HUGE; at += 4096)
        must(base[at] == 0);
    memset(base, 1, 3 * HUGE);
    must(part[0] == 1 && huge_kib(base) == 3 * 2048 && huge_kib(part) == 2048);
    must(munmap(base + HUGE, HUGE) == 0 && part[5] == 1 && touch(base + HUGE, 0) == SIGSEGV);
    /* The memory lives without the descriptor, and without a mapping. */
    must(close(fd) == 0 && base[0] == 1);
    must(munmap(base, HUGE) == 0 && munmap(base + 2 * HUGE, HUGE) == 0 && part[9] == 1);
    must(munmap(part, HUGE) == 0);
    fd = made(21U << 26);
    must(fcntl(fd, F_GETFD) == 0 && ftruncate64(fd, HUGE) == 0);
    must(fcntl(fd, F_GETFD) == 0);
    base = mapped(fd, HUGE, MAP_SHARED, 0);
    base[7] = 7;
    must(munmap(base, HUGE) == 0);
    base = mapped(fd, HUGE, MAP_SHARED, 0);
    char read_part[10];
    must(pread(fd, read_part, 10, 0) == 10 && read_part[7] == 7 && base[7] == 7);
    must(madvise(base, HUGE, MADV_DONTNEED) == 0 && base[7] == 7);
    must(munmap(base, HUGE) == 0 && close(fd) == 0);
    fails(close(fd), EBADF);
}

/* A mapping that may be written makes the file longer, as on hugetlbfs. */
static void unsized_file(void)
{
    int fd = made(0);
    char *base = mapped(fd, HUGE + 1, MAP_SHARED, 0);
    must(length(fd) == 2 * HUGE);
    base[HUGE + 1] = 1;
    must(munmap(base, 2 * HUGE) == 0 && close(fd) == 0);
}

static void private_copy(void)
{
    int fd = made(0);
    must(ftruncate(fd, 2 * HUGE) == 0);
    char *fresh = mapped(fd, 2 * HUGE, MAP_PRIVATE, 0);
    fresh[0] = 1;
    must(huge_kib(fresh) == 2048 && length(fd) == 2 * HUGE);
    char *base = mapped(fd, 2 * HUGE, MAP_SHARED, 0);
    must(base[0] == 0);
    memset(base, 2, HUGE);
    memset(base + HUGE, 3, HUGE);
    char *copy = mapped(fd, 2 * HUGE, MAP_PRIVATE, 0), *part = mapped(fd, HUGE, MAP_PRIVATE, HUGE);
    must(copy[5] == 2 && copy[HUGE] == 3 && part[0] == 3);
    copy[5] = part[0] = 4;
    must(base[5] == 2 && base[HUGE] == 3 && fresh[0] == 1);
    const char *read_only = mmap(NULL, HUGE, PROT_READ, MAP_PRIVATE, fd, 0);
    must(read_only != MAP_FAILED && read_only[1] == 2);
    must(touch((char *)read_only, 1) == SIGSEGV);
    must(madvise(copy, HUGE, MADV_DONTNEED) == 0);
    must(munmap(copy, 2 * HUGE) == 0 && munmap(part, HUGE) == 0 && munmap(fresh, 2 * HUGE) == 0);
    must(munmap((char *)read_only, HUGE) == 0 && munmap(base, 2 * HUGE) == 0 && close(fd) == 0);
}

static void map_and_write(void *with)
{
    char *base = mapped(*(int *)with, HUGE, MAP_SHARED, 0);
    base[1] = 8;
}

/* Copies have what was written by mprotect(2) or in a child. */
static void late_writes(void)
{
    int fd = made(0);
    must(ftruncate(fd, HUGE) == 0);
    char *base = mmap(NULL, HUGE, PROT_READ, MAP_SHARED, fd, 0);
    must(base != MAP_FAILED && mprotect(base, HUGE, PROT_READ | PROT_WRITE) == 0);
    base[1] = 7;
    must(munmap(base, HUGE) == 0);
    char *copy = mapped(fd, HUGE, MAP_PRIVATE, 0);
    must(copy[1] == 7 && munmap(copy, HUGE) == 0 && close(fd) == 0);
    fd = made(0);
    must(ftruncate(fd, HUGE) == 0 && in_child(map_and_write, &fd) == 0);
    copy = mapped(fd, HUGE, MAP_PRIVATE, 0);
    must(copy[1] == 8 && munmap(copy, HUGE) == 0 && close(fd) == 0);
}

static void nothing(void *with)
{
    (void)with;
}

/* A child has the file too, and would get a lease of its own. So the kernel keeps the file. */
static void left(void)
{
    int fd = made(0);
    must(ftruncate(fd, HUGE) == 0);
    char *base = mapped(fd, HUGE, MAP_PRIVATE, 0);
    base[0] = 1;
    must(in_child(nothing, NULL) == 0 && base[0] == 1);
    fails((long)mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), ENOMEM);
    must(munmap(base, HUGE) == 0 && close(fd) == 0);
}

/* No second lease for a file that is only mapped privately. */
static void private_only(void)
{
    int fd = made(0);
    must(ftruncate(fd, 16 * HUGE) == 0);
    char *base = mapped(fd, 16 * HUGE, MAP_PRIVATE, 0);
    memset(base, 1, 16 * HUGE);
    must(munmap(base, 16 * HUGE) == 0 && close(fd) == 0);
}

static void lengths(void)
{
    int fd = made(0);
    must(ftruncate(fd, HUGE) == 0);
    char *base = mapped(fd, HUGE, MAP_SHARED, 0);
    base[3] = 3;
    fails(ftruncate(fd, 2 * HUGE), EPERM);
    fails(ftruncate(fd, 0), EPERM);
    must(ftruncate(fd, HUGE) == 0 && munmap(base, HUGE) == 0);
    fails(ftruncate(fd, HUGE + 1), EINVAL);
    must(ftruncate(fd, 3 * HUGE) == 0 && length(fd) == 3 * HUGE);
    base = mapped(fd, 3 * HUGE, MAP_SHARED, 0);
    must(base[3] == 3 && base[2 * HUGE] == 0);
    base[2 * HUGE] = 4;
    must(munmap(base, 3 * HUGE) == 0);
    base = mapped(fd, 4 * HUGE, MAP_SHARED, 0);
    must(base[2 * HUGE] == 4 && base[3 * HUGE] == 0 && length(fd) == 4 * HUGE);
    must(munmap(base, 4 * HUGE) == 0);
    must(ftruncate(fd, HUGE) == 0 && length(fd) == HUGE);
    base = mapped(fd, HUGE, MAP_SHARED, 0);
    must(base[3] == 3 && munmap(base, HUGE) == 0);
    must(ftruncate(fd, 0) == 0 && length(fd) == 0);
    must(ftruncate(fd, HUGE) == 0);
    base = mapped(fd, HUGE, MAP_SHARED, 0);
    must(base[3] == 0 && munmap(base, HUGE) == 0 && close(fd) == 0);
}

static void filled(void)
{
    int fd = made(0), other = made(0);
    fails(fallocate(fd, 0, 0, 0), EINVAL);
    must(fallocate(fd, 0, HUGE, HUGE) == 0 && length(fd) == 2 * HUGE);
    must(posix_fallocate(other, 0, 1) == 0 && length(other) == HUGE);
    must(fallocate(fd, 0, 0, 2 * HUGE) == 0 && posix_fallocate(fd, 0, HUGE) == 0);
    char *base = mapped(fd, 2 * HUGE, MAP_SHARED, 0);
    memset(base, 1, 2 * HUGE);
    must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, HUGE, HUGE) == 0);
    must(base[HUGE] == 0 && base[HUGE - 1] == 1);
    must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, 2) == 0);
    must(base[0] == 1 && base[1] == 0 && base[2] == 0 && base[3] == 1);
    must(madvise(base, HUGE, MADV_REMOVE) == 0 && base[0] == 0);
    base[HUGE] = 5;
    must(munmap(base, 2 * HUGE) == 0 && close(fd) == 0 && close(other) == 0);
    /* Other files are the kernel's. */
    fd = memfd_create("small", 0);
    must(fallocate(fd, 0, 0, 5000) == 0 && length(fd) == 5000);
    must(posix_fallocate(fd, 0, 9000) == 0 && length(fd) == 9000);
    must(posix_fallocate(fd, 0, -1) == EINVAL && close(fd) == 0);
    must(posix_fallocate(fd, 0, 1) == EBADF);
}

static void copies(void)
{
    int fd = made(0), before = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 200);
    must(ftruncate(fd, HUGE) == 0 && length(before) == HUGE && length(high) == HUGE);
    must(fcntl(high, F_GETFD) == FD_CLOEXEC && fcntl(before, F_GETFD) == 0);
    char *base = mapped(before, HUGE, MAP_SHARED, 0);
    base[0] = 6;
    int after = dup(fd);
    must(munmap(base, HUGE) == 0 && close(fd) == 0 && close(before) == 0 && close(high) == 0);
    base = mapped(after, HUGE, MAP_SHARED, 0);
    must(base[0] == 6 && munmap(base, HUGE) == 0);
    /* Another file takes the descriptor's number. */
    fd = made(0);
    must(ftruncate(fd, HUGE) == 0 && dup2(fd, after) == after && close(fd) == 0);
    must(dup3(STDERR_FILENO, after, O_CLOEXEC) == after && close(after) == 0);
}

static void many(void)
{
    for (int nth = 0; nth < 60; nth++) {
        int fd = made(0);
        must(ftruncate(fd, 4 * HUGE) == 0);
        char *base = mapped(fd, 4 * HUGE, MAP_SHARED, 0);
        must(base[nth] == 0);
        memset(base, 1, 4 * HUGE);
        switch (nth % 5) {
        case 0:
            must(munmap(base, 4 * HUGE) == 0 && close(fd) == 0);
            break;
        case 1:
            must(close(fd) == 0 && munmap(base, 4 * HUGE) == 0);
            break;
        case 2:
            must(munmap(base, 4 * HUGE) == 0 && close_range(fd, fd, 0) == 0);
            break;
        case 3:
            must(munmap(base, 4 * HUGE) == 0 && dup2(STDERR_FILENO, fd) == fd && close(fd) == 0);
            break;
        default:
            must(munmap(base, 4 * HUGE) == 0);
            closefrom(fd);
        }
    }
}

static void writes(void *with)
{
    char *base = with;
    must(base[0] == 1);
    base[1] = 2;
}

static void maps(void *with)
{
    char *base = mapped(*(int *)with, HUGE, MAP_SHARED, 0);
    must(base[1] == 2);
    base[2] = 3;
    must(munmap(base, HUGE) == 0 && close(*(int *)with) == 0);
}

static void children(void)
{
    int fd = made(0);
    must(ftruncate(fd, HUGE) == 0);
    char *base = mapped(fd, HUGE, MAP_SHARED, 0);
    base[0] = 1;
    must(in_child(writes, base) == 0 && base[1] == 2);
    must(in_child(maps, &fd) == 0 && base[2] == 3);
    must(munmap(base, HUGE) == 0 && close(fd) == 0);
}

/* A child of vfork closes its own descriptors, but has the parent's memory. */
static void closed_by_vforked(int fd)
{
    pid_t child = vfork();
    if (child == 0) {
        close(fd);
        closefrom(3);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

static void vforked(void)
{
    /* Lost leases would leave nothing for the later ones. */
    for (int nth = 0; nth < 30; nth++) {
        int fd = made(0);
        must(ftruncate(fd, 4 * HUGE) == 0);
        char *base = mapped(fd, 4 * HUGE, MAP_SHARED, 0);
        base[0] = 1;
        must(munmap(base, 4 * HUGE) == 0);
        closed_by_vforked(fd);
        if (nth < 3)
            usleep(300000); /* Time for the daemon to take the memory, which it must not. */
        base = mapped(fd, 4 * HUGE, MAP_SHARED, 0);
        must(base[0] == 1 && munmap(base, 4 * HUGE) == 0 && close(fd) == 0);
    }
}

/* Another process, which is no child with copies, gets the memory by a socket. */
static void sent(void)
{
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    char word = 'x', space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&word, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (child == 0) {
        must(recvmsg(pair[1], &message, 0) == 1);
        char *base = mapped(*(int *)CMSG_DATA(CMSG_FIRSTHDR(&message)), HUGE, MAP_SHARED, 0);
        must(base[0] == 1);
        base[1] = 2;
        must(write(pair[1], "y", 1) == 1 && read(pair[1], &word, 1) == 1);
        usleep(500000); /* Time for the daemon to take the memory, which it must not. */
        must(base[0] == 1 && base[1] == 2 && huge_kib(base) == 2048);
        exit(0);
    }
    int fd = made(0);
    must(ftruncate(fd, HUGE) == 0);
    char *base = mapped(fd, HUGE, MAP_SHARED, 0);
    base[0] = 1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    must(sendmsg(pair[0], &message, 0) == 1 && read(pair[0], &word, 1) == 1);
    must(base[1] == 2);
    /* The sender has neither a descriptor nor a mapping now. */
    must(munmap(base, HUGE) == 0 && close(fd) == 0);
    must(write(pair[0], "z", 1) == 1);
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

static void places(void)
{
    int fd = made(0);
    must(ftruncate(fd, 2 * HUGE) == 0);
    char *base = mapped(fd, 2 * HUGE, MAP_SHARED, 0);
    base[0] = 1;
    int both = PROT_READ | PROT_WRITE;
    must(mmap(base + HUGE, HUGE, both, MAP_SHARED | MAP_FIXED, fd, 0) == base + HUGE);
    must(base[HUGE] == 1);
    must(mmap(base, HUGE, both, MAP_PRIVATE | MAP_FIXED, fd, 0) == base);
    must(base[0] == 1);
    base[0] = 2;
    must(base[HUGE] == 1);
    fails((long)mmap(NULL, HUGE, both, MAP_SHARED, fd, 4096), EINVAL);
    must(munmap(base, 2 * HUGE) == 0 && close(fd) == 0);
}

static void seals(void)
{
    int fd = made(MFD_ALLOW_SEALING), all = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
    must(fcntl(fd, F_GET_SEALS) == 0 && ftruncate(fd, 2 * HUGE) == 0);
    must(fcntl(fd, F_GET_SEALS) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) == 0);
    fails(ftruncate(fd, 3 * HUGE), EPERM);
    fails(fallocate(fd, 0, 0, 3 * HUGE), EPERM);
    /* The next lease has the seals too. */
    must(ftruncate(fd, HUGE) == 0 && fcntl(fd, F_GET_SEALS) == F_SEAL_GROW);
    fails(ftruncate(fd, 2 * HUGE), EPERM);
    fails(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EPERM);
    must(fcntl64(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) == 0);
    fails(ftruncate(fd, 0), EPERM);
    fails(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), EPERM);
    /* A private mapping takes the fresh lease, and leaves a file that waits. */
    char *base = mapped(fd, HUGE, MAP_PRIVATE, 0);
    must(fcntl(fd, F_GET_SEALS) == all);
    fails(ftruncate(fd, 0), EPERM);
    must(munmap(base, HUGE) == 0);
    base = mapped(fd, HUGE, MAP_SHARED, 0);
    must(fcntl(fd, F_GET_SEALS) == all && munmap(base, HUGE) == 0 && close(fd) == 0);
}

static void seals_before(void)
{
    int fd = made(MFD_ALLOW_SEALING);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0 && ftruncate(fd, 2 * HUGE) == 0);
    must(fcntl(fd, F_GET_SEALS) == F_SEAL_SHRINK && ftruncate(fd, 3 * HUGE) == 0);
    fails(ftruncate(fd, HUGE), EPERM);
    must(close(fd) == 0);
    /* Without MFD_ALLOW_SEALING there are none. */
    fd = made(0);
    must(ftruncate(fd, HUGE) == 0 && fcntl(fd, F_GET_SEALS) == F_SEAL_SEAL);
    fails(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), EPERM);
    must(ftruncate(fd, 0) == 0 && fcntl(fd, F_GET_SEALS) == F_SEAL_SEAL && close(fd) == 0);
}

/* The library does not see the call that makes the file, but that which makes a hole. */
static void bare(void)
{
    int fd = syscall(SYS_memfd_create, "bare", MFD_HUGETLB);
    must(fd >= 0 && ftruncate(fd, HUGE) == 0);
    char *base = mapped(fd, HUGE, MAP_SHARED, 0);
    base[0] = 1;
    must(huge_kib(base) == 2048);
    /* A hole gives no page away. */
    int hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    must(syscall(SYS_fallocate, fd, hole, 0L, HUGE) == 0);
    must(huge_kib(base) == 2048 && base[0] == 0);
    must(syscall(SYS_fallocate, fd, 0, 0L, HUGE) == 0);
    fails(syscall(SYS_fallocate, fd, 0, 0L, 0L), EINVAL);
    must(syscall(SYS_getppid) == getppid() && syscall(SYS_fcntl, fd, F_GETFD, 0) == 0);
    must(munmap(base, HUGE) == 0 && close(fd) == 0);
}

static void refused(void)
{
    int fd = made(0);
    must(ftruncate(fd, (off_t)1 << 40) == 0 && length(fd) == (size_t)1 << 40);
    fails((long)mmap(NULL, (size_t)1 << 40, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), ENOMEM);
    must(close(fd) == 0);
}

int main(int count, char **words)
{
    static const struct check all[] = {
        {"bare", bare},
        {"children", children},
        {"copies", copies},
        {"filled", filled},
        {"late_writes", late_writes}, {"left", left}, {"lengths", lengths},
        {"many", many},
        {"places", places},
        {"private_copy", private_copy},
        {"private_only", private_only},
        {"refused", refused},
        {"seals", seals},
        {"seals_before", seals_before},
        {"sent", sent},
        {"shared", shared},
        {"unsized_file", unsized_file},
        {"vforked", vforked},
    };
    return count == 2 ? checked(words[1], all, sizeof all / sizeof *all) : 2;
}
