// Uses memory as C++ programs do: containers, exceptions, blocks that threads exchange, short-lived
// threads, all forms of new and delete, and forks beside threads. Checks each block's pattern
// before freeing it. Usage: threads [SCALE]

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "blocks.h"

namespace {

uint64_t containers(int scale) {
    std::map<std::string, std::vector<int>> ordered;
    std::unordered_map<int, std::unique_ptr<std::string>> hashed;
    for (int i = 0; i < 20000 * scale; i++) {
        ordered["key number " + std::to_string(i % 1777)].push_back(i);
        hashed[i % 9001] = std::make_unique<std::string>(i % 300, 'a' + i % 26);
    }
    uint64_t sum = 0;
    for (auto &[key, values] : ordered)
        for (int value : values) sum = sum * 31 + value + key.size();
    for (int i = 0; i < 9001; i++)
        for (char c : *hashed[i]) sum = sum * 33 + c;
    return sum;
}

struct Queue {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Block> blocks;

    void put(Block block) {
        std::lock_guard<std::mutex> held(lock);
        blocks.push_back(block);
        changed.notify_one();
    }
    Block get() {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return !blocks.empty(); });
        Block first = blocks.front();
        blocks.pop_front();
        return first;
    }
};

// Two threads fill blocks; two others check and free them.
uint64_t passed_on(int scale) {
    const int each = 4000 * scale;
    Queue queue;
    std::atomic<uint64_t> bytes{0};
    std::vector<std::thread> all;
    for (int nth = 0; nth < 2; nth++) {
        all.emplace_back([&queue, each, nth] {
            Numbers numbers(nth + 1);
            for (int i = 0; i < each; i++) queue.put(Block::filled(numbers.size(), i));
        });
        all.emplace_back([&queue, &bytes, each] {
            for (int i = 0; i < each; i++) bytes += queue.get().checked_and_freed();
        });
    }
    for (auto &thread : all) thread.join();
    return bytes;
}

[[noreturn]] void dive(int depth, std::string kept) {
    if (depth == 0) throw std::runtime_error(kept);
    dive(depth - 1, kept + "x");
}

uint64_t exceptions(int scale) {
    uint64_t sum = 0;
    for (int i = 0; i < 20 * scale; i++) {
        auto thrown = std::async(std::launch::async, [i] { dive(50 + i % 7, "begin"); });
        try {
            thrown.get();
        } catch (const std::runtime_error &error) {
            sum += strlen(error.what());
        }
    }
    return sum;
}

int handler_calls = 0;

void give_up() {
    handler_calls++;
    std::set_new_handler(nullptr);
}

// Asks for too much memory: operator new calls a handler, then throws, or returns null if nothrow.
int too_much() {
    volatile size_t size = PTRDIFF_MAX;
    int seen = 0;
    std::set_new_handler(give_up);
    try {
        ::operator delete(::operator new(size));
    } catch (const std::bad_alloc &) {
        seen += 1;
    }
    seen += handler_calls == 1 ? 10 : 0;
    seen += ::operator new(size, std::nothrow) == nullptr ? 100 : 0;
    try {
        ::operator delete(::operator new(size, std::align_val_t(4096)), std::align_val_t(4096));
    } catch (const std::bad_alloc &) {
        seen += 1000;
    }
    return seen;
}

struct alignas(256) Wide {
    char bytes[256];
};

struct alignas(4096) Paged {
    char bytes[8192];
};

template <typename T> int aligned(int count) {
    int wrong = 0;
    std::vector<std::unique_ptr<T>> all;
    std::vector<T *> arrays;
    for (int i = 0; i < count; i++) {
        all.push_back(std::make_unique<T>());
        arrays.push_back(new T[3]);
        wrong += reinterpret_cast<uintptr_t>(all.back().get()) % alignof(T) != 0;
        wrong += reinterpret_cast<uintptr_t>(arrays.back()) % alignof(T) != 0;
        memset(all.back()->bytes, i, sizeof all.back()->bytes);
    }
    for (int i = 0; i < count; i++)
        wrong += std::count(all[i]->bytes, all[i]->bytes + sizeof(T), char(i)) != sizeof(T);
    for (T *array : arrays) delete[] array;
    return wrong;
}

thread_local std::vector<std::string> kept_by_thread;

uint64_t short_lived(int scale) {
    std::atomic<uint64_t> sum{0};
    for (int round = 0; round < 25 * scale; round++) {
        std::vector<std::thread> all;
        for (int nth = 0; nth < 4; nth++)
            all.emplace_back([&sum, nth] {
                for (int i = 0; i < 50; i++) kept_by_thread.emplace_back(i * 7 + nth, 'k');
                for (auto &text : kept_by_thread) sum += text.size();
            });
        for (auto &thread : all) thread.join();
    }
    return sum;
}

// Forks while other threads allocate. Each child checks what it inherited and continues.
int forks(int scale) {
    std::atomic<bool> ended{false};
    std::vector<std::thread> busy;
    for (int nth = 0; nth < 2; nth++)
        busy.emplace_back([&ended, nth] {
            Numbers numbers(nth + 7);
            for (int i = 0; !ended; i++) Block::filled(numbers.size(), i).checked_and_freed();
        });
    int good = 0;
    for (int nth = 0; nth < 10 * scale; nth++) {
        std::vector<Block> inherited;
        Numbers numbers(nth + 100);
        for (int i = 0; i < 200; i++) inherited.push_back(Block::filled(numbers.size(), i));
        pid_t child = fork();
        if (child == 0) {
            for (Block &block : inherited) block.checked_and_freed();
            std::thread([] { churn(50); }).join();
            _exit(0);
        }
        for (Block &block : inherited) block.checked_and_freed();
        int status = -1;
        waitpid(child, &status, 0);
        good += status == 0;
    }
    ended = true;
    for (auto &thread : busy) thread.join();
    return good;
}

} // namespace

int main(int argc, char **argv) {
    const int scale = argc > 1 ? atoi(argv[1]) : 1;
    std::cout << "containers " << containers(scale) << "\n";
    std::cout << "passed on " << passed_on(scale) << "\n";
    std::cout << "exceptions " << exceptions(scale) << "\n";
    std::cout << "too much " << too_much() << "\n";
    std::cout << "aligned wrong " << aligned<Wide>(300) + aligned<Paged>(100) << "\n";
    std::cout << "short-lived " << short_lived(scale) << "\n";
    std::cout << "forked " << forks(scale) << "\n";
    std::cout << "grown " << grown(64u << 20) << "\n";
    std::cout << "zeroed " << zeroed(300 * scale) << "\n";
    std::cout << "left idle " << left_idle(96u << 20, 3 * scale) << "\n";
}
