// Several threads use one shared cache, from C++11.
// Usage: shared_cache [SOCKET BYTES]; without arguments a file serves.
#include <cstdio>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "all.h"

namespace {

constexpr int THREADS = 3;
constexpr int ROUNDS = 500;

void use(glebe_shared_cache cache, int thread) {
    std::string copy(5000, ' ');
    for (int round = 0; round < ROUNDS; round++) {
        const std::string key = std::to_string(round % 50), value(1000 + round, char('a' + thread));
        const int put =
            glebe_shared_cache_put(cache, key.data(), key.size(), value.data(), value.size());
        CHECK(put == GLEBE_PUT_STORED || put == GLEBE_PUT_FULL);
        std::size_t len = 0;
        const int got =
            glebe_shared_cache_get(cache, key.data(), key.size(), &copy[0], copy.size(), &len);
        CHECK(got == GLEBE_GET_HIT || got == GLEBE_GET_MISS);
        CHECK(copy.find_first_not_of(copy[0]) >= len);
        if (round % 10 == 0) glebe_shared_cache_remove(cache, key.data(), key.size());
    }
}

}  // namespace

int main(int count, char **arguments) {
    char folder[] = "/dev/shm/glebe-c-XXXXXX";
    CHECK(mkdtemp(folder) != nullptr);
    glebe_shared_cache_options options = {};
    options.size = sizeof options;
    options.socket = count == 3 ? arguments[1] : "/nonexistent/leases";
    options.folder = folder;
    glebe_shared_cache cache = {};
    std::uint64_t limit = 0, len = 0;
    OK(glebe_shared_cache_open("shared_cache.cpp", &options, &cache));
    OK(glebe_shared_cache_memory(cache, &len, nullptr));
    OK(glebe_shared_cache_limit(cache, &limit));
    CHECK(limit == len / 8);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(use, cache, thread);
    for (auto &thread : threads) thread.join();
    OK(glebe_shared_cache_end(cache));
    OK(glebe_shared_cache_free(cache));
    CHECK(rmdir(folder) == 0);
    std::printf("shared_cache.cpp: ok\n");
    return 0;
}
