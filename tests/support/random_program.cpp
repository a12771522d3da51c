// Random verified tile programs.
#include "tests/support/random_program.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/builder.h"
#include "ir/evaluate.h"
#include "ir/verify.h"
#include "tests/support/random.h"

namespace tilewright::testing {
namespace {

using namespace ir;

// f32 and i32 are more frequent than others.
constexpr DType kDTypes[] = {boolean, i8,  u8,   i16, u16, i32, i32,    u32,   i64,
                             u64,     f16, bf16, f32, f32, f64, f8e4m3, f8e5m2};
constexpr int kMaxRank = 6;  // no array exceeds 8 with the axes of the grid
constexpr std::int64_t kDims[] = {1, 2, 3, 4, 5, 8};

class Generator {
  public:
    Generator(Function& function, Random& random, const RandomProgramOptions& options)
        : function_(function), b_(function), random_(random), options_(options) {}

    void kernel() {
        function_.name = "random";
        for (std::int64_t axes = random_.between(0, 2); axes > 0; --axes) {
            function_.grid.push_back(random_.between(1, 3));
        }
        for (int rank = 0; rank <= 3; ++rank) add_input(rank);
        if (random_.chance(50)) function_.add_parameter(Type{random_.pick(kDTypes), {}}, "scalar");
        zero_ = b_.constant_int({i64, {}}, 0);
        one_ = b_.constant_int({i64, {}}, 1);
        for (int axis = 0; axis < static_cast<int>(function_.grid.size()); ++axis) {
            ids_.push_back(b_.program_id(axis));
        }
        pool_ = ids_;
        for (Value parameter : function_.parameters()) {
            if (!function_.is_ref(parameter)) pool_.push_back(parameter);
        }
        if (options_.memory && random_.chance(50)) add_scratch();
        steps(options_.instructions, 0);
        for (int i = 0; i < 3 && !pool_.empty(); ++i) store_new(random_.pick(pool_));
        b_.yield({});
    }

    // Scalars in, one scalar out.
    void mod(std::span<const DType> parameters) {
        function_.name = "mod";
        for (DType dtype : parameters) {
            pool_.push_back(function_.add_parameter(Type{dtype, {}}, ""));
        }
        scalars_only_ = true;
        for (int i = 0; i < 6; ++i) elementwise();
        const Value result[] = {pool_.back()};
        b_.yield(result);
    }

  private:
    struct Target {
        Value ref;
        Shape shape;  // of one program's part
        bool owned;   // whether leading dimensions are the grid's
    };

    bool floats_round_once(Op op) const {
        switch (op) {
            case Op::neg:
            case Op::abs:
            case Op::sign:
            case Op::floor:
            case Op::ceil:
            case Op::round:
            case Op::isnan:
            case Op::sqrt:
            case Op::add:
            case Op::sub:
            case Op::min:
            case Op::max:
            case Op::clamp:
            case Op::cast:
            case Op::select:
                return true;
            default:
                return info(op).op_class == OpClass::comparison;
        }
    }

    bool allowed(Op op, DType dtype) const {
        return accepts(op, dtype) && !(options_.exact && is_float(dtype) && !floats_round_once(op));
    }

    Shape random_shape() {
        if (scalars_only_) return {};
        std::vector<std::int64_t> dims;
        for (std::int64_t rank = random_.between(0, 3); rank > 0; --rank) {
            dims.push_back(random_.pick(kDims));
        }
        // Many axes, most of them of one element.
        while (random_.chance(30) && dims.size() < kMaxRank) {
            const auto at = random_.below(static_cast<std::int64_t>(dims.size()) + 1);
            dims.insert(dims.begin() + at, random_.chance(25) ? 2 : 1);
        }
        return Shape(dims);
    }

    const Type& type(Value value) const { return function_.type(value); }

    // ---- Values of a wanted type.

    Value constant(const Type& type) {
        if (type.dtype == boolean) return b_.constant(type, random_.chance(50));
        if (is_float(type.dtype)) {
            const double odd[] = {0.0, -0.0, std::numeric_limits<double>::infinity(), 448.0};
            return b_.constant(
                type, random_.chance(10) ? random_.pick(odd) : 0.25 * random_.between(-40, 40));
        }
        if (size_of(type.dtype) > 1 && random_.chance(10)) {
            return b_.constant_int(type, random_.between(200, 30000));
        }
        return b_.constant_int(type, random_.between(is_signed(type.dtype) ? -9 : 0, 100));
    }

    Value any() {
        return pool_.empty() ? constant({random_.pick(kDTypes), {}}) : random_.pick(pool_);
    }

    template <typename Predicate>
    Value any_where(Predicate&& fits, const Type& otherwise) {
        std::vector<Value> candidates;
        for (Value value : pool_) {
            if (fits(type(value))) candidates.push_back(value);
        }
        if (candidates.empty()) return constant(otherwise);
        return random_.pick(candidates);
    }

    // A value of exactly this type: from the pool, converted, or a constant.
    Value of_type(const Type& wanted) {
        if (random_.chance(15)) return constant(wanted);
        if (random_.chance(40)) {
            const Value other = any_where([&](const Type& t) { return t == wanted; }, wanted);
            return other;
        }
        const Value source = any_where(
            [&](const Type& t) { return t.is_scalar() || t.shape == wanted.shape; }, wanted);
        return b_.broadcast(b_.cast(source, wanted.dtype), wanted.shape);
    }

    Value add(Value value) {
        pool_.push_back(value);
        return value;
    }

    // ---- One random instruction.

    void steps(int count, int depth) {
        for (int i = 0; i < count; ++i) {
            const std::int64_t roll = random_.below(100);
            if (roll < 45) {
                elementwise();
            } else if (roll < 60) {
                shape_op();
            } else if (roll < 72) {
                across_lanes();
            } else if (roll < 80) {
                load();
            } else if (roll < 88) {
                store();
            } else if (roll < 91) {
                source();
            } else if (options_.control_flow && depth < 3) {
                control(depth);
            }
        }
    }

    void source() {
        const Type wanted{random_.pick(kDTypes), random_shape()};
        if (wanted.shape.rank() > 0 && wanted.dtype != boolean && random_.chance(60)) {
            add(b_.iota(wanted, static_cast<int>(random_.below(wanted.shape.rank()))));
        } else {
            add(constant(wanted));
        }
    }

    void elementwise() {
        const Op op = static_cast<Op>(random_.below(kNumOps));
        const OpClass op_class = info(op).op_class;
        if (!is_elementwise(op)) return elementwise();
        const Value a = any();
        const Type at = type(a);
        if (op == Op::cast) return cast(a);
        if (!allowed(op, at.dtype)) return;
        if (op == Op::bitcast) return bitcast(a);
        if (op_class == OpClass::unary) {
            add(b_.unary(op, a));
        } else if (op == Op::select) {
            const Shape shape = random_.chance(30) ? Shape{} : at.shape;
            add(b_.select(of_type({boolean, shape}), a, of_type(at)));
        } else if (op == Op::clamp) {
            add(b_.clamp(a, of_type(at), of_type(at)));
        } else if (op == Op::fma) {
            add(b_.fma(a, of_type(at), of_type(at)));
        } else {
            add(b_.binary(op, a, of_type(at)));
        }
    }

    void cast(Value a) {
        Value result = b_.cast(a, random_.pick(kDTypes));
        if (random_.chance(50)) {
            // Through a float: out of range values saturate on the way back, a direct cast wraps.
            const DType floats[] = {f32, f64}, integers[] = {i8, u8, i16, u16};
            const Value source =
                any_where([](const Type& t) { return is_integer(t.dtype); }, {i16, random_shape()});
            result = b_.cast(b_.cast(source, random_.pick(floats)), random_.pick(integers));
        }
        add(result);
    }

    void bitcast(Value a) {
        const DType to = random_.pick(kDTypes);
        const bool fits = to != boolean && size_of(to) == size_of(type(a).dtype) &&
                          !(options_.exact && (is_float(to) || is_float(type(a).dtype)));
        if (fits) add(b_.bitcast(a, to));
    }

    void shape_op() {
        const Value a = any();
        const Shape shape = type(a).shape;
        const int rank = shape.rank();
        switch (random_.below(6)) {
            case 0: {
                if (rank == 0) return void(add(b_.broadcast(a, random_shape())));
                Shape wide = shape;
                for (int axis = 0; axis < rank; ++axis) {
                    if (wide[axis] == 1) wide[axis] = random_.pick(kDims);
                }
                return void(add(b_.broadcast(a, wide)));
            }
            case 1: {
                if (rank == 0) return;
                return void(add(b_.reshape(
                    a, random_.chance(50) ? Shape{shape.size()} : Shape{shape.size(), 1})));
            }
            case 2: {
                std::vector<int> permutation;
                for (int axis = 0; axis < rank; ++axis) {
                    permutation.insert(permutation.begin() + random_.below(axis + 1), axis);
                }
                return void(add(b_.transpose(a, permutation)));
            }
            case 3:
                if (rank < kMaxRank)
                    add(b_.expand_dims(a, static_cast<int>(random_.below(rank + 1))));
                return;
            case 4: {
                SliceAttributes slice;
                for (std::int64_t dim : shape.dims()) {
                    slice.starts.push_back(random_.below(dim));
                    slice.strides.push_back(random_.between(1, 2));
                    const std::int64_t fit = (dim - 1 - slice.starts.back()) / slice.strides.back();
                    slice.sizes.push_back(random_.between(1, fit + 1));
                }
                return void(add(b_.slice(a, slice)));
            }
            default: {
                if (rank == 0 || shape.size() > 200) return;
                const Value parts[] = {a, of_type(type(a))};
                return void(add(b_.concatenate(parts, static_cast<int>(random_.below(rank)))));
            }
        }
    }

    void across_lanes() {
        if (random_.chance(10)) {
            const Shape shape = random_shape();
            return void(add(b_.random_bits(of_type({u64, {}}), of_type({u64, shape}))));
        }
        if (random_.chance(30)) return dot();
        const Value a = any_where([](const Type& t) { return t.shape.rank() > 0; }, {i32, {3, 4}});
        // Not logsumexp, which is only for scans of floats and is never exact.
        const auto kind = static_cast<Reduction>(random_.below(kNumReductions - 1));
        const bool logical = kind == Reduction::any || kind == Reduction::all;
        const bool extreme = kind == Reduction::max || kind == Reduction::min;
        const bool index = kind == Reduction::argmax || kind == Reduction::argmin;
        if (type(a).dtype == boolean ? !(logical || extreme) : logical) return;
        if (options_.exact && is_float(type(a).dtype) && !extreme && !index) return;
        const int axis = static_cast<int>(random_.below(type(a).shape.rank()));
        if (index && random_.chance(50)) {
            const auto extent = static_cast<std::uint64_t>(type(a).shape[axis]);
            const auto count = static_cast<std::int64_t>(1 + random_.below(extent));
            const SortAttributes how{axis, count, random_.chance(50)};
            return void(add(random_.chance(50) ? b_.sort(a, how) : b_.argsort(a, how)));
        }
        if (random_.chance(70) || index) return void(add(b_.reduce(kind, a, axis)));
        if (extreme && random_.chance(50)) return associative_scan(a, axis);
        add(b_.scan(kind, a, axis, random_.chance(50), random_.chance(50)));
    }

    /// With functions whose results do not depend on the association.
    void associative_scan(Value a, int axis) {
        const DType dtype = type(a).dtype;
        const bool is_pair = is_integer(dtype) && random_.chance(50);
        const bool captures = !is_pair && random_.chance(50);
        auto mod = std::make_shared<Function>();
        mod->name = "combine";
        const auto parameter = [&] { return mod->add_parameter(Type{dtype, {}}, ""); };
        const Value first = parameter(), second = parameter();
        Builder inner(*mod);
        std::vector<Value> operands = {a}, yielded;
        if (is_pair) {
            // Affine maps x -> first x + second, one after the other.
            const Value third = parameter(), fourth = parameter();
            operands.push_back(of_type(type(a)));
            yielded = {inner.binary(Op::mul, first, third),
                       inner.binary(Op::add, inner.binary(Op::mul, second, third), fourth)};
        } else {
            yielded = {inner.binary(random_.chance(50) ? Op::max : Op::min, first, second)};
            if (captures) {
                operands.push_back(of_type({dtype, {}}));
                yielded = {inner.binary(Op::max, yielded[0], parameter())};
            }
        }
        inner.yield(yielded);
        for (const Value result :
             b_.associative_scan(std::move(mod), operands, axis, random_.chance(50)))
            add(result);
    }

    void dot() {
        const Value a = any_where(
            [&](const Type& t) {
                return t.shape.rank() == 2 && t.dtype != boolean && t.shape.size() <= 200 &&
                       !(options_.exact && is_float(t.dtype));
            },
            {i32, {3, 4}});
        const Shape shape = type(a).shape;
        const std::int64_t n = random_.pick(kDims);
        DotAttributes flags;
        flags.transpose_a = random_.chance(30);
        flags.transpose_b = random_.chance(30);
        const std::int64_t k = shape[flags.transpose_a ? 0 : 1];
        const std::int64_t m = shape[flags.transpose_a ? 1 : 0];
        const Value b = of_type({type(a).dtype, flags.transpose_b ? Shape{n, k} : Shape{k, n}});
        const Value acc =
            random_.chance(40) ? of_type({dot_result(type(a).dtype), {m, n}}) : Value{};
        add(b_.dot(a, b, acc, flags));
    }

    // ---- Memory.

    void add_input(int rank) {
        RefType ref{random_.pick(kDTypes), {}, Space::global, -1};
        for (int i = 0; i < rank; ++i) {
            ref.extents.push_back(random_.chance(30) ? kDynamic : random_.between(1, 12));
        }
        inputs_.push_back(function_.add_parameter(ref, "in"));
    }

    void add_scratch() {
        const Type tile{random_.pick(kDTypes), {random_.pick(kDims), random_.pick(kDims)}};
        RefType ref{tile.dtype, {tile.shape[0], tile.shape[1]}, Space::scratch, -1};
        const Value scratch = function_.add_parameter(ref, "scratch");
        const IndexOperand all[] = {IndexOperand::slice(zero_, tile.shape[0]),
                                    IndexOperand::slice(zero_, tile.shape[1])};
        b_.store(scratch, all, of_type(tile));
        targets_.push_back({scratch, tile.shape, false});
    }

    Value index_scalar(std::int64_t extent) {
        if (random_.chance(60)) return b_.constant_int({i64, {}}, random_.between(-1, extent));
        return any_where([](const Type& t) { return t.is_scalar() && is_integer(t.dtype); },
                         {i64, {}});
    }

    // Indices of one shape into a Ref, after `first` fixed ones; returns the access's shape.
    std::vector<IndexOperand> indices(RefType ref, std::span<const Value> first) {
        std::vector<IndexOperand> result;
        for (Value value : first) result.push_back(IndexOperand::scalar(value));
        bool has_tile = false;
        for (std::size_t i = first.size(); i < ref.extents.size(); ++i) {
            const std::int64_t extent = ref.extents[i] == kDynamic ? 6 : ref.extents[i];
            const std::int64_t roll = random_.below(100);
            if (roll < 25) {
                result.push_back(IndexOperand::scalar(index_scalar(extent)));
            } else if (roll < 80 || !options_.memory || has_tile) {
                const std::int64_t stride = random_.chance(20) ? 2 : 1;
                const Value start = random_.chance(50) ? zero_ : index_scalar(extent);
                result.push_back(
                    IndexOperand::slice(start, random_.between(1, extent + 1), stride));
            } else {
                has_tile = true;
                result.push_back(IndexOperand::tile(any_where(
                    [](const Type& t) {
                        return is_integer(t.dtype) && t.shape.rank() == 1 && t.shape.size() < 20;
                    },
                    {i32, {3}})));
            }
        }
        return result;
    }

    void load() {
        const bool own = !targets_.empty() && random_.chance(40);
        Value ref = random_.pick(inputs_);
        std::span<const Value> first;
        if (own) {
            const Target target = random_.pick(targets_);
            ref = target.ref;
            if (target.owned) first = ids_;
        }
        const RefType array = function_.ref_type(ref);
        const auto at = indices(array, first);
        Value mask, other;
        if (options_.memory && random_.chance(40)) {
            // The shape is that of an unmasked load, which is built to find it out.
            const Type whole = type(add(b_.load(ref, at)));
            mask = of_type({boolean, random_.chance(30) ? Shape{} : whole.shape});
            if (random_.chance(50)) {
                other = of_type({whole.dtype, random_.chance(50) ? Shape{} : whole.shape});
            }
        }
        add(b_.load(ref, at, mask, other));
    }

    void store_new(Value value) {
        const Type tile = type(value);
        RefType ref{tile.dtype, function_.grid, Space::global, -1};
        ref.extents.insert(ref.extents.end(), tile.shape.dims().begin(), tile.shape.dims().end());
        const Value out = function_.add_parameter(ref, "out");
        targets_.push_back({out, tile.shape, true});
        std::vector<IndexOperand> at;
        for (Value id : ids_) at.push_back(IndexOperand::scalar(id));
        for (std::int64_t dim : tile.shape.dims()) at.push_back(IndexOperand::slice(zero_, dim));
        b_.store(out, at, value);
    }

    void store() {
        if (targets_.size() < 2 || !options_.memory) return store_new(any());
        const Target target = random_.pick(targets_);
        const auto at =
            indices(function_.ref_type(target.ref),
                    target.owned ? std::span<const Value>(ids_) : std::span<const Value>());
        const Value before = b_.load(target.ref, at);
        const Type lanes = type(before);
        if (lanes.dtype != boolean && random_.chance(25)) {
            // Reads what the last iteration of a loop wrote: such a load must stay where it is.
            const Value next = b_.binary(Op::add, before, constant(lanes));
            return b_.store(target.ref, at, next);
        }
        const Value mask = random_.chance(40)
                               ? of_type({boolean, random_.chance(30) ? Shape{} : lanes.shape})
                               : Value{};
        const bool wide =
            lanes.dtype == i32 || lanes.dtype == u32 || lanes.dtype == i64 || lanes.dtype == u64;
        if (wide && random_.chance(30)) {
            const Op ops[] = {Op::atomic_add, Op::atomic_max, Op::atomic_min};
            b_.atomic(random_.pick(ops), target.ref, at, of_type(lanes), mask);
        } else {
            b_.store(target.ref, at, of_type(lanes), mask);
        }
    }

    // ---- Control flow. Values made in a block are removed from the pool at its end.

    template <typename Body>
    auto scoped(Body&& body) {
        const std::size_t outer = pool_.size();
        auto result = body();
        pool_.resize(outer);
        return result;
    }

    std::vector<Value> yields(std::span<const Value> carries) {
        std::vector<Value> result;
        for (Value carry : carries) {
            result.push_back(random_.chance(10) ? carry : of_type(type(carry)));
        }
        return result;
    }

    void control(int depth) {
        std::vector<Value> init;
        for (std::int64_t n = random_.between(0, 2); n > 0; --n) init.push_back(any());
        const int inner = static_cast<int>(random_.between(2, 8));
        switch (random_.below(4)) {
            case 0: {
                const Value lo = b_.constant_int({i64, {}}, random_.between(0, 2));
                const Value hi = b_.constant_int({i64, {}}, random_.between(0, 5));
                const Value step = b_.constant_int({i64, {}}, random_.between(1, 2));
                const auto results =
                    b_.for_loop(lo, hi, step, init, [&](Value iv, std::span<const Value> carries) {
                        return scoped([&] {
                            pool_.push_back(iv);
                            pool_.insert(pool_.end(), carries.begin(), carries.end());
                            steps(inner, depth + 1);
                            return yields(carries);
                        });
                    });
                pool_.insert(pool_.end(), results.begin(), results.end());
                return;
            }
            case 1:
                return while_loop(init, inner, depth);
            case 2: {
                const auto branch = [&] {
                    return scoped([&] {
                        steps(inner, depth + 1);
                        return yields(init);
                    });
                };
                const auto results = b_.if_else(of_type({boolean, {}}), branch, branch);
                pool_.insert(pool_.end(), results.begin(), results.end());
                return;
            }
            default:
                return call();
        }
    }

    // A counter as the first carry makes the loop end.
    void while_loop(std::vector<Value> init, int inner, int depth) {
        init.insert(init.begin(), b_.constant_int({i64, {}}, random_.between(0, 3)));
        const auto condition = [&](std::span<const Value> carries) {
            return b_.binary(Op::gt, carries[0], zero_);
        };
        const auto results = b_.while_loop(init, condition, [&](std::span<const Value> carries) {
            return scoped([&] {
                pool_.insert(pool_.end(), carries.begin() + 1, carries.end());
                steps(inner, depth + 1);
                std::vector<Value> next = yields(carries.subspan(1));
                next.insert(next.begin(), b_.binary(Op::sub, carries[0], one_));
                return next;
            });
        });
        pool_.insert(pool_.end(), results.begin(), results.end());
    }

    void call() {
        const Value tile = any();
        std::vector<Value> arguments = {tile};
        std::vector<DType> dtypes = {type(tile).dtype};
        for (std::int64_t n = random_.between(0, 2); n > 0; --n) {
            Type other{random_.pick(kDTypes), random_.chance(50) ? Shape{} : type(tile).shape};
            arguments.push_back(of_type(other));
            dtypes.push_back(other.dtype);
        }
        auto mod = std::make_shared<Function>();
        Generator(*mod, random_, options_).mod(dtypes);
        add(b_.call(mod, arguments)[0]);
    }

    Function& function_;
    Builder b_;
    Random& random_;
    const RandomProgramOptions& options_;
    std::vector<Value> pool_;  // tiles visible here
    std::vector<Value> inputs_;
    std::vector<Target> targets_;
    std::vector<Value> ids_;
    Value zero_, one_;
    bool scalars_only_ = false;
};

}  // namespace

Function random_program(std::uint64_t seed, const RandomProgramOptions& options) {
    Function function;
    Random random(seed);
    Generator(function, random, options).kernel();
    verify(function);
    return function;
}

}  // namespace tilewright::testing
