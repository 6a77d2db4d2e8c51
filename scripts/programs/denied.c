// Runs a program where kernel calls that an allocator can do without are denied, as containers do:
//     denied PROGRAM ARGS...
// EPERM for userfaultfd, close_range, mincore, process_madvise and membarrier. Where the caller may
// have mounts of its own, there is no pressure to read (/proc/pressure) and no cgroup either.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DENY(name)                                                                                 \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1),                                        \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

static int filter(void) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        DENY(userfaultfd),
        DENY(close_range),
        DENY(mincore),
        DENY(process_madvise),
        DENY(membarrier),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = {sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
}

// Without privileges, or in a container that forbids it, they stay.
static void hide(void) {
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return;
    mount("none", "/proc/pressure", "tmpfs", 0, "size=4k");
    mount("none", "/sys/fs/cgroup", "tmpfs", 0, "size=4k");
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: denied PROGRAM ARGS...\n");
        return 2;
    }
    hide();
    if (filter()) {
        perror("denied: seccomp");
        return 2;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 2;
}
