// Attention by one spec on PyTorch tensors.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attention_site.h"
#include "torch/calls.h"

namespace tilewright::torch {

/// Attention by one spec, forward or backward.
class TorchAttention {
  public:
    /// `wanted`: which of the gradients of query, key and value are needed.
    TorchAttention(const python::AttentionSpec& spec, bool is_backward, std::array<bool, 3> wanted)
        : site_(spec), is_backward_(is_backward), wanted_(wanted) {}

    /// See Calls. block_mask: None, or an object with the core's mask as `_core`; it is the first
    /// argument of `site.results`.
    nb::object call(nb::handle site, nb::sequence operands, nb::handle block_mask,
                    std::uint64_t seed);
    /// The same on operands that are plain tensors.
    nb::object call_plain(nb::handle site, Arguments& operands, nb::handle block_mask,
                          std::uint64_t seed);
    /// The same without the GIL, on operands without objects; `make` makes the results. `mask` is
    /// the core's mask of block_mask.
    void call_released(nb::handle site, Arguments& operands, nb::handle block_mask,
                       const BlockMask& mask, std::uint64_t seed, const Calls::Make& make);

    /// What `make` returned for the same key before, (site of the backward pass, places of
    /// gradients); a key of 0 is never kept. Needs the GIL.
    template <typename Make>
    nb::object backward_site(std::uint64_t key, Make make) {
        for (const auto& [known, made] : backward_sites_)
            if (known == key) return made;
        nb::object made = make();
        if (key != 0) backward_sites_.emplace_back(key, made);
        return made;
    }

  private:
    CallDetails details(nb::handle block_mask, const BlockMask& mask) const;
    void run_on(std::span<const Tensor> arrays, const BlockMask& mask, std::uint64_t seed) const;

    python::AttentionSite site_;
    bool is_backward_;
    std::array<bool, 3> wanted_;
    Calls calls_;
    std::vector<std::pair<std::uint64_t, nb::object>> backward_sites_;
};

}  // namespace tilewright::torch
