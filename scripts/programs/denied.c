// Runs a program with kernel calls denied that an allocator can do without, as in containers:
//     denied EPERM|ENOSYS PROGRAM ARGS...
//     denied --hides
// userfaultfd, close_range, mincore, process_madvise and membarrier fail with that error. If the
// caller may have mounts of its own, /proc/pressure and the cgroups are hidden too; the second form
// exits with 0 if so.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DENY(name)                                                                                 \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1),                                        \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error)

static int filter(unsigned error) {
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

// Hides cgroups and pressure. Returns nonzero if the user or the container may not. A kernel
// without /proc/pressure has nothing to hide.
static int hide(void) {
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return -1;
    if (mount("none", "/proc/pressure", "tmpfs", 0, "size=4k") && errno != ENOENT) return -1;
    return mount("none", "/sys/fs/cgroup", "tmpfs", 0, "size=4k");
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--hides") == 0) {
        if (hide()) return perror("groups and pressure stay"), 1;
        return 0;
    }
    if (argc < 3) {
        fprintf(stderr, "usage: denied EPERM|ENOSYS PROGRAM ARGS...\n");
        return 2;
    }
    hide();
    if (filter(strcmp(argv[1], "ENOSYS") == 0 ? ENOSYS : EPERM)) {
        perror("denied: seccomp");
        return 2;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 2;
}
