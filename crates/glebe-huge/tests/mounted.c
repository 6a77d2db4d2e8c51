/* Checks files on hugetlbfs, in the folder that HUGE_FOLDER names. */
#include "checks.h"
#include <linux/magic.h>
#include <sys/vfs.h>

static char path[300];

static char *named(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", getenv("HUGE_FOLDER"), name);
    return path;
}

static size_t length(int fd)
{
    struct stat now;
    must(fstat(fd, &now) == 0);
    return now.st_size;
}

static void used(int fd)
{
    must(fd >= 0 && ftruncate(fd, 2 * HUGE) == 0 && length(fd) == 2 * HUGE);
    char *base = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(base != MAP_FAILED);
    for (size_t at = 0; at < 2 * HUGE; at += 4096)
        must(base[at] == 0);
    memset(base, 1, 2 * HUGE);
    must(huge_kib(base) == 4096);
    must(munmap(base, 2 * HUGE) == 0 && close(fd) == 0);
}

static void opens(void)
{
    used(open(named("a"), O_CREAT | O_RDWR, 0600));
    struct stat now;
    must(stat(path, &now) == 0 && (now.st_mode & 0777) == 0600);
    fails(open(path, O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);
    must(unlink(path) == 0);
    used(open64(named("b"), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    must(unlink(path) == 0);
    int folder = open(getenv("HUGE_FOLDER"), O_RDONLY | O_DIRECTORY);
    must(folder >= 0);
    used(openat(folder, "c", O_CREAT | O_RDWR, 0600));
    used(openat64(folder, "d", O_CREAT | O_RDWR, 0600));
    must(unlinkat(folder, "c", 0) == 0 && unlinkat(folder, "d", 0) == 0 && close(folder) == 0);
    used(mkstemp(named("e.XXXXXX")));
    must(unlink(path) == 0);
    used(mkostemp(named("e.XXXXXX"), O_CLOEXEC));
    must(unlink(path) == 0);
    int fd = creat(named("f"), 0600);
    must(fd >= 0 && fallocate(fd, 0, 0, HUGE) == 0 && length(fd) == HUGE && close(fd) == 0);
    must(unlink(path) == 0);
}

/* As libhugetlbfs and the DPDK do: no length, and the name goes at once. */
static void unlinked(void)
{
    int fd = open(named("x"), O_CREAT | O_RDWR, 0600);
    must(fd >= 0 && unlink(path) == 0);
    char *base = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    must(base != MAP_FAILED && huge_kib(base) == 2048);
    char *own = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    must(own != MAP_FAILED && own[0] == 0);
    must(close(fd) == 0);
    base[0] = 1;
    must(own[0] == 0 && munmap(base, HUGE) == 0 && munmap(own, HUGE) == 0);
}

/* Returns the number of free pages in the list of memory. */
static int listed(void)
{
    FILE *list = fopen("/proc/meminfo", "r");
    char line[200];
    int pages = -1;
    must(list != NULL);
    while (fgets(line, sizeof line, list))
        if (sscanf(line, "HugePages_Free: %d", &pages) == 1)
            break;
    must(fclose(list) == 0);
    return pages;
}

/* The number of free pages that the system shows. */
static void shown(void)
{
    static const char name[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    int most = atoi(getenv("PAGES")), pages = -1;
    char text[20] = {0};
    int fd = open(name, O_RDONLY);
    FILE *stream = fopen(name, "r");
    must(fd >= 0 && stream != NULL);
    if (most < 0) {
        struct statfs system[2];
        must(fstatfs(fd, &system[0]) == 0 && fstatfs(fileno(stream), &system[1]) == 0);
        must(system[0].f_type == SYSFS_MAGIC && system[1].f_type == SYSFS_MAGIC);
    } else {
        must(fscanf(stream, "%d", &pages) == 1 && pages == most);
        must(read(fd, text, 19) > 0 && atoi(text) == most && listed() == most);
    }
    must(fclose(stream) == 0 && close(fd) == 0);
    if (most == 3) {
        used(open(named("z"), O_CREAT | O_RDWR, 0600));
        must(unlink(path) == 0);
    }
}

/* Another process that opens the name sees the kernel's file. */
static void stranger(void)
{
    int fd = open(named("y"), O_CREAT | O_RDWR, 0600);
    must(fd >= 0 && ftruncate(fd, 2 * HUGE) == 0);
    char *base = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(base != MAP_FAILED);
    base[0] = 1;
    int again = open(path, O_RDWR);
    must(again >= 0 && length(again) == 2 * HUGE);
    char word = 'x';
    must(pread(again, &word, 1, 0) == 1 && word == 0);
    must(close(again) == 0 && close(fd) == 0 && munmap(base, 2 * HUGE) == 0 && unlink(path) == 0);
    /* A second lease for the name would have other contents, so there is none. */
    fd = open(named("w"), O_CREAT | O_RDWR, 0600);
    must(fd >= 0);
    base = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(base != MAP_FAILED && length(fd) == HUGE && (again = open(path, O_RDWR)) >= 0);
    must(length(again) == 0 && ftruncate(again, HUGE) == 0);
    char *other = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
    if (other != MAP_FAILED && touch(other, 1) == 0) /* It has a page of the kernel's pool. */
        must(base[0] == 0 && munmap(other, HUGE) == 0);
    must(close(again) == 0 && close(fd) == 0 && munmap(base, HUGE) == 0 && unlink(path) == 0);
}

int main(int count, char **words)
{
    static const struct check all[] = {
        {"opens", opens}, {"shown", shown}, {"stranger", stranger}, {"unlinked", unlinked}};
    return count == 2 ? checked(words[1], all, sizeof all / sizeof *all) : 2;
}
