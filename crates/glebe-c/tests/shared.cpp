// Shared volatile memory from C++11, in several threads and processes at once.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr std::uint64_t GRANULES = 32;
const unsigned ROUNDS = unsigned(share(20000, 2));

std::uint64_t page() { return glebe_page_bytes(); }

glebe_shared create() {
    glebe_shared shared = {};
    OK(glebe_shared_new(GRANULES * page(), nullptr, &shared));
    return shared;
}

// Repeats a call while another thread or process purges.
template <typename Call> int patient(Call call) {
    for (;;) {
        const int answer = call();
        if (answer != GLEBE_ERROR_UNDER_WAY) return answer;
        std::this_thread::yield();
    }
}

// Uses the region as a cache: a pinned granule is intact, or reported lost and filled again.
void use(glebe_shared shared, unsigned seed, unsigned rounds) {
    for (unsigned n = 0; n < rounds; n++) {
        const std::uint64_t granule = (seed * 7 + n * 13) % GRANULES, at = granule * page();
        // Every writer writes the same bytes.
        const std::uint64_t first = granule * 0x0101010101010101, last = ~first;
        glebe_pin pin = {};
        const int answer = patient([&] { return glebe_pin_new(shared, at, page(), &pin); });
        CHECK(answer == GLEBE_PIN_KEPT || answer == GLEBE_PIN_LOST);
        if (answer == GLEBE_PIN_LOST) {
            glebe_extent run = {};
            std::size_t count = 0;
            OK(glebe_pin_lost(pin, &run, 1, &count));
            CHECK(count == 1 && run.start_pages == granule && run.len_pages == 1);
            OK(glebe_pin_write(pin, 0, &first, sizeof first));
            OK(glebe_pin_write(pin, page() - sizeof last, &last, sizeof last));
            OK(patient([&] { return glebe_pin_restored(pin); }));
        }
        std::uint64_t got[2] = {};
        OK(glebe_pin_read(pin, 0, &got[0], sizeof got[0]));
        OK(glebe_pin_read(pin, page() - sizeof got[1], &got[1], sizeof got[1]));
        CHECK(got[0] == first && got[1] == last);
        OK(glebe_pin_free(pin));
        if (n % 8 == 0) {
            std::uint64_t purged = 0;
            OK(patient([&] { return glebe_shared_purge(shared, 2 * page(), 7, &purged); }));
            CHECK(purged % page() == 0);
        }
        if (n % 64 == 0) {
            OK(patient([&] { return glebe_shared_drop_now(shared, at, page(), nullptr); }));
        }
    }
}

void prepare(glebe_shared shared) {
    glebe_pin pin = {};
    OK(glebe_pin_new(shared, 0, GRANULES * page(), &pin));
    for (std::uint64_t granule = 0; granule < GRANULES; granule++) {
        const std::uint64_t first = granule * 0x0101010101010101, last = ~first;
        OK(glebe_pin_write(pin, granule * page(), &first, sizeof first));
        OK(glebe_pin_write(pin, (granule + 1) * page() - sizeof last, &last, sizeof last));
    }
    OK(glebe_pin_free(pin));
    OK(glebe_shared_mark(shared, 0, GRANULES * page(), GLEBE_PRIORITY_NORMAL, GLEBE_ORDER_FIFO));
}

void by_threads_and_processes() {
    const glebe_shared shared = create();
    prepare(shared);
    std::vector<pid_t> children;
    std::vector<std::thread> threads;
    for (unsigned n = 0; n < 2; n++) threads.emplace_back(use, shared, n, ROUNDS);
    // Forks while threads pin, mark and purge: the children continue with the handle.
    for (unsigned n = 0; n < 6; n++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);
            use(shared, n + 2, ROUNDS / 4);
            OK(glebe_shared_free(shared));
            _exit(0);
        }
        children.push_back(child);
    }
    for (auto &thread : threads) thread.join();
    for (const pid_t child : children) {
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    void *address = nullptr;
    std::uint64_t len = 0, granule = 0;
    OK(glebe_shared_memory(shared, &address, &len, &granule));
    CHECK(address != nullptr && len == GRANULES * page() && granule == page());
    std::size_t count = 0;
    CHECK(glebe_shared_unmark(shared, 0, len, nullptr, 0, &count) >= 0);
    glebe_shared_stats stats = {};
    stats.size = sizeof stats;
    OK(glebe_shared_get_stats(shared, &stats));
    CHECK(stats.marked_pages == 0 && stats.lost_pages == 0 && stats.pinned_pages == 0);
    CHECK(stats.pins >= 2 * ROUNDS && stats.freed > 0);
    std::size_t needed = 0;
    OK(glebe_shared_format_stats(shared, GLEBE_FORMAT_JSON, nullptr, 0, &needed));
    CHECK(needed > 10);
    OK(glebe_shared_free(shared));
}

void ended_while_in_use() {
    for (int round = 0; round < 50; round++) {
        const glebe_shared shared = create();
        prepare(shared);
        std::atomic<int> ended{0};
        std::vector<std::thread> threads;
        for (int thread = 0; thread < 3; thread++) {
            threads.emplace_back([&, thread] {
                for (int n = 0;; n++) {
                    glebe_pin pin = {};
                    const int code = glebe_pin_new(shared, 0, page(), &pin);
                    if (code == GLEBE_ERROR_BAD_HANDLE) return;
                    OK(code);
                    void *address = nullptr;
                    OK(glebe_pin_memory(pin, &address, nullptr));
                    static_cast<volatile char *>(address)[1] = 1;
                    OK(glebe_pin_free(pin));
                    if (n < 10 * thread) continue;
                    const int answer = glebe_shared_free(shared);
                    CHECK(answer == GLEBE_OK || answer == GLEBE_ERROR_BUSY ||
                          answer == GLEBE_ERROR_BAD_HANDLE);
                    ended += answer == GLEBE_OK;
                }
            });
        }
        for (auto &thread : threads) thread.join();
        CHECK(ended == 1);
    }
}

void other_ways() {
    const glebe_shared shared = create();
    glebe_shared same = {};
    int fd = -1;
    OK(glebe_shared_fd(shared, &fd));
    OK(glebe_shared_adopt(fd, nullptr, &same));
    OK(glebe_shared_free(shared));
    OK(glebe_shared_free(same));
    const std::string path = "/dev/shm/glebe-cpp-" + std::to_string(getpid());
    const int answer = glebe_shared_new_at(path.c_str(), page(), nullptr, &same);
    if (answer != GLEBE_OK) {
        std::fprintf(stderr, "skipped: files with a name: %s\n", glebe_last_error());
        return;
    }
    glebe_shared third = {};
    OK(glebe_shared_open(path.c_str(), nullptr, &third));
    OK(glebe_shared_free(third));
    OK(glebe_shared_free(same));
    CHECK(unlink(path.c_str()) == 0);
}

} // namespace

int main() {
    by_threads_and_processes();
    ended_while_in_use();
    other_ways();
    std::puts("shared.cpp: ok");
}
