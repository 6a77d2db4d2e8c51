// Object pools from C++11 in several threads: objects change during compaction, pools are freed
// while others use them, and the process forks meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr int THREADS = 4;
const unsigned ROUNDS = unsigned(share(4000, 2));
constexpr std::uint64_t MIB = 1 << 20;

template <typename Body> void in_threads(Body body) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(body, thread);
    for (auto &thread : threads) thread.join();
}

glebe_zpool create(std::uint64_t limit_bytes, std::uint64_t at_limit, std::uint64_t codec) {
    glebe_zpool_options options = {};
    options.size = sizeof options;
    options.limit_bytes = limit_bytes;
    options.evict_oldest = at_limit;
    options.codec = codec;
    glebe_zpool pool = {};
    OK(glebe_zpool_new(&options, &pool));
    return pool;
}

std::string bytes_of(int thread, unsigned n) {
    return std::string(1 + n * 97 % 1500, char('a' + (n + unsigned(thread) * 7) % 26));
}

std::string read(glebe_zpool pool, glebe_zobject object) {
    std::size_t len = 0, room = 0;
    // A call without a buffer gets the length.
    OK(glebe_zpool_read(pool, object, nullptr, 0, &room));
    std::string bytes(room, '?');
    OK(glebe_zpool_read(pool, object, &bytes[0], room, &len));
    CHECK(len == room);
    return bytes;
}

void by_many_threads(glebe_zpool pool) {
    in_threads([=](int thread) {
        std::vector<std::pair<glebe_zobject, std::string>> mine;
        for (unsigned n = 0; n < ROUNDS; n++) {
            const std::string bytes = bytes_of(thread, n);
            glebe_zobject object = {};
            OK(glebe_zpool_insert(pool, bytes.data(), bytes.size(), &object));
            mine.emplace_back(object, bytes);
            auto &other = mine[n * 31 % mine.size()];
            CHECK(read(pool, other.first) == other.second);
            if (n % 4 == 0) {
                other.second = bytes_of(thread, n + 1);
                OK(glebe_zpool_replace(pool, other.first, other.second.data(),
                                       other.second.size()));
            }
            if (n % 2 == 0) {
                OK(glebe_zpool_remove(pool, other.first));
                REFUSED(glebe_zpool_remove(pool, other.first), GLEBE_ERROR_STALE);
                std::swap(other, mine.back());
                mine.pop_back();
            }
            if (n % 64 == 0) {
                glebe_compacted done = {};
                OK(glebe_zpool_compact(pool, 0, 100, &done));
                OK(glebe_zpool_compact(pool, 4, 0, nullptr));
            }
        }
        for (auto &each : mine) {
            CHECK(read(pool, each.first) == each.second);
            OK(glebe_zpool_remove(pool, each.first));
        }
    });
    glebe_compacted done = {};
    OK(glebe_zpool_compact(pool, 0, 0, &done));
    glebe_zpool_stats stats = {};
    stats.size = sizeof stats;
    OK(glebe_zpool_get_stats(pool, &stats));
    CHECK(stats.objects == 0 && stats.used_pages == 0 && stats.inserted == stats.removed);
    CHECK(stats.freeable_pages == 0 && stats.held_bytes > 0);
    std::size_t needed = 0;
    OK(glebe_zpool_format_stats(pool, GLEBE_FORMAT_JSON, nullptr, 0, &needed));
    std::string text(needed, 0);
    OK(glebe_zpool_format_stats(pool, GLEBE_FORMAT_JSON, &text[0], text.size(), &needed));
    CHECK(text.find("\"objects\"") != std::string::npos);
}

// Threads fill a pool beyond its limit. Reads of evicted objects return GLEBE_ERROR_STALE.
void evicted_under_others() {
    const unsigned rounds = 4000; // with fewer, a single thread might stay below the limit
    const glebe_zpool pool = create(2 * MIB, 1, GLEBE_CODEC_NONE);
    std::atomic<unsigned> evicted{0};
    in_threads([&](int thread) {
        std::vector<glebe_zobject> mine;
        char bytes[1500];
        for (unsigned n = 0; n < rounds; n++) {
            const std::string expected = bytes_of(thread, n);
            glebe_zobject object = {};
            OK(glebe_zpool_insert(pool, expected.data(), expected.size(), &object));
            mine.push_back(object);
            const unsigned at = n * 13 % unsigned(mine.size());
            std::size_t len = 0;
            const int code = glebe_zpool_read(pool, mine[at], bytes, sizeof bytes, &len);
            CHECK(code == GLEBE_OK || code == GLEBE_ERROR_STALE);
            if (code == GLEBE_OK) CHECK(std::string(bytes, len) == bytes_of(thread, at));
            evicted += code == GLEBE_ERROR_STALE;
        }
    });
    CHECK(evicted > 0);
    OK(glebe_zpool_set_limit(pool, MIB));
    glebe_zpool_stats stats = {};
    stats.size = sizeof stats;
    OK(glebe_zpool_get_stats(pool, &stats));
    CHECK(stats.held_bytes <= MIB);
    OK(glebe_zpool_free(pool));
}

void ended_while_in_use() {
    for (int round = 0; round < 50; round++) {
        const glebe_zpool pool = create(MIB, 1, GLEBE_CODEC_AUTO);
        std::atomic<int> ended{0};
        in_threads([&](int thread) {
            for (unsigned n = 0;; n++) {
                glebe_zobject object = {};
                const int code = glebe_zpool_insert(pool, "used", 4, &object);
                if (code == GLEBE_ERROR_BAD_HANDLE) return;
                OK(code);
                if (n == unsigned(10 * thread)) ended += glebe_zpool_free(pool) == GLEBE_OK;
            }
        });
        CHECK(ended == 1);
        REFUSED(glebe_zpool_free(pool), GLEBE_ERROR_BAD_HANDLE);
    }
}

void forked_in_the_middle(glebe_zpool pool) {
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop) {
            glebe_zobject object = {};
            OK(glebe_zpool_insert(pool, "busy", 4, &object));
            OK(glebe_zpool_remove(pool, object));
        }
    });
    for (int round = 0; round < 50; round++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            glebe_zobject object = {};
            const bool refused =
                glebe_zpool_insert(pool, "x", 1, &object) == GLEBE_ERROR_FORKED &&
                glebe_zpool_compact(pool, 0, 0, nullptr) == GLEBE_ERROR_FORKED &&
                glebe_zpool_free(pool) == GLEBE_ERROR_FORKED;
            const glebe_zpool own = create(MIB, 0, 0);
            OK(glebe_zpool_insert(own, "own", 3, &object));
            OK(glebe_zpool_free(own));
            _exit(refused ? 0 : 1);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = true;
    busy.join();
}

} // namespace

int main() {
    for (const std::uint64_t codec : {GLEBE_CODEC_NONE, GLEBE_CODEC_LZ4, GLEBE_CODEC_ZSTD}) {
        const glebe_zpool pool = create(64 * MIB, 0, codec);
        by_many_threads(pool);
        OK(glebe_zpool_free(pool));
    }
    const glebe_zpool pool = create(64 * MIB, 0, GLEBE_CODEC_AUTO);
    evicted_under_others();
    ended_while_in_use();
    forked_in_the_middle(pool);
    OK(glebe_zpool_free(pool));
    std::puts("zpool.cpp: ok");
}
