// Runs an exported norm through its generated header, in C++17.
#include <cmath>
#include <cstdio>
#include <vector>

#include "small_norm.h"

int main(int, char** arguments) {
    static_assert(__cplusplus < 202002L, "the header is one for C++17");
    const tilewright_artifacts::small_norm norm(arguments[1]);
    std::vector<float> x(8 * 64), weight(64, 2), y(8 * 64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
    norm(x.data(), weight.data(), y.data());
    for (std::size_t row = 0; row < 8; ++row) {
        double squares = 0;
        for (std::size_t i = 0; i < 64; ++i) squares += x[row * 64 + i] * x[row * 64 + i];
        for (std::size_t i = 0; i < 64; ++i) {
            const double want = 2 * x[row * 64 + i] / std::sqrt(squares / 64 + 1e-5);
            if (!(std::abs(y[row * 64 + i] - want) < 1e-5)) return 1;
        }
    }
    try {
        tilewright_artifacts::small_norm("no such folder");
    } catch (const std::runtime_error& error) {
        std::printf("%s\n", error.what());
        return 0;
    }
    return 1;
}
