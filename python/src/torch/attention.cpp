// Attention on PyTorch tensors.
#include "torch/attention.h"

#include <atomic>
#include <string>
#include <utility>

#include "bindings.h"
#include "nanobind/stl/array.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/string.h"
#include "tilewright/attention.h"

namespace tilewright::torch {

namespace {
std::atomic<std::uint64_t> forward_calls = 0;
}

nb::object TorchAttention::call(nb::handle site, nb::sequence operands, nb::handle block_mask,
                                std::uint64_t seed) {
    Arguments arguments;
    for (const nb::handle operand : operands) {
        if (!arguments.add(operand)) return nb::none();
    }
    return call_plain(site, arguments, block_mask, seed);
}

nb::object TorchAttention::call_plain(nb::handle site, Arguments& operands, nb::handle block_mask,
                                      std::uint64_t seed) {
    if (!is_backward_) ++forward_calls;
    static PyObject* const kCore = PyUnicode_InternFromString("_core");
    const BlockMask mask =
        block_mask.is_none() ? BlockMask() : nb::cast<BlockMask>(attribute(block_mask, kCore));
    return calls_.call(site, operands, details(block_mask, mask),
                       [&](std::span<const Tensor> arrays) { run_on(arrays, mask, seed); });
}

void TorchAttention::call_released(nb::handle site, Arguments& operands, nb::handle block_mask,
                                   const BlockMask& mask, std::uint64_t seed,
                                   const Calls::Make& make) {
    if (!is_backward_) ++forward_calls;
    calls_.call_released(site, operands, details(block_mask, mask), make,
                         [&](std::span<const Tensor> arrays) { run_on(arrays, mask, seed); });
}

CallDetails TorchAttention::details(nb::handle block_mask, const BlockMask& mask) const {
    const bool repeats = site_.repeats() && site_.options().dropout == 0;
    return {.first_argument = block_mask, .state = mask.state(), .repeats = repeats};
}

void TorchAttention::run_on(std::span<const Tensor> arrays, const BlockMask& mask,
                            std::uint64_t seed) const {
    const auto count = site_.num_operands();
    python::AttentionOperands given = site_.read(arrays.first(count));
    const auto results = arrays.subspan(count);
    AttentionOptions& options = given.options;
    options.seed += seed;  // 0 if an operand holds the seed, which is then in the options
    if (mask.defined()) {
        options.block_mask = options.block_mask.defined() ? options.block_mask & mask : mask;
    }
    if (!is_backward_) {
        return attention_into({results[0], results.size() > 1 ? results[1] : Tensor(),
                               results.size() > 2 ? results[2] : Tensor()},
                              given.query, given.key, given.value, options);
    }
    AttentionGradients gradients;
    std::size_t next = 0;
    Tensor* const own[] = {&gradients.query, &gradients.key, &gradients.value};
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
        if (wanted_[i]) *own[i] = results[next++];
    }
    if (options.sinks.defined()) gradients.sinks = results[next++];
    const auto captured = results.subspan(next);
    gradients.captured.assign(captured.begin(), captured.end());
    attention_backward_into(gradients, given.query, given.key, given.value,
                            {given.out, given.lse, {}}, given.dout, options, given.dlse);
}

}  // namespace tilewright::torch

namespace tilewright::python {

void bind_torch_attention(nb::module_& module) {
    using torch::TorchAttention;
    nb::class_<TorchAttention>(module, "TorchAttention")
        .def(
            "__init__",
            [](TorchAttention* self, bool backward, std::array<bool, 3> wanted,
               std::string operands, std::string score_mod, std::string derivative,
               const std::string& gathers, std::string mask_mod,
               std::pair<std::int64_t, std::int64_t> block_size, bool whole_masks,
               const AttentionOptions& options) {
                new (self) TorchAttention(
                    AttentionSpec{.operands = std::move(operands),
                                  .score_mod = std::move(score_mod),
                                  .mask_mod = std::move(mask_mod),
                                  .derivative = std::move(derivative),
                                  .gathers = numbers_of(gathers),
                                  .options = options,
                                  .whole_masks = whole_masks,
                                  .block_size = {block_size.first, block_size.second}},
                    backward, wanted);
            },
            nb::kw_only(), nb::arg("backward"), nb::arg("wanted"), nb::arg("operands"),
            nb::arg("score_mod"), nb::arg("derivative"), nb::arg("gathers"), nb::arg("mask_mod"),
            nb::arg("block_size"), nb::arg("whole_masks"), nb::arg("options"))
        .def("__call__", &TorchAttention::call, nb::arg("site"), nb::arg("operands"),
             nb::arg("block_mask").none(), nb::arg("seed"));
    module.def(
        "forward_calls", [] { return torch::forward_calls.load(); },
        "How often forward passes were called, for tests.");
}

}  // namespace tilewright::python
