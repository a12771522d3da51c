// What the C++ kernels of torch's operators share: sites, found by their text, and calls of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "torch/attention.h"
#include "torch/stable.h"

namespace tilewright::torch {

/// A site of _sites.py.
struct KnownSite {
    nb::object site, owner;
    TorchAttention* attention = nullptr;
    bool max_scores = false;
    int words_at = -1;  ///< the operand that holds the words of the call's own block mask
    mutable std::shared_ptr<const KnownSite> without_words;  ///< made when wanted, under the GIL
};

/// Needs the GIL.
std::shared_ptr<const KnownSite> known_site(nb::object site);
/// The site of a text. Takes the GIL where it is new.
std::shared_ptr<const KnownSite> known_site(std::string_view text);

/// A call's block mask. The caller keeps `object`, which has a shape.
struct CallMask {
    PyObject* object = Py_None;
    BlockMask mask;
};

/// Results of a call, in the order of its site. Needs no GIL.
std::vector<stable::OwnedTensor> run_site(std::shared_ptr<const KnownSite> known,
                                          const std::vector<stable::OwnedTensor>& operands,
                                          std::uint64_t seed, CallMask mask = {});

/// Whether the kernel of torch's operator for attention of other libraries (fused.cpp) has failed
/// on this thread since the last such question. Other errors of the operator come from hooks of
/// saved tensors, by which checkpoints end a recomputation.
bool fused_has_failed();

/// Runs `body`, with Python's errors as C++ ones without their traceback.
template <typename Body>
auto without_python_errors(Body body) {
    std::string message;
    try {
        return body();
    } catch (const nb::python_error& error) {
        const nb::gil_scoped_acquire held;
        message = nb::str(error.value()).c_str();
    }
    throw std::runtime_error(message);
}

}  // namespace tilewright::torch
