// Reserves, blocks, views and the page cache from C++11: threads share handles, race to free them,
// and fork while others use them.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr std::uint64_t MIB = std::uint64_t(1) << 20;
constexpr int THREADS = 4;
const int ROUNDS = share(2000, 2);

template <typename Body> void in_threads(Body body) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(body, thread);
    for (auto &thread : threads) thread.join();
}

glebe_reserve create(std::uint64_t len_bytes) {
    glebe_reserve_options options = {};
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_PLAIN;
    glebe_reserve reserve = {};
    OK(glebe_reserve_new(len_bytes, &options, &reserve));
    return reserve;
}

void messages() {
    CHECK(std::string(glebe_version()) == GLEBE_VERSION);
    CHECK(std::string(glebe_error_name(GLEBE_ERROR_NO_RUN)) == "GLEBE_ERROR_NO_RUN");
    REFUSED(glebe_free(HANDLE(glebe_block, 1)), GLEBE_ERROR_BAD_HANDLE);
    std::thread([] { CHECK(*glebe_last_error() == 0); }).join();
    CHECK(*glebe_last_error() != 0);
}

void first_class(glebe_reserve reserve, int thread) {
    const std::uint64_t page = glebe_page_bytes();
    for (int round = 0; round < ROUNDS; round++) {
        glebe_block block = {};
        glebe_promise promise = {};
        void *address = nullptr;
        std::uint64_t len_bytes = 0;
        switch (round % 4) {
        case 0: OK(glebe_alloc(reserve, 1, &block)); break;
        case 1: OK(glebe_alloc_with(reserve, 3, 1, GLEBE_ANY, &block)); break;
        case 2:
            if (glebe_alloc_with(reserve, 1, 1, GLEBE_NO_WAIT, &block) == GLEBE_ERROR_WOULD_WAIT)
                continue;
            break;
        default:
            OK(glebe_promise_new(reserve, 1, 1, &promise));
            if (round % 8 == 3) {
                OK(glebe_promise_free(promise));
                continue;
            }
            OK(glebe_promise_take(promise, &block));
        }
        OK(glebe_block_memory(block, &address, &len_bytes));
        CHECK(len_bytes % page == 0 && len_bytes > 0);
        std::memset(address, thread, len_bytes);
        std::this_thread::yield();
        for (std::uint64_t i = 0; i < len_bytes; i += 64)
            CHECK(static_cast<unsigned char *>(address)[i] == thread);
        OK(glebe_free(block));
    }
}

void second_class(glebe_cache pool, int thread) {
    const std::size_t page = glebe_page_bytes();
    std::vector<unsigned char> in(page, static_cast<unsigned char>(thread)), out(page);
    for (int round = 0; round < ROUNDS; round++) {
        const std::uint64_t object = std::uint64_t(thread), index = std::uint64_t(round % 50);
        CHECK(glebe_cache_put(pool, object, index, in.data(), page) >= 0);
        const int got = glebe_cache_get(pool, object, index, out.data(), page);
        CHECK(got >= 0);
        if (got == GLEBE_GET_HIT) CHECK(in == out);
        if (round % 10 == 9) {
            CHECK(glebe_cache_put_run(pool, object, 60, in.data(), page / 2) >= 0);
            const int run = glebe_cache_get_run(pool, object, 60, out.data(), page / 2);
            if (run == GLEBE_GET_HIT) CHECK(in == out);
        }
        if (round % 100 == 99) CHECK(glebe_cache_invalidate_page(pool, object, index) >= 0);
        if (round % 500 == 499) OK(glebe_cache_invalidate_object(pool, object));
    }
}

void by_many_threads(glebe_reserve reserve) {
    glebe_cache pool = {};
    OK(glebe_cache_new(reserve, "threads", &pool));
    in_threads([=](int thread) {
        if (thread % 2 == 0)
            first_class(reserve, thread);
        else
            second_class(pool, thread);
    });
    OK(glebe_cache_invalidate(pool));
    OK(glebe_cache_free(pool));
    glebe_reserve_stats stats;
    stats.size = sizeof stats;
    OK(glebe_reserve_get_stats(reserve, &stats));
    CHECK(stats.held_pages == 0 && stats.stored > 0 && stats.allocs > 0);
    CHECK(stats.live_pages + stats.held_pages + stats.free_pages == stats.total_pages);
}

// If several threads free a handle, only one call succeeds.
void ended_once(glebe_reserve reserve) {
    for (int round = 0; round < 200; round++) {
        glebe_block block = {};
        glebe_promise promise = {};
        glebe_cache pool = {};
        std::atomic<int> freed{0}, ended{0}, closed{0};
        OK(glebe_alloc(reserve, 1, &block));
        OK(glebe_promise_new(reserve, 1, 1, &promise));
        OK(glebe_cache_new(reserve, "once", &pool));
        in_threads([&](int thread) {
            glebe_block taken = {};
            freed += glebe_free(block) == GLEBE_OK;
            if (thread % 2 == 0) {
                ended += glebe_promise_free(promise) == GLEBE_OK;
            } else if (glebe_promise_take(promise, &taken) == GLEBE_OK) {
                ended++;
                OK(glebe_free(taken));
            }
            closed += glebe_cache_free(pool) == GLEBE_OK;
        });
        CHECK(freed == 1 && ended == 1 && closed == 1);
    }
}

// Threads view the same pages of a file in different orders; each view is freed once.
void views_of_a_file() {
    const std::uint64_t page = glebe_page_bytes();
    const int fd = memfd_create("pages", 0);
    CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(THREADS * 2 * page)) == 0);
    in_threads([&](int thread) {
        const std::uint64_t first = static_cast<std::uint64_t>(thread) * 2;
        const glebe_extent extents[2] = {{first + 1, 1}, {first, 1}};
        for (int round = 0; round < 200; round++) {
            glebe_view view = {};
            void *address = nullptr;
            OK(glebe_view_new(fd, extents, 2, &view));
            OK(glebe_view_memory(view, &address, nullptr));
            std::size_t count = 0;
            OK(glebe_view_extents(view, nullptr, 0, &count));
            CHECK(count == 2);
            auto *bytes = static_cast<unsigned char *>(address);
            CHECK(round == 0 || bytes[page] == thread + 1);
            std::memset(bytes, thread + 1, 2 * page);
            OK(glebe_view_free(view));
        }
    });
    for (int round = 0; round < 100; round++) {
        const glebe_extent all = {0, THREADS * 2};
        glebe_view view = {};
        std::atomic<int> freed{0};
        OK(glebe_view_new(fd, &all, 1, &view));
        in_threads([&](int) { freed += glebe_view_free(view) == GLEBE_OK; });
        CHECK(freed == 1);
    }
    CHECK(close(fd) == 0);
}

void ended_while_in_use() {
    const std::size_t page = glebe_page_bytes();
    for (int round = 0; round < 20; round++) {
        const glebe_reserve reserve = create(2 * MIB);
        glebe_cache pool = {};
        OK(glebe_cache_new(reserve, "used", &pool));
        std::atomic<int> started{0};
        in_threads([&](int thread) {
            std::vector<unsigned char> buffer(page);
            started++;
            if (thread > 0) {
                while (glebe_cache_put(pool, 1, std::uint64_t(thread), buffer.data(), page) >= 0) {
                    glebe_block block = {};
                    const int code = glebe_alloc(reserve, 1, &block);
                    if (code == GLEBE_ERROR_BAD_HANDLE) return;
                    OK(code);
                    OK(glebe_free(block));
                }
                return;
            }
            while (started < THREADS) std::this_thread::yield();
            REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BUSY);
            OK(glebe_cache_free(pool));
            while (glebe_reserve_free(reserve) == GLEBE_ERROR_BUSY) std::this_thread::yield();
        });
        REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BAD_HANDLE);
    }
}

// Calls on inherited handles fail and never hang, even if threads held locks at the fork.
void forked_in_the_middle(glebe_reserve reserve) {
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop) {
            glebe_block block = {};
            glebe_cache pool = {};
            OK(glebe_alloc(reserve, 1, &block));
            OK(glebe_cache_new(reserve, "busy", &pool));
            OK(glebe_cache_free(pool));
            OK(glebe_free(block));
        }
    });
    glebe_block block = {};
    OK(glebe_alloc(reserve, 1, &block));
    for (int round = 0; round < 50; round++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            glebe_cache pool = {};
            glebe_block other = {};
            const bool refused = glebe_free(block) == GLEBE_ERROR_FORKED &&
                                 glebe_alloc(reserve, 1, &other) == GLEBE_ERROR_FORKED &&
                                 glebe_cache_new(reserve, "busy", &pool) == GLEBE_ERROR_FORKED &&
                                 glebe_reserve_free(reserve) == GLEBE_ERROR_FORKED;
            _exit(refused ? 0 : 1);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = true;
    busy.join();
    OK(glebe_free(block));
}

void what_it_is_made_of(glebe_reserve reserve) {
    glebe_memory memory = {};
    memory.size = sizeof memory;
    OK(glebe_reserve_memory(reserve, &memory));
    CHECK(memory.len_pages == 8 * MIB / glebe_page_bytes());
    std::size_t count = 0;
    OK(glebe_reserve_runs(reserve, nullptr, 0, &count));
    std::vector<glebe_run> runs(count);
    OK(glebe_reserve_runs(reserve, runs.data(), runs.size(), &count));
    CHECK(runs.size() == count);
    std::uint64_t largest = 0;
    OK(glebe_reserve_largest_run(reserve, &largest));
    CHECK(largest >= 1);
}

} // namespace

int main() {
    messages();
    const glebe_reserve reserve = create(8 * MIB);
    what_it_is_made_of(reserve);
    by_many_threads(reserve);
    ended_once(reserve);
    ended_while_in_use();
    views_of_a_file();
    forked_in_the_middle(reserve);
    OK(glebe_reserve_free(reserve));
    std::puts("all.cpp: ok");
}
