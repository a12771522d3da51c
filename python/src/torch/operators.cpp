// The kernels of torch's operators tilewright::forward and tilewright::backward, in C++: a compiled
// region that calls them runs no Python code.
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings.h"
#include "nanobind/stl/string.h"
#include "support/memo.h"
#include "torch/attention.h"
#include "torch/stable.h"

namespace tilewright::torch {
namespace {

/// A site of _sites.py, found by its text.
struct KnownSite {
    nb::object site, owner;
    TorchAttention* attention = nullptr;
    bool max_scores = false;
    int words_at = -1;  ///< the operand that holds the words of the call's own block mask
    mutable std::shared_ptr<const KnownSite> without_words;  ///< made when wanted, under the GIL
};

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
struct HeldMask {
    PyObject* object = Py_None;  ///< no reference
    BlockMask mask;

    HeldMask() = default;
    HeldMask(const HeldMask&) = delete;
    HeldMask& operator=(const HeldMask&) = delete;
    ~HeldMask() {
        if (object == Py_None) return;
        const nb::gil_scoped_acquire held;
        nb::handle(object).dec_ref();
    }
    /// Finds the mask that is alive in this process; false without one. Needs the GIL.
    bool find(const void* words) {
        nb::object found = nb::handle(kernel_state().mask_at)(
            static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(words)));
        if (found.is_none()) return false;
        mask = nb::cast<BlockMask>(found.attr("_core"));
        object = found.release().ptr();
        return true;
    }
};

std::shared_ptr<const KnownSite> make_known(nb::object site) {
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

std::shared_ptr<const KnownSite> site_of(std::string_view text) {
    if (auto known = kernel_state().sites.find(text)) return *std::move(known);
    const nb::gil_scoped_acquire held;
    const nb::object site = nb::handle(kernel_state().parsed)(nb::str(text.data(), text.size()));
    return kernel_state().sites.put(std::string(text), make_known(site));
}

/// Results of a call, in the order of its site.
std::vector<stable::OwnedTensor> run_site(std::vector<stable::OwnedTensor> operands,
                                          std::int64_t seed, std::string_view text,
                                          bool& has_max_scores) {
    std::shared_ptr<const KnownSite> known = site_of(text);
    has_max_scores = known->max_scores;
    std::vector<DLTensor> views;
    views.reserve(operands.size());
    for (const stable::OwnedTensor& operand : operands) views.push_back(operand.view());
    HeldMask mask;
    if (known->words_at >= 0) {
        // A mask that is alive in this process is used directly, not read from its words.
        const auto words = views.begin() + known->words_at;
        const nb::gil_scoped_acquire held;
        if (mask.find(words->data)) {
            views.erase(words);
            if (!known->without_words) {
                known->without_words = make_known(known->site.attr("without_words"));
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
    known->attention->call_released(
        known->site, arguments, mask.object, mask.mask, static_cast<std::uint64_t>(seed),
        [&](const Calls::Wanted& wanted) {
            results.push_back(stable::OwnedTensor::empty(wanted.shape, wanted.strides, wanted.dtype,
                                                         wanted.device));
            return results.back().view();
        });
    return results;
}

/// The text of an error without Python's traceback.
std::string text_of(const nb::python_error& error) {
    const nb::gil_scoped_acquire held;
    return nb::cast<std::string>(nb::str(error.value()));
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
    std::string message;
    try {
        return run_site(std::move(operands), static_cast<std::int64_t>(stack[4]), site.view(),
                        has_max_scores);
    } catch (const nb::python_error& error) {
        message = text_of(error);
    }
    throw std::runtime_error(message);
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
            const stable::Functions& functions = stable::functions();
            for (const char* key : {"CPU", "CUDA"}) {
                void* library = nullptr;  // kept for as long as the process lives
                stable::check(functions.aoti_torch_library_init_impl("tilewright", key,
                                                                     "operators.cpp", 0, &library),
                              "register operators");
                for (const auto& [name, kernel] :
                     {std::pair<const char*, stable::Kernel>{"forward", forward_kernel},
                      {"forward.host", forward_kernel},
                      {"forward.alone", forward_alone_kernel},
                      {"forward.alone_host", forward_alone_kernel},
                      {"backward", backward_kernel},
                      {"backward.host", backward_kernel}}) {
                    stable::check(functions.aoti_torch_library_impl(library, name, kernel),
                                  "register operators");
                }
            }
            return true;
        },
        nb::arg("parsed"), nb::arg("mask_at"),
        "Implements the operators of attention in C++; False if torch lacks what that needs.");
}

}  // namespace tilewright::python
