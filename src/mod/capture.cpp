// Captured arrays: access to their elements and rows inside a traced mod.
#include <algorithm>
#include <cctype>

#include "ir/passes/range_ops.h"
#include "mod/capture_table.h"

namespace tilewright {
namespace mod {
namespace {

thread_local CaptureTable* current_table = nullptr;

constexpr std::int64_t kLongestRow = 512;

/// The name of a capture in messages.
std::string quoted(const Capture& capture) {
    return capture.name().empty() ? "of type " + capture.tensor().type_name()
                                  : "`" + capture.name() + "`";
}

/// The literal as an index into an array of this extent, where negative ones count from the end;
/// UserError if it is outside.
std::int64_t literal_index(const Capture& capture, int dim, const Operand& literal) {
    const std::int64_t extent = capture.tensor().dim(dim);
    const auto index = static_cast<std::int64_t>(literal.integer());
    const bool unsigned_too_large = literal.kind() == Operand::Kind::unsigned_int && index < 0;
    if (index < -extent || index >= extent || unsigned_too_large) {
        user_error("capture",
                   "expected an index of {} to {} in dimension {} of capture {} but got {}",
                   -extent, extent - 1, dim, quoted(capture), lang::Tracer::text(literal));
    }
    return index < 0 ? index + extent : index;
}

/// The index as an i64 scalar, clamped to the dimension. With `wraps`, negative ones count from the
/// end; otherwise they become 0.
ir::Value inside_index(CaptureTable& table, const Capture& capture, ir::Value ref, int dim,
                       const Operand& operand, bool wraps) {
    lang::Tracer& tracer = table.tracer();
    const ir::Type type{tracer.dtype(operand), tracer.shape(operand)};
    if (!is_integer(type.dtype) || !type.is_scalar()) {
        user_error("capture", "expected an integer index in dimension {} of capture {} but got {}",
                   dim, quoted(capture), ir::to_string(type));
    }
    ir::Builder& builder = tracer.builder();
    const bool is_static = wraps && operand.is_literal();
    ir::Value index = is_static ? tracer.index_constant(literal_index(capture, dim, operand))
                                : tracer.value(operand, i64);
    wraps = wraps && !is_static && !table.is_natural(index);
    const ir::Value zero = tracer.index_constant(0);
    const ir::Value extent = builder.extent(ref, dim);
    if (table.attends()) {
        const ir::Value low = wraps ? builder.binary(ir::Op::sub, zero, extent) : zero;
        const ir::Value inside =
            builder.binary(ir::Op::bitwise_and, builder.binary(ir::Op::ge, index, low),
                           builder.binary(ir::Op::lt, index, extent));
        const ir::Value masked = builder.unary(ir::Op::bitwise_not, table.attends());
        builder.debug_check(builder.binary(ir::Op::bitwise_or, inside, masked),
                            fmt::format("index of dimension {} of capture {} is inside its {}", dim,
                                        quoted(capture),
                                        capture.tensor().dim(dim) == 1 ? "one element" : "extent"));
    }
    if (wraps) {
        index = builder.select(builder.binary(ir::Op::lt, index, zero),
                               builder.binary(ir::Op::add, index, extent), index);
    }
    return builder.clamp(index, zero,
                         builder.binary(ir::Op::sub, extent, tracer.index_constant(1)));
}

}  // namespace

CaptureTable::CaptureTable(lang::Tracer& tracer) : tracer_(tracer), outer_(current_table) {
    current_table = this;
}

CaptureTable::~CaptureTable() {
    current_table = outer_;
}

CaptureTable& CaptureTable::current() {
    if (!current_table) {
        user_error("capture", "expected a capture to be read inside a mod while it is traced");
    }
    return *current_table;
}

bool CaptureTable::is_natural(ir::Value value) {
    const ir::Function& function = tracer_.function();
    const auto range_of = [&](ir::Value v) {
        const auto found = ranges_.find(v);
        return found == ranges_.end() ? ir::Interval::all(function.type(v).dtype) : found->second;
    };
    // Blocks of loops and branches are not scanned: an unknown value may be negative.
    for (; scanned_ < function.body.body.size(); ++scanned_) {
        const ir::Instruction& made = function.body.body[scanned_];
        if (made.results.size() != 1 || function.is_ref(made.result())) continue;
        if (!is_integer(function.type(made.result()).dtype)) continue;
        ranges_.emplace(made.result(), ir::result_range(function, made, range_of));
    }
    const ir::Interval range = range_of(value);
    return range.any || range.low >= 0;
}

void CaptureTable::set_position(ir::Value position) {
    // More than any memory holds, yet small enough that sums and multiples fit in 64 bits.
    ranges_.emplace(position, ir::Interval::integers(0, std::int64_t{1} << 40));
}

/// The capture's name as an identifier.
std::string CaptureTable::parameter_name(const Capture& capture) const {
    if (capture.name().empty()) return fmt::format("capture{}", captures_.size());
    std::string name = capture.name();
    for (char& c : name) {
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    }
    return std::isdigit(static_cast<unsigned char>(name[0])) ? "_" + name : name;
}

ir::Value CaptureTable::ref(const Capture& capture) {
    const auto found = std::find(captures_.begin(), captures_.end(), capture);
    const std::size_t place = found - captures_.begin();
    const Tensor& tensor = capture.tensor();
    if (found == captures_.end()) {
        const ir::RefType type{tensor.dtype(),
                               Tensor::Dims(static_cast<std::size_t>(tensor.rank()), kDynamic),
                               ir::Space::global, -1};
        refs_.push_back(tracer_.function().add_parameter(type, parameter_name(capture)));
        captures_.push_back(capture);
    }
    return refs_[place];
}

}  // namespace mod

Capture capture(Tensor tensor, std::string name, bool differentiable) {
    if (!tensor.defined()) user_error("capture", "expected a tensor but it is undefined");
    if (tensor.rank() > ir::kMaxRefRank) {
        user_error("capture", "expected an array of rank <= {} but got {}", ir::kMaxRefRank,
                   tensor.type_name());
    }
    Capture result;
    const bool has_gradient = differentiable && is_float(tensor.dtype());
    result.state_ = std::make_shared<const Capture::State>(
        Capture::State{std::move(tensor), std::move(name), has_gradient});
    return result;
}

Tile Capture::element(const std::vector<Operand>& indices, Negative negative) const {
    mod::CaptureTable& table = mod::CaptureTable::current();
    lang::Tracer& tracer = table.tracer();
    const auto location = indices.empty() ? std::source_location{} : indices.front().location();
    return tracer.at(location, [&] {
        if (static_cast<int>(indices.size()) != tensor().rank()) {
            user_error("capture", "expected {} indices for capture {} of type {} but got {}",
                       tensor().rank(), mod::quoted(*this), tensor().type_name(), indices.size());
        }
        const ir::Value ref = table.ref(*this);
        std::vector<ir::IndexOperand> operands;
        for (std::size_t d = 0; d < indices.size(); ++d) {
            operands.push_back(ir::IndexOperand::scalar(
                mod::inside_index(table, *this, ref, static_cast<int>(d), indices[d],
                                  negative == Negative::from_end)));
        }
        return tracer.wrap(tracer.builder().load(ref, operands));
    });
}

Tile Capture::extent(int dim) const {
    mod::CaptureTable& table = mod::CaptureTable::current();
    lang::Tracer& tracer = table.tracer();
    return tracer.at({}, [&] {
        if (dim < 0 || dim >= tensor().rank())
            user_error("capture", "expected a dimension of capture {} of type {} but got {}",
                       mod::quoted(*this), tensor().type_name(), dim);
        return tracer.wrap(tracer.builder().extent(table.ref(*this), dim));
    });
}

Row Capture::row_of(const std::vector<Operand>& indices) const {
    const int rank = tensor().rank();
    if (rank == 0 || static_cast<int>(indices.size()) != rank - 1) {
        user_error("capture", "expected {} indices for a row of capture {} of type {} but got {}",
                   std::max(rank - 1, 0), mod::quoted(*this), tensor().type_name(), indices.size());
    }
    if (tensor().dim(-1) > mod::kLongestRow) {
        user_error("capture", "expected a row of at most {} elements but capture {} is {}",
                   mod::kLongestRow, mod::quoted(*this), tensor().type_name());
    }
    std::vector<Tile> elements;
    std::vector<Operand> at = indices;
    at.emplace_back(0);
    for (std::int64_t i = 0; i < tensor().dim(-1); ++i) {
        at.back() = Operand(i);
        elements.push_back(element(at));
    }
    return Row(std::move(elements));
}

namespace {

template <typename Combine>
Row zipped(const char* op, const Row& a, const Row& b, Combine combine) {
    if (a.size() != b.size()) {
        user_error(op, "expected rows of one size but got {} and {} elements", a.size(), b.size());
    }
    std::vector<Tile> elements;
    for (std::size_t i = 0; i < a.size(); ++i) elements.push_back(combine(a[i], b[i]));
    return Row(std::move(elements));
}

template <typename Combine>
Tile folded(const char* op, const Row& a, Combine combine) {
    if (a.size() == 0) user_error(op, "expected a row of at least one element but it is empty");
    Tile result = a[0];
    for (std::size_t i = 1; i < a.size(); ++i) result = combine(result, a[i]);
    return result;
}

}  // namespace

Row operator+(const Row& a, const Row& b) {
    return zipped("add", a, b, [](Tile x, Tile y) { return x + y; });
}
Row operator-(const Row& a, const Row& b) {
    return zipped("sub", a, b, [](Tile x, Tile y) { return x - y; });
}
Row operator*(const Row& a, const Row& b) {
    return zipped("mul", a, b, [](Tile x, Tile y) { return x * y; });
}
Row operator*(const Row& a, Operand b) {
    std::vector<Tile> elements;
    for (const Tile& x : a) elements.push_back(x * b);
    return Row(std::move(elements));
}
Row operator*(Operand a, const Row& b) {
    return b * a;
}
Tile sum(const Row& a) {
    return folded("sum", a, [](Tile x, Tile y) { return x + y; });
}
Tile max(const Row& a) {
    return folded("max", a, [](Tile x, Tile y) { return maximum(x, y); });
}
Tile dot(const Row& a, const Row& b) {
    return sum(a * b);
}

}  // namespace tilewright
