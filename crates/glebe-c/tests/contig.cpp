// Several threads map, query and unmap contiguous memory, from C++11.
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr int THREADS = 3;
constexpr int ROUNDS = 8;

void map_and_ask(int thread) {
    const std::size_t len = glebe_page_bytes();
    for (int round = 0; round < ROUNDS; round++) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
        void *at = glebe_mmap_contig(nullptr, len, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at == MAP_FAILED) {
            CHECK(errno == ENOMEM || errno == EPERM);
            continue;
        }
        std::memset(at, thread + 1, len);
        glebe_contig contig = {};
        contig.size = sizeof contig;
        OK(glebe_contig_query(static_cast<char *>(at) + len - 1, &contig));
        CHECK(contig.contiguous_bytes >= 1 && contig.run_bytes >= len);
        for (std::size_t n = 0; n < len; n++) CHECK(static_cast<char *>(at)[n] == thread + 1);
        OK(glebe_munmap_contig(at, len));
    }
}

}  // namespace

int main() {
    OK(glebe_mmap_contig_limits(0, 0, 60000));
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(map_and_ask, thread);
    for (auto &thread : threads) thread.join();
    std::printf("contig.cpp: ok\n");
    return 0;
}
