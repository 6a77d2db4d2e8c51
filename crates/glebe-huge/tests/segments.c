/* Checks shmget(2) with SHM_HUGETLB. */
#include "checks.h"
#include <sys/ipc.h>
#include <sys/shm.h>

#define SHIFT 26
#define OWN (SHM_HUGETLB | IPC_CREAT | 0600)

static key_t key(void)
{
    return 0x676c0000 ^ getpid();
}

static int made(size_t len)
{
    int id = shmget(IPC_PRIVATE, len, OWN);
    must(id >= 0);
    return id;
}

static char *attached(int id, const void *at, int flags)
{
    char *base = shmat(id, at, flags);
    must(base != (char *)-1);
    return base;
}

static struct shmid_ds told(int id)
{
    struct shmid_ds now;
    must(shmctl(id, IPC_STAT, &now) == 0);
    return now;
}

static int is_gone(int id)
{
    struct shmid_ds now;
    return shmctl(id, IPC_STAT, &now) == -1 && (errno == EINVAL || errno == EIDRM);
}

static void sizes(void)
{
    int id = made(3 * HUGE - 5);
    must(told(id).shm_segsz == 3 * HUGE - 5 && told(id).shm_nattch == 0);
    char *base = attached(id, NULL, 0);
    must((uintptr_t)base % HUGE == 0 && told(id).shm_nattch == 1);
    for (size_t at = 0; at < 3 * HUGE; at += 4096)
        must(base[at] == 0);
    memset(base, 7, 3 * HUGE);
    must(huge_kib(base) == 3 * 2048);
    must(touch(base + 3 * HUGE, 0) != 0 || huge_kib(base + 3 * HUGE) == 0);
    must(shmdt(base) == 0 && told(id).shm_nattch == 0);
    must(touch(base, 0) == SIGSEGV);
    fails(shmdt(base), EINVAL);
    base = attached(id, NULL, 0);
    must(base[0] == 7 && base[3 * HUGE - 1] == 7);
    must(shmdt(base) == 0 && shmctl(id, IPC_RMID, NULL) == 0 && is_gone(id));
    fails((long)shmat(id, NULL, 0), EINVAL);
    id = shmget(IPC_PRIVATE, 1, OWN | 21 << SHIFT);
    must(id >= 0 && told(id).shm_segsz == 1);
    base = attached(id, NULL, 0);
    base[HUGE - 1] = 1;
    must(shmdt(base) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
    fails(shmget(IPC_PRIVATE, 0, OWN), EINVAL);
}

static void keys(void)
{
    fails(shmget(key(), HUGE, SHM_HUGETLB), ENOENT);
    int id = shmget(key(), 2 * HUGE, OWN);
    must(id >= 0 && shmget(key(), 2 * HUGE, OWN) == id);
    must(shmget(key(), 0, 0) == id && shmget(key(), HUGE, 0600) == id);
    must(shmget(key(), HUGE, SHM_HUGETLB) == id);
    fails(shmget(key(), 2 * HUGE, OWN | IPC_EXCL), EEXIST);
    fails(shmget(key(), 3 * HUGE, OWN), EINVAL);
    fails(shmget(key(), 3 * HUGE, 0), EINVAL);
    char *base = attached(id, NULL, 0);
    must(told(id).shm_perm.__key == key() && (told(id).shm_perm.mode & 0777) == 0600);
    must(shmctl(id, IPC_RMID, NULL) == 0);
    /* It has no key, but memory until the last detach. */
    fails(shmget(key(), 0, 0), ENOENT);
    base[5] = 9;
    char *again = attached(id, NULL, 0);
    must(again != base && again[5] == 9);
    must(shmdt(base) == 0 && again[5] == 9 && shmdt(again) == 0 && is_gone(id));
    id = shmget(key(), HUGE, OWN | IPC_EXCL);
    must(id >= 0);
    base = attached(id, NULL, 0);
    must(base[5] == 0 && shmdt(base) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
}

static void places(void)
{
    int id = made(2 * HUGE);
    char *free_range = mmap(NULL, 8 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(free_range != MAP_FAILED);
    char *at = (char *)(((uintptr_t)free_range + HUGE - 1) / HUGE * HUGE);
    fails((long)shmat(id, at, 0), EINVAL);
    must(munmap(at, 4 * HUGE) == 0);
    fails((long)shmat(id, at + 4096, 0), EINVAL);
    fails((long)shmat(id, at + 1, 0), EINVAL);
    fails((long)shmat(id, NULL, SHM_REMAP), EINVAL);
    must(attached(id, at, 0) == at);
    at[0] = 3;
    must(attached(id, at + 2 * HUGE + 100, SHM_RND) == at + 2 * HUGE);
    must(at[2 * HUGE] == 3 && told(id).shm_nattch == 2);
    /* An attachment replaces the half of another one. */
    int other = made(HUGE);
    must(attached(other, at + HUGE, SHM_REMAP) == at + HUGE && at[HUGE] == 0);
    must(told(id).shm_nattch == 2 && told(other).shm_nattch == 1);
    must(attached(other, at, SHM_REMAP) == at && at[0] == 0);
    must(told(id).shm_nattch == 1 && told(other).shm_nattch == 2);
    at[0] = 4;
    must(at[HUGE] == 4 && at[2 * HUGE] == 3);
    must(shmdt(at) == 0 && shmdt(at + HUGE) == 0 && shmdt(at + 2 * HUGE) == 0);
    must(told(id).shm_nattch == 0 && told(other).shm_nattch == 0);
    must(shmctl(id, IPC_RMID, NULL) == 0 && shmctl(other, IPC_RMID, NULL) == 0);
}

static void read_only(void)
{
    int id = made(HUGE);
    char *writable = attached(id, NULL, 0), *base = attached(id, NULL, SHM_RDONLY);
    writable[9] = 5;
    must(base[9] == 5 && touch(base + 9, 1) == SIGSEGV && base[9] == 5);
    must(shmdt(base) == 0 && shmdt(writable) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
}

static void parts(void)
{
    int id = made(4 * HUGE);
    char *base = attached(id, NULL, 0);
    memset(base, 1, 4 * HUGE);
    must(munmap(base + HUGE, HUGE) == 0);
    must(touch(base + HUGE, 0) == SIGSEGV && base[0] == 1 && base[2 * HUGE] == 1);
    must(told(id).shm_nattch == 1);
    must(munmap(base, HUGE) == 0 && base[3 * HUGE] == 1);
    /* The rest is still the attachment that began at `base`. */
    must(shmdt(base) == 0 && touch(base + 3 * HUGE, 0) == SIGSEGV);
    must(told(id).shm_nattch == 0);
    base = attached(id, NULL, 0);
    must(base[HUGE] == 1);
    must(munmap(base, 4 * HUGE) == 0 && told(id).shm_nattch == 0);
    base = attached(id, NULL, 0);
    char *to = mmap(NULL, 8 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    to = (char *)(((uintptr_t)to + HUGE - 1) / HUGE * HUGE);
    must(mremap(base, 4 * HUGE, 4 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to && to[0] == 1);
    must(shmdt(to) == 0 && told(id).shm_nattch == 0);
    must(shmctl(id, IPC_RMID, NULL) == 0 && is_gone(id));
}

static void writes(void *with)
{
    char *base = with;
    must(base[0] == 1);
    base[1] = 2;
}

static void attaches(void *with)
{
    int id = *(int *)with;
    char *base = attached(id, NULL, 0);
    must(base[1] == 2 && told(id).shm_nattch == 3);
    base[2] = 3;
    must(shmdt(base) == 0 && told(id).shm_nattch == 2);
}

static void removes(void *with)
{
    must(shmctl(*(int *)with, IPC_RMID, NULL) == 0);
}

static void children(void)
{
    int id = made(HUGE);
    char *base = attached(id, NULL, 0);
    base[0] = 1;
    must(in_child(writes, base) == 0 && base[1] == 2 && told(id).shm_nattch == 1);
    must(in_child(attaches, &id) == 0 && base[2] == 3 && told(id).shm_nattch == 1);
    must(in_child(removes, &id) == 0 && base[2] == 3 && told(id).shm_nattch == 1);
    must(shmdt(base) == 0 && is_gone(id));
    /* A child that lives on has the memory after the parent's end of it. */
    int pipes[2][2];
    id = made(HUGE);
    base = attached(id, NULL, 0);
    base[0] = 8;
    must(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    pid_t child = fork();
    char word;
    if (child == 0) {
        must(read(pipes[0][0], &word, 1) == 1 && base[0] == 8 && told(id).shm_nattch == 1);
        must(shmdt(base) == 0 && is_gone(id));
        exit(0);
    }
    must(shmdt(base) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
    int status;
    must(write(pipes[0][1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    must(is_gone(id));
}

/* Ordinary segments are the kernel's. */
static void ordinary(void)
{
    int huge = made(HUGE), id = shmget(key(), 10000, IPC_CREAT | 0600);
    must(id >= 0 && told(id).shm_segsz == 10000 && shmget(key(), 9999, 0) == id);
    char *base = attached(id, NULL, 0);
    base[0] = 1;
    must(huge_kib(base) == 0 && shmdt(base) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
    must(shmctl(huge, IPC_RMID, NULL) == 0);
}

/* Leases end with their segments, so more can follow than the daemon has at once. */
static void many(void)
{
    for (int nth = 0; nth < 40; nth++) {
        int id = made(4 * HUGE);
        char *base = attached(id, NULL, 0);
        must(base[nth] == 0);
        memset(base, 1, 4 * HUGE);
        if (nth % 2) {
            must(shmctl(id, IPC_RMID, NULL) == 0 && shmdt(base) == 0);
        } else {
            must(shmdt(base) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
        }
    }
}

/* The daemon cannot serve that much, so the kernel answers. */
static void refused(void)
{
    fails(shmget(IPC_PRIVATE, (size_t)1 << 40, OWN), ENOMEM);
}

/* Another program has the token alone. */
static void stranger(void)
{
    char command[200];
    int id = shmget(key(), 2 * HUGE, OWN);
    must(id >= 0 && snprintf(command, sizeof command, "/proc/%d/exe alone", getpid()) > 0);
    char number[20];
    sprintf(number, "%d", key());
    must(setenv("KEY", number, 1) == 0 && system(command) == 0);
    must(shmctl(id, IPC_RMID, NULL) == 0);
}

static void alone(void)
{
    fails(shmget(atoi(getenv("KEY")), 2 * HUGE, SHM_HUGETLB | 0600), EINVAL);
    must(told(shmget(atoi(getenv("KEY")), 0, 0)).shm_segsz == 4096);
}

/* Is killed before it removes its segment. */
static void killed(void)
{
    must(shmget(atoi(getenv("KEY")), HUGE, OWN) >= 0);
    raise(SIGKILL);
}

/* The key is free again, for another length too. */
static void again(void)
{
    int id = shmget(atoi(getenv("KEY")), 2 * HUGE, OWN | IPC_EXCL);
    must(id >= 0 && told(id).shm_segsz == 2 * HUGE);
    char *base = attached(id, NULL, 0);
    must(base[HUGE] == 0 && shmdt(base) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
}

int main(int count, char **words)
{
    static const struct check all[] = {
        {"again", again},       {"alone", alone},       {"children", children},
        {"keys", keys},         {"killed", killed},     {"many", many},
        {"ordinary", ordinary}, {"parts", parts},       {"places", places}, {"read_only", read_only},
        {"refused", refused},   {"sizes", sizes},       {"stranger", stranger},
    };
    return count == 2 ? checked(words[1], all, sizeof all / sizeof *all) : 2;
}
