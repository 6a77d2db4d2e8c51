/* Shared caches from C99: with a daemon's socket as argument in its memory, else in a file.
 * Usage: shared_cache [SOCKET BYTES | --child SOCKET FOLDER]. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define MIB ((size_t)1 << 20)
#define LONG (3 * MIB)

static const char *path = "/nonexistent/leases";
static size_t cache_bytes = 32 * MIB;
static char folder[] = "/dev/shm/glebe-c-XXXXXX";

static glebe_shared_cache opened(const char *name) {
    glebe_shared_cache_options options = {0};
    glebe_shared_cache cache = {0};
    options.size = sizeof options;
    options.cache_bytes = cache_bytes;
    options.socket = path;
    options.folder = folder;
    OK(glebe_shared_cache_open(name, &options, &cache));
    return cache;
}

/* Stores a value. Memory of an earlier program may be on its way back to the daemon. */
static int put_bytes(glebe_shared_cache cache, const char *key, const void *value, size_t len) {
    int code = GLEBE_PUT_FULL, n;
    for (n = 0; n < 1000 && code == GLEBE_PUT_FULL; n++) {
        if (n > 0) usleep(10000);
        code = glebe_shared_cache_put(cache, key, strlen(key), value, len);
    }
    return code;
}

static int put(glebe_shared_cache cache, const char *key, const char *value) {
    return put_bytes(cache, key, value, strlen(value));
}

static int has(glebe_shared_cache cache, const char *key, const char *value) {
    char buffer[64];
    size_t len = 77;
    int code = glebe_shared_cache_get(cache, key, strlen(key), buffer, sizeof buffer, &len);
    CHECK(code == GLEBE_GET_HIT || (code == GLEBE_GET_MISS && len == 0));
    return code == GLEBE_GET_HIT && len == strlen(value) && memcmp(buffer, value, len) == 0;
}

static void every_call_is_refused(glebe_shared_cache cache, int code) {
    uint64_t limit;
    size_t len;
    char byte;
    REFUSED(put(cache, "key", "value"), code);
    REFUSED(glebe_shared_cache_get(cache, "key", 3, &byte, 1, &len), code);
    REFUSED(glebe_shared_cache_remove(cache, "key", 3), code);
    REFUSED(glebe_shared_cache_limit(cache, &limit), code);
    REFUSED(glebe_shared_cache_memory(cache, NULL, NULL), code);
    REFUSED(glebe_shared_cache_end(cache), code);
    REFUSED(glebe_shared_cache_free(cache), code);
}

static void bad_input_is_refused(void) {
    glebe_shared_cache_options options = {0};
    glebe_shared_cache cache = {0};
    options.size = sizeof options;
    REFUSED(glebe_shared_cache_open(NULL, &options, &cache), GLEBE_ERROR_NULL);
    REFUSED(glebe_shared_cache_open("name", &options, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_shared_cache_open("", &options, &cache), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_shared_cache_open("\xff", &options, &cache), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_shared_cache_open("a name of more than thirty-two bytes", NULL, &cache),
            GLEBE_ERROR_BAD_ARGUMENT);
    options.cache_bytes = UINT64_MAX;
    REFUSED(glebe_shared_cache_open("name", &options, &cache), GLEBE_ERROR_BAD_ARGUMENT);
    options.size = 3;
    REFUSED(glebe_shared_cache_open("name", &options, &cache), GLEBE_ERROR_BAD_SIZE);
    every_call_is_refused(cache, GLEBE_ERROR_BAD_HANDLE);
}

static void values_are_whole_or_missing(uint64_t of_daemon) {
    glebe_shared_cache cache = opened("values");
    uint64_t limit = 0, bytes = 0, is_daemons = 7;
    char buffer[16] = "unchanged";
    size_t len = 0, n;
    unsigned char *value = malloc(LONG), *copy = malloc(LONG);

    OK(glebe_shared_cache_memory(cache, &bytes, &is_daemons));
    CHECK(bytes == cache_bytes && is_daemons == of_daemon);
    CHECK(!has(cache, "key", "value") && put(cache, "key", "value") == GLEBE_PUT_STORED);
    CHECK(has(cache, "key", "value") && put(cache, "key", "newer") == GLEBE_PUT_STORED);
    CHECK(has(cache, "key", "newer"));
    REFUSED(glebe_shared_cache_get(cache, "key", 3, buffer, 4, &len), GLEBE_ERROR_BUFFER_TOO_SMALL);
    CHECK(len == 5 && strcmp(buffer, "unchanged") == 0);
    CHECK(strstr(glebe_last_error(), "5 bytes") != NULL);
    REFUSED(glebe_shared_cache_get(cache, "key", 3, NULL, 0, &len), GLEBE_ERROR_BUFFER_TOO_SMALL);
    REFUSED(glebe_shared_cache_get(cache, "key", 3, NULL, 5, &len), GLEBE_ERROR_NULL);
    REFUSED(glebe_shared_cache_get(cache, NULL, 3, buffer, 5, &len), GLEBE_ERROR_NULL);
    CHECK(put(cache, "", "") == GLEBE_PUT_STORED && has(cache, "", ""));
    REFUSED(glebe_shared_cache_put(cache, NULL, 0, NULL, 1), GLEBE_ERROR_NULL);
    CHECK(glebe_shared_cache_remove(cache, NULL, 0) == GLEBE_REMOVE_DONE);
    CHECK(glebe_shared_cache_remove(cache, "key", 3) == GLEBE_REMOVE_DONE);
    CHECK(glebe_shared_cache_remove(cache, "key", 3) == GLEBE_REMOVE_NONE);
    CHECK(!has(cache, "key", "newer"));

    OK(glebe_shared_cache_limit(cache, &limit));
    CHECK(limit == bytes / 8);
    CHECK(value && copy);
    for (n = 0; n < LONG; n++) value[n] = (unsigned char)(n >> 8 ^ n);
    n = (size_t)limit < LONG ? (size_t)limit - 4 : LONG;
    CHECK(put_bytes(cache, "long", value, n) == GLEBE_PUT_STORED);
    CHECK(glebe_shared_cache_get(cache, "long", 4, copy, LONG, &len) == GLEBE_GET_HIT);
    CHECK(len == n && memcmp(value, copy, n) == 0);
    REFUSED(glebe_shared_cache_put(cache, "long", 4, value, (size_t)limit), GLEBE_ERROR_TOO_LONG);
    CHECK(glebe_shared_cache_get(cache, "long", 4, copy, LONG, &len) == GLEBE_GET_MISS && len == 0);
    REFUSED(glebe_shared_cache_put(cache, value, 65537, "", 0), GLEBE_ERROR_TOO_LONG);
    free(value);
    free(copy);
    OK(glebe_shared_cache_end(cache));
    OK(glebe_shared_cache_free(cache));
    every_call_is_refused(cache, GLEBE_ERROR_BAD_HANDLE);
}

static int in_child(void) {
    glebe_shared_cache cache = opened("processes");
    CHECK(has(cache, "parent", "first") && put(cache, "child", "second") == GLEBE_PUT_STORED);
    OK(glebe_shared_cache_free(cache));
    return 0;
}

static void ended_well(pid_t pid) {
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void processes_share_a_cache(void) {
    glebe_shared_cache cache = opened("processes");
    pid_t pid;
    CHECK(put(cache, "parent", "first") == GLEBE_PUT_STORED);
    pid = fork();
    if (pid == 0) {
        every_call_is_refused(cache, GLEBE_ERROR_FORKED);
        _exit(in_child());
    }
    ended_well(pid);
    CHECK(glebe_shared_cache_remove(cache, "child", 5) == GLEBE_REMOVE_DONE);
    pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "shared_cache", "--child", path, folder, (char *)NULL);
        _exit(1);
    }
    ended_well(pid);
    CHECK(has(cache, "child", "second"));
    OK(glebe_shared_cache_end(cache));
    CHECK(!has(cache, "child", "second"));
    OK(glebe_shared_cache_free(cache));
}

int main(int count, char **arguments) {
    if (count == 4 && strcmp(arguments[1], "--child") == 0) {
        path = arguments[2];
        CHECK(strlen(arguments[3]) < sizeof folder);
        strcpy(folder, arguments[3]);
        return in_child();
    }
    CHECK(mkdtemp(folder) != NULL);
    bad_input_is_refused();
    if (count == 3) {
        path = arguments[1];
        cache_bytes = 8 * MIB; /* the daemon has more */
    }
    values_are_whole_or_missing(count == 3);
    processes_share_a_cache();
    CHECK(rmdir(folder) == 0);
    printf("shared_cache.c: ok\n");
    return 0;
}
