// Blocks that carry a pattern, and the ways in which C programs use memory.

#pragma once

#include <cstddef>
#include <cstdint>

// Random sizes as programs use them: mostly small, at times megabytes. One seed gives one series.
class Numbers {
  public:
    explicit Numbers(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t next();
    size_t size();

  private:
    uint64_t state;
};

// A block of malloc. Seed and position determine every checked byte.
struct Block {
    unsigned char *bytes;
    size_t size;
    uint64_t seed;

    static Block filled(size_t size, uint64_t seed);
    // Ends the program if a byte is wrong. Returns the size in bytes.
    size_t checked_and_freed();
    void check() const;
};

// Allocates `count` blocks and frees them in another order.
void churn(int count);
// Grows a block by realloc up to `to` bytes, with others between. Returns the number of calls.
int grown(size_t to);
// Checks calloc's memory where other blocks have been. Returns the bytes checked.
uint64_t zeroed(int count);
// In each round fills blocks of `bytes` in all, frees a part, waits, frees the rest, and waits.
uint64_t left_idle(size_t bytes, int rounds);
