/* Reclaimers and budgets from C99: what they take under pressure, and errors. If the argument names
 * the folder of a memory cgroup, the program moves there first. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "all.h"

#define MIB ((uint64_t)1 << 20)
#define WITHHOLD_MS 500

static void sleep_ms(long ms) {
    struct timespec time;
    time.tv_sec = ms / 1000;
    time.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&time, NULL);
}

static int64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static glebe_reclaimer create(void) {
    glebe_reclaimer reclaimer = {0};
    OK(glebe_reclaimer_new(NULL, &reclaimer));
    CHECK(reclaimer.id != 0);
    return reclaimer;
}

static glebe_volatile filled_region(uint64_t len_bytes) {
    glebe_volatile region = {0};
    void *address = NULL;
    OK(glebe_volatile_new(len_bytes, NULL, &region));
    OK(glebe_volatile_memory(region, &address, NULL, NULL, NULL));
    memset(address, 7, (size_t)len_bytes);
    OK(glebe_volatile_mark(region, 0, len_bytes, GLEBE_PRIORITY_NORMAL));
    return region;
}

static void nothing_there(void) {
    glebe_reclaimer none = {0};
    REFUSED(glebe_reclaimer_poll(none, NULL), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reclaimer_free(none), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_budget_free(HANDLE(glebe_budget, 1)), GLEBE_ERROR_BAD_HANDLE);
}

static void options_are_checked(void) {
    glebe_reclaimer_options options;
    glebe_reclaimer reclaimer = {77};
    uint64_t older[2];
    struct {
        glebe_reclaimer_options known;
        uint64_t later;
    } newer;

    memset(&options, 0, sizeof options);
    REFUSED(glebe_reclaimer_new(&options, &reclaimer), GLEBE_ERROR_BAD_SIZE);
    options.size = sizeof options;
    REFUSED(glebe_reclaimer_new(&options, NULL), GLEBE_ERROR_NULL);
    options.yield_files = 2;
    REFUSED(glebe_reclaimer_new(&options, &reclaimer), GLEBE_ERROR_BAD_ARGUMENT);
    CHECK(strstr(glebe_last_error(), "yield_files") != NULL && reclaimer.id == 77);
    options.yield_files = 1;
    options.margin_bytes = options.lead_ms = options.withhold_ms = UINT64_MAX;
    OK(glebe_reclaimer_new(&options, &reclaimer));
    OK(glebe_reclaimer_poll(reclaimer, NULL));
    OK(glebe_reclaimer_free(reclaimer));
    REFUSED(glebe_reclaimer_free(reclaimer), GLEBE_ERROR_BAD_HANDLE);
    older[0] = sizeof older;
    older[1] = 8 * MIB;
    OK(glebe_reclaimer_new((const glebe_reclaimer_options *)older, &reclaimer));
    OK(glebe_reclaimer_free(reclaimer));
    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    newer.later = 1;
    REFUSED(glebe_reclaimer_new(&newer.known, &reclaimer), GLEBE_ERROR_BAD_ARGUMENT);
}

static void a_budget_allows_all_without_a_reclaimer(void) {
    glebe_budget budget = {0};
    uint64_t allowed = 0;
    REFUSED(glebe_budget_new(MIB, NULL), GLEBE_ERROR_NULL);
    OK(glebe_budget_new(MIB, &budget));
    OK(glebe_budget_set_held(budget, 3 * MIB));
    OK(glebe_budget_allowed(budget, &allowed));
    CHECK(allowed == MIB);
    REFUSED(glebe_budget_allowed(budget, NULL), GLEBE_ERROR_NULL);
    REFUSED(glebe_budget_allowed(HANDLE(glebe_budget, 0), &allowed), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_budget_set_held(HANDLE(glebe_budget, 0), 1), GLEBE_ERROR_BAD_HANDLE);
    OK(glebe_budget_free(budget));
    REFUSED(glebe_budget_free(budget), GLEBE_ERROR_BAD_HANDLE);
}

static void parts(void) {
    glebe_reclaimer one = create(), other = create();
    glebe_reserve_options options;
    glebe_zpool_options lent_options;
    glebe_reserve fixed = {0}, reserve = {0};
    glebe_volatile region = filled_region(MIB);
    glebe_zpool pool = {0}, lent = {0};
    glebe_budget budget = {0};
    glebe_shared shared = {0};
    int round;

    OK(glebe_zpool_new(NULL, &pool));
    OK(glebe_budget_new(MIB, &budget));
    OK(glebe_shared_new(MIB, NULL, &shared));
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_PLAIN;
    OK(glebe_reserve_new(2 * MIB, &options, &fixed));
    options.room_bytes = 8 * MIB;
    OK(glebe_reserve_new(4 * MIB, &options, &reserve));
    memset(&lent_options, 0, sizeof lent_options);
    lent_options.size = sizeof lent_options;
    lent_options.reserve = reserve;
    OK(glebe_zpool_new(&lent_options, &lent));

    REFUSED(glebe_reclaimer_add_reserve(one, fixed, 0), GLEBE_ERROR_FIXED_LEN);
    REFUSED(glebe_reclaimer_add_zpool(one, lent), GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_reclaimer_add_volatile(one, HANDLE(glebe_volatile, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reclaimer_add_zpool(one, HANDLE(glebe_zpool, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reclaimer_add_shared(one, HANDLE(glebe_shared, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reclaimer_add_budget(one, HANDLE(glebe_budget, 0)), GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reclaimer_add_reserve(one, HANDLE(glebe_reserve, 0), 0),
            GLEBE_ERROR_BAD_HANDLE);
    REFUSED(glebe_reclaimer_add_volatile(HANDLE(glebe_reclaimer, 0), region),
            GLEBE_ERROR_BAD_HANDLE);
    for (round = 0; round < 2; round++) {
        OK(glebe_reclaimer_add_volatile(one, region));
        OK(glebe_reclaimer_add_shared(one, shared));
        OK(glebe_reclaimer_add_zpool(one, pool));
        OK(glebe_reclaimer_add_reserve(one, reserve, 4 * MIB));
        OK(glebe_reclaimer_add_budget(one, budget));
        REFUSED(glebe_reclaimer_add_volatile(other, region), GLEBE_ERROR_TAKEN);
        REFUSED(glebe_reclaimer_add_shared(other, shared), GLEBE_ERROR_TAKEN);
        REFUSED(glebe_reclaimer_add_zpool(other, pool), GLEBE_ERROR_TAKEN);
        REFUSED(glebe_reclaimer_add_reserve(other, reserve, 0), GLEBE_ERROR_TAKEN);
        REFUSED(glebe_reclaimer_add_budget(other, budget), GLEBE_ERROR_TAKEN);
        CHECK(strstr(glebe_last_error(), "budget") != NULL);
        OK(glebe_reclaimer_poll(one, NULL));
        /* In the next round `other` takes the parts. */
        OK(glebe_reclaimer_free(one));
        one = other;
        other = create();
    }
    OK(glebe_reclaimer_free(other));
    other = create();
    OK(glebe_reclaimer_add_volatile(other, region));
    /* Parts may be freed before their reclaimer, which continues without them. */
    OK(glebe_volatile_free(region));
    OK(glebe_shared_free(shared));
    OK(glebe_zpool_free(pool));
    OK(glebe_zpool_free(lent));
    OK(glebe_budget_free(budget));
    OK(glebe_reserve_free(reserve));
    OK(glebe_reserve_free(fixed));
    OK(glebe_reclaimer_poll(other, NULL));
    OK(glebe_reclaimer_free(other));
    OK(glebe_reclaimer_free(one));
}

static void the_descriptor_tells_when_to_look(void) {
    glebe_reclaimer reclaimer = create();
    glebe_reclaimer_stats stats;
    struct pollfd due;
    REFUSED(glebe_reclaimer_fd(reclaimer, NULL), GLEBE_ERROR_NULL);
    OK(glebe_reclaimer_fd(reclaimer, &due.fd));
    due.events = POLLIN;
    CHECK(poll(&due, 1, 0) == 1);
    OK(glebe_reclaimer_wait(reclaimer, UINT64_MAX));
    OK(glebe_reclaimer_poll(reclaimer, NULL));
    stats.size = sizeof stats;
    OK(glebe_reclaimer_get_stats(reclaimer, &stats));
    CHECK(stats.polls == 1 && stats.poll_count == 1 && stats.limit_pages > 0);
    OK(glebe_reclaimer_wait(reclaimer, 0));
    CHECK(poll(&due, 1, 5000) == 1);
    OK(glebe_reclaimer_wait(reclaimer, 5000));
    OK(glebe_reclaimer_free(reclaimer));
    due.revents = 0;
    CHECK(poll(&due, 1, 0) == 1 && (due.revents & POLLNVAL) != 0);
}

static void a_thread_looks_by_itself(void) {
    glebe_reclaimer reclaimer = create();
    glebe_reclaimer_stats stats;
    int tries;
    OK(glebe_reclaimer_start(reclaimer));
    REFUSED(glebe_reclaimer_start(reclaimer), GLEBE_ERROR_STARTED);
    stats.size = sizeof stats;
    for (tries = 0, stats.polls = 0; stats.polls < 2 && tries < 500; tries++) {
        sleep_ms(10);
        OK(glebe_reclaimer_get_stats(reclaimer, &stats));
    }
    CHECK(stats.polls >= 2 && stats.blind == 0);
    OK(glebe_reclaimer_free(reclaimer));
}

static void statistics(void) {
    glebe_reclaimer reclaimer = create();
    glebe_reclaimer_stats stats;
    glebe_reclaimed done;
    uint64_t older[3] = {2 * sizeof(uint64_t), 0, 5};
    const char *parts[] = {"polls", "\"polls\"", "glebe_reclaim_polls_total 1"};
    char text[8192];
    size_t needed = 0;
    uint64_t format;

    done.size = 0;
    REFUSED(glebe_reclaimer_poll(reclaimer, &done), GLEBE_ERROR_BAD_SIZE);
    done.size = sizeof done;
    OK(glebe_reclaimer_poll(reclaimer, &done));
    CHECK(done.size == sizeof done && done.failed == 0);
    REFUSED(glebe_reclaimer_get_stats(reclaimer, NULL), GLEBE_ERROR_NULL);
    stats.size = 7;
    REFUSED(glebe_reclaimer_get_stats(reclaimer, &stats), GLEBE_ERROR_BAD_SIZE);
    OK(glebe_reclaimer_get_stats(reclaimer, (glebe_reclaimer_stats *)older));
    CHECK(older[0] == 2 * sizeof(uint64_t) && older[1] == 1 && older[2] == 5);
    for (format = GLEBE_FORMAT_TEXT; format <= GLEBE_FORMAT_OPENMETRICS; format++) {
        OK(glebe_reclaimer_format_stats(reclaimer, format, text, sizeof text, &needed));
        CHECK(needed == strlen(text) + 1 && strstr(text, parts[format]) != NULL);
        REFUSED(glebe_reclaimer_format_stats(reclaimer, format, text, 5, &needed),
                GLEBE_ERROR_BUFFER_TOO_SMALL);
    }
    REFUSED(glebe_reclaimer_format_stats(reclaimer, GLEBE_FORMAT_CLASSES, text, sizeof text,
                                         &needed),
            GLEBE_ERROR_BAD_ARGUMENT);
    REFUSED(glebe_reclaimer_format_stats(reclaimer, 0, text, sizeof text, NULL), GLEBE_ERROR_NULL);
    OK(glebe_reclaimer_free(reclaimer));
}

/* A child cannot use inherited reclaimers and budgets. It may make its own and add inherited
 * regions. */
static void fork_is_noticed(void) {
    glebe_reclaimer reclaimer = create(), own = {0};
    glebe_volatile region = filled_region(MIB);
    glebe_budget budget = {0};
    glebe_reclaimer_stats stats;
    uint64_t allowed = 0;
    size_t needed = 0;
    int status = 0, fd = -1, round;
    pid_t child;

    OK(glebe_budget_new(MIB, &budget));
    OK(glebe_reclaimer_add_volatile(reclaimer, region));
    OK(glebe_reclaimer_add_budget(reclaimer, budget));
    OK(glebe_reclaimer_start(reclaimer));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        stats.size = sizeof stats;
        for (round = 0; round < 2; round++) {
            REFUSED(glebe_reclaimer_poll(reclaimer, NULL), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_wait(reclaimer, 0), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_fd(reclaimer, &fd), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_start(reclaimer), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_refills(reclaimer), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_get_stats(reclaimer, &stats), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_format_stats(reclaimer, 0, NULL, 0, &needed),
                    GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_add_volatile(reclaimer, region), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_add_budget(reclaimer, budget), GLEBE_ERROR_FORKED);
            REFUSED(glebe_reclaimer_free(reclaimer), GLEBE_ERROR_FORKED);
            REFUSED(glebe_budget_set_held(budget, 1), GLEBE_ERROR_FORKED);
            REFUSED(glebe_budget_allowed(budget, &allowed), GLEBE_ERROR_FORKED);
            REFUSED(glebe_budget_free(budget), GLEBE_ERROR_FORKED);
            own = create();
            OK(glebe_reclaimer_add_volatile(own, region));
            OK(glebe_reclaimer_start(own));
            OK(glebe_reclaimer_poll(own, NULL));
            OK(glebe_reclaimer_free(own));
        }
        OK(glebe_volatile_free(region));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glebe_reclaimer_poll(reclaimer, NULL));
    OK(glebe_reclaimer_free(reclaimer));
    OK(glebe_budget_free(budget));
    OK(glebe_volatile_free(region));
}

/* The margin is cut to a quarter of the cgroup's limit of 96 MiB, so 72 MiB in use are too many. */
static glebe_reclaimer create_short(void) {
    glebe_reclaimer_options options;
    glebe_reclaimer reclaimer = {0};
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.margin_bytes = 1024 * MIB;
    options.withhold_ms = WITHHOLD_MS;
    options.yield_files = 1;
    OK(glebe_reclaimer_new(&options, &reclaimer));
    return reclaimer;
}

/* Checks that the reclaimer freed what it asked for: at least nine tenths of it, and at most a
 * tenth and `granule_bytes` more. */
static glebe_reclaimed shed(glebe_reclaimer reclaimer, uint64_t granule_bytes) {
    glebe_reclaimed done;
    uint64_t freed;
    done.size = sizeof done;
    OK(glebe_reclaimer_poll(reclaimer, &done));
    freed = done.volatile_bytes + done.waste_bytes + done.objects_bytes + done.reserve_bytes +
            done.budgets_bytes;
    CHECK(done.asked_bytes > MIB && done.failed == 0);
    CHECK(freed >= done.asked_bytes - done.asked_bytes / 10);
    CHECK(freed <= done.asked_bytes + done.asked_bytes / 10 + granule_bytes);
    CHECK(done.budgets_bytes > 0 || done.measured_bytes >= done.asked_bytes / 2);
    return done;
}

static void of_volatile_memory(void) {
    glebe_volatile region = filled_region(72 * MIB);
    glebe_reclaimer reclaimer = create_short();
    glebe_volatile_stats stats;
    glebe_reclaimed done;
    glebe_extent *runs = calloc(72 * MIB / glebe_page_bytes(), sizeof *runs);
    uint64_t lost = 0;
    size_t count = 0, run;

    CHECK(runs != NULL);
    OK(glebe_reclaimer_add_volatile(reclaimer, region));
    done = shed(reclaimer, MIB);
    CHECK(done.volatile_bytes > 0 && done.objects_bytes == 0 && done.reserve_bytes == 0);
    OK(glebe_volatile_unmark(region, 0, 72 * MIB, runs, 72 * MIB / glebe_page_bytes(), &count));
    for (run = 0; run < count; run++) lost += runs[run].len_pages;
    stats.size = sizeof stats;
    OK(glebe_volatile_get_stats(region, &stats));
    CHECK(lost == stats.shed && lost * glebe_page_bytes() == done.volatile_bytes);
    free(runs);
    OK(glebe_volatile_free(region));
    OK(glebe_reclaimer_free(reclaimer));
}

static void of_a_shared_region(void) {
    glebe_shared_options options;
    glebe_reclaimer reclaimer = create_short();
    glebe_shared shared = {0};
    glebe_extent *runs = calloc(72, sizeof *runs);
    glebe_reclaimed done;
    void *address = NULL;
    glebe_pin pin = {0};
    uint64_t lost = 0;
    size_t count = 0, run;

    CHECK(runs != NULL);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.granule_bytes = MIB;
    OK(glebe_shared_new(72 * MIB, &options, &shared));
    OK(glebe_shared_memory(shared, &address, NULL, NULL));
    memset(address, 7, 72 * MIB);
    OK(glebe_shared_mark(shared, 0, 72 * MIB, GLEBE_PRIORITY_NORMAL, GLEBE_ORDER_FIFO));
    OK(glebe_pin_new(shared, 0, 2 * MIB, &pin));
    OK(glebe_reclaimer_add_shared(reclaimer, shared));
    done = shed(reclaimer, 2 * MIB);
    CHECK(done.volatile_bytes > 0 && done.volatile_bytes % MIB == 0);
    OK(glebe_pin_free(pin));
    OK(glebe_shared_unmark(shared, 0, 72 * MIB, runs, 72, &count));
    for (run = 0; run < count; run++) lost += runs[run].len_pages * glebe_page_bytes();
    CHECK(lost == done.volatile_bytes && runs[0].start_pages * glebe_page_bytes() == 2 * MIB);
    free(runs);
    OK(glebe_shared_free(shared));
    OK(glebe_reclaimer_free(reclaimer));
}

static void of_objects(void) {
    static unsigned char bytes[2000];
    glebe_zpool_options options;
    glebe_zpool_stats stats;
    glebe_reclaimer reclaimer = create_short();
    glebe_zpool pool = {0};
    glebe_zobject object = {0};
    glebe_reclaimed done;
    uint64_t nth;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.evict_oldest = 1;
    options.codec = GLEBE_CODEC_NONE;
    options.limit_bytes = 1024 * MIB;
    OK(glebe_zpool_new(&options, &pool));
    OK(glebe_reclaimer_add_zpool(reclaimer, pool));
    for (nth = 0; nth < 72 * MIB / sizeof bytes; nth++) {
        memset(bytes, (int)nth, sizeof bytes);
        memcpy(bytes, &nth, sizeof nth);
        OK(glebe_zpool_insert(pool, bytes, sizeof bytes, &object));
    }
    done = shed(reclaimer, MIB);
    CHECK(done.objects_bytes > 0 && done.volatile_bytes == 0);
    stats.size = sizeof stats;
    OK(glebe_zpool_get_stats(pool, &stats));
    CHECK(stats.evicted > 0 && stats.objects + stats.evicted == nth);
    OK(glebe_zpool_free(pool));
    OK(glebe_reclaimer_free(reclaimer));
}

static void of_a_reserve(void) {
    glebe_reserve_options options;
    glebe_memory memory;
    glebe_reserve reserve = {0};
    glebe_reclaimer reclaimer = create_short();
    glebe_reclaimed done;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_PLAIN;
    options.room_bytes = 76 * MIB;
    OK(glebe_reserve_new(76 * MIB, &options, &reserve));
    OK(glebe_reclaimer_add_reserve(reclaimer, reserve, 8 * MIB));
    done = shed(reclaimer, 2 * MIB);
    CHECK(done.reserve_bytes > 0 && done.reserve_bytes % (2 * MIB) == 0);
    memory.size = sizeof memory;
    OK(glebe_reserve_memory(reserve, &memory));
    CHECK(memory.len_pages * glebe_page_bytes() == 76 * MIB - done.reserve_bytes);
    OK(glebe_reserve_free(reserve));
    OK(glebe_reclaimer_free(reclaimer));
}

static void of_a_budget_and_refills_wait(void) {
    glebe_reclaimer reclaimer = create_short();
    glebe_budget budget = {0};
    glebe_reclaimer_stats stats;
    glebe_reclaimed done;
    uint64_t allowed = 0;
    int64_t begin;
    const size_t len = 76 * MIB;
    void *cache = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(cache != MAP_FAILED);
    OK(glebe_budget_new(len, &budget));
    OK(glebe_reclaimer_add_budget(reclaimer, budget));
    CHECK(glebe_reclaimer_refills(reclaimer) == GLEBE_REFILLS_ALLOWED);
    memset(cache, 1, len);
    OK(glebe_budget_set_held(budget, len));
    begin = now_ms();
    done = shed(reclaimer, 0);
    OK(glebe_budget_allowed(budget, &allowed));
    CHECK(done.budgets_bytes > 0 && allowed == len - done.budgets_bytes);
    OK(munmap(cache, len));
    OK(glebe_budget_set_held(budget, 0));
    /* Refills are withheld for WITHHOLD_MS, and allowed soon afterwards. */
    while (glebe_reclaimer_refills(reclaimer) == GLEBE_REFILLS_WITHHELD) {
        CHECK(now_ms() - begin < 60000);
        sleep_ms(5);
        OK(glebe_reclaimer_poll(reclaimer, NULL));
    }
    CHECK(now_ms() - begin >= WITHHOLD_MS);
    stats.size = sizeof stats;
    OK(glebe_reclaimer_get_stats(reclaimer, &stats));
    CHECK(stats.withheld == 1 && stats.asked_budgets > 0);
    OK(glebe_reclaimer_free(reclaimer));
    OK(glebe_budget_allowed(budget, &allowed));
    CHECK(allowed == len);
    OK(glebe_budget_free(budget));
}

static void by_its_thread(void) {
    glebe_reclaimer reclaimer = create_short();
    glebe_volatile region = filled_region(64 * MIB);
    glebe_reclaimer_stats stats;
    void *more = NULL;
    int tries;
    OK(glebe_reclaimer_add_volatile(reclaimer, region));
    OK(glebe_reclaimer_start(reclaimer));
    more = malloc(20 * MIB);
    CHECK(more != NULL);
    memset(more, 1, 20 * MIB);
    stats.size = sizeof stats;
    stats.freed_volatile = 0;
    for (tries = 0; stats.freed_volatile == 0 && tries < 500; tries++) {
        sleep_ms(10);
        OK(glebe_reclaimer_get_stats(reclaimer, &stats));
    }
    CHECK(stats.freed_volatile > 0 && stats.sheds > 0 && stats.limit_pages > 0);
    CHECK(stats.limit_pages * glebe_page_bytes() == 96 * MIB);
    free(more);
    OK(glebe_volatile_free(region));
    OK(glebe_reclaimer_free(reclaimer));
}

static int under_pressure(const char *group) {
    char path[4096];
    FILE *procs;
    CHECK(snprintf(path, sizeof path, "%s/cgroup.procs", group) < (int)sizeof path);
    procs = fopen(path, "w");
    CHECK(procs != NULL);
    CHECK(fprintf(procs, "%d\n", (int)getpid()) > 0 && fclose(procs) == 0);
    of_volatile_memory();
    of_a_shared_region();
    of_objects();
    of_a_reserve();
    of_a_budget_and_refills_wait();
    by_its_thread();
    puts("reclaimer.c under pressure: ok");
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return under_pressure(argv[1]);
    nothing_there();
    options_are_checked();
    a_budget_allows_all_without_a_reclaimer();
    parts();
    the_descriptor_tells_when_to_look();
    a_thread_looks_by_itself();
    statistics();
    fork_is_noticed();
    puts("reclaimer.c: ok");
    return 0;
}
