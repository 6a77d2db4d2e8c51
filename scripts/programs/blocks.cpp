#include "blocks.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <thread>
#include <vector>

uint64_t Numbers::next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

size_t Numbers::size() {
    const uint64_t kind = next() % 1000;
    if (kind < 900) return next() % 1024;
    if (kind < 990) return next() % 65536;
    return next() % (2u << 20);
}

static unsigned char pattern(uint64_t seed, size_t at) {
    return (unsigned char)(seed * 131 + at * 7 + (at >> 12));
}

// Returns the distance between checked bytes: all of a small block, some of a large one.
static size_t step(size_t size) { return size < 8192 ? 1 : 61; }

[[noreturn]] static void wrong(const char *what, const void *where, size_t at) {
    printf("WRONG: %s at %p, byte %zu\n", what, where, at);
    fflush(stdout);
    abort();
}

Block Block::filled(size_t size, uint64_t seed) {
    Block block{(unsigned char *)malloc(size), size, seed};
    if (!block.bytes) wrong("no memory", nullptr, size);
    if (malloc_usable_size(block.bytes) < size) wrong("usable size", block.bytes, size);
    for (size_t at = 0; at < size; at += step(size)) block.bytes[at] = pattern(seed, at);
    return block;
}

void Block::check() const {
    for (size_t at = 0; at < size; at += step(size))
        if (bytes[at] != pattern(seed, at)) wrong("a block has changed", bytes, at);
}

size_t Block::checked_and_freed() {
    check();
    free(bytes);
    bytes = nullptr;
    return size;
}

void churn(int count) {
    Numbers numbers(count);
    std::vector<Block> held;
    for (int i = 0; i < count; i++) {
        held.push_back(Block::filled(numbers.size(), i));
        if (i % 3 == 0) {
            held[numbers.next() % held.size()].checked_and_freed();
            for (size_t at = 0; at < held.size(); at++)
                if (!held[at].bytes) held.erase(held.begin() + at);
        }
    }
    for (Block &block : held) block.checked_and_freed();
}

int grown(size_t to) {
    int times = 0;
    std::vector<Block> between;
    unsigned char *bytes = nullptr;
    size_t size = 0;
    for (size_t next = 1; next <= to; next += next / 3 + 1, times++) {
        bytes = (unsigned char *)realloc(bytes, next);
        if (!bytes) wrong("no memory", nullptr, next);
        for (size_t at = 0; at < size; at += step(size))
            if (bytes[at] != pattern(3, at)) wrong("realloc has lost", bytes, at);
        memset(bytes + size, 0xa5, next - size);
        size = next;
        for (size_t at = 0; at < size; at += step(size)) bytes[at] = pattern(3, at);
        between.push_back(Block::filled(next % 5000, times));
    }
    free(bytes);
    for (Block &block : between) block.checked_and_freed();
    return times;
}

uint64_t zeroed(int count) {
    uint64_t looked_at = 0;
    Numbers numbers(42);
    for (int i = 0; i < count; i++) {
        const size_t size = numbers.size() + 1;
        Block::filled(size, i).checked_and_freed();
        unsigned char *bytes = (unsigned char *)calloc(1, size);
        for (size_t at = 0; at < size; at++)
            if (bytes[at]) wrong("calloc gave no zeros", bytes, at);
        looked_at += size;
        memset(bytes, 0x77, size);
        free(bytes);
    }
    return looked_at;
}

uint64_t left_idle(size_t bytes, int rounds) {
    const size_t size = 512 << 10;
    uint64_t sum = 0;
    for (int round = 0; round < rounds; round++) {
        std::vector<Block> all;
        for (size_t had = 0; had < bytes; had += size) all.push_back(Block::filled(size, had + round));
        // Frees about half of the blocks. Their purge must spare the others.
        for (size_t nth = 0; nth < all.size(); nth += 1 + nth % 2) all[nth].checked_and_freed();
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        for (Block &block : all)
            if (block.bytes) sum += block.checked_and_freed();
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    return sum;
}
