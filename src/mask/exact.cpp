// Masks on the tile machine: one program for each 64 x 64 piece.
#include "mask/exact.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "ir/builder.h"
#include "mod/traced.h"
#include "run/machine.h"
#include "support/check.h"
#include "support/debug_log.h"
#include "support/memo.h"

namespace tilewright::mask {
namespace {

using ir::IndexOperand;
using ir::Shape;
using ir::Type;
using ir::Value;

constexpr std::int64_t kPiecesAtOnce = 1024;  ///< 4 MB of bytes before they are packed to bits

/// (b, h, q, kv, arrays...) -> score_mod(0, b, h, q, kv) != -inf.
std::shared_ptr<const ir::Function> visible_scores(
    const std::shared_ptr<const ir::Function>& score) {
    auto function = std::make_shared<ir::Function>();
    function->name = "visible";
    ir::Builder builder(*function);
    std::vector<Value> arguments;
    for (const Value parameter : score->parameters()) {
        if (score->is_ref(parameter)) {
            arguments.push_back(
                function->add_parameter(score->ref_type(parameter), score->value_name(parameter)));
        } else if (arguments.empty()) {
            arguments.push_back(builder.constant(score->type(parameter), 0));
        } else {
            arguments.push_back(
                function->add_parameter(score->type(parameter), score->value_name(parameter)));
        }
    }
    const Value result = builder.call(score, arguments)[0];
    const Value lowest =
        builder.constant(function->type(result), -std::numeric_limits<double>::infinity());
    const Value visible = builder.binary(ir::Op::ne, result, lowest);
    builder.yield({&visible, 1});
    return function;
}

ir::RefArgument ref_argument(const Tensor& tensor) {
    ir::RefArgument result;
    result.data = tensor.raw();
    std::copy(tensor.shape().begin(), tensor.shape().end(), result.extents.begin());
    std::copy(tensor.strides().begin(), tensor.strides().end(), result.strides.begin());
    return result;
}

/// For each n of the grid: out[n][i, j] = mask(origins[n, 0], origins[n, 1], origins[n, 2] + i,
/// origins[n, 3] + j).
ir::Function piece_kernel(const MaskFunction& mask) {
    const ir::Function& mod = *mask.function;
    ir::Function kernel;
    kernel.name = "mask_pieces";
    kernel.grid = {ir::kDynamic};
    ir::Builder builder(kernel);
    std::vector<Value> arrays;
    for (const Value parameter : mod.parameters()) {
        if (mod.is_ref(parameter))
            arrays.push_back(
                kernel.add_parameter(mod.ref_type(parameter), mod.value_name(parameter)));
    }
    const Value origins =
        kernel.add_parameter(ir::RefType{DType::i64, {ir::kDynamic, 4}}, "origins");
    const Value out =
        kernel.add_parameter(ir::RefType{DType::boolean, {ir::kDynamic, kAtom, kAtom}}, "out");
    const Value n = builder.program_id(0);
    const auto origin = [&](std::int64_t field) {
        const Value index = builder.constant_int(Type{DType::i64, {}}, field);
        const IndexOperand indices[] = {IndexOperand::scalar(n), IndexOperand::scalar(index)};
        return builder.load(origins, indices);
    };
    const auto positions = [&](Value first, const Shape& shape, int axis) {
        return builder.binary(ir::Op::add, builder.broadcast(first, shape),
                              builder.iota(Type{DType::i64, shape}, axis));
    };
    std::vector<Value> arguments = {origin(0), origin(1), positions(origin(2), {kAtom, 1}, 0),
                                    positions(origin(3), {1, kAtom}, 1)};
    arguments.insert(arguments.end(), arrays.begin(), arrays.end());
    const Value bits = builder.call(mask.function, arguments)[0];
    const Value zero = builder.constant_int(Type{DType::i64, {}}, 0);
    const IndexOperand indices[] = {IndexOperand::scalar(n), IndexOperand::slice(zero, kAtom),
                                    IndexOperand::slice(zero, kAtom)};
    builder.store(out, indices, bits);
    builder.yield({});
    return kernel;
}

/// Compiled once per text, so that a new mask of a known function costs only its evaluation.
std::shared_ptr<const run::Executable> compiled(const MaskFunction& mask) {
    if (mask.text.empty()) return run::make_host_executable(piece_kernel(mask));
    using Program = std::shared_ptr<const run::Executable>;
    static auto* const kPrograms = new Memo<std::string, Program>("programs that build masks", 64);
    return kPrograms->get(mask.text, [&] { return run::make_host_executable(piece_kernel(mask)); });
}

/// Moves the arrays to one device and decides where the mask is evaluated.
void bring_together(const char* op, MaskFunction& mask) {
    const auto on_gpu =
        std::find_if(mask.arrays.begin(), mask.arrays.end(),
                     [](const Tensor& array) { return array.device().kind == Device::Kind::cuda; });
    if (on_gpu == mask.arrays.end()) return;
    run::expect_no_capture(op, "masks that read arrays of a GPU to be built");
    Device device = on_gpu->device();
    auto bytecode = std::make_shared<const Bytecode>(Bytecode::of(*mask.function, mask.arrays));
    if (bytecode->refusal.empty()) {
        mask.bytecode = std::move(bytecode);
    } else {
        debug_log(op, "slow path: the mask is built on the CPU: {}", bytecode->refusal);
        device = Device{};
    }
    for (Tensor& array : mask.arrays) array = array.to(device);
}

Atom packed(const unsigned char* bytes) {
    Atom atom;
    for (std::uint64_t& word : atom) {
        word = 0;
        for (int part = 0; part < 8; ++part, bytes += 8) {
            std::uint64_t eight = 0;
            std::memcpy(&eight, bytes, 8);
            // Gathers the lowest bits of eight bytes in the top byte.
            word |= (eight * 0x0102040810204080u >> 56) << (8 * part);
        }
    }
    return atom;
}

}  // namespace

MaskFunction MaskFunction::of(const char* op, const Mod& mod) {
    if (!mod.defined()) user_error(op, "expected a mask mod or a score mod but got none");
    const mod::Traced& traced = mod::trace(mod);
    if (mod.kind() == Mod::Kind::mask) return of(op, traced.function, traced.text, traced.captures);
    return of(op, visible_scores(traced.function), "visible\n" + traced.text, traced.captures);
}

MaskFunction MaskFunction::of(const char* op, std::shared_ptr<const ir::Function> function,
                              std::string text, const std::vector<Capture>& captures) {
    MaskFunction mask;
    mask.function = std::move(function);
    mask.text = std::move(text);
    for (const Capture& capture : captures) mask.arrays.push_back(capture.tensor());
    bring_together(op, mask);
    return mask;
}

std::vector<ir::RefArgument> MaskFunction::arguments() const {
    std::vector<ir::RefArgument> result;
    for (const Tensor& array : arrays) result.push_back(ref_argument(array));
    return result;
}

std::vector<std::shared_ptr<const ir::RangeTree>> MaskFunction::range_trees() const {
    std::vector<std::shared_ptr<const ir::RangeTree>> trees(arrays.size());
    if (bytecode) {  // sequentially, since streams belong to threads
        std::transform(arrays.begin(), arrays.end(), trees.begin(), gpu_range_tree);
        return trees;
    }
    const std::vector<ir::RefArgument> references = arguments();
    run::parallel_for(std::ssize(arrays), [&](std::int64_t i) {
        const std::size_t n = i;
        trees[n] =
            std::make_shared<ir::RangeTree>(arrays[n].dtype(), references[n], arrays[n].rank());
    });
    return trees;
}

ExactMask::ExactMask(const MaskFunction& mask) : owners_(mask.arrays) {
    if (mask.bytecode) {
        gpu_.emplace(*mask.bytecode, mask.arrays);
    } else {
        program_ = compiled(mask);
        arrays_ = mask.arguments();
    }
}

std::vector<Atom> ExactMask::evaluate(std::span<const Origin> origins) const {
    return gpu_ ? gpu_->evaluate(origins) : evaluate_on_cpu(origins);
}

std::vector<Atom> ExactMask::evaluate_on_cpu(std::span<const Origin> origins) const {
    std::vector<Atom> atoms(origins.size());
    const auto total = std::ssize(origins);
    const std::int64_t at_once = std::min(total, kPiecesAtOnce);
    const Tensor bytes = Tensor::empty(boolean, {at_once, kAtom, kAtom});
    for (std::int64_t first = 0; first < total; first += at_once) {
        const std::int64_t count = std::min(at_once, total - first);
        auto* places = const_cast<Origin*>(origins.data()) + first;  // the kernel only reads them
        ir::Arguments arguments;
        arguments.refs = arrays_;
        arguments.refs.push_back(ref_argument(Tensor::from_data(places, i64, {count, 4})));
        arguments.refs.push_back(ref_argument(bytes.slice(0, 0, count)));
        arguments.grid = {count};
        program_->run(arguments);
        const auto* from = static_cast<const unsigned char*>(bytes.raw());
        for (std::int64_t i = 0; i < count; ++i)
            atoms[first + i] = packed(from + i * kAtom * kAtom);
    }
    return atoms;
}

Tensor evaluate_dense(const MaskFunction& mask, std::int64_t batch, std::int64_t heads,
                      std::int64_t q_len, std::int64_t kv_len) {
    const ExactMask exact(mask);
    Tensor dense = Tensor::empty(boolean, {batch, heads, q_len, kv_len});
    auto* bytes = static_cast<unsigned char*>(dense.raw());
    for (std::int64_t head = 0; head < batch * heads; ++head) {
        for (std::int64_t q = 0; q < q_len; q += kAtom) {
            std::vector<Origin> origins;
            for (std::int64_t kv = 0; kv < kv_len; kv += kAtom)
                origins.push_back({head / heads, head % heads, q, kv});
            const std::vector<Atom> atoms = exact.evaluate(origins);
            for (std::int64_t i = 0; i < std::min(kAtom, q_len - q); ++i) {
                unsigned char* row = bytes + (head * q_len + q + i) * kv_len;
                for (std::int64_t kv = 0; kv < kv_len; ++kv) {
                    const Atom& atom = atoms[kv / kAtom];
                    row[kv] = atom[i] >> (kv % kAtom) & 1;
                }
            }
        }
    }
    return dense;
}

}  // namespace tilewright::mask
