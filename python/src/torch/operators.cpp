// The kernels of torch's operators tilewright::forward and tilewright::backward, in C++: a compiled
// region that calls them runs no Python code.
#include "torch/operators.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings.h"
#include "nanobind/stl/string.h"
#include "support/memo.h"

namespace tilewright::torch {
namespace {

/// What the kernels share. Never destroyed, since it holds Python objects.
struct KernelState {
    PyObject* parsed = nullptr;   ///< the site of a text
    PyObject* mask_at = nullptr;  ///< the block mask whose words are at an address, or None
    Memo<std::string, std::shared_ptr<const KnownSite>> sites{"sites of torch's operators", 4096};
};
KernelState& kernel_state() {
    static KernelState* const kState = new KernelState;
    return *kState;
}

/// A block mask's object, released under the GIL.
class HeldMask {
  public:
    HeldMask() = default;
    HeldMask(const HeldMask&) = delete;
    HeldMask& operator=(const HeldMask&) = delete;
    ~HeldMask() {
        if (object_ == Py_None) return;
        const nb::gil_scoped_acquire held;
        nb::handle(object_).dec_ref();
    }
    /// Finds the mask that is alive in this process; false without one. Needs the GIL.
    bool find(const void* words, CallMask& mask) {
        nb::object found = nb::handle(kernel_state().mask_at)(
            static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(words)));
        if (found.is_none()) return false;
        mask.mask = nb::cast<BlockMask>(found.attr("_core"));
        mask.object = object_ = found.release().ptr();
        return true;
    }

  private:
    PyObject* object_ = Py_None;
};

/// A result. Where torch has no memory, its function in Python says so in the words that programs
/// search for, and before torch 2.13 it alone does.
stable::OwnedTensor new_tensor(const Calls::Wanted& wanted) {
    try {
        return stable::OwnedTensor::empty(wanted.shape, wanted.strides, wanted.dtype,
                                          wanted.device);
    } catch (const std::runtime_error&) {
        const nb::gil_scoped_acquire held;
        torch::make_result(wanted.arguments, nb::handle());
        throw;
    }
}

/// (Tensor query, key, value, Tensor[] others, SymInt seed, str site) -> the results.
std::vector<stable::OwnedTensor> run_operator(stable::Value* stack, bool& has_max_scores) {
    // Owners of all arguments come first: whatever fails after that frees them.
    const stable::OwnedString site(stack[5]);
    stable::OwnedTensor own[] = {stable::OwnedTensor(stack[0]), stable::OwnedTensor(stack[1]),
                                 stable::OwnedTensor(stack[2])};
    std::vector<stable::OwnedTensor> others = stable::take_list(stack[3]);
    std::vector<stable::OwnedTensor> operands;
    operands.reserve(3 + others.size());
    for (stable::OwnedTensor& each : own) operands.push_back(std::move(each));
    for (stable::OwnedTensor& other : others) operands.push_back(std::move(other));
    return without_python_errors([&] {
        const std::shared_ptr<const KnownSite> known = known_site(site.view());
        has_max_scores = known->max_scores;
        return run_site(known, operands, stack[4]);
    });
}

void forward_kernel(stable::Value* stack, std::uint64_t, std::uint64_t) {
    bool has_max_scores = false;
    std::vector<stable::OwnedTensor> results = run_operator(stack, has_max_scores);
    if (!has_max_scores) {
        const DLTensor lse = results[1].view();
        results.push_back(stable::OwnedTensor::empty({0}, {1}, lse.dtype, lse.device));
    }
    for (std::size_t i = 0; i < 3; ++i) stack[i] = results[i].release();
}

void forward_alone_kernel(stable::Value* stack, std::uint64_t, std::uint64_t) {
    bool has_max_scores = false;
    stack[0] = run_operator(stack, has_max_scores)[0].release();
}

void backward_kernel(stable::Value* stack, std::uint64_t, std::uint64_t) {
    bool has_max_scores = false;
    stack[0] = stable::make_list(run_operator(stack, has_max_scores));
}

}  // namespace

std::shared_ptr<const KnownSite> known_site(nb::object site) {
    auto known = std::shared_ptr<KnownSite>(new KnownSite, [](KnownSite* dropped) {
        const nb::gil_scoped_acquire held;
        delete dropped;
    });
    known->owner = site.attr("_call");
    known->attention = nb::cast<TorchAttention*>(known->owner);
    known->max_scores = nb::cast<bool>(site.attr("spec").attr("max_scores"));
    const nb::object words_at = site.attr("words_at");
    known->words_at = words_at.is_none() ? -1 : nb::cast<int>(words_at);
    known->site = std::move(site);
    return known;
}

std::shared_ptr<const KnownSite> known_site(std::string_view text) {
    if (auto known = kernel_state().sites.find(text)) return *std::move(known);
    const nb::gil_scoped_acquire held;
    const nb::object site = nb::handle(kernel_state().parsed)(nb::str(text.data(), text.size()));
    return kernel_state().sites.put(std::string(text), known_site(site));
}

std::vector<stable::OwnedTensor> run_site(std::shared_ptr<const KnownSite> known,
                                          const std::vector<stable::OwnedTensor>& operands,
                                          std::uint64_t seed, CallMask mask) {
    std::vector<DLTensor> views;
    views.reserve(operands.size());
    for (const stable::OwnedTensor& operand : operands) views.push_back(operand.view());
    HeldMask found;
    if (known->words_at >= 0) {
        // A mask that is alive in this process is used directly, not read from its words.
        const auto words = views.begin() + known->words_at;
        const nb::gil_scoped_acquire held;
        if (found.find(words->data, mask)) {
            views.erase(words);
            if (!known->without_words) {
                known->without_words = known_site(known->site.attr("without_words"));
            }
            known = known->without_words;
        }
    }
    Arguments arguments;
    for (const DLTensor& view : views) arguments.add(nb::handle(), view);
    if (views.front().device.device_type == kDLCPU) {
        std::uint32_t threads = 0;
        stable::check(stable::functions().torch_get_num_threads(&threads), "count its threads");
        follow_threads(threads);
    }
    std::vector<stable::OwnedTensor> results;
    results.reserve(3);
    known->attention->call_released(known->site, arguments, mask.object, mask.mask, seed,
                                    [&](const Calls::Wanted& wanted) {
                                        results.push_back(new_tensor(wanted));
                                        return results.back().view();
                                    });
    return results;
}

}  // namespace tilewright::torch

namespace tilewright::python {

void bind_operators(nb::module_& module) {
    module.def(
        "implement_operators",
        [](nb::object parsed, nb::object mask_at) {
            using namespace torch;
            if (!stable::find_functions()) return false;
            kernel_state().parsed = parsed.release().ptr();
            kernel_state().mask_at = mask_at.release().ptr();
            for (const char* key : {"CPU", "CUDA"}) {
                void* const library = stable::make_library("tilewright", key);
                for (const auto& [name, kernel] :
                     {std::pair<const char*, stable::Kernel>{"forward", forward_kernel},
                      {"forward.host", forward_kernel},
                      {"forward.alone", forward_alone_kernel},
                      {"forward.alone_host", forward_alone_kernel},
                      {"backward", backward_kernel},
                      {"backward.host", backward_kernel}}) {
                    stable::implement(library, name, kernel);
                }
            }
            return true;
        },
        nb::arg("parsed"), nb::arg("mask_at"),
        "Implements the operators of attention in C++; False if torch lacks what that needs.");
}

}  // namespace tilewright::python
