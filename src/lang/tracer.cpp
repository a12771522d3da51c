// The trace in progress: turns calls of the kernel language into IR instructions.
#include "lang/tracer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "lang/promotion.h"
#include "support/interned.h"

namespace tilewright::lang {

namespace {

thread_local Tracer* current_tracer = nullptr;
thread_local detail::LineScope::Source line_source = nullptr;
thread_local detail::SourceLine foreign_line;

std::uint32_t next_trace_id() {
    static std::atomic<std::uint32_t> counter{0};
    return ++counter;
}

bool is_negative(const Operand& literal) {
    return literal.kind() == Operand::Kind::signed_int &&
           static_cast<std::int64_t>(literal.integer()) < 0;
}

/// Smallest and largest value of an integer dtype, the latter as unsigned.
std::pair<std::int64_t, std::uint64_t> range_of(DType dtype) {
    const int bits = 8 * size_of(dtype);
    if (!is_signed(dtype)) return {0, UINT64_MAX >> (64 - bits)};
    const std::uint64_t largest = UINT64_MAX >> (65 - bits);
    return {-static_cast<std::int64_t>(largest) - 1, largest};
}

}  // namespace

Tracer::Tracer(std::string name)
    : builder_(function_), id_(next_trace_id()), outer_(current_tracer) {
    function_.name = std::move(name);
    current_tracer = this;
}

Tracer::~Tracer() {
    current_tracer = outer_;
}

Tracer& Tracer::current(const char* op, const std::source_location& location) {
    with_line(location, [&] {
        if (!current_tracer) {
            user_error(op, "expected to be called inside a kernel while it is traced");
        }
    });
    return *current_tracer;
}

Tracer& Tracer::of(const Tile& tile, const char* op, const std::source_location& location) {
    Tracer& tracer = current(op, location);
    with_line(location, [&] {
        if (tile.trace_id() != tracer.id_) {
            user_error(op, "expected a value of kernel `{}` but got {}", tracer.function_.name,
                       tile.trace_id() == 0 ? "an empty Tile" : "one of another trace");
        }
    });
    return tracer;
}

Tracer& Tracer::of(const Ref& ref, const char* op, const std::source_location& location) {
    Tracer& tracer = current(op, location);
    with_line(location, [&] {
        if (ref.trace_id() != tracer.id_) {
            user_error(op, "expected a Ref of kernel `{}` but got {}", tracer.function_.name,
                       ref.trace_id() == 0 ? "an empty one" : "one of another trace");
        }
    });
    return tracer;
}

Tile Tracer::wrap(ir::Value value) {
    constexpr std::uint32_t kNone = UINT32_MAX;
    if (scope_of_.size() <= value.id) scope_of_.resize(value.id + 1, kNone);
    // An operation that changes nothing, such as a cast to the same dtype, may return a value of an
    // outer scope.
    std::uint32_t& scope = scope_of_[value.id];
    if (scope == kNone) scope = scope_;
    return Tile::from_id(value.id, id_);
}

ir::Value Tracer::use(const Tile& tile) {
    of(tile, "tile", {});
    if (!scope_open_[scope_of_.at(tile.id())]) {
        user_error(
            "tile",
            "expected a value that is visible here but got one made inside the body of a loop "
            "or branch that has ended; return it through the carry or the branch's result");
    }
    return ir::Value{tile.id()};
}

Ref Tracer::add_view(View view) {
    views_.push_back(std::move(view));
    return Ref::from_id(static_cast<std::uint32_t>(views_.size() - 1), id_);
}

ir::Location Tracer::line_of(const std::source_location& location) {
    if (foreign_line.line != 0) return {foreign_line.file, foreign_line.line};
    if (location.line() != 0) return {location.file_name(), static_cast<int>(location.line())};
    if (!line_source) return {};
    const detail::SourceLine line = line_source();
    return {line.file, line.line};
}

void Tracer::rethrow_with_line(const UserError& error, const ir::Location& location) {
    const std::string text = error.what();
    if (foreign_line.line != 0) throw;  // the other language's traceback names the line
    // The builder and nested calls of the language have already named the innermost line.
    if (text.find(" (at ") != std::string::npos) throw;
    if (location.file.empty()) throw;  // mods from text and other languages may have no line
    throw UserError(fmt::format("{} (at {}:{})", text, location.file, location.line));
}

Tracer::Scope::Scope(Tracer& tracer)
    : tracer_(tracer),
      outer_(tracer.scope_),
      own_(static_cast<std::uint32_t>(tracer.scope_open_.size())) {
    tracer_.scope_open_.push_back(true);
    tracer_.scope_ = own_;
}

Tracer::Scope::~Scope() {
    tracer_.scope_open_[own_] = false;
    tracer_.scope_ = outer_;
}

bool Tracer::fits(const Operand& literal, DType dtype) {
    if (dtype == boolean || is_float(dtype)) return true;
    const auto [low, high] = range_of(dtype);
    if (literal.kind() == Operand::Kind::floating) {
        const double value = literal.floating();
        return value == std::trunc(value) && value >= static_cast<double>(low) &&
               value < static_cast<double>(high) + 1;
    }
    return is_negative(literal) ? static_cast<std::int64_t>(literal.integer()) >= low
                                : literal.integer() <= high;
}

std::string Tracer::text(const Operand& literal) {
    if (literal.kind() == Operand::Kind::truth) return literal.integer() != 0 ? "true" : "false";
    if (literal.kind() == Operand::Kind::floating) return fmt::format("{}", literal.floating());
    return is_negative(literal) ? std::to_string(static_cast<std::int64_t>(literal.integer()))
                                : std::to_string(literal.integer());
}

ir::Value Tracer::literal(const Operand& operand, DType dtype, const char* op) {
    const ir::Type type{dtype, {}};
    if (!fits(operand, dtype)) {
        user_error(op, "expected a value of {} but got {}, which does not fit", name(dtype),
                   text(operand));
    }
    if (operand.kind() == Operand::Kind::floating)
        return builder_.constant(type, operand.floating());
    const auto as_signed = static_cast<std::int64_t>(operand.integer());
    if (is_float(dtype)) {
        return builder_.constant(type, is_negative(operand)
                                           ? static_cast<double>(as_signed)
                                           : static_cast<double>(operand.integer()));
    }
    if (dtype == boolean) return builder_.constant_int(type, operand.integer() != 0);
    return builder_.constant_int(type, as_signed);
}

DType Tracer::dtype(const Operand& operand) {
    return operand.is_literal() ? literal_dtype(operand) : type(use(operand.tile())).dtype;
}

ir::Shape Tracer::shape(const Operand& operand) {
    return operand.is_literal() ? ir::Shape() : type(use(operand.tile())).shape;
}

ir::Value Tracer::value(const Operand& operand) {
    return operand.is_literal() ? literal(operand, literal_dtype(operand)) : use(operand.tile());
}

ir::Value Tracer::value(const Operand& operand, DType dtype, const char* op) {
    return operand.is_literal() ? literal(operand, dtype, op)
                                : builder_.cast(use(operand.tile()), dtype);
}

ir::Value Tracer::broadcast(ir::Value value, const ir::Shape& shape, const char* op) {
    const ir::Shape from = type(value).shape;
    if (from == shape) return value;
    if (!broadcasts_to(from, shape)) {
        user_error(op, "expected a shape that broadcasts to {} but got {}", shape_text(shape),
                   shape_text(from));
    }
    if (from.rank() > 0) {
        for (int rank = from.rank(); rank < shape.rank(); ++rank) {
            value = builder_.expand_dims(value, 0);
        }
    }
    return builder_.broadcast(value, shape);
}

ir::Value Tracer::index_constant(std::int64_t value) {
    return builder_.constant_int({i64, {}}, value);
}

ir::Value Tracer::index(const Operand& operand, const char* op, std::string_view what) {
    const DType type = dtype(operand);
    const ir::Shape extents = shape(operand);
    if (!is_integer(type) || extents.rank() != 0) {
        user_error(op, "expected {} to be an integer scalar but got {}", what,
                   ir::to_string(ir::Type{type, extents}));
    }
    return value(operand, i64, op);
}

ir::Value Tracer::scaled_index(ir::Value index, std::int64_t factor, const ir::Interval& range) {
    if (factor == 1) return index;
    const std::int64_t most = INT64_MAX / 2 / std::max<std::int64_t>(factor, 1);
    const auto like_index = [&](std::int64_t number) {
        return builder_.broadcast(index_constant(number), type(index).shape);
    };
    if (!range.inside(-most, most)) {
        index = builder_.clamp(index, like_index(-most), like_index(most));
    }
    return builder_.binary(ir::Op::mul, index, like_index(factor));
}

DType Tracer::common_dtype(std::span<const Operand> operands) {
    std::optional<DType> common;
    for (const Operand& operand : operands) {
        if (operand.is_literal()) continue;
        common = common ? promote(*common, dtype(operand)) : dtype(operand);
    }
    // Literals come last, so that each one only follows the traced values or widens their kind.
    for (const Operand& operand : operands) {
        if (!operand.is_literal()) continue;
        common = common ? literal_dtype(operand, *common) : literal_dtype(operand);
    }
    return common.value_or(f32);
}

ir::Value Tracer::program_index(const GridAxis& axis) {
    return axis.index ? axis.index : builder_.program_id(axis.axis);
}

}  // namespace tilewright::lang

namespace tilewright::detail {

LineScope::LineScope(Source source) : outer_(lang::line_source) {
    lang::line_source = source;
}

LineScope::~LineScope() {
    lang::line_source = outer_;
}

SourceLine exchange_source_line(std::string_view file, int line) {
    const SourceLine wanted = line == 0 ? SourceLine() : SourceLine{interned(file).data(), line};
    return std::exchange(lang::foreign_line, wanted);
}

}  // namespace tilewright::detail

namespace tilewright {

bool is_tracing() {
    return lang::current_tracer != nullptr;
}

}  // namespace tilewright
