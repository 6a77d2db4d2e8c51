// Uses many templates of the standard library, which cost a C++ compiler time and memory.

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct Record {
    std::map<std::string, std::tuple<int, double, std::vector<Record<N - 1>>>> inner;
    std::variant<int, std::string, std::shared_ptr<Record<N - 1>>> either;

    int sum() const {
        int total = N;
        for (const auto &[key, value] : inner) {
            total += static_cast<int>(key.size()) + std::get<0>(value);
            for (const auto &record : std::get<2>(value)) total += record.sum();
        }
        return total;
    }
    void add(const std::string &key) {
        auto &value = inner[key];
        std::get<2>(value).emplace_back().add(key + "x");
        std::sort(std::get<2>(value).begin(), std::get<2>(value).end(),
                  [](const auto &a, const auto &b) { return a.sum() < b.sum(); });
    }
};

template <> struct Record<0> {
    std::set<std::string> names;
    int sum() const { return static_cast<int>(names.size()); }
    void add(const std::string &name) { names.insert(name); }
};

template <int N> int work(const std::string &text) {
    Record<N> record;
    std::unordered_map<std::string, std::function<int(int)>> calls;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        record.add(word);
        calls[word] = [&record](int with) { return record.sum() + with; };
    }
    auto later = std::async(std::launch::deferred, [&] {
        return std::accumulate(calls.begin(), calls.end(), 0,
                               [](int sum, const auto &call) { return sum + call.second(N); });
    });
    if constexpr (N > 1) return later.get() + work<N - 1>(text);
    return later.get();
}

int entry(const std::string &text) { return work<DEPTH>(text); }
