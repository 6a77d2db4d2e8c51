// Threads share memory of MAP_SHARED that glebe_vrange() makes volatile, from C++11.
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "all.h"

namespace {

const int THREADS = 4, PART = 8;

// Each thread marks its part of one mapping. Only the threads' purges take pages, and only volatile
// ones.
void threads_mark_parts_of_one_mapping() {
    const std::size_t page = std::size_t(glebe_page_bytes()), part = PART * page;
    void *at = mmap(nullptr, THREADS * part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                    0);
    CHECK(at != MAP_FAILED);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) {
        threads.emplace_back([=] {
            unsigned char *bytes = static_cast<unsigned char *>(at) + std::size_t(thread) * part;
            for (int round = 0; round < 50; round++) {
                const int letter = 1 + thread + round;
                int purged = 9;
                std::memset(bytes, letter, part);
                CHECK(glebe_vrange(bytes, part / 2, GLEBE_VRANGE_VOLATILE, nullptr) ==
                      int(part / 2));
                std::uint64_t taken = 99;
                OK(glebe_vrange_purge(2 * page, &taken));
                OK(glebe_vrange_strict(bytes, part, GLEBE_VRANGE_NONVOLATILE, &purged));
                int lost = 0;
                for (int n = 0; n < PART; n++) {
                    const int first = bytes[std::size_t(n) * page];
                    CHECK(first == letter || (first == 0 && n < PART / 2));
                    lost += first == 0;
                }
                CHECK(taken % page == 0 && (lost > 0) == (purged == 1));
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(munmap(at, THREADS * part) == 0);
}

void a_child_starts_its_own_thread() {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        OK(glebe_vrange_reclaim(0));
        REFUSED(glebe_vrange_reclaim(0), GLEBE_ERROR_STARTED);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

} // namespace

int main() {
    alarm(60);
    threads_mark_parts_of_one_mapping();
    a_child_starts_its_own_thread();
    std::puts("family.cpp: ok");
    return 0;
}
