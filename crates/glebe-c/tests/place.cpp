// Threads query where memory is while others take and free blocks, from C++11.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "all.h"

namespace {

constexpr std::uint64_t MIB = std::uint64_t(1) << 20;
constexpr int THREADS = 4;
const int ROUNDS = share(500, 2);

// Returns a text. Asks again while the buffer is too small, because the text may grow meanwhile.
template <typename Call> std::string text_of(Call call) {
    std::vector<char> text(1);
    std::size_t needed = 0;
    int answer = GLEBE_OK;
    while ((answer = call(text.data(), text.size(), &needed)) == GLEBE_ERROR_BUFFER_TOO_SMALL)
        text.resize(needed);
    OK(answer);
    CHECK(text.size() >= needed && text[needed - 1] == 0);
    return text.data();
}

std::uint64_t position(glebe_block block, std::uint64_t offset_bytes) {
    glebe_contig contig;
    contig.size = sizeof contig;
    OK(glebe_block_query(block, offset_bytes, &contig));
    CHECK(contig.contiguous_bytes >= 1);
    return contig.position_pages;
}

// Blocks that exist at the same time have different positions.
void blocks(glebe_reserve reserve, std::vector<std::atomic<int>> &owners, int thread) {
    const std::uint64_t page = glebe_page_bytes();
    for (int round = 0; round < ROUNDS; round++) {
        glebe_block block = {};
        OK(glebe_alloc_with(reserve, 3, 1, GLEBE_ANY, &block));
        const std::uint64_t first = position(block, 0);
        for (std::uint64_t n = 0; n < 3; n++) {
            CHECK(position(block, n * page) == first + n);
            CHECK(owners[first + n].exchange(thread + 1) == 0);
        }
        std::this_thread::yield();
        for (std::uint64_t n = 0; n < 3; n++) CHECK(owners[first + n].exchange(0) == thread + 1);
        OK(glebe_free(block));
    }
}

void questions(glebe_reserve reserve, std::uint64_t pages) {
    for (int round = 0; round < ROUNDS / 10; round++) {
        glebe_contig contig;
        glebe_drift drift;
        std::size_t count = 0;
        contig.size = sizeof contig;
        OK(glebe_reserve_query(reserve, std::uint64_t(round) % pages, &contig));
        OK(glebe_reserve_verify(reserve, &drift, 1, &count));
        std::vector<glebe_on_node> nodes(16);
        OK(glebe_reserve_nodes(reserve, nodes.data(), nodes.size(), &count));
        CHECK(count > 0 && nodes[0].start_pages == 0);
        CHECK(text_of([=](char *text, std::size_t room, std::size_t *needed) {
                  return glebe_reserve_format_stats(reserve, GLEBE_FORMAT_JSON, text, room, needed);
              }).back() == '}');
        text_of([=](char *text, std::size_t room, std::size_t *needed) {
            return glebe_reserve_why_not(reserve, text, room, needed);
        });
    }
}

// Grows and shrinks the reserve while other threads use it.
void resized(glebe_reserve reserve) {
    for (int round = 0; round < ROUNDS / 25; round++) {
        std::uint64_t came = 0, went = 0;
        OK(glebe_reserve_grow(reserve, 4 * MIB, &came));
        OK(glebe_reserve_shrink(reserve, came, &went));
        CHECK(came == 4 * MIB && went == came);
    }
}

void served(glebe_reserve reserve) {
    char directory[] = "/tmp/glebe-place-XXXXXX";
    CHECK(mkdtemp(directory) != nullptr);
    const auto path = [=](const char *at) {
        return text_of([=](char *text, std::size_t room, std::size_t *needed) {
            char first[256];
            const int answer = glebe_reserve_serve_stats(reserve, at, first, sizeof first, needed);
            if (answer != GLEBE_OK || room < *needed)
                return answer != GLEBE_OK ? answer : GLEBE_ERROR_BUFFER_TOO_SMALL;
            std::memcpy(text, first, *needed);
            return answer;
        });
    };
    const std::string own = path(directory);
    CHECK(own.compare(0, std::strlen(directory), directory) == 0 && path(nullptr) == own);
    OK(glebe_reserve_free(reserve));
    CHECK(std::remove(directory) == 0);
}

void mapping() {
    const std::size_t len = glebe_page_bytes();
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *at = glebe_mmap_contig(nullptr, len, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) return;
    glebe_drift drift;
    std::size_t count = 1;
    OK(glebe_contig_verify(at, &drift, 1, &count));
    CHECK(count == 0);
    glebe_on_node node;
    OK(glebe_contig_nodes(at, &node, 1, &count));
    CHECK(count > 0 && node.start_pages == 0);
    OK(glebe_munmap_contig(at, len));
}

} // namespace

int main() {
    glebe_reserve_options options = {};
    options.size = sizeof options;
    options.source = GLEBE_SOURCE_PLAIN;
    options.room_bytes = 8 * MIB;
    glebe_reserve reserve = {};
    OK(glebe_reserve_new(4 * MIB, &options, &reserve));
    const std::uint64_t pages = 4 * MIB / glebe_page_bytes();
    std::vector<std::atomic<int>> owners(pages);
    for (auto &owner : owners) owner = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) {
        threads.emplace_back([&, thread] {
            if (thread % 2 == 0)
                blocks(reserve, owners, thread);
            else
                questions(reserve, pages);
        });
    }
    resized(reserve);
    for (auto &thread : threads) thread.join();
    served(reserve);
    mapping();
    std::puts("place.cpp: ok");
}
