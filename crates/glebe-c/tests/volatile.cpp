// Volatile memory from C++11 in several threads: threads mark, lose and find parts of a region,
// free regions that others use, and fork meanwhile.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr int THREADS = 4;
const int ROUNDS = share(300, 2);
constexpr std::uint64_t PART = 16; // pages per thread

template <typename Body> void in_threads(Body body) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(body, thread);
    for (auto &thread : threads) thread.join();
}

glebe_volatile map(std::uint64_t engine, std::uint64_t pages) {
    glebe_volatile_options options = {};
    options.size = sizeof options;
    options.engine = engine;
    glebe_volatile region = {};
    const int code = glebe_volatile_new(pages * glebe_page_bytes(), &options, &region);
    CHECK(code == GLEBE_OK || (code == GLEBE_ERROR_OS && engine == GLEBE_ENGINE_SCAN));
    return region;
}

// Marks a part, drops pages chosen by `round`, and checks that exactly the lost ones are reported.
void lose_and_find(glebe_volatile region, unsigned char *bytes, std::uint64_t first, int round) {
    const std::uint64_t page = glebe_page_bytes();
    std::vector<unsigned char> buffer(page);
    for (std::uint64_t n = 0; n < PART; n++) {
        std::memset(buffer.data(), int(n + 1), page);
        std::memcpy(bytes + (first + n) * page, buffer.data(), page);
    }
    OK(glebe_volatile_mark(region, first * page, PART * page, std::uint64_t(round % 8)));
    std::vector<bool> is_lost(PART);
    for (std::uint64_t n = std::uint64_t(round % 3); n < PART; n += std::uint64_t(2 + round % 5)) {
        std::uint64_t dropped = 0;
        OK(glebe_volatile_drop_now(region, (first + n) * page, page, &dropped));
        CHECK(dropped == page);
        is_lost[n] = true;
        const int got =
            glebe_volatile_read(region, (first + n) * page, buffer.data(), page, nullptr);
        CHECK(got == GLEBE_READ_LOST);
    }
    std::vector<bool> told(PART);
    // Each unmark has room for all runs, or for two.
    const std::size_t room = round % 2 == 0 ? PART : 2;
    std::vector<glebe_extent> runs(room);
    int answer;
    do {
        std::size_t count = 0;
        answer =
            glebe_volatile_unmark(region, first * page, PART * page, runs.data(), room, &count);
        CHECK(answer == (count > room ? GLEBE_UNMARK_MORE : GLEBE_UNMARK_TOLD));
        for (std::size_t run = 0; run < count && run < room; run++)
            for (std::uint64_t n = 0; n < runs[run].len_pages; n++)
                told[runs[run].start_pages - first + n] = true;
    } while (answer == GLEBE_UNMARK_MORE);
    for (std::uint64_t n = 0; n < PART; n++) {
        // The kernel may have taken more pages, which are reported, too. All others are intact.
        CHECK(!is_lost[n] || told[n]);
        OK(glebe_volatile_read(region, (first + n) * page, buffer.data(), page, nullptr));
        CHECK(buffer[0] == (told[n] ? 0 : n + 1) && buffer[page - 1] == buffer[0]);
        CHECK(bytes[(first + n) * page + page / 2] == buffer[0]);
    }
}

void by_many_threads(std::uint64_t engine) {
    const glebe_volatile region = map(engine, THREADS * PART);
    if (region.id == 0) return;
    void *address = nullptr;
    std::uint64_t len_bytes = 0, granule = 0, is = 0;
    OK(glebe_volatile_memory(region, &address, &len_bytes, &granule, &is));
    CHECK(len_bytes == THREADS * PART * glebe_page_bytes() && is == engine);
    CHECK(granule == glebe_page_bytes());
    unsigned char *bytes = static_cast<unsigned char *>(address);
    in_threads([=](int thread) {
        for (int round = 0; round < ROUNDS; round++)
            lose_and_find(region, bytes, std::uint64_t(thread) * PART, round);
    });
    glebe_volatile_stats stats;
    stats.size = sizeof stats;
    OK(glebe_volatile_get_stats(region, &stats));
    CHECK(stats.marked_pages == 0 && stats.marked_ever == THREADS * ROUNDS * PART);
    CHECK(stats.marked_ever == stats.purged + stats.rescued);
    CHECK(stats.purged >= stats.dropped_now);
    OK(glebe_volatile_free(region));
}

void ended_while_in_use() {
    const std::uint64_t page = glebe_page_bytes();
    for (int round = 0; round < share(50, 2); round++) {
        const glebe_volatile region = map(GLEBE_ENGINE_AUTO, THREADS);
        std::atomic<int> ended{0};
        in_threads([&, page](int thread) {
            for (;;) {
                std::size_t count = 0;
                const std::uint64_t at = std::uint64_t(thread) * page;
                const int marked = glebe_volatile_mark(region, at, page, 0);
                if (marked == GLEBE_ERROR_BAD_HANDLE) break;
                OK(marked);
                const int unmarked = glebe_volatile_unmark(region, at, page, nullptr, 0, &count);
                if (unmarked == GLEBE_ERROR_BAD_HANDLE) break;
                CHECK(unmarked >= 0);
                if (thread % 2 == 1) ended += glebe_volatile_free(region) == GLEBE_OK;
            }
        });
        CHECK(ended == 1);
        REFUSED(glebe_volatile_free(region), GLEBE_ERROR_BAD_HANDLE);
    }
}

// Children continue with their own copy, even if threads held locks at the fork.
void forked_in_the_middle(std::uint64_t engine) {
    const glebe_volatile region = map(engine, (THREADS + 1) * PART);
    if (region.id == 0) return;
    void *address = nullptr;
    OK(glebe_volatile_memory(region, &address, nullptr, nullptr, nullptr));
    unsigned char *bytes = static_cast<unsigned char *>(address);
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (int thread = 0; thread < 2; thread++) {
        busy.emplace_back([=, &stop] {
            for (int round = 0; !stop; round++) {
                lose_and_find(region, bytes, std::uint64_t(thread) * PART, round);
                OK(glebe_volatile_free(map(engine, 1)));
            }
        });
    }
    for (int round = 0; round < share(25, 2); round++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(30);
            lose_and_find(region, bytes, THREADS * PART, round);
            OK(glebe_volatile_free(map(engine, 1)));
            OK(glebe_volatile_free(region));
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        lose_and_find(region, bytes, THREADS * PART, round);
    }
    stop = true;
    for (auto &thread : busy) thread.join();
    OK(glebe_volatile_free(region));
}

// Each thread makes regions over its part of one mapping, with both interfaces.
void of_the_callers_memory() {
    const std::size_t page = std::size_t(glebe_page_bytes());
    void *const at = mmap(nullptr, THREADS * PART * page, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    const glebe_volatile probe = map(GLEBE_ENGINE_SCAN, 1);
    const bool has_scan = probe.id != 0;
    if (has_scan) OK(glebe_volatile_free(probe));
    in_threads([=](int thread) {
        unsigned char *bytes = static_cast<unsigned char *>(at) + std::size_t(thread) * PART * page;
        const int len = int(PART * page);
        for (int round = 0; round < 20; round++) {
            glebe_volatile region = {};
            int purged = 9;
            glebe_volatile_options options = {};
            options.size = sizeof options;
            options.address = bytes;
            OK(glebe_volatile_new(PART * page, &options, &region));
            lose_and_find(region, bytes, 0, round);
            OK(glebe_volatile_free(region));
            if (!has_scan) continue;
            std::memset(bytes, thread + 1, PART * page);
            CHECK(glebe_vrange(bytes, PART * page, GLEBE_VRANGE_VOLATILE, &purged) == len);
            CHECK(madvise(bytes + page, page, MADV_DONTNEED) == 0);
            OK(glebe_vrange_strict(bytes, PART * page, GLEBE_VRANGE_NONVOLATILE, &purged));
            CHECK(purged == 1 && bytes[page] == 0);
        }
    });
    CHECK(munmap(at, THREADS * PART * page) == 0);
}

// Page n of `data` has the byte n + 1 everywhere.
extern "C" const void *refill(std::uint64_t offset_bytes, std::size_t, void *data) {
    return static_cast<unsigned char *>(data) + offset_bytes;
}

void refilled_for_many_threads() {
    const std::size_t page = std::size_t(glebe_page_bytes()), pages = THREADS * PART;
    const glebe_volatile probe = map(GLEBE_ENGINE_SCAN, 1);
    if (probe.id == 0) return;
    OK(glebe_volatile_free(probe));
    std::vector<unsigned char> held(pages * page);
    for (std::size_t n = 0; n < pages; n++) std::memset(&held[n * page], int(n + 1), page);
    glebe_volatile region = {};
    void *address = nullptr;
    glebe_volatile_options options = {};
    options.size = sizeof options;
    options.refill = refill;
    options.data = held.data();
    OK(glebe_volatile_new(pages * page, &options, &region));
    OK(glebe_volatile_memory(region, &address, nullptr, nullptr, nullptr));
    const volatile unsigned char *bytes = static_cast<unsigned char *>(address);
    for (int round = 0; round < share(20, 2); round++) {
        std::memcpy(address, held.data(), held.size());
        OK(glebe_volatile_mark(region, 0, held.size(), GLEBE_PRIORITY_NORMAL));
        in_threads([=](int thread) {
            std::uint64_t dropped = 0;
            const std::size_t first = std::size_t(thread) * PART;
            OK(glebe_volatile_drop_now(region, first * page, PART * page, &dropped));
            for (std::size_t n = 0; n < pages; n++)
                CHECK(bytes[n * page + first] == n + 1 && bytes[(n + 1) * page - 1] == n + 1);
        });
        // Each dropped page was touched and refilled, so the kernel took any page that is lost.
        std::vector<glebe_extent> runs(pages);
        std::vector<bool> lost(pages);
        std::size_t count = 0;
        OK(glebe_volatile_unmark(region, 0, held.size(), runs.data(), pages, &count));
        for (std::size_t run = 0; run < count; run++)
            for (std::uint64_t n = 0; n < runs[run].len_pages; n++)
                lost[runs[run].start_pages + n] = true;
        for (std::size_t n = 0; n < pages; n++)
            CHECK(bytes[n * page + 1] == (lost[n] ? 0 : n + 1));
    }
    OK(glebe_volatile_free(region));
}

} // namespace

int main() {
    for (std::uint64_t engine = GLEBE_ENGINE_SCAN; engine <= GLEBE_ENGINE_TAG; engine++) {
        by_many_threads(engine);
        forked_in_the_middle(engine);
    }
    ended_while_in_use();
    of_the_callers_memory();
    refilled_for_many_threads();
    std::puts("volatile.cpp: ok");
}
