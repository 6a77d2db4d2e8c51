/* Fills every block with a pattern, and checks the pattern before a block is freed or resized, and
   after another thread received it.
   Usage: stress SECONDS SEED THREADS MIB_OF_EACH
   Threads end and leave their blocks to the next; threads exchange blocks; one thread trims; the
   process forks, and every second child checks all threads' blocks. Prints the amount of work, or
   the error and the seed. Runs up to a minute longer until a thread and a child have ended and
   threads have exchanged a block. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 400, LETTERS = 64, THREADS_MAX = 16, WHOLE = 32768, PART = 4096 };

struct block {
    unsigned char *at;
    size_t size, align;
    uint64_t seed;
};

/* A thread's blocks, which the next thread inherits. */
struct table {
    pthread_mutex_t busy; /* held while the table changes */
    struct block slots[SLOTS];
    size_t held;
    uint64_t random;
    pthread_t thread;
};

static struct table tables[THREADS_MAX];
static _Atomic(struct block *) letters[LETTERS];
static atomic_ullong done, passed, threads_ended;
static atomic_int stop;
static uint64_t seed;
static size_t held_max;
static int thread_count;

static uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void wrong(const char *what, const struct block *block, size_t at) {
    fprintf(stderr, "stress: seed %llu, process %d: %s: block %p of %zu (align %zu) at %zu\n",
            (unsigned long long)seed, getpid(), what, (void *)block->at, block->size, block->align, at);
    _exit(1);
}

static unsigned char pattern(const struct block *block, size_t at) {
    return (unsigned char)((block->seed + at * 0x9d) ^ (at >> 8));
}

/* Runs `act` for each byte below `size` that carries a pattern: all bytes of a small block; the
   first and last part of a large one, and a few of every 512 bytes between. */
#define EACH(block, size, act)                                                                     \
    for (size_t n = 0; n < (size); n++) {                                                          \
        act;                                                                                       \
        if ((size) > WHOLE && n >= PART && n + PART < (size) && n % 512 >= 8) n += 503;            \
    }

static void fill(struct block *block, size_t from) {
    EACH(block, block->size, if (n >= from) block->at[n] = pattern(block, n));
}

static void check(const struct block *block, size_t size, const char *when) {
    /* The whole block's size decides which bytes carry the pattern. */
    EACH(block, block->size, {
        if (n >= size) break;
        if (block->at[n] != pattern(block, n)) wrong(when, block, n);
    });
}

static void check_zero(const struct block *block) {
    EACH(block, block->size, if (block->at[n] != 0) wrong("calloc is not zero", block, n));
}

static size_t some_size(uint64_t *random) {
    /* From 1 byte to about 16 MiB. The exponent is random, so small sizes are as likely as large
       ones, but few sizes are above 1 MiB. */
    unsigned bits = (unsigned)(next(random) % 25);
    if (bits > 20 && next(random) % 4) bits -= 8;
    return ((size_t)1 << bits) / 2 + next(random) % (((size_t)1 << bits) / 2 + 1) + 1;
}

static struct block make(uint64_t *random) {
    struct block block = {NULL, some_size(random), 1, next(random)};
    switch (next(random) % 6) {
    case 0:
    case 1:
        block.at = calloc(1, block.size);
        if (block.at) check_zero(&block);
        break;
    case 2:
        block.align = (size_t)8 << next(random) % 19;
        if (posix_memalign((void **)&block.at, block.align, block.size)) block.at = NULL;
        break;
    default: block.at = malloc(block.size);
    }
    if (!block.at) wrong("no memory", &block, 0);
    if ((uintptr_t)block.at % block.align) wrong("not aligned", &block, 0);
    fill(&block, 0);
    return block;
}

static void drop(struct block *block) {
    check(block, block->size, "changed");
    free(block->at);
    block->at = NULL;
}

static void resize(struct block *block, uint64_t *random) {
    size_t size = some_size(random), kept = size < block->size ? size : block->size;
    check(block, block->size, "changed");
    unsigned char *at = realloc(block->at, size);
    if (!at) wrong("no memory to resize", block, size);
    block->at = at;
    check(block, kept, "changed by realloc");
    block->size = size, block->align = 1;
    fill(block, 0);
}

static struct block *letter_of(struct block block) {
    struct block *letter = malloc(sizeof *letter);
    if (!letter) wrong("no memory for a letter", &block, 0);
    *letter = block;
    return letter;
}

static void step(struct table *table) {
    uint64_t *random = &table->random;
    struct block *slot = &table->slots[next(random) % SLOTS];
    if (!slot->at) {
        if (table->held > held_max) return;
        *slot = make(random);
        table->held += slot->size;
    } else if (next(random) % 8 == 0) {
        table->held -= slot->size;
        resize(slot, random);
        table->held += slot->size;
    } else if (next(random) % 4 == 0) {
        struct block *old = atomic_exchange(&letters[next(random) % LETTERS], letter_of(*slot));
        table->held -= slot->size;
        slot->at = NULL;
        if (old) {
            *slot = *old;
            free(old);
            table->held += slot->size;
            check(slot, slot->size, "changed on its way");
            atomic_fetch_add(&passed, 1);
        }
    } else {
        table->held -= slot->size;
        drop(slot);
    }
}

static void *life(void *with) {
    struct table *table = with;
    unsigned steps = 20 + (unsigned)(next(&table->random) % 400);
    while (steps-- && !atomic_load(&stop)) {
        pthread_mutex_lock(&table->busy);
        step(table);
        for (int n = 0; n < SLOTS && table->held > held_max; n++)
            if (table->slots[n].at) table->held -= table->slots[n].size, drop(&table->slots[n]);
        pthread_mutex_unlock(&table->busy);
        atomic_fetch_add(&done, 1);
    }
    return NULL;
}

static void *trimmer(void *with) {
    (void)with;
    for (unsigned n = 0; !atomic_load(&stop); n++) {
        malloc_trim(n % 3 ? 0 : 4 << 20);
        usleep(3000);
    }
    return NULL;
}

/* Runs in the child, which makes and frees blocks of its own. If `is_quiet`, it also checks the
   blocks of all threads and frees half of them. */
static void childhood(int is_quiet, uint64_t random) {
    alarm(60);
    for (int t = 0; is_quiet && t < thread_count; t++)
        for (int n = 0; n < SLOTS; n++)
            if (tables[t].slots[n].at) check(&tables[t].slots[n], tables[t].slots[n].size, "changed by fork");
    struct block own[20];
    for (int n = 0; n < 20; n++) own[n] = make(&random);
    for (int t = 0; is_quiet && t < thread_count; t++)
        for (int n = 0; n < SLOTS; n++)
            if (tables[t].slots[n].at && n % 2) drop(&tables[t].slots[n]);
    if (next(&random) % 2) malloc_trim(0);
    for (int n = 0; n < 20; n++) drop(&own[n]);
    _exit(0);
}

/* If `is_quiet`, locks all tables, so that no block changes meanwhile. */
static pid_t fork_some(int is_quiet, uint64_t *random) {
    uint64_t theirs = next(random);
    for (int t = 0; is_quiet && t < thread_count; t++) pthread_mutex_lock(&tables[t].busy);
    pid_t child = fork();
    if (child == 0) childhood(is_quiet, theirs);
    for (int t = 0; is_quiet && t < thread_count; t++) pthread_mutex_unlock(&tables[t].busy);
    return child;
}

static unsigned wait_for(pid_t child) {
    int status;
    if (child <= 0) return 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "stress: seed %llu: a child ended with status %#x\n", (unsigned long long)seed, status);
        _exit(1);
    }
    return 1;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void end(void) {
    for (int t = 0; t < thread_count; t++)
        for (int n = 0; n < SLOTS; n++)
            if (tables[t].slots[n].at) drop(&tables[t].slots[n]);
    for (int n = 0; n < LETTERS; n++) {
        struct block *letter = atomic_load(&letters[n]);
        if (letter) drop(letter);
        free(letter);
    }
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    double until = seconds() + atof(arguments[1]);
    seed = strtoull(arguments[2], NULL, 10);
    thread_count = atoi(arguments[3]);
    held_max = (size_t)atoi(arguments[4]) << 20;
    uint64_t random = seed;
    unsigned children = 0;
    pthread_t trims;
    pid_t child = 0;
    for (int t = 0; t < thread_count; t++) {
        pthread_mutex_init(&tables[t].busy, NULL);
        tables[t].random = next(&random);
        if (pthread_create(&tables[t].thread, NULL, life, &tables[t])) return 2;
    }
    if (pthread_create(&trims, NULL, trimmer, NULL)) return 2;
    for (unsigned turn = 0;; turn++) {
        int is_all = threads_ended && children && (passed || thread_count == 1);
        if (seconds() > until + (is_all ? 0 : 60)) break;
        struct table *table = &tables[turn % (unsigned)thread_count];
        pthread_join(table->thread, NULL);
        atomic_fetch_add(&threads_ended, 1);
        if (pthread_create(&table->thread, NULL, life, table)) return 2;
        if (turn % 4 == 0) {
            children += wait_for(child);
            child = fork_some(turn % 8 == 0, &random);
        }
    }
    atomic_store(&stop, 1);
    for (int t = 0; t < thread_count; t++) pthread_join(tables[t].thread, NULL);
    pthread_join(trims, NULL);
    children += wait_for(child);
    end();
    printf("steps %llu passed %llu threads %llu children %u\n", (unsigned long long)done,
           (unsigned long long)passed, (unsigned long long)threads_ended, children);
    return 0;
}
