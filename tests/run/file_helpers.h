// Tensors, and readers of strings, for the tests of file formats.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "run/byte_reader.h"
#include "tilewright/error.h"

namespace tilewright::run {

/// A tensor of random bytes; booleans are 0 or 1.
inline Tensor random_tensor(DType dtype, std::vector<std::int64_t> shape, unsigned seed = 1) {
    std::mt19937 random(seed);
    const Tensor tensor = Tensor::empty(dtype, std::move(shape));
    for (std::byte& b : bytes_of(tensor)) {
        b = static_cast<std::byte>(dtype == boolean ? random() % 2 : random() % 256);
    }
    return tensor;
}

/// Whether dtype, shape and bits are equal and both are row-major.
inline bool identical(const Tensor& a, const Tensor& b) {
    return a.dtype() == b.dtype() && a.shape() == b.shape() && a.is_contiguous() &&
           b.is_contiguous() && std::ranges::equal(bytes_of(a), bytes_of(b));
}

/// Runs `read` on a file that consists of `bytes`.
template <typename Read>
auto read_bytes(const std::string& bytes, const Read& read) {
    std::istringstream stream(bytes);
    ByteReader file(stream, "t");
    return read(file);
}

/// Expects a UserError whose text contains `part`.
inline void expect_user_error(const std::function<void()>& act, const std::string& part) {
    try {
        act();
        ADD_FAILURE() << "no error; expected: " << part;
    } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

}  // namespace tilewright::run
