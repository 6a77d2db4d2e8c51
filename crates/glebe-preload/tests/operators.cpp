// Tests every form of operators new and delete, with enough memory and without. With OWN, the
// program defines the simple forms itself, and its `new` puts a mark before each object.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#define CHECK(what)                                                                  \
    do {                                                                             \
        if (!(what)) {                                                               \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);          \
            std::exit(1);                                                            \
        }                                                                            \
    } while (0)

static const std::align_val_t wide{256};
// Volatile, because a compiler that knew the values would warn.
static volatile std::size_t most = std::numeric_limits<std::ptrdiff_t>::max();
static volatile std::size_t huge = std::size_t(1) << 62;
#ifndef OWN
static int handled;
#endif

#ifdef OWN
static int made, gone;
static const std::uint64_t mark = 0x676c656265676c65;

void *operator new(std::size_t size) {
    auto *at = static_cast<std::uint64_t *>(std::malloc(size + 16));
    if (!at || size > most / 2) throw std::bad_alloc();
    made++;
    *at = mark;
    return at + 2;
}

void operator delete(void *at) noexcept {
    if (!at) return;
    auto *start = static_cast<std::uint64_t *>(at) - 2;
    CHECK(*start == mark);
    gone++;
    std::free(start);
}
#endif

static void *used(void *at, std::size_t size, std::size_t align) {
    CHECK(at && reinterpret_cast<std::uintptr_t>(at) % align == 0);
    return std::memset(at, 0x3c, size);
}

static void forms() {
    for (std::size_t size : {std::size_t(0), std::size_t(1), std::size_t(24), std::size_t(5000),
                             std::size_t(3) << 20}) {
        ::operator delete(used(::operator new(size), size, 8));
        ::operator delete(used(::operator new(size), size, 8), size);
        ::operator delete(used(::operator new(size, std::nothrow), size, 8), std::nothrow);
        ::operator delete[](used(::operator new[](size), size, 8));
        ::operator delete[](used(::operator new[](size), size, 8), size);
        ::operator delete[](used(::operator new[](size, std::nothrow), size, 8), std::nothrow);
        ::operator delete(used(::operator new(size, wide), size, 256), wide);
        ::operator delete(used(::operator new(size, wide), size, 256), size, wide);
        ::operator delete(used(::operator new(size, wide, std::nothrow), size, 256), wide,
                          std::nothrow);
        ::operator delete[](used(::operator new[](size, wide), size, 256), wide);
        ::operator delete[](used(::operator new[](size, wide), size, 256), size, wide);
        ::operator delete[](used(::operator new[](size, wide, std::nothrow), size, 256), wide,
                            std::nothrow);
    }
    ::operator delete(nullptr);
    ::operator delete[](nullptr, wide);
}

template <class Call> static bool throws(Call call) {
    try {
        call();
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

static void without_memory() {
    for (std::size_t size : {std::size_t(huge), std::size_t(most), std::size_t(most) + 1,
                             std::numeric_limits<std::size_t>::max() - 4000}) {
        CHECK(throws([=] { return ::operator new(size); }));
        CHECK(throws([=] { return ::operator new[](size); }));
        CHECK(throws([=] { return ::operator new(size, wide); }));
        CHECK(throws([=] { return ::operator new[](size, wide); }));
        CHECK(!::operator new(size, std::nothrow) && !::operator new[](size, std::nothrow));
        CHECK(!::operator new(size, wide, std::nothrow));
        CHECK(!::operator new[](size, wide, std::nothrow));
    }
    std::vector<char> all;
    CHECK(throws([&] { all.resize(huge); }));
    CHECK(throws([] { return ::operator new(10, std::align_val_t{24}); }));
}

struct Own_exception {};

#ifndef OWN
static void handlers() {
    std::set_new_handler([] {
        if (++handled == 3) std::set_new_handler(nullptr);
    });
    CHECK(throws([] { return ::operator new(huge); }) && handled == 3);
    handled = 0;
    std::set_new_handler([] {
        if (++handled == 2) std::set_new_handler(nullptr);
    });
    CHECK(!::operator new(huge, std::nothrow) && handled == 2);
    std::set_new_handler([] { throw Own_exception(); });
    bool caught = false;
    try {
        CHECK(!::operator new[](huge));
    } catch (const Own_exception &) {
        caught = true;
    }
    CHECK(caught);
    std::set_new_handler(nullptr);
}
#endif

int main() {
    forms();
    without_memory();
#ifdef OWN
    CHECK(made > 20 && made == gone);
    // The program's own `new` calls no handler.
#else
    handlers();
#endif
    std::vector<std::thread> threads;
    for (int n = 0; n < 4; n++) threads.emplace_back([] { forms(); without_memory(); });
    for (auto &thread : threads) thread.join();
    std::puts("operators: ok");
}
