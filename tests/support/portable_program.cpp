// Random kernels with machine-independent results: memory, control flow, whole programs.
#include "tests/support/portable_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "ir/evaluate.h"
#include "ir/print.h"
#include "tests/support/poison.h"
#include "tests/support/portable_generator.h"
#include "tests/support/tolerance.h"

namespace tilewright::testing {

// ---- Memory of the program and of the grid.

void PortableGenerator::through_scratch() {
    const auto a = pick([&](const Known& k) { return type(k).shape.rank() > 0; });
    if (!a) return;
    const Type stored = type(*a);
    const std::vector<std::int64_t> extents(stored.shape.dims().begin(), stored.shape.dims().end());
    const Value scratch =
        b_.function().add_parameter({stored.dtype, extents, ir::Space::scratch, -1}, "");
    std::vector<IndexOperand> all, some;
    for (std::int64_t extent : extents) {
        all.push_back(IndexOperand::slice(index(0), extent));
        some.push_back(IndexOperand::slice(index(static_cast<std::int64_t>(below(3)) - 1), extent));
    }
    b_.store(scratch, all, a->value);
    Known result = *a;
    result.value = b_.load(scratch, some);
    keep(result);
}

void PortableGenerator::atomic() {
    const auto where =
        pick([&](const Known& k) { return is_integer(type(k).dtype) && type(k).shape.rank() > 0; });
    if (!where) return;
    const IndexOperand indices[] = {IndexOperand::tile(where->value)};
    // One op per array: otherwise the order of programs would matter.
    const std::size_t which = below(counters_.size());
    static constexpr Op kOps[] = {Op::atomic_add, Op::atomic_max, Op::atomic_min};
    b_.atomic(kOps[which], counters_[which], indices,
              b_.constant_int({DType::i32, type(*where).shape}, 3));
}

// ---- Control flow. Values of a block are removed from the pool at its end.

void PortableGenerator::for_loop() {
    const auto init = pick_exact();
    if (!init) return;
    const Value start[] = {init->value};
    const std::size_t outside = pool_.size();
    const auto low = static_cast<std::int64_t>(below(4));
    const auto results = b_.for_loop(index(low), index(low + static_cast<std::int64_t>(below(5))),
                                     index(1 + static_cast<std::int64_t>(below(2))), start,
                                     [&](Value iv, std::span<const Value> carries) {
                                         keep({iv, 8});
                                         Known carry = *init;
                                         carry.value = carries[0];
                                         keep(carry);
                                         steps(3);
                                         return std::vector{pick_within(carry)->value};
                                     });
    pool_.resize(outside);
    Known result = *init;
    result.value = results[0];
    keep(result);
}

void PortableGenerator::while_loop() {
    const auto init = pick_exact();
    if (!init) return;
    const auto iterations = static_cast<std::int64_t>(below(4));
    const Value start[] = {index(0), init->value};
    const std::size_t outside = pool_.size();
    const auto results = b_.while_loop(
        start, [&](std::span<const Value> c) { return b_.binary(Op::lt, c[0], index(iterations)); },
        [&](std::span<const Value> c) {
            Known carry = *init;
            carry.value = c[1];
            keep(carry);
            steps(2);
            return std::vector{b_.binary(Op::add, c[0], index(1)), pick_within(carry)->value};
        });
    pool_.resize(outside);
    Known result = *init;
    result.value = results[1];
    keep(result);
}

void PortableGenerator::if_else() {
    const auto condition = pick(
        [&](const Known& k) { return type(k).dtype == DType::boolean && type(k).is_scalar(); });
    const auto model = pick_exact();
    if (!condition || !model) return;
    const std::size_t outside = pool_.size();
    Known result = *model;
    const auto branch = [&] {
        steps(2);
        const Known chosen = *pick_like(*model);
        pool_.resize(outside);
        result.limit = std::max(result.limit, chosen.limit);
        result.fraction = std::max(result.fraction, chosen.fraction);
        return std::vector{chosen.value};
    };
    result.value = b_.if_else(condition->value, branch, branch)[0];
    keep(result);
}

void PortableGenerator::call() {
    const auto a = pick_exact();
    if (!a) return;
    const auto b = pick([&](const Known& k) {
        return !k.rounded && (type(k).is_scalar() || type(k).shape == type(*a).shape);
    });
    auto mod = std::make_shared<ir::Function>();
    mod->name = "mod" + std::to_string(below(1000000));
    PortableGenerator inner(*mod, random_);
    inner.scalars_only_ = true;
    inner.depth_ = 2;
    Known parameters[] = {*a, *b};
    for (Known& known : parameters) {
        known.value = mod->add_parameter(Type{type(known).dtype, {}}, "");
        inner.keep(known);
    }
    inner.steps(4);
    Known result = inner.pool_.back();
    const Value yielded[] = {result.value};
    inner.b_.yield(yielded);
    const Value operands[] = {a->value, b->value};
    result.value = b_.call(mod, operands)[0];
    keep(result);
}

// ---- Whole programs.

void PortableGenerator::step() {
    static constexpr void (PortableGenerator::*kElementwise[])() = {
        &PortableGenerator::unary,
        &PortableGenerator::binary,
        &PortableGenerator::binary,
        &PortableGenerator::division,
        &PortableGenerator::comparison,
        &PortableGenerator::ternary,
        &PortableGenerator::cast,
        &PortableGenerator::constant,
        &PortableGenerator::function_with_error};
    static constexpr void (PortableGenerator::*kTiles[])() = {
        &PortableGenerator::iota,           &PortableGenerator::load,
        &PortableGenerator::load,           &PortableGenerator::movement,
        &PortableGenerator::movement,       &PortableGenerator::reduction,
        &PortableGenerator::reduction,      &PortableGenerator::dot,
        &PortableGenerator::random_bits,    &PortableGenerator::atomic,
        &PortableGenerator::through_scratch};
    static constexpr void (PortableGenerator::*kControl[])() = {
        &PortableGenerator::for_loop, &PortableGenerator::while_loop, &PortableGenerator::if_else,
        &PortableGenerator::call};
    if (scalars_only_ || chance(50)) {
        (this->*any_of(kElementwise))();
    } else if (depth_ < 2 && chance(25)) {
        ++depth_;
        (this->*any_of(kControl))();
        --depth_;
    } else {
        (this->*any_of(kTiles))();
    }
}

void PortableGenerator::steps(int count) {
    for (int i = 0; i < count; ++i) step();
}

/// Each program of the grid stores to its part of a new output; some tiles extend past its edge.
void PortableGenerator::store(const Known& known, PortableProgram& program) {
    const Type stored = type(known);
    PortableArray array;
    array.dtype = stored.dtype;
    array.is_output = true;
    array.ulps = known.ulps;
    array.extents = program.grid;
    std::vector<IndexOperand> indices;
    for (std::size_t axis = 0; axis < program.grid.size(); ++axis) {
        indices.push_back(IndexOperand::scalar(b_.program_id(static_cast<int>(axis))));
    }
    for (std::int64_t extent : stored.shape.dims()) {
        array.extents.push_back(extent > 1 && chance(20) ? extent - 1 : extent);
        indices.push_back(IndexOperand::slice(index(0), extent));
    }
    const Value ref = b_.function().add_parameter(
        ir::RefType{stored.dtype, array.extents, ir::Space::global, -1}, "");
    const auto mask = pick([&](const Known& k) {
        return type(k).dtype == DType::boolean &&
               (type(k).is_scalar() || type(k).shape == stored.shape);
    });
    b_.store(ref, indices, known.value, mask && chance(20) ? mask->value : Value{});
    program.arrays.push_back(array);
}

void PortableGenerator::kernel(PortableProgram& program) {
    for (std::uint64_t axes = below(3); axes > 0; --axes) {
        program.grid.push_back(1 + static_cast<std::int64_t>(below(3)));
    }
    program.function.grid = program.grid;
    program.function.name = "portable";
    // Sometimes more lanes than the CPU keeps in registers at once.
    dims_.push_back(static_cast<std::int64_t>(chance(30) ? 64 + below(9) : 1 + below(33)));
    for (int i = 0; i < 2; ++i) dims_.push_back(1 + static_cast<std::int64_t>(below(9)));
    for (std::uint64_t count = 2 + below(3); count > 0; --count) {
        PortableArray array;
        array.dtype = any_of(kPortableDTypes);
        for (std::uint64_t rank = below(4); rank > 0; --rank) {
            array.extents.push_back(1 + static_cast<std::int64_t>(below(12)));
        }
        ir::RefType ref_type{array.dtype, array.extents, ir::Space::global, -1};
        for (auto& extent : ref_type.extents) {
            if (chance(30)) extent = ir::kDynamic;
        }
        inputs_.push_back(b_.function().add_parameter(ref_type, ""));
        program.arrays.push_back(array);
    }
    for (int i = 0; i < 3; ++i) {
        PortableArray counters;
        counters.dtype = DType::i32;
        counters.extents = {7};
        counters_.push_back(
            b_.function().add_parameter(ir::RefType{DType::i32, {7}, ir::Space::global, -1}, ""));
        program.arrays.push_back(counters);
    }

    for (std::size_t axis = 0; axis < program.grid.size(); ++axis) {
        keep({b_.program_id(static_cast<int>(axis)), 3});
        keep({b_.num_programs(static_cast<int>(axis)), 3});
    }
    for (Value ref : inputs_) {
        if (b_.function().ref_type(ref).rank() > 0) keep({b_.extent(ref, 0), 12});
    }
    for (int i = 0; i < 3; ++i) load();
    steps(8 + static_cast<int>(below(16)));
    std::vector<Known> results = pool_;
    for (std::size_t i = 0; i < 8 && !results.empty(); ++i) {
        store(results.back(), program);
        results.pop_back();
    }
    b_.yield({});
}

namespace {

void lay_out(PortableArray& array, std::mt19937_64& random) {
    // Row-major or column-major, sometimes with a gap after the innermost dimension.
    const std::size_t rank = array.extents.size();
    const bool column_major = random() % 4 == 0;
    const std::int64_t gap = random() % 3 == 0 ? 3 : 0;
    array.strides.assign(rank, 0);
    std::int64_t stride = 1;
    for (std::size_t i = 0; i < rank; ++i) {
        const std::size_t d = column_major ? i : rank - 1 - i;
        array.strides[d] = stride;
        stride = stride * array.extents[d] + (i == 0 ? gap : 0);
    }
    array.elements = stride;
}

}  // namespace

PortableProgram portable_program(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    PortableProgram program;
    PortableGenerator(program.function, random).kernel(program);
    for (PortableArray& array : program.arrays) lay_out(array, random);
    return program;
}

std::vector<std::vector<std::byte>> portable_buffers(const PortableProgram& program,
                                                     std::uint64_t seed) {
    std::mt19937_64 random(~seed);
    std::vector<std::vector<std::byte>> buffers;
    for (const PortableArray& array : program.arrays) {
        const auto count = static_cast<std::size_t>(array.elements);
        const auto size = static_cast<std::size_t>(size_of(array.dtype));
        std::vector<std::byte>& buffer = buffers.emplace_back(count * size);
        poison(array.dtype, buffer.data(), count);
        if (array.is_output) continue;
        for (std::size_t i = 0; i < count; ++i) {
            std::uint64_t bits = random();
            if (is_float(array.dtype)) {
                bits = ir::encode(array.dtype, static_cast<double>(bits % 17) / 4 - 2);
            } else if (bits % 8 != 0) {  // small, and sometimes any bit pattern
                bits = ir::wrap_to(array.dtype, (bits >> 3) % 9 - 2);
            }
            ir::write_element(array.dtype, buffer.data() + i * size,
                              is_float(array.dtype) ? bits : ir::wrap_to(array.dtype, bits));
        }
    }
    return buffers;
}

ir::Arguments arguments_of(const PortableProgram& program,
                           std::vector<std::vector<std::byte>>& buffers) {
    ir::Arguments arguments;
    arguments.grid = program.grid;
    for (std::size_t i = 0; i < program.arrays.size(); ++i) {
        const PortableArray& array = program.arrays[i];
        ir::RefArgument argument;
        argument.data = buffers[i].data();
        std::copy(array.extents.begin(), array.extents.end(), argument.extents.begin());
        std::copy(array.strides.begin(), array.strides.end(), argument.strides.begin());
        arguments.refs.push_back(argument);
    }
    return arguments;
}

std::string difference(const PortableProgram& program,
                       const std::vector<std::vector<std::byte>>& expected,
                       const std::vector<std::vector<std::byte>>& got) {
    for (std::size_t a = 0; a < program.arrays.size(); ++a) {
        const auto& array = program.arrays[a];
        const auto size = static_cast<std::size_t>(size_of(array.dtype));
        for (std::size_t i = 0; i < expected[a].size(); i += size) {
            const std::byte* want = expected[a].data() + i;
            const std::byte* have = got[a].data() + i;
            const double error = is_float(array.dtype) ? ulp_distance(array.dtype, want, have)
                                 : std::equal(want, want + size, have) ? 0
                                                                       : INFINITY;
            if (error <= array.ulps) continue;
            const auto value = [&](const std::byte* element) {
                return ir::print_element(array.dtype, ir::read_element(array.dtype, element));
            };
            return fmt::format(
                "parameter %{} element {}: expected {} but got {}, {} ulp off, allowed {}", a,
                i / size, value(want), value(have), error, array.ulps);
        }
    }
    return "";
}

}  // namespace tilewright::testing
