// Thread-local objects whose constructors and destructors allocate and free, also each other's
// memory.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

static thread_local std::map<int, std::string> early;

struct Late {
    std::unique_ptr<std::vector<std::string>> strings{new std::vector<std::string>};
    ~Late() {
        // Longer than the buffer inside a string, so the string allocates.
        strings->push_back(std::string(100, 'x') + early[1]);
        early.clear();
        early[2] = std::string(1000, 'y');
        strings.reset();
    }
};

static thread_local Late late;

static void life(int n) {
    early[1] = std::string(50 + n, 'z');
    for (int k = 0; k < 100; k++) late.strings->push_back(std::string(k * 10, 'a'));
}

int main() {
    for (int round = 0; round < 50; round++) {
        std::vector<std::thread> threads;
        for (int n = 0; n < 6; n++) threads.emplace_back(life, n);
        for (auto &thread : threads) thread.join();
    }
    life(3);
    std::puts("locals: ok");
}
