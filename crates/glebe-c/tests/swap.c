/* Swap from C99: results and errors. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define OBJECTS 64
#define LEN (64 * KIB)
#define FILE_DIRECTORY "/tmp"

static glebe_swap_options no_options(void) {
    glebe_swap_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    return options;
}

/* Returns byte `at` of object or page `n`. Half of these bytes do not compress. */
static unsigned char byte_of(size_t n, size_t at) {
    uint32_t x = (uint32_t)(n * 2654435761u + at);
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    return at % 2 == 0 ? (unsigned char)n : (unsigned char)x;
}

static void fill(unsigned char *to, size_t n, size_t len) {
    size_t at;
    for (at = 0; at < len; at++) to[at] = byte_of(n, at);
}

static int is_filled(const unsigned char *from, size_t n, size_t len) {
    size_t at;
    for (at = 0; at < len && from[at] == byte_of(n, at); at++) {
    }
    return at == len;
}

static glebe_swap_object insert(glebe_swap_store store, size_t n, size_t len) {
    unsigned char *bytes = malloc(len);
    glebe_swap_object object = {0, 0};
    CHECK(bytes != NULL);
    fill(bytes, n, len);
    OK(glebe_swap_store_insert(store, bytes, len, &object));
    free(bytes);
    return object;
}

static void is_the_object(glebe_swap_store store, glebe_swap_object object, size_t n, size_t len) {
    glebe_swap_pin pin = {0};
    const void *bytes = NULL;
    size_t found = 0;
    OK(glebe_swap_store_pin(store, object, &bytes, &found, &pin));
    CHECK(found == len && is_filled(bytes, n, len));
    OK(glebe_swap_pin_free(pin));
}

static void nothing_there(void) {
    REFUSED(glebe_swap_store_free(HANDLE(glebe_swap_store, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_swap_region_free(HANDLE(glebe_swap_region, 1)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_swap_pin_free(HANDLE(glebe_swap_pin, UINT64_MAX)), GLEBE_ERROR_BAD_HANDLE);
    CHECK(strstr(glebe_last_error(), "is no swap pin") != NULL);
    REFUSED(glebe_swap_cache_free(HANDLE(glebe_swap_cache, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_swap_area_free(HANDLE(glebe_swap_area, 0)), GLEBE_ERROR_BAD_HANDLE);
}

static void options_are_checked(void) {
    glebe_swap_options options = no_options(), zero = options;
    glebe_swap_store store = {77};
    glebe_swap_region region = {78};
    struct {
        glebe_swap_options known;
        uint64_t later;
    } newer;

    REFUSED(glebe_swap_store_new(MIB, NULL, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_store_new(0, NULL, &store), GLEBE_ERROR_BAD_LEN);
    CHECK(strstr(glebe_last_error(), "a budget of 0") != NULL);
    REFUSED(glebe_swap_region_new(0, MIB, NULL, &region), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_region_new(UINT64_MAX, MIB, NULL, &region), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_region_new(MIB, 0, NULL, &region), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_region_new(MIB, MIB, NULL, NULL), GLEBE_ERROR_NULL);
    options.size = 0;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_SIZE);
    options = zero;
    options.drop_copies = 2;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    options = zero;
    options.codec = 4;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    options = zero;
    options.codec = GLEBE_CODEC_LZ4;
    options.zstd_level = 1;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    options = zero;
    options.pool_limit_bytes = 1;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_LIMIT_BELOW_HELD);
    options = zero;
    options.capacity_bytes = 1;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_region_new(MIB, MIB, &options, &region), GLEBE_ERROR_BAD_ARGUMENT);
    options = zero;
    options.file_directory = FILE_DIRECTORY;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    options.file_directory = NULL;
    options.file_bytes = MIB;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    options.file_directory = "/no/such/directory";
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_OS);
    CHECK(strstr(glebe_last_error(), "/no/such/directory") != NULL);
    options = zero;
    options.encrypt = 1;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "encrypt without file_directory") != NULL);
    options.file_directory = FILE_DIRECTORY;
    options.file_bytes = MIB;
    options.encrypt = 2;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    options.encrypt = 0;
    options.cache.id = 1;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_HANDLE);
    CHECK(strstr(glebe_last_error(), "is no swap cache") != NULL);
    REFUSED(glebe_swap_region_new(MIB, MIB, &options, &region), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "cache of a region") != NULL);
    options = zero;
    options.cache.id = 1;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "cache without file_directory") != NULL);
    CHECK(store.id == 77 && region.id == 78);

    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    OK(glebe_swap_store_new(MIB, &newer.known, &store));
    OK(glebe_swap_store_free(store));
    REFUSED(glebe_swap_store_free(store), GLEBE_ERROR_BAD_HANDLE);
    newer.later = 1;
    REFUSED(glebe_swap_store_new(MIB, &newer.known, &store), GLEBE_ERROR_BAD_ARGUMENT);
}

/* Stores objects of four times the budget, and changes one. */
static void objects(glebe_swap_store store) {
    glebe_swap_object all[OBJECTS], made = {0, 0};
    glebe_swap_pin pin = {0};
    glebe_swap_stats stats;
    void *bytes = NULL;
    size_t n, len = 0;

    for (n = 0; n < OBJECTS; n++) all[n] = insert(store, n, LEN);
    for (n = 0; n < OBJECTS; n++) is_the_object(store, all[n], n, LEN);
    OK(glebe_swap_store_pin_mut(store, all[3], &bytes, &len, &pin));
    CHECK(len == LEN);
    fill(bytes, 3000, len);
    OK(glebe_swap_pin_free(pin));
    OK(glebe_swap_store_cold(store, all[3]));
    for (n = 4; n < OBJECTS; n++) is_the_object(store, all[n], n, LEN);
    OK(glebe_swap_store_will_need(store, all[3]));
    is_the_object(store, all[3], 3000, LEN);

    OK(glebe_swap_store_create(store, 100, &made, &bytes, &pin));
    fill(bytes, 100, 100);
    REFUSED(glebe_swap_store_remove(store, made), GLEBE_ERROR_PINNED);
    OK(glebe_swap_pin_free(pin));
    is_the_object(store, made, 100, 100);
    OK(glebe_swap_store_remove(store, made));

    stats.size = sizeof stats;
    OK(glebe_swap_store_get_stats(store, &stats));
    CHECK(stats.created_pages == stats.freed_pages + stats.resident_pages + stats.stored_pages);
    CHECK(stats.resident_pages <= stats.budget_pages && stats.loaded >= OBJECTS / 2);
    CHECK(stats.budget_pages == MIB / glebe_page_bytes());
    CHECK(stats.load_count == stats.loaded);
    for (n = 0; n < OBJECTS; n++) OK(glebe_swap_store_remove(store, all[n]));
    OK(glebe_swap_store_get_stats(store, &stats));
    CHECK(stats.stored_pages == 0 && stats.resident_pages == 0);
}

static void refused(glebe_swap_store store, glebe_swap_store other) {
    unsigned char *out = malloc(LEN);
    glebe_swap_object object = insert(store, 1, LEN), made = {0, 0};
    glebe_swap_pin pin = {55}, again = {0};
    const void *bytes = NULL;
    void *written = NULL;
    size_t len = 9;

    CHECK(out != NULL);
    REFUSED(glebe_swap_store_insert(store, "", 0, &made), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_store_insert(store, NULL, 1, &made), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_store_insert(store, "x", 1, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_store_insert(store, out, SIZE_MAX, &made), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_swap_store_create(store, 2 * MIB + 1, &made, &written, &pin),
            GLEBE_ERROR_BAD_LEN);
    CHECK(strstr(glebe_last_error(), "an object of 2097153 bytes") != NULL);
    REFUSED(glebe_swap_store_create(store, 1, NULL, &written, &pin), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_store_create(store, 1, &made, NULL, &pin), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_store_create(store, 1, &made, &written, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_store_pin(store, object, NULL, &len, &pin), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_store_pin(store, object, &bytes, &len, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_store_pin_mut(store, object, NULL, &len, &pin), GLEBE_ERROR_NULL);
    CHECK(made.id == 0 && pin.id == 55 && len == 9);

    REFUSED(glebe_swap_store_pin(other, object, &bytes, &len, &pin), GLEBE_ERROR_FOREIGN);
    made = object;
    made.store = UINT64_MAX;
    REFUSED(glebe_swap_store_pin(store, made, &bytes, &len, &pin), GLEBE_ERROR_FOREIGN);
    made = object;
    made.id ^= 1;
    REFUSED(glebe_swap_store_pin(store, made, &bytes, &len, &pin), GLEBE_ERROR_STALE);
    made.id ^= 1 | (uint64_t)1 << 40;
    REFUSED(glebe_swap_store_take(store, made, out, LEN, &len), GLEBE_ERROR_STALE);
    made.id = UINT64_MAX;
    CHECK(glebe_swap_store_take(store, made, out, LEN, &len) < 0);
    REFUSED(glebe_swap_store_pin(HANDLE(glebe_swap_store, object.id), object, &bytes, &len, &pin),
            GLEBE_ERROR_BAD_HANDLE);

    /* An object may have many read pins or one write pin; each pin is freed once. */
    OK(glebe_swap_store_pin(store, object, &bytes, NULL, &pin));
    OK(glebe_swap_store_pin(store, object, &bytes, &len, &again));
    CHECK(pin.id != again.id);
    OK(glebe_swap_pin_free(again));
    REFUSED(glebe_swap_pin_free(again), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_swap_store_pin_mut(store, object, &written, &len, &again), GLEBE_ERROR_PINNED);
    REFUSED(glebe_swap_store_take(store, object, out, LEN, &len), GLEBE_ERROR_PINNED);
    REFUSED(glebe_swap_store_free(store), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "the swap store still has 1 pins") != NULL);
    REFUSED(glebe_swap_store_set_budget(store, 0), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_store_set_budget(store, 4 * KIB * 4), GLEBE_ERROR_LIMIT_BELOW_HELD);
    CHECK(strstr(glebe_last_error(), "64 KiB are pinned") != NULL);
    OK(glebe_swap_store_set_budget(store, LEN));
    REFUSED(glebe_swap_store_insert(store, "x", 1, &made), GLEBE_ERROR_BUDGET);
    OK(glebe_swap_store_set_budget(store, MIB));
    OK(glebe_swap_pin_free(pin));
    OK(glebe_swap_store_pin_mut(store, object, &written, &len, &pin));
    REFUSED(glebe_swap_store_pin(store, object, &bytes, &len, &again), GLEBE_ERROR_PINNED);
    OK(glebe_swap_pin_free(pin));
    REFUSED(glebe_swap_pin_free(pin), GLEBE_ERROR_BAD_HANDLE);

    REFUSED(glebe_swap_store_take(store, object, out, LEN, NULL), GLEBE_ERROR_NULL);
    len = 0;
    REFUSED(glebe_swap_store_take(store, object, out, 5, &len), GLEBE_ERROR_BUFFER_TOO_SMALL);
    CHECK(len == LEN);
    CHECK(strcmp(glebe_last_error(), "a buffer of 5 bytes for an object of 65536") == 0);
    len = 0;
    OK(glebe_swap_store_take(store, object, NULL, 0, &len));
    CHECK(len == LEN);
    REFUSED(glebe_swap_store_take(store, object, NULL, LEN, &len), GLEBE_ERROR_NULL);
    OK(glebe_swap_store_take(store, object, out, LEN, &len));
    CHECK(len == LEN && is_filled(out, 1, LEN));
    REFUSED(glebe_swap_store_take(store, object, out, LEN, &len), GLEBE_ERROR_STALE);
    REFUSED(glebe_swap_store_remove(store, object), GLEBE_ERROR_STALE);
    REFUSED(glebe_swap_store_cold(store, object), GLEBE_ERROR_STALE);
    REFUSED(glebe_swap_store_will_need(store, object), GLEBE_ERROR_STALE);
    REFUSED(glebe_swap_store_dead(store, object), GLEBE_ERROR_STALE);

    object = insert(store, 2, LEN);
    OK(glebe_swap_store_dead(store, object));
    REFUSED(glebe_swap_store_pin(store, object, &bytes, &len, &pin), GLEBE_ERROR_DEAD);
    REFUSED(glebe_swap_store_take(store, object, out, LEN, &len), GLEBE_ERROR_DEAD);
    OK(glebe_swap_store_remove(store, object));
    free(out);
}

static void texts(glebe_swap_store store) {
    char text[8192];
    size_t needed = 0;
    OK(glebe_swap_store_format_stats(store, GLEBE_FORMAT_JSON, text, sizeof text, &needed));
    CHECK(text[0] == '{' && strstr(text, "\"budget_pages\"") != NULL);
    OK(glebe_swap_store_format_stats(store, GLEBE_FORMAT_OPENMETRICS, NULL, 0, &needed));
    REFUSED(glebe_swap_store_format_stats(store, GLEBE_FORMAT_TEXT, text, 4, &needed),
            GLEBE_ERROR_BUFFER_TOO_SMALL);
    REFUSED(glebe_swap_store_format_stats(store, GLEBE_FORMAT_CLASSES, text, sizeof text, &needed),
            GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_swap_store_get_stats(store, NULL), GLEBE_ERROR_NULL);
}

/* A store puts what does not fit into its pool into a file, up to the file's limit. */
static void a_file_behind(void) {
    glebe_swap_options options = no_options();
    glebe_swap_store store = {0};
    glebe_swap_object all[OBJECTS], more = {0, 0};
    glebe_swap_stats stats;
    unsigned char *bytes = malloc(LEN);
    size_t n;
    int code = GLEBE_OK;

    CHECK(bytes != NULL);
    options.file_directory = FILE_DIRECTORY;
    options.file_bytes = 4 * MIB;
    options.drop_copies = 1;
    OK(glebe_swap_store_new(MIB, &options, &store));
    OK(glebe_swap_store_set_pool_limit(store, MIB / 2));
    for (n = 0; n < OBJECTS; n++) all[n] = insert(store, n, LEN);
    for (n = 0; n < OBJECTS; n++) is_the_object(store, all[n], n, LEN);
    stats.size = sizeof stats;
    OK(glebe_swap_store_get_stats(store, &stats));
    CHECK(stats.spilled > 0 && stats.read_back > 0 && stats.kept_pages == 0);
    for (n = OBJECTS; n < 4 * OBJECTS && code == GLEBE_OK; n++) {
        fill(bytes, n, LEN);
        code = glebe_swap_store_insert(store, bytes, LEN, &more);
    }
    CHECK(code == GLEBE_ERROR_FULL);
    CHECK(strstr(glebe_last_error(), "the file holds") != NULL);
    /* Taking an object out needs no room. */
    OK(glebe_swap_store_take(store, all[0], bytes, LEN, &n));
    CHECK(n == LEN && is_filled(bytes, 0, LEN));
    REFUSED(glebe_swap_store_set_pool_limit(store, 1), GLEBE_ERROR_LIMIT_BELOW_HELD);
    OK(glebe_swap_store_free(store));
    free(bytes);
}

static sigjmp_buf back;
static void *volatile at;
static volatile int why;

static void on_sigbus(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    at = info->si_addr;
    why = info->si_errno;
    siglongjmp(back, 1);
}

/* Returns the descriptor of this process's only file without a name. */
static int nameless_file(void) {
    DIR *all = opendir("/proc/self/fd");
    struct dirent *one;
    char path[64], name[256];
    int found = -1;
    CHECK(all != NULL);
    while ((one = readdir(all)) != NULL) {
        ssize_t len;
        snprintf(path, sizeof path, "/proc/self/fd/%.20s", one->d_name);
        len = readlink(path, name, sizeof name - 1);
        name[len > 0 ? len : 0] = 0;
        if (strncmp(name, FILE_DIRECTORY "/", strlen(FILE_DIRECTORY) + 1) == 0 &&
            strstr(name, "(deleted)") != NULL) {
            CHECK(found == -1);
            found = atoi(one->d_name);
        }
    }
    closedir(all);
    return found;
}

/* After the file is truncated, a call fails, and a touch raises SIGBUS in the program's handler. */
static void a_touch_that_fails(void) {
    const uint64_t len = 8 * MIB;
    size_t page = (size_t)glebe_page_bytes(), n, lost = 0;
    glebe_swap_options options = no_options();
    glebe_swap_region region = {0};
    unsigned char byte = 0;
    unsigned char *volatile bytes;
    void *address = NULL;

    options.file_directory = FILE_DIRECTORY;
    options.file_bytes = 16 * MIB;
    options.pool_limit_bytes = MIB;
    OK(glebe_swap_region_new(len, MIB, &options, &region));
    OK(glebe_swap_region_memory(region, &address, NULL, NULL));
    bytes = address;
    for (n = 0; n < len / page; n++) fill(bytes + n * page, n, page);
    CHECK(ftruncate(nameless_file(), 0) == 0);
    for (n = 0; n < len / page && lost == 0; n++) {
        if (sigsetjmp(back, 1) == 0) {
            CHECK(is_filled(bytes + n * page, n, page));
        } else {
            lost = n + 1;
        }
    }
    CHECK(lost > 0 && (unsigned char *)at >= bytes + (lost - 1) * page);
    CHECK((unsigned char *)at < bytes + lost * page && why != 0);
    REFUSED(glebe_swap_region_read(region, (lost - 1) * page, &byte, 1), GLEBE_ERROR_CORRUPT);
    CHECK(strstr(glebe_last_error(), "of the region is damaged") != NULL);
    REFUSED(glebe_swap_region_will_need(region, lost * page, 1), GLEBE_ERROR_CORRUPT);
    OK(glebe_swap_region_discard(region, (lost - 1) * page, 2 * page));
    OK(glebe_swap_region_read(region, (lost - 1) * page, &byte, 1));
    CHECK(byte == 0 && bytes[lost * page] == 0);
    OK(glebe_swap_region_free(region));
}

static int is_refused_where_sigbus_is_blocked(glebe_swap_region region) {
    sigset_t set, before;
    int code;
    sigemptyset(&set);
    sigaddset(&set, SIGBUS);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
    code = glebe_swap_region_arm_thread(region);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    return code == GLEBE_ERROR_SIGNAL;
}

static void by_address(glebe_swap_region region) {
    size_t page = (size_t)glebe_page_bytes(), n;
    uint64_t len = 0, moves = 2, loaded;
    glebe_swap_pin pin = {0}, again = {0};
    glebe_swap_stats stats;
    unsigned char out[3000];
    unsigned char *bytes;
    void *address = NULL, *resident = NULL;
    int ends[2];

    OK(glebe_swap_region_arm_thread(region));
    CHECK(is_refused_where_sigbus_is_blocked(region));
    OK(glebe_swap_region_memory(region, &address, &len, &moves));
    CHECK(len == 8 * MIB && moves <= 1);
    bytes = address;
    for (n = 0; n < len / page; n++) fill(bytes + n * page, n, page);
    for (n = 0; n < len / page; n++) CHECK(is_filled(bytes + n * page, n, page));
    stats.size = sizeof stats;
    OK(glebe_swap_region_get_stats(region, &stats));
    CHECK(stats.loaded > 0 && stats.stored_pages > 0 && stats.over_budget_pages == 0);

    fill(out, 5000, sizeof out);
    OK(glebe_swap_region_write(region, page - 1000, out, sizeof out));
    memset(out, 0, sizeof out);
    OK(glebe_swap_region_read(region, page - 1000, out, sizeof out));
    CHECK(is_filled(out, 5000, sizeof out));
    OK(glebe_swap_region_read(region, len, NULL, 0));
    REFUSED(glebe_swap_region_read(region, len - 1, out, 2), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_swap_region_write(region, UINT64_MAX, out, 2), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_swap_region_read(region, 0, NULL, 2), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_region_write(region, 0, NULL, 2), GLEBE_ERROR_NULL);

    OK(glebe_swap_region_get_stats(region, &stats));
    loaded = stats.loaded + stats.retouched_pages;
    OK(glebe_swap_region_will_need(region, 100 * page, 10 * page));
    OK(glebe_swap_region_get_stats(region, &stats));
    CHECK(stats.loaded + stats.retouched_pages >= loaded + 10);
    for (n = 100; n < 110; n++) CHECK(is_filled(bytes + n * page, n, page));
    OK(glebe_swap_region_cold(region, 100 * page, 10 * page));
    n = (size_t)stats.freed_pages;
    OK(glebe_swap_region_discard(region, 100 * page + 1, 10 * page));
    OK(glebe_swap_region_get_stats(region, &stats));
    CHECK(stats.freed_pages == n + 9);
    CHECK(is_filled(bytes + 100 * page, 100, page) && bytes[101 * page] == 0);
    fill(bytes + 101 * page, 101, page);
    REFUSED(glebe_swap_region_cold(region, len, 1), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_swap_region_will_need(region, len, 1), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_swap_region_discard(region, 1, len), GLEBE_ERROR_BEYOND);

    /* A system call may use pinned memory. */
    OK(glebe_swap_region_resident(region, 7 * page, page, &resident, &pin));
    CHECK((unsigned char *)resident == bytes + 7 * page && pipe(ends) == 0);
    CHECK(write(ends[1], resident, page) == (ssize_t)page);
    CHECK(read(ends[0], resident, 100) == 100 && is_filled(resident, 7, page));
    close(ends[0]), close(ends[1]);
    REFUSED(glebe_swap_region_resident(region, 7 * page, 1, &resident, &again),
            GLEBE_ERROR_PINNED);
    REFUSED(glebe_swap_region_discard(region, 7 * page, page), GLEBE_ERROR_PINNED);
    REFUSED(glebe_swap_region_resident(region, 0, 1, NULL, &again), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_region_resident(region, 0, 1, &resident, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_region_resident(region, 0, MIB, &resident, &again), GLEBE_ERROR_BUDGET);
    REFUSED(glebe_swap_region_resident(region, len, 1, &resident, &again), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_swap_region_free(region), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "the swap region still has 1 pins") != NULL);
    OK(glebe_swap_pin_free(pin));
    REFUSED(glebe_swap_pin_free(pin), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_swap_region_set_budget(region, MIB / 2));
    REFUSED(glebe_swap_region_set_budget(region, 0), GLEBE_ERROR_BAD_LEN);
    OK(glebe_swap_region_get_stats(region, &stats));
    CHECK(stats.charged_pages <= MIB / 2 / page);
    OK(glebe_swap_region_format_stats(region, GLEBE_FORMAT_TEXT, NULL, 0, &n));
}

static glebe_swap_cache cache_with(glebe_reserve reserve, uint64_t limit_bytes, int encrypt) {
    glebe_swap_cache_options options;
    glebe_swap_cache cache = {0};
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.reserve = reserve;
    options.limit_bytes = limit_bytes;
    options.codec = encrypt >= 0 ? GLEBE_CODEC_NONE : GLEBE_CODEC_AUTO;
    options.encrypt = encrypt > 0;
    OK(glebe_swap_cache_new(&options, &cache));
    return cache;
}

static glebe_swap_cache cache_of(glebe_reserve reserve, uint64_t limit_bytes) {
    return cache_with(reserve, limit_bytes, -1);
}

static glebe_swap_area area_of(glebe_swap_cache cache, uint64_t file_bytes) {
    glebe_swap_area_options options;
    glebe_swap_area area = {0};
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.file_directory = FILE_DIRECTORY;
    options.file_bytes = file_bytes;
    OK(glebe_swap_area_new(cache, 256, file_bytes == 0 ? NULL : &options, &area));
    return area;
}

static void pages_of(glebe_swap_area area, uint64_t first, uint64_t count) {
    size_t page = (size_t)glebe_page_bytes(), n;
    unsigned char *bytes = malloc(count * page);
    CHECK(bytes != NULL);
    for (n = 0; n < count; n++) fill(bytes + n * page, first + n, page);
    OK(glebe_swap_area_store(area, first, bytes, count * page));
    for (n = 0; n < count; n++) {
        memset(bytes, 0, page);
        CHECK(glebe_swap_area_load(area, first + n, bytes, page) == GLEBE_GET_HIT);
        CHECK(is_filled(bytes, first + n, page));
    }
    free(bytes);
}

static void areas(glebe_swap_cache cache) {
    size_t page = (size_t)glebe_page_bytes(), needed = 0;
    unsigned char *bytes = calloc(2, page);
    glebe_swap_area area = area_of(cache, 8 * MIB), without = area_of(cache, 0);
    glebe_swap_area_stats stats;
    uint64_t pages = 0, write_back = 0;

    CHECK(bytes != NULL);
    pages_of(area, 0, 100);
    stats.size = sizeof stats;
    OK(glebe_swap_area_get_stats(area, &stats));
    CHECK(stats.present_pages == 100 && stats.unsaved_pages == 0 && stats.through == 100);
    OK(glebe_swap_cache_usual_write_back(cache, &write_back));
    REFUSED(glebe_swap_cache_usual_write_back(cache, NULL), GLEBE_ERROR_NULL);
    CHECK(write_back > 0);
    OK(glebe_swap_area_set_write_back(area, write_back));
    pages_of(area, 100, 50);
    OK(glebe_swap_area_get_stats(area, &stats));
    CHECK(stats.unsaved_pages == 50 && stats.limit_bytes == write_back);
    OK(glebe_swap_area_set_write_back(area, 0));
    OK(glebe_swap_area_set_put_back(area, MIB));
    OK(glebe_swap_area_get_stats(area, &stats));
    CHECK(stats.saved_pages == 150 && stats.limit_bytes == MIB);

    CHECK(glebe_swap_area_load(area, 200, bytes, page) == GLEBE_GET_MISS);
    CHECK(glebe_swap_area_take(area, 9, bytes, page) == GLEBE_GET_HIT);
    CHECK(is_filled(bytes, 9, page));
    CHECK(glebe_swap_area_take(area, 9, bytes, page) == GLEBE_GET_MISS);
    CHECK(glebe_swap_area_invalidate_page(area, 8) == GLEBE_INVALIDATED);
    CHECK(glebe_swap_area_invalidate_page(area, 8) == GLEBE_NOT_THERE);

    REFUSED(glebe_swap_area_store(area, 0, bytes, 0), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_area_store(area, 0, bytes, page - 1), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_area_store(area, 0, NULL, page), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_area_store(area, 255, bytes, 2 * page), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_swap_area_store(area, UINT64_MAX, bytes, 2 * page), GLEBE_ERROR_BEYOND);
    CHECK(glebe_swap_area_load(area, 255, bytes, page) == GLEBE_GET_MISS);
    REFUSED(glebe_swap_area_load(area, 0, bytes, 2 * page), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_area_load(area, 0, NULL, page), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_area_load(area, 256, bytes, page), GLEBE_ERROR_BEYOND);
    REFUSED(glebe_swap_area_invalidate_page(area, 256), GLEBE_ERROR_BEYOND);
    OK(glebe_swap_area_invalidate(area, &pages));
    CHECK(pages == 148);
    OK(glebe_swap_area_invalidate(area, NULL));
    OK(glebe_swap_area_format_stats(area, GLEBE_FORMAT_JSON, NULL, 0, &needed));

    /* An area without a file stores only what put-back has room for. */
    fill(bytes, 1, page);
    REFUSED(glebe_swap_area_store(without, 0, bytes, page), GLEBE_ERROR_FULL);
    OK(glebe_swap_area_set_put_back(without, MIB));
    pages_of(without, 0, 20);
    REFUSED(glebe_swap_area_set_put_back(without, 1), GLEBE_ERROR_LIMIT_BELOW_HELD);
    OK(glebe_swap_area_free(without));
    OK(glebe_swap_area_free(area));
    REFUSED(glebe_swap_area_free(area), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_swap_area_load(area, 0, bytes, page), GLEBE_ERROR_BAD_HANDLE);
    free(bytes);
}

static void too_many_pages(glebe_swap_cache cache, glebe_swap_area *area) {
    static const uint64_t pages[] = {((uint64_t)1 << 28) + 1, (uint64_t)1 << 52, (uint64_t)1 << 63,
                                     UINT64_MAX - 4096, UINT64_MAX};
    static const uint64_t lens[] = {MIB, (uint64_t)1 << 62, UINT64_MAX};
    glebe_swap_area_options options = {0};
    size_t n, len;
    options.size = sizeof options;
    options.file_directory = FILE_DIRECTORY;
    for (n = 0; n < sizeof pages / sizeof *pages; n++)
        for (len = 0; len < sizeof lens / sizeof *lens; len++) {
            options.file_bytes = lens[len];
            REFUSED(glebe_swap_area_new(cache, pages[n], &options, area), GLEBE_ERROR_BAD_LEN);
        }
}

static void caches(void) {
    const glebe_reserve none = {0};
    glebe_swap_cache_options options;
    glebe_swap_cache cache = {44};
    glebe_swap_area area = {45};
    glebe_reserve reserve = {0};

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    REFUSED(glebe_swap_cache_new(NULL, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_swap_cache_new(NULL, &cache), GLEBE_ERROR_BAD_ARGUMENT);
    options.limit_bytes = 1;
    REFUSED(glebe_swap_cache_new(&options, &cache), GLEBE_ERROR_LIMIT_BELOW_HELD);
    options.reserve.id = UINT64_MAX;
    REFUSED(glebe_swap_cache_new(&options, &cache), GLEBE_ERROR_BAD_ARGUMENT);
    options.limit_bytes = 0;
    REFUSED(glebe_swap_cache_new(&options, &cache), GLEBE_ERROR_BAD_HANDLE);
    options.reserve.id = 0;
    options.limit_bytes = 4 * MIB;
    options.encrypt = 2;
    REFUSED(glebe_swap_cache_new(&options, &cache), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(cache.id == 44);
    cache = cache_of(none, 4 * MIB);
    REFUSED(glebe_swap_area_new(cache, 0, NULL, &area), GLEBE_ERROR_BAD_LEN);
    REFUSED(glebe_swap_area_new(cache, UINT64_MAX, NULL, &area), GLEBE_ERROR_BAD_LEN);
    too_many_pages(cache, &area);
    REFUSED(glebe_swap_area_new(cache, 1, NULL, NULL), GLEBE_ERROR_NULL);
    CHECK(area.id == 45);
    areas(cache);
    OK(glebe_swap_cache_free(cache));

    OK(glebe_reserve_new(16 * MIB, NULL, &reserve));
    cache = cache_of(reserve, 0);
    areas(cache);
    area = area_of(cache, 8 * MIB);
    OK(glebe_swap_cache_free(cache));
    REFUSED(glebe_swap_cache_free(cache), GLEBE_ERROR_BAD_HANDLE);
    pages_of(area, 0, 10);
    REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "1 swap caches, areas and stores") != NULL);
    OK(glebe_swap_area_free(area));
    OK(glebe_reserve_free(reserve));
}

static void recall_all(glebe_reserve reserve) {
    glebe_block *blocks = malloc(16 * MIB / 4096 * sizeof *blocks);
    size_t count = 0;
    uint64_t pages = 0;
    CHECK(blocks != NULL);
    for (;;) {
        OK(glebe_reserve_largest_run(reserve, &pages));
        if (pages == 0) break;
        OK(glebe_alloc(reserve, pages, &blocks[count++]));
    }
    while (count > 0) OK(glebe_free(blocks[--count]));
    free(blocks);
}

/* A store keeps part of its file in idle pages of a reserve, until first class takes them. */
static void a_file_in_idle_memory(void) {
    glebe_swap_options options = no_options();
    glebe_reserve reserve = {0};
    glebe_swap_store store = {0};
    glebe_swap_object all[OBJECTS];
    glebe_swap_stats stats;
    glebe_reserve_stats of_reserve;
    uint64_t idle;
    size_t n;

    OK(glebe_reserve_new(16 * MIB, NULL, &reserve));
    options.cache = cache_of(reserve, 0);
    options.pool_limit_bytes = 256 * KIB;
    REFUSED(glebe_swap_store_new(MIB, &options, &store), GLEBE_ERROR_BAD_ARGUMENT);
    options.file_directory = FILE_DIRECTORY;
    options.file_bytes = 16 * MIB;
    OK(glebe_swap_store_new(MIB, &options, &store));
    OK(glebe_swap_cache_free(options.cache));
    REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BUSY);
    CHECK(strstr(glebe_last_error(), "1 swap caches, areas and stores") != NULL);
    for (n = 0; n < OBJECTS; n++) all[n] = insert(store, n, LEN);
    for (n = 0; n < OBJECTS; n++) is_the_object(store, all[n], n, LEN);
    stats.size = sizeof stats;
    OK(glebe_swap_store_get_stats(store, &stats));
    CHECK(stats.loaded_idle > 0 && stats.read_back == 0);
    idle = stats.loaded_idle;
    recall_all(reserve);
    for (n = 0; n < OBJECTS; n++) is_the_object(store, all[n], n, LEN);
    OK(glebe_swap_store_get_stats(store, &stats));
    CHECK(stats.read_back > 0);
    for (n = 0; n < OBJECTS; n++) is_the_object(store, all[n], n, LEN);
    OK(glebe_swap_store_get_stats(store, &stats));
    CHECK(stats.loaded_idle > idle);
    OK(glebe_swap_store_free(store));
    of_reserve.size = sizeof of_reserve;
    OK(glebe_reserve_get_stats(reserve, &of_reserve));
    CHECK(of_reserve.live_pages == 0);
    OK(glebe_reserve_free(reserve));
}

/* Returns how many objects or pages below `count` have their first bytes in the nameless file. */
static size_t in_the_file(size_t count) {
    char path[64];
    unsigned char some[64], *bytes;
    FILE *file;
    size_t n, found = 0, len;
    /* Opens the file again, because the library's descriptor may use O_DIRECT. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", nameless_file());
    file = fopen(path, "rb");
    CHECK(file != NULL && (bytes = malloc(16 * MIB)) != NULL);
    len = fread(bytes, 1, 16 * MIB, file);
    CHECK(len > 0 && fclose(file) == 0);
    for (n = 0; n < count; n++) {
        fill(some, n, sizeof some);
        found += memmem(bytes, len, some, sizeof some) != NULL;
    }
    free(bytes);
    return found;
}

static void files_encrypted(int encrypt) {
    const glebe_reserve none = {0};
    glebe_swap_options options = no_options();
    size_t page = (size_t)glebe_page_bytes(), n;
    glebe_swap_object all[OBJECTS];
    glebe_swap_store store = {0};
    glebe_swap_region region = {0};
    glebe_swap_cache cache = {0};
    glebe_swap_area area = {0};
    unsigned char *bytes = malloc(page);

    CHECK(bytes != NULL);
    options.codec = GLEBE_CODEC_NONE;
    options.pool_limit_bytes = 256 * KIB;
    options.file_directory = FILE_DIRECTORY;
    options.file_bytes = 16 * MIB;
    options.encrypt = encrypt;
    OK(glebe_swap_store_new(MIB, &options, &store));
    for (n = 0; n < OBJECTS; n++) all[n] = insert(store, n, LEN);
    CHECK(encrypt ? in_the_file(OBJECTS) == 0 : in_the_file(OBJECTS) > OBJECTS / 2);
    for (n = 0; n < OBJECTS; n++) is_the_object(store, all[n], n, LEN);
    OK(glebe_swap_store_free(store));

    cache = cache_with(none, MIB, encrypt);
    area = area_of(cache, 16 * MIB);
    pages_of(area, 0, 256);
    CHECK(in_the_file(256) == (encrypt ? 0 : 256));
    OK(glebe_swap_area_free(area));
    OK(glebe_swap_cache_free(cache));

    if (glebe_swap_region_new(8 * MIB, MIB, &options, &region) != GLEBE_OK) {
        CHECK(strstr(glebe_last_error(), "userfaultfd") != NULL);
        free(bytes);
        return;
    }
    for (n = 0; n < 256; n++) {
        fill(bytes, n, page);
        OK(glebe_swap_region_write(region, n * 8 * MIB / 256, bytes, page));
    }
    OK(glebe_swap_region_set_budget(region, MIB / 16));
    CHECK(encrypt ? in_the_file(256) == 0 : in_the_file(256) > 0);
    for (n = 0; n < 256; n++) {
        OK(glebe_swap_region_read(region, n * 8 * MIB / 256, bytes, page));
        CHECK(is_filled(bytes, n, page));
    }
    OK(glebe_swap_region_free(region));
    free(bytes);
}

/* A child cannot use inherited handles, but may make its own. */
static void in_a_child(glebe_swap_store store, const glebe_swap_region *region) {
    glebe_swap_object object = insert(store, 7, LEN);
    glebe_swap_pin pin = {0};
    const void *bytes = NULL;
    size_t len = 0;
    int status = 0;
    pid_t child;

    OK(glebe_swap_store_pin(store, object, &bytes, &len, &pin));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        glebe_swap_store own = {0};
        CHECK(is_filled(bytes, 7, LEN)); /* the child's copy */
        REFUSED(glebe_swap_pin_free(pin), GLEBE_ERROR_FORKED);
        REFUSED(glebe_swap_store_remove(store, object), GLEBE_ERROR_FORKED);
        REFUSED(glebe_swap_store_free(store), GLEBE_ERROR_FORKED);
        OK(glebe_swap_store_new(MIB, NULL, &own));
        is_the_object(own, insert(own, 8, LEN), 8, LEN);
        REFUSED(glebe_swap_store_remove(own, object), GLEBE_ERROR_FOREIGN);
        OK(glebe_swap_store_free(own));
        if (region != NULL) REFUSED(glebe_swap_region_arm_thread(*region), GLEBE_ERROR_FORKED);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_swap_pin_free(pin));
    is_the_object(store, object, 7, LEN);
}

int main(void) {
    glebe_swap_options options = no_options();
    struct sigaction ours;
    glebe_swap_store store = {0}, other = {0};
    glebe_swap_region region = {0};
    int code;

    /* This handler is installed before the first region, so glebe's handler is in front of it. */
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_sigbus;
    ours.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGBUS, &ours, NULL) == 0);
    nothing_there();
    options_are_checked();
    options.pool_limit_bytes = 8 * MIB;
    OK(glebe_swap_store_new(MIB, &options, &store));
    OK(glebe_swap_store_new(MIB, NULL, &other));
    objects(store);
    refused(store, other);
    texts(store);
    a_file_behind();
    caches();
    a_file_in_idle_memory();
    files_encrypted(0);
    files_encrypted(1);
    code = glebe_swap_region_new(8 * MIB, MIB, &options, &region);
    if (code == GLEBE_ERROR_OS && strstr(glebe_last_error(), "userfaultfd") != NULL) {
        fprintf(stderr, "skipped: regions (%s)\n", glebe_last_error());
        in_a_child(store, NULL);
    } else {
        CHECK(code == GLEBE_OK);
        by_address(region);
        in_a_child(store, &region);
        OK(glebe_swap_region_free(region));
        REFUSED(glebe_swap_region_free(region), GLEBE_ERROR_BAD_HANDLE);
        a_touch_that_fails();
    }
    OK(glebe_swap_store_free(store));
    OK(glebe_swap_store_free(other));
    puts("swap.c: ok");
    return 0;
}
