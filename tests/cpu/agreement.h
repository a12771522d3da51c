// Runs kernels on the tile machine and on the reference interpreter, which have to agree.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cpu/bytecode.h"
#include "cpu/interpreter.h"
#include "cpu/machine.h"
#include "ir/evaluate.h"
#include "tests/cpu/kernel_fixture.h"

namespace tilewright::cpu {

/// A kernel with arrays filled at random, run on both machines on copies of the arrays.
class Agreement {
  public:
    explicit Agreement(std::vector<std::int64_t> grid = {}, unsigned seed = 1)
        : k("agreement", grid), grid_(std::move(grid)), random_(seed) {}

    Kernel k;
    /// Numbers of threads to run on; one alone where two programs store to one place.
    std::vector<int> threads{1, 3};

    /// An array of the caller with small random numbers.
    ir::Value array(DType dtype, std::vector<std::int64_t> extents) {
        std::int64_t count = 1;
        for (const std::int64_t extent : extents) count *= extent;
        Memory memory{dtype, extents, {}};
        memory.bytes.resize(static_cast<std::size_t>(count * size_of(dtype)) + 1);
        for (std::int64_t i = 0; i < count; ++i) {
            const auto number = static_cast<std::int64_t>(random_() % 17) - 8;
            const double value =
                is_float(dtype) ? static_cast<double>(number) / 4 : std::abs(number);
            ir::write_element(dtype, memory.bytes.data() + i * size_of(dtype),
                              dtype == DType::boolean ? number > 0 : ir::encode(dtype, value));
        }
        memories_.push_back(memory);
        return k.ref("array" + std::to_string(memories_.size()), dtype, std::move(extents));
    }

    /// The same with random bits: integers over the whole range.
    ir::Value array_of_bits(DType dtype, std::vector<std::int64_t> extents) {
        const ir::Value result = array(dtype, std::move(extents));
        for (std::byte& byte : memories_.back().bytes) byte = static_cast<std::byte>(random_());
        return result;
    }

    ir::Value load_all(ir::Value ref) {
        std::vector<ir::IndexOperand> indices;
        for (const std::int64_t extent : k.function.ref_type(ref).extents) {
            indices.push_back(k.slice(0, extent));
        }
        return k.load(ref, indices);
    }

    /// A tile for each program, of an array that is stored to, which is therefore not read in
    /// place. The grid has one axis.
    ir::Value own_tile(DType dtype, std::vector<std::int64_t> dims) {
        std::vector<ir::IndexOperand> indices{ir::IndexOperand::scalar(k.b.program_id(0))};
        for (const std::int64_t dim : dims) indices.push_back(k.slice(0, dim));
        dims.insert(dims.begin(), grid_[0]);
        const ir::Value array = this->array(dtype, dims), result = k.load(array, indices);
        k.store(array, indices, result);
        return result;
    }

    /// Stores a tile or scalar to a new array with one such shape for each program.
    void keep(ir::Value value) {
        const ir::Type type = k.b.type(value);
        std::vector<std::int64_t> extents = grid_;
        std::vector<ir::IndexOperand> indices;
        for (std::size_t axis = 0; axis < grid_.size(); ++axis) {
            const ir::Value program = k.b.program_id(static_cast<int>(axis));
            indices.push_back(ir::IndexOperand::scalar(program));
        }
        for (const std::int64_t extent : type.shape.dims()) {
            extents.push_back(extent);
            indices.push_back(k.slice(0, extent));
        }
        const ir::Value ref = array(type.dtype, extents);
        k.store(ref, indices, value);
    }

    /// Runs both machines; floats may differ by `tolerance`, relative to max(1, |reference|).
    void check(double tolerance = 0) {
        k.done();
        std::vector<Memory> expected = memories_, actual = memories_;
        interpret(k.function, call(expected));
        const auto program = compile(k.function);
        for (const int count : threads) {
            set_num_threads(count);
            actual = memories_;
            run(*program, call(actual));
            compare(expected, actual, tolerance, to_string(*program));
        }
        set_num_threads(0);
    }

  private:
    struct Memory {
        DType dtype;
        std::vector<std::int64_t> extents;
        std::vector<std::byte> bytes;
    };

    ir::Arguments call(std::vector<Memory>& memories) const {
        ir::Arguments result;
        for (Memory& memory : memories) {
            ir::RefArgument ref;
            ref.data = memory.bytes.data();
            std::int64_t stride = 1;
            for (std::size_t d = memory.extents.size(); d-- > 0; stride *= memory.extents[d]) {
                ref.extents[d] = memory.extents[d];
                ref.strides[d] = stride;
            }
            result.refs.push_back(ref);
        }
        result.grid = grid_;
        return result;
    }

    static void compare(const std::vector<Memory>& expected, const std::vector<Memory>& actual,
                        double tolerance, const std::string& listing) {
        for (std::size_t m = 0; m < expected.size(); ++m) {
            const DType dtype = expected[m].dtype;
            const auto size = static_cast<std::size_t>(size_of(dtype));
            int failures = 0;
            for (std::size_t at = 0; at + size < expected[m].bytes.size() + 1 && failures < 5;
                 at += size) {
                if (at + size > expected[m].bytes.size() - 1) break;
                const double want =
                    ir::decode(dtype, ir::read_element(dtype, &expected[m].bytes[at]));
                const double have =
                    ir::decode(dtype, ir::read_element(dtype, &actual[m].bytes[at]));
                const bool both_nan = std::isnan(want) && std::isnan(have);
                const bool close = want == have || std::abs(want - have) <=
                                                       tolerance * std::max(1.0, std::abs(want));
                if (both_nan || close) continue;
                ++failures;
                ADD_FAILURE() << "array " << m << " element " << at / size << ": expected " << want
                              << " but got " << have << "\n"
                              << listing;
            }
            EXPECT_EQ(expected[m].bytes.back(), actual[m].bytes.back()) << "wrote past the array";
        }
    }

    std::vector<Memory> memories_;
    std::vector<std::int64_t> grid_;
    std::mt19937 random_;
};

}  // namespace tilewright::cpu
