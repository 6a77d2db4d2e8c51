/* Views of the caller's files from C99: contents, errors and limits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define PAGES 16

static uint64_t page;

/* Returns a memfd whose page i has the byte i everywhere. */
static int file(unsigned flags) {
    unsigned char bytes[1 << 16];
    int fd = memfd_create("pages", flags), i;
    CHECK(fd >= 0 && page <= sizeof bytes);
    for (i = 0; i < PAGES; i++) {
        memset(bytes, i, sizeof bytes);
        CHECK(pwrite(fd, bytes, (size_t)page, (off_t)page * i) == (ssize_t)page);
    }
    return fd;
}

static unsigned char *bytes_of(glebe_view view) {
    void *address = NULL;
    OK(glebe_view_memory(view, &address, NULL));
    return address;
}

static void shows_pages_in_order(void) {
    glebe_extent extents[3] = {{9, 1}, {2, 2}, {9, 1}}, told[3];
    glebe_view view = {0}, other = {0};
    uint64_t len_bytes = 0, i;
    size_t count = 0;
    unsigned char *bytes, byte = 0;
    int fd = file(0), copy = dup(fd);

    OK(glebe_view_new(fd, extents, 3, &view));
    OK(glebe_view_new(fd, extents, 1, &other));
    CHECK(close(fd) == 0);
    OK(glebe_view_memory(view, NULL, &len_bytes));
    CHECK(len_bytes == 4 * page);
    bytes = bytes_of(view);
    for (i = 0; i < len_bytes; i++) {
        const unsigned char want[4] = {9, 2, 3, 9};
        CHECK(bytes[i] == want[i / page]);
    }
    /* The view has one page at three places, and writes reach the file. */
    bytes[0] = 77;
    CHECK(bytes[3 * page] == 77 && bytes_of(other)[0] == 77);
    CHECK(pread(copy, &byte, 1, (off_t)(9 * page)) == 1 && byte == 77);

    told[2].len_pages = 4321;
    OK(glebe_view_extents(view, told, 2, &count));
    CHECK(count == 3 && told[0].start_pages == 9 && told[1].len_pages == 2);
    CHECK(told[2].len_pages == 4321); /* beyond the capacity that was given */
    OK(glebe_view_memory(other, NULL, &len_bytes));
    CHECK(len_bytes == page);

    OK(glebe_view_free(view));
    CHECK(bytes_of(other)[0] == 77);
    REFUSED(glebe_view_free(view), GLEBE_ERROR_BAD_HANDLE);
    CHECK(strstr(glebe_last_error(), "is no view that is open") != NULL);
    OK(glebe_view_free(other));
    REFUSED(glebe_view_free(other), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_view_memory(other, NULL, &len_bytes), GLEBE_ERROR_BAD_HANDLE);
    CHECK(close(copy) == 0);
}

static void forks(void) {
    glebe_extent extents[1] = {{1, 2}};
    glebe_view view = {0};
    unsigned char *bytes;
    int fd = file(MFD_CLOEXEC), status = 0;
    pid_t child;

    OK(glebe_view_new(fd, extents, 1, &view));
    bytes = bytes_of(view);
    bytes[2 * page - 1] = 5;
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        glebe_view own = {0};
        REFUSED(glebe_view_free(view), GLEBE_ERROR_FORKED);
        OK(glebe_view_new(fd, extents, 1, &own));
        CHECK(bytes_of(own)[2 * page - 1] == 5);
        OK(glebe_view_free(own));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_view_free(view));
    CHECK(close(fd) == 0);
}

static void refuses(void) {
    glebe_extent extents[2] = {{0, 1}, {PAGES, 1}};
    glebe_view view = {4321};
    char path[64];
    int fd = file(0), ends[2], other;

    REFUSED(glebe_view_new(-1, extents, 1, &view), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(pipe(ends) == 0);
    REFUSED(glebe_view_new(ends[0], extents, 1, &view), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    REFUSED(glebe_view_new(ends[0], extents, 1, &view), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "no copy of it") != NULL);
    REFUSED(glebe_view_new(fd, extents, 2, &view), GLEBE_ERROR_BEYOND);
    extents[0].start_pages = UINT64_MAX;
    REFUSED(glebe_view_new(fd, extents, 1, &view), GLEBE_ERROR_BEYOND);
    extents[0].start_pages = 0;
    REFUSED(glebe_view_new(fd, extents, 0, &view), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_view_new(fd, NULL, 0, &view), GLEBE_ERROR_EMPTY);
    extents[1].len_pages = 0;
    REFUSED(glebe_view_new(fd, extents, 2, &view), GLEBE_ERROR_EMPTY);
    REFUSED(glebe_view_new(fd, NULL, 1, &view), GLEBE_ERROR_NULL);
    REFUSED(glebe_view_new(fd, extents, 1, NULL), GLEBE_ERROR_NULL);
    CHECK(snprintf(path, sizeof path, "/proc/self/fd/%d", fd) > 0);
    other = open(path, O_RDONLY);
    CHECK(other >= 0);
    REFUSED(glebe_view_new(other, extents, 1, &view), GLEBE_ERROR_OS);
    CHECK(close(other) == 0);
    CHECK(view.id == 4321);
    OK(glebe_view_new(fd, extents, 1, &view));
    OK(glebe_view_free(view));
    CHECK(close(fd) == 0);
}

static void has_a_limit(void) {
    unsigned long most = 0, i;
    glebe_extent *extents;
    glebe_view view = {0};
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    int fd = file(0);

    CHECK(limit != NULL && fscanf(limit, "%lu", &most) == 1 && fclose(limit) == 0);
    if (most > 1 << 22) {
        fprintf(stderr, "skipped: the limit on views (vm.max_map_count is %lu)\n", most);
        CHECK(close(fd) == 0);
        return;
    }
    extents = calloc(most, sizeof *extents);
    CHECK(extents != NULL);
    for (i = 0; i < most; i++) {
        extents[i].start_pages = i % 2 * 2;
        extents[i].len_pages = 1;
    }
    REFUSED(glebe_view_new(fd, extents, most, &view), GLEBE_ERROR_MAP_BUDGET);
    CHECK(strstr(glebe_last_error(), "vm.max_map_count") != NULL);
    OK(glebe_view_new(fd, extents, 1000, &view));
    CHECK(bytes_of(view)[999 * page] == 2);
    OK(glebe_view_free(view));
    free(extents);
    CHECK(close(fd) == 0);
}

int main(void) {
    page = glebe_page_bytes();
    shows_pages_in_order();
    forks();
    refuses();
    has_a_limit();
    printf("view.c: ok\n");
    return 0;
}
