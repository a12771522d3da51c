// Interval analysis: which results a mod can have over a box of its scalar arguments.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"

namespace tilewright::ir {

/// The truth of a condition over a box.
enum class Truth : std::uint8_t { never, always, unknown };

/// A superset of the values that a scalar may take. Its dtype says which pair of ends is used.
struct Interval {
    union {
        std::int64_t low = 0;  ///< integers; bool as 0 and 1
        double float_low;      ///< floats, infinities included
    };
    union {
        std::int64_t high = 0;
        double float_high;
    };
    bool any = false;  ///< u64 only: any value, including those above 2^63 - 1
    bool nan = false;  ///< floats: may also be NaN

    static Interval integers(std::int64_t low, std::int64_t high) {
        Interval range;
        range.low = low;
        range.high = high;
        return range;
    }
    static Interval floats(double low, double high, bool nan = false) {
        Interval range;
        range.float_low = low;
        range.float_high = high;
        range.nan = nan;
        return range;
    }
    /// Every value of the type.
    static Interval all(DType dtype);
    /// For integers.
    bool is_point() const { return low == high && !any; }
    /// For integers: whether every value is in [least, most].
    bool inside(std::int64_t least, std::int64_t most) const {
        return !any && least <= low && high <= most;
    }
    bool fits_i32() const {
        using Limits = std::numeric_limits<std::int32_t>;
        return inside(Limits::min(), Limits::max());
    }
    /// For integers: whether nothing is known but the type.
    bool is_all(DType dtype) const;
};

/// Smallest and largest elements of any part of an array, from a tree over blocks of 64 elements.
class RangeTree {
  public:
    /// Reads the array now: later writes to it are not seen.
    RangeTree(DType dtype, const RefArgument& array, int rank);
    /// For an array whose elements are not available: `blocks` are the ranges of every kBlock
    /// elements in row-major order. Queries not aligned to blocks return the ranges of whole ones.
    RangeTree(DType dtype, std::vector<std::int64_t> extents, std::vector<Interval> blocks);

    static constexpr std::int64_t kBlock = 64;

    DType dtype() const { return dtype_; }
    const std::vector<std::int64_t>& extents() const { return extents_; }
    /// A superset of the elements at indices low[d] <= i[d] <= high[d], which are inside the array.
    Interval query(std::span<const std::int64_t> low, std::span<const std::int64_t> high) const;

    /// The elements first to last in row-major order, which are inside the array.
    Interval elements(std::int64_t first, std::int64_t last) const;

  private:
    void reduce(std::vector<Interval> blocks);

    DType dtype_;
    std::vector<std::int64_t> extents_;
    std::shared_ptr<const void> owner_;  ///< a dense copy, if the array is strided
    const std::byte* data_ = nullptr;    ///< null if only blocks are known
    std::int64_t size_ = 1;
    std::vector<std::vector<Interval>> levels_;  ///< level l: blocks of 64 * 2^l elements
};

/// Identifies the values inside a box: boxes with equal extents and equal keys hold equal values,
/// element by element.
struct Key {
    std::uint64_t low = 0, high = 0;
    auto operator<=>(const Key&) const = default;
};

struct IntervalsReport {
    int steps = 0;   ///< scalar operations to evaluate per box
    int opaque = 0;  ///< operations not analysed: any value of their type
};

/// A mod prepared for evaluation over boxes; immutable, may be used by many threads at once.
///
/// Integers are exact unless they overflow their type, which gives every value of it; division,
/// remainders, shifts, bit operations and gathers have bounds, floats are rounded outwards. The
/// bounds hold for any machine that follows docs/reference/ir.md, contraction included.
class Intervals {
  public:
    /// `arrays` has one tree per Ref parameter. There may be any number of scalar parameters of any
    /// dtype; the last two are the axes of keys. The mod yields one scalar.
    Intervals(const Function& mod, std::vector<std::shared_ptr<const RangeTree>> arrays);

    /// The mutable state of an evaluation; one per thread.
    class Evaluation;

    int num_scalars() const { return num_scalars_; }
    /// True when the result may depend on scalar parameter `index`.
    bool depends_on(int index) const { return (depends_ >> index & 1) != 0; }
    DType result_dtype() const { return result_dtype_; }
    const IntervalsReport& report() const { return report_; }

  private:
    friend class Evaluation;
    friend class IntervalsCompiler;

    struct Step {
        Op op = Op::constant;
        OpClass op_class = OpClass::source;
        bool opaque = false;
        bool plain = false;  ///< on integers that fit in i64, or bools
        DType in = DType::boolean, out = DType::boolean;
        bool approx = false;
        std::uint32_t depends = 0;  ///< bit per scalar parameter
        std::int32_t array = -1;    ///< load
        int num_indices = 0;        ///< load: operands before mask and other
        bool has_mask = false, has_other = false;
        std::uint32_t first_operand = 0, num_operands = 0;
        std::uint64_t bits = 0;  ///< of a constant
        Interval all;            ///< every value of `out`
    };

    std::vector<Step> steps_;  ///< step i gives value num_scalars_ + i
    std::vector<std::uint32_t> operands_;
    std::vector<std::uint32_t> last_steps_;  ///< steps that depend on the last scalar
    std::vector<DType> scalar_dtypes_;
    std::vector<std::shared_ptr<const RangeTree>> arrays_;
    int num_scalars_ = 0;
    std::uint32_t result_ = 0;
    std::uint32_t depends_ = 0;
    DType result_dtype_ = DType::boolean;
    IntervalsReport report_;
};

class Intervals::Evaluation {
  public:
    explicit Evaluation(const Intervals& intervals);

    /// Sets the range of a scalar parameter; the next run evaluates what depends on it again.
    void set(int index, Interval range);
    /// The result over the box. `with_key` also computes key(), which takes about twice the time.
    const Interval& run(bool with_key = false);
    /// The result as a condition; its dtype is bool.
    Truth truth(bool with_key = false);
    /// Key of the last run, which had `with_key` and points for all scalars but the last two.
    Key key() const;

  private:
    /// value = base + by[0] * i + by[1] * j at offsets (i, j) from the low ends of the last two
    /// scalars, or any value, identified by a key.
    struct Form {
        bool affine = false;
        std::int64_t base = 0;
        std::array<std::int64_t, 2> by{};
        Key key;
    };

    void set_form(int index);
    void evaluate_steps(bool with_key);
    void evaluate_step(std::size_t index, bool with_key);
    bool plain_range(const Step& step, const std::uint32_t* operands, Interval& range) const;
    Interval evaluate(const Step& step, const std::uint32_t* operands) const;
    Interval load(const Step& step, const std::uint32_t* operands) const;
    Form form(const Step& step, const std::uint32_t* operands, Interval& range);
    /// Sets the form if it is affine or that of an operand; else returns false.
    bool simple_form(const Step& step, const std::uint32_t* operands, const Interval& range,
                     Form& form) const;
    bool affine_form(const Step& step, const std::uint32_t* operands, const Interval& range,
                     Form& form) const;
    /// Decides a comparison from the difference of its operands, or derives its key from it.
    bool comparison_form(const Step& step, const std::uint32_t* operands, Interval& range,
                         Form& form) const;

    const Intervals& intervals_;
    std::vector<Interval> values_;
    std::vector<Form> forms_;
    std::array<std::int64_t, 2> reach_{};  ///< largest offsets from the last two scalars' low ends
    std::uint32_t changed_ = 0;
    bool forms_valid_ = false;
    std::uint64_t fresh_ = 0;  ///< makes keys of opaque values differ
};

}  // namespace tilewright::ir
