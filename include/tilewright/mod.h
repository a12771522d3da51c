// Mods: functions of scalars that attention applies to every score, and the arrays they read.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/lang/kernel.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// A row of a captured array inside a mod: a short list of scalars, with arithmetic element by
/// element.
class Row {
  public:
    explicit Row(std::vector<Tile> elements) : elements_(std::move(elements)) {}

    std::size_t size() const { return elements_.size(); }
    Tile operator[](std::size_t i) const { return elements_.at(i); }
    auto begin() const { return elements_.begin(); }
    auto end() const { return elements_.end(); }

  private:
    std::vector<Tile> elements_;
};

/// Rows of one size, or a row and a scalar. UserError when the sizes differ.
Row operator+(const Row& a, const Row& b);
Row operator-(const Row& a, const Row& b);
Row operator*(const Row& a, const Row& b);
Row operator*(const Row& a, Operand b);
Row operator*(Operand a, const Row& b);
Tile sum(const Row& a);
Tile max(const Row& a);
/// sum(a * b).
Tile dot(const Row& a, const Row& b);

/// An array that mods read, by traced integers: `slopes[h]`, `bias(h, q - kv + 7)`,
/// `offsets[document[q]]`. Negative indices count from the end, as in NumPy. Beyond that a literal
/// outside the array is a UserError, a traced index is clamped, and in the checked mode an error.
/// The memory is shared: values written later are seen by the next call, without compiling again.
/// Attention gives the gradients of floating captures.
class Capture {
  public:
    const Tensor& tensor() const { return state_->tensor; }
    /// For messages and the printed IR; may be empty.
    const std::string& name() const { return state_->name; }
    /// Whether `attention_backward` returns a gradient for it.
    bool differentiable() const { return state_->differentiable; }
    /// True for copies of one capture.
    bool operator==(const Capture& other) const { return state_ == other.state_; }

    /// An element of an array of rank 1.
    Tile operator[](Operand index) const { return element({index}); }
    /// An element, by one integer per dimension: `bias[{h, q, kv}]`.
    Tile operator[](std::initializer_list<Operand> indices) const { return element(indices); }
    template <typename... Indices>
    requires(std::is_convertible_v<const Indices&, Operand>&&...) Tile operator()(
        const Indices&... indices) const {
        return element({Operand(indices)...});
    }
    /// What negative indices mean.
    enum class Negative : std::uint8_t { from_end, clamped };
    /// `clamped` is for front ends that give negative indices a meaning of their own.
    Tile element(const std::vector<Operand>& indices, Negative negative = Negative::from_end) const;
    /// The value of an array of rank 0.
    operator Operand() const { return Operand(element({}), std::source_location{}); }

    /// The extent of a dimension in the call, as a traced i64.
    Tile extent(int dim) const;

    /// A row along the last dimension, by one integer for each of the others. Unrolled, so that
    /// dimension has at most 512 elements.
    template <typename... Indices>
    requires(std::is_convertible_v<const Indices&, Operand>&&...) Row row(const Indices&... indices)
    const { return row_of({Operand(indices)...}); }
    Row row_of(const std::vector<Operand>& indices) const;

  private:
    friend Capture capture(Tensor tensor, std::string name, bool differentiable);
    struct State {
        Tensor tensor;
        std::string name;
        bool differentiable;
    };
    std::shared_ptr<const State> state_;
};

/// Makes an array readable inside mods. Integer arrays have no gradient; nor has a floating one
/// that is not `differentiable`.
Capture capture(Tensor tensor, std::string name = {}, bool differentiable = true);
/// A traced value is no array: use it directly, or return it through the arguments of the mod.
template <std::same_as<Tile> T>
Capture capture(T) = delete;

namespace detail {

struct ModState;

template <typename F>
inline constexpr int kModArity = arity_of<const std::decay_t<F>, Tile>();

}  // namespace detail

/// A function that attention applies to every score: a score mod (score, b, h, q, kv) -> score, or
/// a mask mod (b, h, q, kv) -> bool, true where the query attends to the key. The arguments are
/// scalars: batch, query head, and positions as i64, which do not overflow. Made from a C++ lambda
/// with `auto` parameters, from text (`parse_mod`), or from a library (`masks`, `scores`).
///
/// Mods are traced, once: they branch with tw::where or tw::cond, read arrays through tw::capture,
/// and their other captured C++ values are constants.
class Mod {
  public:
    enum class Kind : std::uint8_t { score, mask };
    using Body = std::function<Operand(std::span<const Tile>)>;

    /// No mod.
    Mod() = default;
    template <typename F>
    requires(!std::is_base_of_v<Mod, std::decay_t<F>> && detail::kModArity<F> >= 4)
        Mod(F&& function)
        : Mod(make(detail::kModArity<F> == 5 ? Kind::score : Kind::mask, {},
                   [f = std::decay_t<F>(std::forward<F>(function))](
                       std::span<const Tile> arguments) -> Operand {
                       constexpr int kArity = detail::kModArity<F>;
                       static_assert(kArity == 4 || kArity == 5,
                                     "a mask mod takes (b, h, q, kv), a score mod (score, b, h, "
                                     "q, kv)");
                       return detail::apply_span(f, arguments, std::make_index_sequence<kArity>());
                   })) {}
    /// A mod by a function of the list of its arguments.
    static Mod make(Kind kind, std::string name, Body body);
    /// A mod from the text that `ir` gave, in this process or another, on new arrays: one for each
    /// Ref of the text, of its dtype and rank. UserError when the text is no mod or does not fit.
    static Mod from_ir(std::string_view text, std::vector<Capture> captures);

    /// This score mod with a derivative of the caller's own, as `derivative_ir` writes it, in place
    /// of the one that follows from its IR. `gathers` names the array of each gather.
    Mod with_derivative(std::string_view text, std::vector<std::size_t> gathers) const;
    /// Traces a derivative of this score mod. `body` takes (score, b, h, q, kv, cotangent), reads
    /// the arrays that the mod reads, and gives the gradient of the score, then for each gather
    /// from an array that has a gradient its indices and the value to be added there.
    std::string derivative_ir(
        const std::function<std::vector<Operand>(std::span<const Tile>)>& body,
        DType score = f32) const;

    bool defined() const { return state_ != nullptr; }
    explicit operator bool() const { return defined(); }
    Kind kind() const;
    /// For messages and pictures; may be empty.
    const std::string& name() const;
    Mod renamed(std::string name) const;

    /// Applies the mod to traced scalars, inside another mod or a kernel's trace.
    Tile operator()(Operand b, Operand h, Operand q, Operand kv) const;
    Tile operator()(Operand score, Operand b, Operand h, Operand q, Operand kv) const;

    /// Whether the result depends on the batch, and on the head. UserError when the mod does not
    /// trace.
    struct Reads {
        bool batch = false, head = false;
    };
    Reads reads() const;
    /// The same mod, whose operations count as written at this line of another language.
    Mod written_at(std::string file, int line) const;

    /// The mod applied to numbers: what a mask gives for a pair, and a score mod makes of a score
    /// (computed in f64). Slow, for debugging.
    bool evaluate(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const;
    double evaluate(double score, std::int64_t b, std::int64_t h, std::int64_t q,
                    std::int64_t kv) const;

    /// The arrays it reads, in the order of their first use. UserError when the mod does not trace.
    std::vector<Capture> captures() const;
    /// The tile IR of the mod, as text, for scores of this dtype (f32 or f64); `with_lines` also
    /// says where each operation was written.
    std::string ir(DType score = f32, bool with_lines = false) const;

    /// For the implementation.
    const std::shared_ptr<const detail::ModState>& state() const { return state_; }

  private:
    std::shared_ptr<const detail::ModState> state_;
};

/// The text (Mod::ir) of a mod over a batch of problems, laid one after the other along the batch:
/// it sees b % batch, and reads the arrays that are `batched` at b / batch, the index of a
/// dimension that they have more in front.
std::string batched_mod_ir(std::string_view text, std::int64_t batch,
                           const std::vector<bool>& batched);

/// For every array of a mod's text (Mod::ir) a letter for each of its dimensions: b, h, q or k
/// where all its indices are that position itself, else a dot.
std::vector<std::string> mod_axes(std::string_view text);
/// The text of a mod that counts batches and heads from an origin, i32 (2), which it reads before
/// its other arrays. Dimensions of the arrays that are `local` whose letter is b hold the batches
/// from the origin on.
std::string shifted_mod_ir(std::string_view text, const std::vector<bool>& local);

/// Masks combined: where both, either, exactly one, the first alone not.
Mod operator&(const Mod& a, const Mod& b);
Mod operator|(const Mod& a, const Mod& b);
Mod operator^(const Mod& a, const Mod& b);
Mod operator~(const Mod& a);

/// All, or any, of the masks.
Mod and_masks(std::initializer_list<Mod> masks);
Mod or_masks(std::initializer_list<Mod> masks);

/// Arrays by the names under which a text reads them.
using Bindings = std::map<std::string, Tensor>;

/// A mod from text: an expression over b, h, q, kv and, for scores, score
/// (docs/reference/attention.md). Without a `kind` a text that names the score or gives a number is
/// a score mod, one that gives a bool a mask mod. UserError names the column.
Mod parse_mod(std::string_view text, const Bindings& arrays = {},
              std::optional<Mod::Kind> kind = {});

}  // namespace tilewright
