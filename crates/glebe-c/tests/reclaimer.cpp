// Reclaimers from C++11 in several threads: parts are freed, and the process forks, during looks.
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

constexpr std::uint64_t MIB = std::uint64_t{1} << 20;

// Threads that poll without pause until the object is destroyed.
class Lookers {
  public:
    explicit Lookers(glebe_reclaimer reclaimer) {
        for (int n = 0; n < 2; n++) {
            threads.emplace_back([=] {
                while (!stop) OK(glebe_reclaimer_poll(reclaimer, nullptr));
            });
        }
    }
    ~Lookers() {
        stop = true;
        for (auto &thread : threads) thread.join();
    }

  private:
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
};

glebe_reclaimer create() {
    glebe_reclaimer_options options = {};
    options.size = sizeof options;
    options.margin_bytes = 8 * MIB;
    glebe_reclaimer reclaimer = {};
    OK(glebe_reclaimer_new(&options, &reclaimer));
    return reclaimer;
}

void memory_is_the_callers_again(glebe_reclaimer reclaimer) {
    const std::size_t len = 16 * glebe_page_bytes();
    void *at = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    Lookers lookers(reclaimer);
    for (int round = 0; round < share(2000, 20); round++) {
        glebe_volatile_options options = {};
        options.size = sizeof options;
        options.address = at;
        std::memset(at, 1, len);
        glebe_volatile region = {};
        OK(glebe_volatile_new(len, &options, &region));
        OK(glebe_reclaimer_add_volatile(reclaimer, region));
        OK(glebe_volatile_mark(region, 0, len, GLEBE_PRIORITY_NORMAL));
        OK(glebe_volatile_free(region));
        REFUSED(glebe_reclaimer_add_volatile(reclaimer, region), GLEBE_ERROR_BAD_HANDLE);
    }
    CHECK(munmap(at, len) == 0);
}

// A child can free its regions although a thread of its parent was looking at them.
void forked_under_a_look(glebe_reclaimer reclaimer) {
    std::vector<glebe_volatile> regions(64);
    for (auto &region : regions) {
        OK(glebe_volatile_new(MIB, nullptr, &region));
        OK(glebe_volatile_mark(region, 0, MIB, GLEBE_PRIORITY_LOWEST));
        OK(glebe_reclaimer_add_volatile(reclaimer, region));
    }
    glebe_shared shared = {};
    OK(glebe_shared_new(MIB, nullptr, &shared));
    OK(glebe_shared_mark(shared, 0, MIB, GLEBE_PRIORITY_LOWEST, GLEBE_ORDER_FIFO));
    OK(glebe_reclaimer_add_shared(reclaimer, shared));
    Lookers lookers(reclaimer);
    for (int round = 0; round < share(100, 8); round++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            REFUSED(glebe_reclaimer_poll(reclaimer, nullptr), GLEBE_ERROR_FORKED);
            for (auto &region : regions) OK(glebe_volatile_free(region));
            const glebe_reclaimer own = create();
            OK(glebe_reclaimer_add_shared(own, shared));
            OK(glebe_reclaimer_poll(own, nullptr));
            OK(glebe_shared_free(shared));
            OK(glebe_reclaimer_free(own));
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (auto &region : regions) OK(glebe_volatile_free(region));
    OK(glebe_shared_free(shared));
}

// Parts are added and freed during looks. If several threads free a reclaimer, one succeeds.
void parts_come_and_go() {
    for (int round = 0; round < share(20, 4); round++) {
        const glebe_reclaimer reclaimer = create();
        std::atomic<int> ended{0};
        OK(glebe_reclaimer_start(reclaimer));
        std::vector<std::thread> threads;
        for (int thread = 0; thread < 3; thread++) {
            threads.emplace_back([&, thread] {
                for (int n = 0;; n++) {
                    glebe_zpool pool = {};
                    glebe_budget budget = {};
                    OK(glebe_zpool_new(nullptr, &pool));
                    OK(glebe_budget_new(MIB, &budget));
                    OK(glebe_budget_set_held(budget, MIB));
                    glebe_reclaimer_add_zpool(reclaimer, pool);
                    const int code = glebe_reclaimer_add_budget(reclaimer, budget);
                    std::uint64_t allowed = 0;
                    OK(glebe_budget_allowed(budget, &allowed));
                    OK(glebe_zpool_free(pool));
                    OK(glebe_budget_free(budget));
                    if (code == GLEBE_ERROR_BAD_HANDLE) return;
                    OK(code);
                    if (n == 5 * thread) ended += glebe_reclaimer_free(reclaimer) == GLEBE_OK;
                }
            });
        }
        for (auto &thread : threads) thread.join();
        CHECK(ended == 1);
        REFUSED(glebe_reclaimer_free(reclaimer), GLEBE_ERROR_BAD_HANDLE);
    }
}

void what_it_says(glebe_reclaimer reclaimer) {
    glebe_reclaimer_stats stats = {};
    stats.size = sizeof stats;
    OK(glebe_reclaimer_get_stats(reclaimer, &stats));
    CHECK(stats.polls > 100 && stats.polls == stats.poll_count && stats.marked_pages == 0);
    std::size_t needed = 0;
    OK(glebe_reclaimer_format_stats(reclaimer, GLEBE_FORMAT_JSON, nullptr, 0, &needed));
    std::string text(needed, 0);
    OK(glebe_reclaimer_format_stats(reclaimer, GLEBE_FORMAT_JSON, &text[0], needed, &needed));
    CHECK(text.find("\"polls\"") != std::string::npos);
    int fd = -1;
    OK(glebe_reclaimer_fd(reclaimer, &fd));
    CHECK(fd >= 0);
    OK(glebe_reclaimer_wait(reclaimer, 1));
    CHECK(glebe_reclaimer_refills(reclaimer) >= 0);
    glebe_reserve_options options = {};
    options.size = sizeof options;
    options.room_bytes = 4 * MIB;
    options.source = GLEBE_SOURCE_PLAIN;
    glebe_reserve reserve = {};
    OK(glebe_reserve_new(2 * MIB, &options, &reserve));
    OK(glebe_reclaimer_add_reserve(reclaimer, reserve, 2 * MIB));
    OK(glebe_reserve_free(reserve));
}

} // namespace

int main() {
    const glebe_reclaimer reclaimer = create();
    memory_is_the_callers_again(reclaimer);
    forked_under_a_look(reclaimer);
    OK(glebe_reclaimer_poll(reclaimer, nullptr));
    what_it_says(reclaimer);
    OK(glebe_reclaimer_free(reclaimer));
    parts_come_and_go();
    std::puts("reclaimer.cpp: ok");
}
