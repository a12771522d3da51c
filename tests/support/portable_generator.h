// The generator of portable_program: a pool of values and one function per kind of step.
#pragma once

#include <initializer_list>
#include <optional>
#include <random>
#include <vector>

#include "ir/builder.h"
#include "tests/support/portable_program.h"

namespace tilewright::testing {

using ir::IndexOperand;
using ir::Op;
using ir::Reduction;
using ir::Shape;
using ir::Type;
using ir::Value;

inline constexpr DType kPortableDTypes[] = {
    DType::f32, DType::f32, DType::f64,     DType::f16,    DType::bf16,  DType::i32,
    DType::i32, DType::i64, DType::i8,      DType::u8,     DType::i16,   DType::u16,
    DType::u32, DType::u64, DType::boolean, DType::f8e4m3, DType::f8e5m2};
inline constexpr std::int64_t kMaxElements = 400;
/// Together with the axes of the grid, no array has more than 8 dimensions.
inline constexpr std::size_t kMaxRank = 6;

/// A value and facts about its elements. Floats that are not `rounded` are multiples of 2^-fraction
/// with magnitude at most `limit`, so that their sums and products can be kept exact.
struct Known {
    Value value;
    double limit = 0;
    int fraction = 0;
    bool rounded = false;  ///< any float: may be moved and stored, nothing else
    double ulps = 0;
};

class PortableGenerator {
  public:
    PortableGenerator(ir::Function& function, std::mt19937_64& random)
        : b_(function), random_(random) {}

    void kernel(PortableProgram& program);

  private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
    template <typename Range>
    const auto& any_of(const Range& range) {
        return *(std::begin(range) + static_cast<std::ptrdiff_t>(below(std::size(range))));
    }
    Op any_op(std::initializer_list<Op> ops) { return *(ops.begin() + below(ops.size())); }

    Type type(const Known& known) const { return b_.type(known.value); }
    Value index(std::int64_t value) { return b_.constant_int({DType::i64, {}}, value); }
    void keep(const Known& known) { pool_.push_back(known); }

    /// A random value of the pool that fits, if there is any.
    template <typename Predicate>
    std::optional<Known> pick(Predicate&& fits) {
        std::vector<const Known*> candidates;
        for (const Known& known : pool_) {
            if (fits(known)) candidates.push_back(&known);
        }
        if (candidates.empty()) return std::nullopt;
        return *any_of(candidates);
    }
    std::optional<Known> pick_exact() {
        return pick([](const Known& known) { return !known.rounded; });
    }
    std::optional<Known> pick_like(const Known& model) {
        return pick([&](const Known& k) { return !k.rounded && type(k) == type(model); });
    }
    /// A value that can replace `model` as the next value of a loop.
    std::optional<Known> pick_within(const Known& model) {
        return pick([&](const Known& k) {
            return !k.rounded && type(k) == type(model) &&
                   (!is_float(type(k).dtype) ||
                    (k.limit <= model.limit && k.fraction <= model.fraction));
        });
    }
    /// Whether the dtype represents such multiples exactly; `bits`: of its mantissa.
    static bool exact(DType dtype, double limit, int fraction, int bits);
    static bool exact(DType dtype, double limit, int fraction);

    Shape random_shape();
    Shape split(const Shape& shape);
    void step();
    void steps(int count);

    void constant();
    void iota();
    void load();
    void unary();
    void function_with_error();
    void binary();
    void division();
    void comparison();
    void ternary();
    void cast();
    void movement();
    void reduction();
    void dot();
    void random_bits();
    void through_scratch();
    void atomic();
    void for_loop();
    void while_loop();
    void if_else();
    void call();
    void store(const Known& known, PortableProgram& program);

    ir::Builder b_;
    std::mt19937_64& random_;
    bool scalars_only_ = false;
    int depth_ = 0;
    std::vector<std::int64_t> dims_;
    std::vector<Known> pool_;
    std::vector<Value> inputs_;
    std::vector<Value> counters_;  ///< one per atomic op
};

}  // namespace tilewright::testing
