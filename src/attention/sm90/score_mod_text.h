// The writer of a score mod's text: values sorted by what they depend on, scores as linear forms.
// Shared by the files that implement it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "attention/sm90/score_mod.h"
#include "attention/sm90/score_mod_emitter.h"
#include "cuda/codegen/scalar_op.h"
#include "ir/passes/differentiate.h"

namespace tilewright::attn::sm90 {

using ir::Interval;
using ir::Op;
using ir::Value;

constexpr double kLog2E = 1.44269504088896340736;

// What a value depends on; kTile: only on batch and head.
enum Dependence : unsigned { kTile = 0, kRow = 1, kColumn = 2, kScore = 4 };

// Where text is placed. Each place has its own locals; what is worth keeping goes into the struct.
enum class Place : std::uint8_t { tile, row, column, element };
constexpr std::size_t kPlaces = 4;

inline Place place_of(unsigned dependence) {
    if (dependence == kTile) return Place::tile;
    if (dependence == kRow) return Place::row;
    return dependence == kColumn ? Place::column : Place::element;
}

inline std::string float_literal(double value) {
    return cuda::scalar_literal(DType::f32, std::bit_cast<std::uint64_t>(value));
}

/// A factor that is the same for all columns of a row: a number, times a named value if there is
/// one.
struct Coefficient {
    double number = 0;
    std::string name;  ///< empty: just the number

    bool zero() const { return number == 0; }
    bool one() const { return number == 1 && name.empty(); }
    bool operator==(const Coefficient&) const = default;
    std::string text() const {
        if (name.empty()) return float_literal(number);
        return number == 1 ? name : fmt::format("({} * {})", float_literal(number), name);
    }
};

/// constant + offset * (column of the register) + sum of coefficient * atom. Atoms are the names of
/// element values; "score" is the accumulator, before the softmax scale.
struct LinearForm {
    Coefficient constant, offset;
    std::map<std::string, Coefficient> atoms;

    bool of_row() const { return offset.zero() && atoms.empty(); }
};

class Emitter {
  public:
    /// `gathers`, for the backward pass: which results after the derivative are gradients of
    /// captures.
    Emitter(const ir::Function& function, const ScoreModFacts& facts,
            std::span<const ir::GatherGradient> gathers);

    /// Text, or a refusal.
    ScoreModText header();

  private:
    struct Info {
        const ir::Instruction* instruction = nullptr;
        unsigned dependence = kTile;
        Interval range;       ///< of an integer value
        bool affine = false;  ///< an integer base + step * offset, with the same base for all
                              ///< registers of a row
        std::int64_t step = 0;
        std::string parameter;  ///< the parameter's name in the text
    };
    enum Parameter : std::size_t { kScoreParameter, kBatch, kHead, kQuery, kKey, kFirstRef };

    Info& info(Value value) { return info_[value.id]; }
    const Interval& range(Value value) { return info(value).range; }
    DType dtype(Value value) const { return function_.type(value).dtype; }
    Op op(Value value) { return info(value).instruction ? info(value).instruction->op : Op::yield; }
    Value operand(Value value, std::size_t i) { return info(value).instruction->operands[i]; }
    bool is_constant(Value value, std::int64_t equal_to) {
        return op(value) == Op::constant && range(value).inside(equal_to, equal_to);
    }
    bool varies(Value value) { return (info(value).dependence & (kColumn | kScore)) != 0; }
    bool usable_as_affine(Value value) { return info(value).affine || !varies(value); }
    std::string& text(Place place) { return text_[static_cast<std::size_t>(place)]; }
    /// True for the first use.
    bool first_use(Place place, char kind, Value value) {
        return written_.insert({place, kind, value}).second;
    }
    std::string temporary() { return fmt::format("x{}", temporaries_++); }

    template <typename... Args>
    void refuse(fmt::format_string<Args...> format, Args&&... args) {
        if (refusal_.empty())
            refusal_ = "score_mod: " + fmt::format(format, std::forward<Args>(args)...);
    }

    void read_parameters();
    void define(const ir::Instruction& instruction);
    void analyse_affine(const ir::Instruction& instruction, Info& result);
    bool kept(Value value);
    std::string local(Place place, const std::string& type, const std::string& name,
                      const std::string& expression);

    std::string use(Value value, Place place);
    std::string base(Value value, Place place);
    std::string expression(Value value, Place place);
    std::string scalar_expression(Value value, std::span<const cuda::ScalarOperand> operands);
    std::string comparison(Value value, Place place);
    std::string load(Value value, Place place);
    Value clamped(Value index, Value ref, std::size_t dim);

    LinearForm form(Value value, Place place);
    std::optional<LinearForm> linear(Value value, Place place);
    LinearForm scaled(LinearForm form, const Coefficient& factor, Place place);
    LinearForm sum(LinearForm a, const LinearForm& b, Place place);
    Coefficient product(const Coefficient& a, const Coefficient& b, Place place);
    Coefficient sum(const Coefficient& a, const Coefficient& b, Place place);
    std::string evaluate(const LinearForm& form, const std::string& start) const;
    std::optional<LinearForm> chosen(Value condition, const LinearForm& a, const LinearForm& b);
    std::optional<LinearForm> exponent_form(Value value);
    std::string exponent(Value value);

    // Gradients.
    struct Gather {
        Value ref;
        std::vector<Value> indices;
        Value value;
        CaptureGradient gradient;
    };
    Gather gather_of(const ir::GatherGradient& gradient);
    bool is_number(Value value, double equal_to);
    std::optional<double> magnitude(Value value);
    std::string gradient_times(Value factor);
    Value derivative();
    void start_elements();
    std::string place_in_array(const Gather& gather);
    std::string gradients();
    std::string gradient_places();

    const ir::Function& function_;
    const ScoreModFacts& facts_;
    std::vector<Info> info_;
    std::vector<Value> results_;
    std::vector<Gather> gathers_;
    std::map<Value, std::size_t> captures_;  // index of a Ref parameter
    std::map<Value, std::size_t> words_;     // index of its address in the arguments
    std::size_t num_words_ = 0;
    std::array<std::string, kPlaces> text_;
    std::set<std::tuple<Place, char, Value>> written_;
    std::map<std::pair<Place, Value>, LinearForm> forms_;
    std::set<Value> members_;
    std::string member_text_, column_text_, refusal_;
    int temporaries_ = 0;
    bool affine_ = false;  // see ScoreModText
};

}  // namespace tilewright::attn::sm90
