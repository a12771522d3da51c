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

/// A row of a captured array inside a mod: a short list of scalars with elementwise arithmetic.
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

/// Elementwise, on rows of one size or a row and a scalar. UserError when the sizes differ.
Row operator+(const Row& a, const Row& b);
Row operator-(const Row& a, const Row& b);
Row operator*(const Row& a, const Row& b);
Row operator*(const Row& a, Operand b);
Row operator*(Operand a, const Row& b);
Tile sum(const Row& a);
Tile max(const Row& a);
/// sum(a * b).
Tile dot(const Row& a, const Row& b);

/// An array that mods read at traced integers: `slopes[h]`, `bias(h, q - kv + 7)`,
/// `offsets[document[q]]`. Negative indices count from the end, as in NumPy. An index outside the
/// array is a UserError if it is a literal; a traced one is clamped, or an error in the checked
/// mode. The memory is shared: the next call sees values written later, without compiling again.
/// Attention computes gradients of floating captures.
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
    /// The meaning of negative indices.
    enum class Negative : std::uint8_t { from_end, clamped };
    /// `clamped` is for front ends that handle negative indices themselves.
    Tile element(const std::vector<Operand>& indices, Negative negative = Negative::from_end) const;
    /// The value of an array of rank 0.
    operator Operand() const { return Operand(element({}), std::source_location{}); }

    /// The extent of a dimension, which the call fixes, as a traced i64.
    Tile extent(int dim) const;

    /// A row along the last dimension, given one integer for each other dimension. It is unrolled,
    /// so the last dimension has at most 512 elements.
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

/// Makes an array readable inside mods. A floating one has a gradient if it is `differentiable`.
Capture capture(Tensor tensor, std::string name = {}, bool differentiable = true);
/// A traced value is not an array: use it directly.
template <std::same_as<Tile> T>
Capture capture(T) = delete;

namespace detail {

struct ModState;

template <typename F>
inline constexpr int kModArity = arity_of<const std::decay_t<F>, Tile>();

}  // namespace detail

/// A function that attention applies to every score: a score mod (score, b, h, q, kv) -> score, or
/// a mask mod (b, h, q, kv) -> bool, true where the query attends to the key. The arguments are
/// scalars: batch, query head and the two positions, which are i64 and do not overflow. Made from a
/// C++ lambda with `auto` parameters, from text (`parse_mod`) or by a library (`masks`, `scores`).
///
/// Mods are traced once: they branch with tw::where or tw::cond and read arrays through
/// tw::capture; other captured C++ values are constants.
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
    /// A mod from a function that takes the arguments as one list.
    static Mod make(Kind kind, std::string name, Body body);
    /// A mod from the text that `ir` returned, in this process or another, with new arrays: one for
    /// each Ref of the text, with its dtype and rank. UserError for text that is not a mod and for
    /// arrays that do not match.
    static Mod from_ir(std::string_view text, std::vector<Capture> captures);

    /// This score mod with the caller's derivative, as `derivative_ir` returns it, in place of the
    /// one derived from its IR. `gathers` is the number of the array that each gather reads.
    Mod with_derivative(std::string_view text, std::vector<std::size_t> gathers) const;
    /// Traces a derivative for this score mod. `body` takes (score, b, h, q, kv, cotangent), reads
    /// the arrays that the mod reads, and returns the gradient of the score, then for each gather
    /// from an array with a gradient its indices and the value to add there.
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

    /// Whether the result depends on the batch and on the head. UserError if tracing fails.
    struct Reads {
        bool batch = false, head = false;
    };
    Reads reads() const;
    /// The same mod with operations that count as written at this line of another language.
    Mod written_at(std::string file, int line) const;

    /// The mod applied to numbers; scores are computed in f64. Slow, for debugging.
    bool evaluate(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const;
    double evaluate(double score, std::int64_t b, std::int64_t h, std::int64_t q,
                    std::int64_t kv) const;

    /// The arrays it reads, in order of first use. UserError if the mod cannot be traced.
    std::vector<Capture> captures() const;
    /// The tile IR of the mod, as text, for scores of this dtype (f32 or f64); `with_lines` adds
    /// the source line of each operation.
    std::string ir(DType score = f32, bool with_lines = false) const;

    /// For the implementation.
    const std::shared_ptr<const detail::ModState>& state() const { return state_; }

  private:
    std::shared_ptr<const detail::ModState> state_;
};

/// The text (Mod::ir) of a mod over several problems of `batch` batches, one after another along
/// the batch dimension: it sees b % batch, and reads `batched` arrays at b / batch along an
/// additional leading dimension.
std::string batched_mod_ir(std::string_view text, std::int64_t batch,
                           const std::vector<bool>& batched);

/// For every array of a mod's text (Mod::ir), a letter for each dimension: b, h, q or k if every
/// index into it is exactly that argument (k for kv), else a dot.
std::vector<std::string> mod_axes(std::string_view text);
/// The text of a mod that counts batches and heads from an origin, i32 (2), which becomes its first
/// array. In `local` arrays, dimensions with the letter b hold the batches from the origin on.
std::string shifted_mod_ir(std::string_view text, const std::vector<bool>& local);

/// Intersection, union, symmetric difference and complement of masks.
Mod operator&(const Mod& a, const Mod& b);
Mod operator|(const Mod& a, const Mod& b);
Mod operator^(const Mod& a, const Mod& b);
Mod operator~(const Mod& a);

/// Intersection and union of all the masks.
Mod and_masks(std::initializer_list<Mod> masks);
Mod or_masks(std::initializer_list<Mod> masks);

/// Arrays by the names that a text uses.
using Bindings = std::map<std::string, Tensor>;

/// A mod from text: an expression over b, h, q, kv and, for score mods, score
/// (docs/reference/attention.md). Without a `kind`, text that uses the score or evaluates to a
/// number is a score mod; otherwise, if it gives a bool, a mask mod. UserErrors name the column.
Mod parse_mod(std::string_view text, const Bindings& arrays = {},
              std::optional<Mod::Kind> kind = {});

}  // namespace tilewright
