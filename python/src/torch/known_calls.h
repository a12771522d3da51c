// Recognises calls of flex_attention that are like earlier ones, without running Python code.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "torch/attention.h"
#include "torch/mod_plan.h"

namespace tilewright::torch {

/// Remembers earlier calls without their tensors.
class KnownCalls {
  public:
    /// Arguments of a call, in order.
    enum Argument : std::uint8_t {
        kQuery,
        kKey,
        kValue,
        kScoreMod,
        kMaskMod,
        kBlockMask,
        kKernelOptions,
        kExtras,  ///< whether there are further operands
        kFirstOption,
        kOptions = 10,  ///< scale and so on, which must be equal
        kReturnLse = kFirstOption + 2,
        kReturnAux = kFirstOption + 3,
        kCount = kFirstOption + kOptions,
    };

    /// A mod of a call: the code of its function, and which of the tensors that it reads become
    /// operands, in order.
    struct KnownMod {
        nb::object code;   ///< None without a mod
        nb::object owner;  ///< of the plan
        const ModPlan* plan = nullptr;
        std::vector<std::size_t> order;
    };
    struct Known {
        std::array<nb::object, kOptions> options;
        nb::object deterministic;
        bool is_double = false;
        KnownMod score, mask;
        bool captures_require_grad = false, gradient = false;
        nb::object dropout;  ///< what stands for the site where `fused` is called; None elsewhere
        nb::object site, owner;
        TorchAttention* attention = nullptr;
    };

    /// `torch_functions`: those that tell what torch would do around a call: the number of dispatch
    /// modes, the transform, autocast, grad mode, deterministic algorithms, whether torch.jit
    /// traces. `apply`: the autograd Function's, called with (site, block mask, seed, whether out
    /// alone is wanted) and the operands. `fused`: torch's operator that takes its place where that
    /// can be, or None. `mask_type`: the type of block masks with a `_core`.
    KnownCalls(nb::sequence torch_functions, nb::object apply, nb::object fused,
               nb::object mask_type);

    void remember(std::shared_ptr<const Known> known);
    void clear() { known_.clear(); }
    /// The results of a call, or `out` if nothing else is wanted; None if it is not known.
    nb::object call(PyObject* const* arguments);

  private:
    /// Adds the captures of mods to the operands; `kept` keeps them alive.
    std::shared_ptr<const Known> find(PyObject* const* arguments, Arguments& operands,
                                      std::vector<nb::object>& kept) const;
    bool is_plain() const;
    /// `out` by torch's operator, see fused.cpp; null where it cannot be.
    nb::object call_fused(const Known& known, const Arguments& operands,
                          nb::handle block_mask) const;

    nb::object modes_, transform_, autocast_, grad_enabled_, deterministic_, tracing_, apply_,
        fused_, mask_type_;
    static constexpr std::size_t kMost = 64;
    std::vector<std::shared_ptr<const Known>> known_;  ///< guarded by the GIL
};

}  // namespace tilewright::torch
