/* Asks the kernel for huge pages as the arguments say, and prints how each request went. An argument
   is a letter and a number of MiB. Exits with 7, or with 9 if memory has a wrong byte. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define HUGE (MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB)

static void *map(size_t len, int flags) {
    return mmap(NULL, len, PROT_READ | PROT_WRITE, HUGE | flags, -1, 0);
}

static void *segment(size_t len) {
    int id = shmget(IPC_PRIVATE, len, IPC_CREAT | SHM_HUGETLB | 0600), error;
    void *at;
    if (id < 0)
        return MAP_FAILED;
    at = shmat(id, NULL, 0);
    error = errno;
    shmctl(id, IPC_RMID, NULL);
    errno = error;
    return at;
}

/* Returns the segment, unless a look-up finds another one. */
static void *looked_up(size_t len) {
    int flags = IPC_CREAT | SHM_HUGETLB | 0600, id, i;
    void *at;
    for (i = 0; i < 3; i++)
        if (shmget(getpid(), len, SHM_HUGETLB) != -1 || errno != ENOENT)
            return MAP_FAILED;
    id = shmget(getpid(), len, flags);
    for (i = 0; i < 3; i++)
        if (id < 0 || shmget(getpid(), len, flags) != id)
            return MAP_FAILED;
    at = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    return at;
}

static void check(unsigned char *at, size_t len) {
    size_t i;
    for (i = 0; i < len; i += 512)
        if (at[i] != 0)
            _exit(9);
    memset(at, getpid() & 0xff, len);
    for (i = 0; i < len; i += 512)
        if (at[i] != (getpid() & 0xff))
            _exit(9);
}

static void *in_thread(void *len) {
    void *at = map((size_t)len, 0);
    if (at != MAP_FAILED)
        check(at, (size_t)len);
    return at == MAP_FAILED ? (void *)1 : NULL;
}

static int threads(size_t len) {
    pthread_t all[THREADS];
    void *failed = NULL, *one;
    int i;
    for (i = 0; i < THREADS; i++)
        pthread_create(&all[i], NULL, in_thread, (void *)len);
    for (i = 0; i < THREADS; i++) {
        pthread_join(all[i], &one);
        failed = one ? one : failed;
    }
    return failed != NULL;
}

/* The kernel may use a page for a moment longer than its owner. */
static void wait_until_free(size_t len) {
    const char *path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    unsigned long pages = 0, i;
    for (i = 0; i < 10000 && pages < len >> 21; i++) {
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%lu", &pages) != 1)
            _exit(8);
        fclose(file);
        usleep(1000);
    }
}

static void wait_for_input(void) {
    char byte = 0;
    printf("waits\n");
    fflush(stdout);
    while (byte != '\n' && read(0, &byte, 1) > 0)
        ;
}

/* The address is no multiple of a huge page. */
static void *refused(size_t len) {
    return mmap((void *)4096, len, PROT_READ, HUGE | MAP_FIXED, -1, 0);
}

static void map_and_be_killed(size_t len, int flags) {
    pid_t child = fork();
    if (child == 0) {
        map(len, flags);
        _exit(0);
    }
    usleep(100000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

int main(int count, char **words) {
    int i, status;
    for (i = 1; i < count; i++) {
        size_t len = (size_t)atoi(words[i] + 1) << 20;
        void *at = NULL;
        switch (words[i][0]) {
        case 'm': /* maps */
            at = map(len, 0);
            break;
        case 'n': /* maps without a reservation */
            at = map(len, MAP_NORESERVE);
            break;
        case 'x': /* is refused */
            at = refused(len);
            break;
        case 'y': /* a child is refused */
            if (fork() == 0)
                _exit(refused(len) != MAP_FAILED);
            wait(&status);
            at = status == 0 ? NULL : MAP_FAILED;
            break;
        case 'g': /* maps pages of 1 GiB */
            at = map(len, 30 << 26);
            break;
        case 's': /* a segment of shared memory */
            at = segment(len);
            break;
        case 'k': /* looks for a segment, makes it, and looks it up again */
            at = looked_up(len);
            break;
        case 'u': /* maps and unmaps */
            at = map(len, 0);
            if (at != MAP_FAILED) {
                check(at, len);
                munmap(at, len);
                wait_until_free(len);
                at = NULL;
            }
            break;
        case 't': /* threads map at once */
            at = threads(len) ? MAP_FAILED : NULL;
            break;
        case 'd': /* a child maps, and is killed while others are served */
            map_and_be_killed(len, 0);
            break;
        case 'e': /* the same without a reservation */
            map_and_be_killed(len, MAP_NORESERVE);
            break;
        case 'f': /* a child maps */
            if (fork() == 0) {
                at = map(len, 0);
                if (at != MAP_FAILED)
                    check(at, len);
                _exit(at == MAP_FAILED);
            }
            wait(&status);
            at = status == 0 ? NULL : MAP_FAILED;
            break;
        case 'o': /* an orphan maps later; it goes on with the words that follow */
            fflush(stdout);
            status = getpid();
            if (fork() != 0)
                return 3;
            setsid();
            while (getppid() == status)
                usleep(1000);
            wait_for_input();
            at = map(len, 0);
            break;
        case 'w': /* waits until a line of its input, or the input, ends */
            wait_for_input();
            break;
        }
        if (at == MAP_FAILED) {
            printf("%s: %s\n", words[i], strerror(errno));
        } else {
            if (at)
                check(at, len);
            printf("%s\n", words[i]);
        }
        fflush(stdout);
    }
    return 7;
}
