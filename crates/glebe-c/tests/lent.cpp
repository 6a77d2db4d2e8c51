// Object pools on a reserve from C++11 in several threads, while first class takes the reserve
// again and again.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr int THREADS = 3;
const unsigned ROUNDS = unsigned(share(3000, 2));
constexpr std::uint64_t MIB = std::uint64_t{1} << 20;

// Stores and reads objects that carry `mark`, so that another thread's bytes are noticed.
void one(glebe_zpool pool, unsigned mark, std::size_t page) {
    std::vector<unsigned char> bytes(page), found(page);
    std::vector<glebe_zobject> objects;
    for (unsigned round = 0; round < ROUNDS; round++) {
        std::memset(bytes.data(), static_cast<int>(mark), page);
        for (std::size_t i = 0; i < page; i += 5)
            bytes[i] = static_cast<unsigned char>(i * round >> 3);
        bytes[1] = static_cast<unsigned char>(mark);
        glebe_zobject object = {};
        const int answer = glebe_zpool_insert(pool, bytes.data(), page - round % 99, &object);
        CHECK(answer == GLEBE_OK || answer == GLEBE_ERROR_FULL);
        if (answer == GLEBE_OK) objects.push_back(object);
        if (objects.size() < 300) continue;
        const glebe_zobject old = objects[round * 7 % objects.size()];
        std::size_t len = 0;
        const int is = glebe_zpool_read(pool, old, found.data(), page, &len);
        CHECK(is == GLEBE_GET_HIT || is == GLEBE_GET_MISS || is == GLEBE_ERROR_STALE);
        if (is == GLEBE_GET_HIT) CHECK(found[1] == mark && len > page - 99);
        if (round % 3 == 0) {
            const int replaced = glebe_zpool_replace(pool, old, bytes.data(), page);
            CHECK(replaced == GLEBE_OK || replaced == GLEBE_ERROR_STALE ||
                  replaced == GLEBE_ERROR_FULL);
            const int length = glebe_zpool_read(pool, old, nullptr, 0, &len);
            CHECK(length >= 0 || length == GLEBE_ERROR_STALE);
        }
        const int gone = glebe_zpool_remove(pool, objects[round % objects.size()]);
        CHECK(gone == GLEBE_OK || gone == GLEBE_ERROR_STALE);
        objects.erase(objects.begin() + round % objects.size());
    }
}

}  // namespace

int main() {
    glebe_reserve_options options{};
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_PLAIN;
    options.page_cache = GLEBE_CODEC_LZ4;
    glebe_reserve reserve = {};
    OK(glebe_reserve_new(8 * MIB, &options, &reserve));
    const std::size_t page = static_cast<std::size_t>(glebe_page_bytes());
    for (const std::uint64_t moves : {0, 1}) {
        glebe_zpool_options asked{};
        asked.size = sizeof asked;
        asked.reserve = reserve;
        asked.move_on_recall = moves;
        glebe_zpool pool = {};
        OK(glebe_zpool_new(&asked, &pool));
        std::atomic<bool> over{false};
        std::thread first([&] {
            while (!over) {
                glebe_block block = {};
                OK(glebe_alloc_with(reserve, 3 * MIB / page, 1, GLEBE_ANY, &block));
                OK(glebe_free(block));
                OK(glebe_zpool_sweep(pool, 10));
                OK(glebe_zpool_compact(pool, 8, 0, nullptr));
            }
        });
        std::vector<std::thread> all;
        for (int n = 0; n < THREADS; n++) {
            all.emplace_back(one, pool, static_cast<unsigned>(n + 1), page);
        }
        for (auto &thread : all) thread.join();
        over = true;
        first.join();
        glebe_zpool_stats stats{};
        stats.size = sizeof stats;
        OK(glebe_zpool_get_stats(pool, &stats));
        std::size_t needed = 0;
        OK(glebe_zpool_format_stats(pool, GLEBE_FORMAT_TEXT, nullptr, 0, &needed));
        OK(glebe_zpool_free(pool));
    }
    OK(glebe_reserve_free(reserve));
    std::puts("lent.cpp: ok");
}
