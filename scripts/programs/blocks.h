// Blocks with a pattern, and what C programs do with them.

#pragma once

#include <cstddef>
#include <cstdint>

// Sizes as programs have them: mostly small, at times megabytes. The same for the same seed.
class Numbers {
  public:
    explicit Numbers(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t next();
    size_t size();

  private:
    uint64_t state;
};

// Memory of malloc's; every byte is told by the seed and its place.
struct Block {
    unsigned char *bytes;
    size_t size;
    uint64_t seed;

    static Block filled(size_t size, uint64_t seed);
    // Ends the program if a byte is wrong; returns the size.
    size_t checked_and_freed();
    void check() const;
};

// Allocates and frees so many blocks, some held for a while.
void churn(int count);
// Grows one block by realloc to a size, and others between; returns how often.
int grown(size_t to);
// Takes memory of calloc's that others have written to before; returns the bytes looked at.
uint64_t zeroed(int count);
// Fills so many bytes, frees them, waits until they have aged, and fills them again.
uint64_t left_idle(size_t bytes, int rounds);
