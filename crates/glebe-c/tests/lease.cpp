// Several threads lease, use and free memory, from C++11.
// Usage: lease [SOCKET BYTES]; without arguments no daemon answers.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr int THREADS = 3;
constexpr int ROUNDS = 8;

const char *path = "/nonexistent/leases";

class Leased {
public:
    // Leases memory; a refusal makes `code` negative.
    explicit Leased(std::uint64_t len_bytes) {
        glebe_lease_options options = {};
        options.size = sizeof options;
        options.socket = path;
        code = glebe_lease_new(len_bytes, &options, &lease, &limit);
    }
    ~Leased() {
        if (code == GLEBE_OK) OK(glebe_lease_free(lease));
    }
    Leased(const Leased &) = delete;
    Leased &operator=(const Leased &) = delete;

    glebe_lease lease = {};
    std::uint64_t limit = 0;
    int code;
};

void use(int thread) {
    for (int round = 0; round < ROUNDS; round++) {
        const Leased leased(1);
        if (leased.code == GLEBE_ERROR_UNDER_WAY || leased.code == GLEBE_ERROR_NO_MEMORY) continue;
        CHECK(leased.code == GLEBE_OK);
        void *address = nullptr;
        std::uint64_t len = 0, number = 0, left = 0;
        OK(glebe_lease_memory(leased.lease, &address, &len));
        auto *const bytes = static_cast<unsigned char *>(address);
        for (std::uint64_t n = 0; n < len; n += 4096) CHECK(bytes[n] == 0);
        std::memset(bytes, thread + 1, len);
        OK(glebe_lease_number(leased.lease, &number));
        std::size_t runs = 0, files = 0;
        OK(glebe_lease_runs(leased.lease, nullptr, 0, &runs));
        OK(glebe_lease_files(leased.lease, nullptr, 0, &files));
        CHECK(number > 0 && runs == 1 && files == 1);
        CHECK(glebe_lease_recalled(leased.lease, 0, &left) == GLEBE_LEASE_KEPT);
        for (std::uint64_t n = 0; n < len; n += 4096) CHECK(bytes[n] == thread + 1);
    }
}

}  // namespace

int main(int count, char **arguments) {
    CHECK(Leased(1).code == GLEBE_ERROR_NO_DAEMON);
    if (count == 3) {
        path = arguments[1];
        // Memory of an earlier program may be on its way back.
        int code;
        while ((code = Leased(1).code) == GLEBE_ERROR_UNDER_WAY) std::this_thread::yield();
        CHECK(code == GLEBE_OK);
        CHECK(Leased(UINT64_MAX).code == GLEBE_ERROR_NO_MEMORY);
        std::vector<std::thread> threads;
        for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(use, thread);
        for (auto &thread : threads) thread.join();
    }
    std::printf("lease.cpp: ok\n");
    return 0;
}
