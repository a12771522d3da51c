// Typing: the only place that says which operands an op takes and which type its result has.
#include <algorithm>

#include "ir/access.h"
#include "ir/builder.h"
#include "ir/infer_checks.h"

namespace tilewright::ir {
namespace {

class Inference : private InferChecks {
  public:
    using InferChecks::InferChecks;

    std::vector<Type> run() {
        check_blocks();
        const Op op = instruction_.op;
        switch (info(op).op_class) {
            case OpClass::source:
                return {source()};
            case OpClass::memory:
                return memory();
            case OpClass::unary:
            case OpClass::binary:
            case OpClass::comparison:
            case OpClass::ternary:
                return {elementwise()};
            case OpClass::convert:
                return {convert()};
            case OpClass::shape:
                return {shape_op()};
            case OpClass::lanes:
                if (op == Op::associative_scan) return associative_scan();
                return {lanes()};
            case OpClass::other:
                return other();
            case OpClass::control:
                return infer_control(function_, instruction_);
        }
        TW_ASSERT(false, "no typing rule for {}", name(op));
    }

  private:
    void check_blocks() const {
        const std::size_t expected = instruction_.op == Op::for_loop     ? 1
                                     : instruction_.op == Op::while_loop ? 2
                                     : instruction_.op == Op::if_else    ? 2
                                                                         : 0;
        if (instruction_.blocks.size() != expected) {
            fail("expected {} blocks but got {}", expected, instruction_.blocks.size());
        }
    }

    // ---- One function per class of ops.

    Type source() const {
        switch (instruction_.op) {
            case Op::constant:
                want_count(0);
                attributes<ConstantAttributes>();
                return requested();
            case Op::iota:
                want_count(0);
                want_accepted(requested().dtype, "a result");
                want_axis(attributes<AxisAttributes>().axis, requested().shape.rank());
                return requested();
            case Op::extent:
                want_count(1);
                want_axis(attributes<AxisAttributes>().axis, ref(instruction_.operands[0]).rank());
                return {DType::i64, {}};
            default:  // program_id, num_programs
                want_count(0);
                want_axis(attributes<AxisAttributes>().axis,
                          static_cast<int>(function_.grid.size()));
                return {DType::i64, {}};
        }
    }

    std::vector<Type> memory() const {
        const Op op = instruction_.op;
        attributes<AccessAttributes>();
        const Access operands = access(instruction_);
        const RefType& array = ref(operands.ref);
        check_indices(operands, array);
        const Type lanes{array.dtype, access_shape(function_, instruction_).shape};

        if (op != Op::load && op != Op::store) check_atomic_dtype(array.dtype);
        constexpr std::string_view kCasRoles[] = {"expected", "desired"};
        for (std::size_t i = 0; i < operands.values.size(); ++i) {
            const std::string_view role = op == Op::atomic_cas ? kCasRoles[i] : "value";
            want_type(type(operands.values[i], role), lanes, role);
        }
        if (operands.mask) want_mask(operands.mask, lanes.shape);
        if (operands.other) {
            const Type& got = type(operands.other, "other");
            if (!got.is_scalar()) want_type(got, lanes, "other");
            if (got.is_scalar()) want_type(got, {array.dtype, {}}, "other");
        }
        if (op == Op::store) return {};
        return {lanes};
    }

    void check_indices(const Access& operands, const RefType& array) const {
        const auto& indices = instruction_.get<AccessAttributes>().indices;
        if (static_cast<int>(indices.size()) != array.rank()) {
            fail("expected {} indices for {} but got {}", array.rank(), to_string(array),
                 indices.size());
        }
        for (std::size_t i = 0; i < indices.size(); ++i) {
            const Index& index = indices[i];
            const Type& got = type(operands.indices[i], "index");
            if (index.kind == Index::Kind::tile) {
                if (got.is_scalar() || !is_integer(got.dtype)) {
                    fail("expected an integer tile as index {} but got {}", i, to_string(got));
                }
                continue;
            }
            want_index(got, "index");
            // Without the bound, sums of starts and steps below could wrap back into an array.
            constexpr std::int64_t kMost = std::int64_t{1} << 40;
            if (index.kind == Index::Kind::slice &&
                (index.size < 0 || index.stride < 1 ||
                 index.stride > kMost / std::max<std::int64_t>(index.size, 1))) {
                fail(
                    "expected a slice of size >= 0 and stride >= 1 with size * stride at most 2^40 "
                    "at index {} but got {}:{}",
                    i, index.size, index.stride);
            }
        }
    }

    void check_atomic_dtype(DType dtype) const {
        const bool half_add =
            instruction_.op == Op::atomic_add && (dtype == DType::f16 || dtype == DType::bf16);
        if (dtype != DType::boolean && (size_of(dtype) >= 4 || half_add)) return;
        fail("expected a Ref of a 4- or 8-byte dtype (f16 and bf16 for atomic_add) but got {}",
             name(dtype));
    }

    Type elementwise() const {
        const Op op = instruction_.op;
        const OpClass op_class = info(op).op_class;
        const std::size_t arity = op_class == OpClass::unary     ? 1
                                  : op_class == OpClass::ternary ? 3
                                                                 : 2;
        want_count(arity);
        if (op == Op::select) return select();
        const Type& first = operand(0, "operand 0");
        want_accepted(first.dtype, "operands");
        constexpr std::string_view kRoles[] = {"operand 0", "operand 1", "operand 2"};
        for (std::size_t i = 1; i < arity; ++i) want_type(operand(i, kRoles[i]), first, kRoles[i]);
        const bool gives_bool = op_class == OpClass::comparison || op == Op::isnan;
        return {gives_bool ? DType::boolean : first.dtype, first.shape};
    }

    Type select() const {
        const Type& condition = operand(0, "condition");
        const Type& result = operand(1, "if_true");
        want_type(operand(2, "if_false"), result, "if_false");
        const bool fits = condition.is_scalar() || condition.shape == result.shape;
        if (condition.dtype != DType::boolean || !fits) {
            fail("expected a condition of type {} (or a bool scalar) but got {}",
                 to_string(Type{DType::boolean, result.shape}), to_string(condition));
        }
        return result;
    }

    Type convert() const {
        want_count(1);
        const Type& from = operand(0, "operand");
        const Type& to = requested();
        want_accepted(from.dtype, "an operand");
        want_accepted(to.dtype, "a result");
        if (from.shape != to.shape) {
            fail("expected a result of the operand's shape {} but got {}", to_string(from),
                 to_string(to));
        }
        if (instruction_.op == Op::bitcast && size_of(from.dtype) != size_of(to.dtype)) {
            fail("expected dtypes of one width but got {} and {}", name(from.dtype),
                 name(to.dtype));
        }
        return to;
    }

    Type shape_op() const {
        if (instruction_.op == Op::concatenate) return concatenate();
        want_count(1);
        const Type& from = operand(0, "operand");
        switch (instruction_.op) {
            case Op::broadcast:
                return broadcast(from);
            case Op::reshape:
                return reshape(from);
            case Op::transpose:
                return transpose(from);
            case Op::expand_dims: {
                const int axis = attributes<AxisAttributes>().axis;
                want_axis(axis, from.shape.rank() + 1);
                if (from.shape.rank() == kMaxTileRank) {
                    fail("expected a tile of rank below {} but got {}", kMaxTileRank,
                         to_string(from));
                }
                return {from.dtype, from.shape.with_inserted(axis, 1)};
            }
            default:
                return slice(from);
        }
    }

    Type broadcast(const Type& from) const {
        const Type& to = requested();
        bool fits =
            from.dtype == to.dtype && (from.is_scalar() || from.shape.rank() == to.shape.rank());
        for (int axis = 0; fits && axis < from.shape.rank(); ++axis) {
            fits = from.shape[axis] == to.shape[axis] || from.shape[axis] == 1;
        }
        if (!fits) {
            fail(
                "expected a scalar, or a tile of equal rank whose differing extents are 1, for {} "
                "but got {}",
                to_string(to), to_string(from));
        }
        return to;
    }

    Type reshape(const Type& from) const {
        const Type& to = requested();
        if (from.dtype != to.dtype || from.shape.size() != to.shape.size()) {
            fail("expected a result with the {} elements of {} but got {}", from.shape.size(),
                 to_string(from), to_string(to));
        }
        return to;
    }

    Type transpose(const Type& from) const {
        const auto& permutation = attributes<PermutationAttributes>().permutation;
        std::vector<int> sorted = permutation;
        std::sort(sorted.begin(), sorted.end());
        bool fits = static_cast<int>(sorted.size()) == from.shape.rank();
        for (std::size_t i = 0; fits && i < sorted.size(); ++i) {
            fits = sorted[i] == static_cast<int>(i);
        }
        if (!fits) {
            fail("expected a permutation of the {} axes of {} but got [{}]", from.shape.rank(),
                 to_string(from), fmt::join(permutation, ", "));
        }
        Type result = from;
        for (int axis = 0; axis < from.shape.rank(); ++axis) {
            result.shape[axis] = from.shape[permutation[axis]];
        }
        return result;
    }

    Type slice(const Type& from) const {
        const auto& [starts, sizes, strides] = attributes<SliceAttributes>();
        const std::size_t rank = from.shape.rank();
        if (starts.size() != rank || sizes.size() != rank || strides.size() != rank) {
            fail("expected {} starts, sizes and strides for {} but got {}, {} and {}", rank,
                 to_string(from), starts.size(), sizes.size(), strides.size());
        }
        for (std::size_t i = 0; i < rank; ++i) {
            const std::int64_t dim = from.shape[i];
            const bool fits =
                starts[i] >= 0 && sizes[i] >= 0 && strides[i] >= 1 && starts[i] <= dim &&
                sizes[i] <= dim &&
                (sizes[i] == 0 || (sizes[i] - 1) <= (dim - 1 - starts[i]) / strides[i]);
            if (!fits || (sizes[i] > 0 && starts[i] >= dim)) {
                fail(
                    "expected a slice within {} along axis {} but got start {}, size {}, stride {}",
                    to_string(from), i, starts[i], sizes[i], strides[i]);
            }
        }
        return {from.dtype, Shape(sizes)};
    }

    Type concatenate() const {
        const int axis = attributes<AxisAttributes>().axis;
        if (count() == 0) fail("expected at least one operand but got none");
        Type result = operand(0, "operand");
        want_axis(axis, result.shape.rank());
        for (std::size_t i = 1; i < count(); ++i) {
            const Type& part = operand(i, "operand");
            Type expected = result;
            if (part.shape.rank() == result.shape.rank()) expected.shape[axis] = part.shape[axis];
            if (part != expected) {
                fail("expected parts that differ from {} along axis {} only but got {}",
                     to_string(operand(0, "operand")), axis, to_string(part));
            }
            result.shape[axis] += part.shape[axis];
        }
        return {result.dtype, Shape(result.shape.dims())};
    }

    // The kind of a reduction decides which dtypes it takes, for reduce and scan alike.
    void want_reducible(Reduction kind, DType dtype) const {
        const bool logical = kind == Reduction::any || kind == Reduction::all;
        const bool ordered = kind == Reduction::max || kind == Reduction::min;
        const bool floats = kind == Reduction::logsumexp;
        const bool fits = floats                    ? is_float(dtype)
                          : dtype == DType::boolean ? logical || ordered
                                                    : !logical;
        if (!fits) {
            fail("expected {} for {} but got {}",
                 logical  ? "bool"
                 : floats ? "a float"
                          : "a number",
                 name(kind), name(dtype));
        }
    }

    Type reduce() const {
        want_count(1);
        const Type& from = operand(0, "operand");
        const auto& attributes_ = attributes<ReduceAttributes>();
        want_axis(attributes_.axis, from.shape.rank());
        want_reducible(attributes_.kind, from.dtype);
        const bool gives_index =
            attributes_.kind == Reduction::argmax || attributes_.kind == Reduction::argmin;
        if (gives_index && from.shape[attributes_.axis] < 1) {
            fail("expected at least one element along axis {} for {} but got {}", attributes_.axis,
                 name(attributes_.kind), to_string(from));
        }
        if (attributes_.reverse || attributes_.exclusive) {
            fail("expected neither reverse nor exclusive: they belong to scan");
        }
        if (attributes_.kind == Reduction::logsumexp) {
            fail("expected a kind of reduction but got logsumexp, which is one of scans");
        }
        return {gives_index ? DType::i32 : from.dtype, from.shape.without(attributes_.axis)};
    }

    Type scan() const {
        want_count(1);
        const Type& from = operand(0, "operand");
        const auto& attributes_ = attributes<ReduceAttributes>();
        want_axis(attributes_.axis, from.shape.rank());
        want_reducible(attributes_.kind, from.dtype);
        if (attributes_.kind == Reduction::argmax || attributes_.kind == Reduction::argmin) {
            fail("expected sum, prod, max, min, any, all or logsumexp but got {}",
                 name(attributes_.kind));
        }
        return from;
    }

    std::vector<Type> associative_scan() const {
        const auto& [combine, axis, reverse] = attributes<CombineAttributes>();
        if (combine == nullptr) fail("expected a function that combines elements but got none");
        if (combine->body.body.empty() || combine->body.terminator().op != Op::yield) {
            fail("expected @{} to end in yield", combine->name);
        }
        const std::vector<Value>& yielded = combine->body.terminator().operands;
        const std::vector<Value>& parameters = combine->parameters();
        const std::size_t n = yielded.size();
        if (n == 0 || count() < n) {
            fail("expected an operand for each of the {} values of @{}, at least 1, but got {}", n,
                 combine->name, count());
        }
        if (parameters.size() != n + count()) {
            fail(
                "expected @{} to have {} parameters, twice {} elements and {} other values, "
                "but got {}",
                combine->name, n + count(), n, count() - n, parameters.size());
        }
        const auto want_scalar = [&](Value value, DType dtype, std::string_view role) {
            if (combine->is_ref(value)) fail("expected no Ref as {} of @{}", role, combine->name);
            const Type& got = combine->type(value);
            if (got == Type{dtype, {}}) return;
            fail("expected {} of @{} to be {} but got {}", role, combine->name, name(dtype),
                 to_string(got));
        };
        std::vector<Type> results;
        for (std::size_t i = 0; i < n; ++i) {
            const Type& from = operand(i, "operand");
            if (i == 0) want_axis(axis, from.shape.rank());
            if (i > 0) want_type(from, {from.dtype, results[0].shape}, "operand");
            want_scalar(parameters[i], from.dtype, "a parameter");
            want_scalar(parameters[n + i], from.dtype, "a parameter");
            want_scalar(yielded[i], from.dtype, "a result");
            results.push_back(from);
        }
        for (std::size_t i = n; i < count(); ++i) {
            const Type& from = operand(i, "captured value");
            want_type(from, {from.dtype, {}}, "captured value");
            want_scalar(parameters[n + i], from.dtype, "a parameter");
        }
        return results;
    }

    Type lanes() const {
        switch (instruction_.op) {
            case Op::reduce:
                return reduce();
            case Op::scan:
                return scan();
            case Op::dot:
                return dot();
            default:
                return sort();
        }
    }

    Type sort() const {
        want_count(1);
        const Type& from = operand(0, "operand");
        const auto& attributes_ = attributes<SortAttributes>();
        want_axis(attributes_.axis, from.shape.rank());
        want_accepted(from.dtype, "an operand");
        const std::int64_t extent = from.shape[attributes_.axis];
        if (attributes_.count < 0 || attributes_.count > extent) {
            fail("expected a count from 0 to {} but got {}", extent, attributes_.count);
        }
        Type result{instruction_.op == Op::sort ? from.dtype : DType::i32, from.shape};
        result.shape[attributes_.axis] = attributes_.count;
        return result;
    }

    Type dot() const {
        want_count(2, 3);
        const Type& a = operand(0, "a");
        const Type& b = operand(1, "b");
        const auto& flags = attributes<DotAttributes>();
        want_accepted(a.dtype, "a");
        const auto is_byte = [](DType dtype) { return dtype == DType::i8 || dtype == DType::u8; };
        if (a.dtype != b.dtype && !(is_byte(a.dtype) && is_byte(b.dtype))) {
            fail("expected b of dtype {} like a but got {}", name(a.dtype), name(b.dtype));
        }
        const int rank = a.shape.rank();
        if ((rank != 2 && rank != 3) || b.shape.rank() != rank) {
            fail("expected a and b of equal rank 2 or 3 but got {} and {}", to_string(a),
                 to_string(b));
        }
        if (flags.precision != Precision::ieee && a.dtype != DType::f32) {
            fail("expected f32 operands for precision {} but got {}", name(flags.precision),
                 name(a.dtype));
        }
        if (rank == 3 && a.shape[0] != b.shape[0]) {
            fail("expected b with batch {} to match a {} but got {}", a.shape[0], to_string(a),
                 to_string(b));
        }
        const int row = rank - 2, column = rank - 1;
        const std::int64_t m = a.shape[flags.transpose_a ? column : row];
        const std::int64_t k = a.shape[flags.transpose_a ? row : column];
        const std::int64_t k_b = b.shape[flags.transpose_b ? column : row];
        const std::int64_t n = b.shape[flags.transpose_b ? row : column];
        if (k != k_b) {
            fail("expected b with {} {} to match a {}{} but got {}", k,
                 flags.transpose_b ? "columns (transposed)" : "rows", to_string(a),
                 flags.transpose_a ? " (transposed)" : "", to_string(b));
        }
        Type result{dot_result(a.dtype), a.shape};
        result.shape[row] = m;
        result.shape[column] = n;
        if (count() == 3) want_type(operand(2, "acc"), result, "acc");
        return {result.dtype, Shape(result.shape.dims())};
    }

    std::vector<Type> other() const {
        switch (instruction_.op) {
            case Op::random_bits: {
                want_count(2);
                want_type(operand(0, "key"), {DType::u64, {}}, "key");
                const Type& counter = operand(1, "counter");
                want_type(counter, {DType::u64, counter.shape}, "counter");
                return {{DType::u32, counter.shape}};
            }
            case Op::debug_print: {
                const std::string& format = attributes<TextAttributes>().text;
                for (std::size_t i = 0; i < count(); ++i) operand(i, "operand");
                std::size_t holes = 0;
                for (std::size_t at = format.find("{}"); at != std::string::npos;
                     at = format.find("{}", at + 2)) {
                    ++holes;
                }
                if (holes != count()) {
                    fail("expected {} operands for \"{}\" but got {}", holes, format, count());
                }
                return {};
            }
            default:  // debug_check
                want_count(1);
                attributes<TextAttributes>();
                want_accepted(operand(0, "condition").dtype, "a condition");
                return {};
        }
    }
};

}  // namespace

DType dot_result(DType operand) {
    switch (operand) {
        case DType::f16:
        case DType::bf16:
        case DType::f8e4m3:
        case DType::f8e5m2:
            return DType::f32;
        case DType::i8:
        case DType::u8:
            return DType::i32;
        default:
            return operand;
    }
}

std::vector<Type> infer_types(const Function& function, const Instruction& instruction,
                              const Type* requested) {
    return Inference(function, instruction, requested).run();
}

}  // namespace tilewright::ir
