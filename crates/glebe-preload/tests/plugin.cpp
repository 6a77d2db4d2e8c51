// A C++ plugin of a program that is not linked with the C++ library.
#include <new>
#include <vector>

extern "C" int plugin_works() {
    std::vector<int> some(1000, 7);
    volatile std::size_t huge = std::size_t(1) << 62;
    bool caught = false;
    try {
        some[0] = ::operator new(huge) != nullptr;
    } catch (const std::bad_alloc &) {
        caught = true;
    }
    return caught && some[999] == 7 && !::operator new[](huge, std::nothrow);
}
