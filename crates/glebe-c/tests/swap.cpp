// Swap from C++11 in several threads: objects change while the budget changes, all threads touch
// one region, and areas change their policy.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr int THREADS = 3;
constexpr std::uint64_t MIB = 1 << 20;
constexpr std::size_t LEN = 40000;

template <typename Body> void in_threads(Body body) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(body, thread);
    for (auto &thread : threads) thread.join();
}

std::string bytes_of(unsigned n, std::size_t len) {
    std::string bytes(len, char('a' + n % 26));
    for (std::size_t at = 0; at < len; at += 7) bytes[at] = char(n * 31 + at);
    return bytes;
}

class Pinned {
public:
    Pinned(glebe_swap_store store, glebe_swap_object object) : pin_() {
        OK(glebe_swap_store_pin(store, object, &bytes_, &len_, &pin_));
    }
    Pinned(const Pinned &) = delete;
    Pinned &operator=(const Pinned &) = delete;
    ~Pinned() { OK(glebe_swap_pin_free(pin_)); }
    bool is(const std::string &bytes) const {
        return len_ == bytes.size() && std::memcmp(bytes_, bytes.data(), len_) == 0;
    }

private:
    glebe_swap_pin pin_;
    const void *bytes_ = nullptr;
    std::size_t len_ = 0;
};

void objects_of(glebe_swap_store store, int thread) {
    std::vector<std::pair<glebe_swap_object, std::string>> mine;
    for (unsigned n = 0; n < 300; n++) {
        const std::string bytes = bytes_of(unsigned(thread) * 1000 + n, LEN);
        glebe_swap_object object = {};
        OK(glebe_swap_store_insert(store, bytes.data(), bytes.size(), &object));
        mine.emplace_back(object, bytes);
        auto &other = mine[n * 31 % mine.size()];
        CHECK(Pinned(store, other.first).is(other.second));
        if (n % 5 == 0) {
            glebe_swap_pin pin = {};
            void *to = nullptr;
            std::size_t len = 0;
            OK(glebe_swap_store_pin_mut(store, other.first, &to, &len, &pin));
            other.second = bytes_of(n, len);
            std::memcpy(to, other.second.data(), len);
            OK(glebe_swap_pin_free(pin));
            OK(glebe_swap_store_cold(store, other.first));
        } else if (n % 5 == 1) {
            std::string out(other.second.size(), '?');
            std::size_t len = 0;
            OK(glebe_swap_store_take(store, other.first, &out[0], out.size(), &len));
            CHECK(out == other.second);
            REFUSED(glebe_swap_store_remove(store, other.first), GLEBE_ERROR_STALE);
            std::swap(other, mine.back());
            mine.pop_back();
        } else if (n % 5 == 2) {
            OK(glebe_swap_store_will_need(store, other.first));
        } else if (n % 50 == 3) {
            OK(glebe_swap_store_set_budget(store, (n % 100 + 12) * MIB / 16));
        }
    }
    for (auto &one : mine) {
        CHECK(Pinned(store, one.first).is(one.second));
        OK(glebe_swap_store_dead(store, one.first));
        OK(glebe_swap_store_remove(store, one.first));
    }
}

void stores() {
    glebe_swap_options options = {};
    options.size = sizeof options;
    options.capacity_bytes = 64 * MIB;
    options.file_directory = "/tmp";
    options.file_bytes = 64 * MIB;
    glebe_swap_store store = {};
    OK(glebe_swap_store_new(MIB, &options, &store));
    OK(glebe_swap_store_set_pool_limit(store, MIB));
    in_threads([=](int thread) { objects_of(store, thread); });
    glebe_swap_object object = {};
    glebe_swap_pin pin = {};
    void *address = nullptr;
    OK(glebe_swap_store_create(store, 5, &object, &address, &pin));
    CHECK(std::memcmp(address, "\0\0\0\0", 5) == 0);
    OK(glebe_swap_pin_free(pin));
    glebe_swap_stats stats = {};
    stats.size = sizeof stats;
    OK(glebe_swap_store_get_stats(store, &stats));
    CHECK(stats.created_pages - stats.freed_pages == 1 && stats.pinned_pages == 0);
    std::size_t needed = 0;
    OK(glebe_swap_store_format_stats(store, GLEBE_FORMAT_OPENMETRICS, nullptr, 0, &needed));
    std::string text(needed, '?');
    OK(glebe_swap_store_format_stats(store, GLEBE_FORMAT_OPENMETRICS, &text[0], needed, &needed));
    CHECK(text.find("glebe_store_budget_bytes") != std::string::npos);
    OK(glebe_swap_store_free(store));
}

// A store keeps its encrypted file in idle pages of a reserve, which first class takes again and
// again.
void in_idle_memory() {
    glebe_reserve reserve = {};
    OK(glebe_reserve_new(16 * MIB, nullptr, &reserve));
    glebe_swap_cache_options of_cache = {};
    of_cache.size = sizeof of_cache;
    of_cache.reserve = reserve;
    glebe_swap_options options = {};
    options.size = sizeof options;
    OK(glebe_swap_cache_new(&of_cache, &options.cache));
    options.pool_limit_bytes = MIB / 4;
    options.file_directory = "/tmp";
    options.file_bytes = 64 * MIB;
    options.encrypt = 1;
    options.capacity_bytes = 64 * MIB;
    glebe_swap_store store = {};
    OK(glebe_swap_store_new(MIB, &options, &store));
    std::atomic<bool> done(false);
    std::thread first_class([=, &done] {
        while (!done) {
            glebe_block block = {};
            std::uint64_t pages = 0;
            OK(glebe_reserve_largest_run(reserve, &pages));
            OK(glebe_alloc(reserve, pages, &block));
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            OK(glebe_free(block));
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
    });
    in_threads([=](int thread) { objects_of(store, thread); });
    done = true;
    first_class.join();
    glebe_swap_stats stats = {};
    stats.size = sizeof stats;
    OK(glebe_swap_store_get_stats(store, &stats));
    CHECK(stats.loaded_idle > 0 && stats.read_back > 0 && stats.damaged == 0);
    OK(glebe_swap_cache_free(options.cache));
    REFUSED(glebe_reserve_free(reserve), GLEBE_ERROR_BUSY);
    OK(glebe_swap_store_free(store));
    OK(glebe_reserve_free(reserve));
}

void ended_while_used() {
    glebe_swap_store store = {};
    OK(glebe_swap_store_new(MIB, nullptr, &store));
    std::atomic<int> begun(0);
    in_threads([=, &begun](int thread) {
        begun++;
        while (thread == 0 && begun < THREADS) std::this_thread::yield();
        for (;;) {
            glebe_swap_object object = {};
            const int code = glebe_swap_store_insert(store, "bytes", 5, &object);
            if (code == GLEBE_ERROR_BAD_HANDLE) return;
            OK(code);
            const void *bytes = nullptr;
            glebe_swap_pin pin = {};
            if (glebe_swap_store_pin(store, object, &bytes, nullptr, &pin) == GLEBE_OK) {
                CHECK(std::memcmp(bytes, "bytes", 5) == 0);
                OK(glebe_swap_pin_free(pin));
            }
            glebe_swap_store_remove(store, object);
            if (thread != 0) continue;
            const int ended = glebe_swap_store_free(store);
            CHECK(ended == GLEBE_OK || ended == GLEBE_ERROR_BUSY);
        }
    });
}

void region() {
    glebe_swap_region region = {};
    const int code = glebe_swap_region_new(6 * MIB, MIB, nullptr, &region);
    if (code == GLEBE_ERROR_OS) {
        std::fprintf(stderr, "skipped: regions (%s)\n", glebe_last_error());
        return;
    }
    OK(code);
    void *address = nullptr;
    std::uint64_t len = 0;
    OK(glebe_swap_region_memory(region, &address, &len, nullptr));
    unsigned char *const bytes = static_cast<unsigned char *>(address);
    in_threads([=](int thread) {
        OK(glebe_swap_region_arm_thread(region));
        for (unsigned round = 0; round < 3; round++) {
            for (std::size_t at = std::size_t(thread); at < len; at += 512 + THREADS) {
                bytes[at] = static_cast<unsigned char>(at / 7 + round);
            }
            OK(glebe_swap_region_cold(region, std::uint64_t(thread) * MIB, MIB / 2));
            OK(glebe_swap_region_will_need(region, std::uint64_t(thread) * MIB, MIB / 8));
            for (std::size_t at = std::size_t(thread); at < len; at += 512 + THREADS) {
                CHECK(bytes[at] == static_cast<unsigned char>(at / 7 + round));
            }
        }
    });
    const std::string out = bytes_of(1, 10000);
    std::string in(out.size(), '?');
    OK(glebe_swap_region_write(region, 100, out.data(), out.size()));
    OK(glebe_swap_region_read(region, 100, &in[0], in.size()));
    CHECK(in == out);
    void *resident = nullptr;
    glebe_swap_pin pin = {};
    OK(glebe_swap_region_resident(region, 100, out.size(), &resident, &pin));
    CHECK(std::memcmp(resident, out.data(), out.size()) == 0);
    OK(glebe_swap_region_set_budget(region, MIB / 2));
    OK(glebe_swap_pin_free(pin));
    OK(glebe_swap_region_discard(region, 0, len));
    CHECK(bytes[0] == 0 && bytes[len - 1] == 0);
    glebe_swap_stats stats = {};
    stats.size = sizeof stats;
    OK(glebe_swap_region_get_stats(region, &stats));
    CHECK(stats.over_budget_pages == 0 && stats.pinned_pages == 0);
    std::size_t needed = 0;
    OK(glebe_swap_region_format_stats(region, GLEBE_FORMAT_JSON, nullptr, 0, &needed));
    OK(glebe_swap_region_free(region));
}

void areas() {
    const std::size_t page = std::size_t(glebe_page_bytes());
    glebe_reserve reserve = {};
    OK(glebe_reserve_new(16 * MIB, nullptr, &reserve));
    glebe_swap_cache_options options = {};
    options.size = sizeof options;
    options.reserve = reserve;
    options.encrypt = 1;
    glebe_swap_cache cache = {};
    OK(glebe_swap_cache_new(&options, &cache));
    glebe_swap_area_options file = {};
    file.size = sizeof file;
    file.file_directory = "/tmp";
    file.file_bytes = 32 * MIB;
    glebe_swap_area area = {};
    OK(glebe_swap_area_new(cache, 3000, &file, &area));
    std::uint64_t write_back = 0;
    OK(glebe_swap_cache_usual_write_back(cache, &write_back));
    in_threads([=](int thread) {
        std::string out(page, '?');
        for (unsigned n = 0; n < 1000; n++) {
            const std::uint64_t index = std::uint64_t(thread) * 1000 + n;
            const std::string bytes = bytes_of(n, page);
            OK(glebe_swap_area_store(area, index, bytes.data(), page));
            CHECK(glebe_swap_area_load(area, index, &out[0], page) == GLEBE_GET_HIT);
            CHECK(out == bytes);
            if (n % 100 == 0) OK(glebe_swap_area_set_write_back(area, n % 200 * write_back / 100));
            if (n % 100 == 50) OK(glebe_swap_area_set_put_back(area, n % 200 * write_back / 200));
            if (n % 100 == 70) {
                glebe_block block = {};
                // Recalls pages. The blocks of all three threads fit side by side.
                OK(glebe_alloc_with(reserve, 1300, 1, GLEBE_ANY, &block));
                OK(glebe_free(block));
            }
            if (n % 7 == 0) {
                CHECK(glebe_swap_area_take(area, index, &out[0], page) == GLEBE_GET_HIT);
                CHECK(out == bytes);
                CHECK(glebe_swap_area_invalidate_page(area, index) == GLEBE_NOT_THERE);
            }
        }
    });
    glebe_swap_area_stats stats = {};
    stats.size = sizeof stats;
    OK(glebe_swap_area_get_stats(area, &stats));
    CHECK(stats.stored == 3000 && stats.present_pages == 3000 - stats.ended);
    std::uint64_t pages = 0;
    OK(glebe_swap_area_invalidate(area, &pages));
    CHECK(pages == stats.present_pages);
    std::size_t needed = 0;
    OK(glebe_swap_area_format_stats(area, GLEBE_FORMAT_TEXT, nullptr, 0, &needed));
    OK(glebe_swap_area_free(area));
    OK(glebe_swap_cache_free(cache));
    OK(glebe_reserve_free(reserve));
}

} // namespace

int main() {
    stores();
    in_idle_memory();
    ended_while_used();
    region();
    areas();
    std::puts("swap.cpp: ok");
    return 0;
}
