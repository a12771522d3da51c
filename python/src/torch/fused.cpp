// Attention with gradients as an implementation of torch's own operator for other libraries,
// aten::_scaled_dot_product_fused_attention_overrideable, whose derivative is a C++ node of torch:
// neither pass runs Python code, and the thread of a GPU's backward pass never waits for the GIL.
#include <bit>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings.h"
#include "nanobind/stl/string.h"
#include "support/memo.h"
#include "torch/operators.h"

namespace tilewright::torch {
namespace {

using stable::OwnedTensor;
using stable::Value;

/// A site of a forward pass with those of its backward passes.
class DerivedSite {
  public:
    explicit DerivedSite(std::shared_ptr<const KnownSite> forward) : forward_(std::move(forward)) {}

    const std::shared_ptr<const KnownSite>& forward() const { return forward_; }

    /// A backward site, and for each operand the position of its gradient among the results, or -1.
    struct Backward {
        std::shared_ptr<const KnownSite> site;
        std::vector<int> places;
    };
    std::shared_ptr<const Backward> backward(const std::vector<bool>& needed) {
        {
            const std::scoped_lock lock(mutex_);
            if (const auto found = backward_.find(needed); found != backward_.end())
                return found->second;
        }
        auto made = std::make_shared<Backward>();
        {
            const nb::gil_scoped_acquire held;
            nb::list needs;
            for (const bool need : needed) needs.append(need);
            const nb::object derived = forward_->site.attr("backward")(nb::tuple(needs), false);
            made->site = known_site(nb::object(derived[0]));
            for (const nb::handle place : nb::object(derived[1]))
                made->places.push_back(place.is_none() ? -1 : nb::cast<int>(place));
        }
        const std::scoped_lock lock(mutex_);
        return backward_.try_emplace(needed, std::move(made)).first->second;
    }

  private:
    std::shared_ptr<const KnownSite> forward_;
    std::mutex mutex_;  ///< never held while Python code runs
    std::map<std::vector<bool>, std::shared_ptr<const Backward>> backward_;
};

/// Sites by number, which torch's node keeps in place of the site. A number is never used again;
/// of sites that nobody has called for long only the text is kept.
class NumberedSites {
  public:
    std::int64_t number(const std::string& text) {
        const std::scoped_lock lock(mutex_);
        const auto [place, is_new] =
            numbers_.try_emplace(text, static_cast<std::int64_t>(texts_.size()));
        if (is_new) texts_.push_back(&place->first);
        return place->second;
    }
    std::shared_ptr<DerivedSite> find(std::int64_t number) {
        if (auto known = sites_.find(number)) return *std::move(known);
        std::string text;
        {
            const std::scoped_lock lock(mutex_);
            if (number < 0 || number >= static_cast<std::int64_t>(texts_.size())) return {};
            text = *texts_[static_cast<std::size_t>(number)];
        }
        return sites_.put(number, std::make_shared<DerivedSite>(known_site(text)));
    }

  private:
    std::mutex mutex_;
    std::map<std::string, std::int64_t> numbers_;
    std::vector<const std::string*> texts_;
    Memo<std::int64_t, std::shared_ptr<DerivedSite>> sites_{"sites of calls with gradients", 4096};
};
NumberedSites& numbered_sites() {
    static NumberedSites* const kSites = new NumberedSites;  // never destroyed: Python objects
    return *kSites;
}

/// Block masks by number, which torch's node keeps in place of the mask: a mask is here for as long
/// as its NumberedMask.
class NumberedMasks {
  public:
    std::int64_t add(const CallMask& mask) {
        const std::scoped_lock lock(mutex_);
        masks_.emplace(++last_, mask);
        return last_;
    }
    void remove(std::int64_t number) {
        CallMask removed;  // destroyed after the lock
        const std::scoped_lock lock(mutex_);
        if (const auto found = masks_.find(number); found != masks_.end()) {
            removed = std::move(found->second);
            masks_.erase(found);
        }
    }
    /// None for 0.
    CallMask find(std::int64_t number) {
        if (number == 0) return {};
        const std::scoped_lock lock(mutex_);
        return masks_.at(number);
    }

  private:
    std::mutex mutex_;
    std::unordered_map<std::int64_t, CallMask> masks_;
    std::int64_t last_ = 0;
};
NumberedMasks& numbered_masks() {
    static NumberedMasks* const kMasks = new NumberedMasks;
    return *kMasks;
}

/// What has to stay alive for as long as the number of a mask is used.
class NumberedMask {
  public:
    explicit NumberedMask(nb::object core)
        : core_(std::move(core)),
          number_(numbered_masks().add({core_.ptr(), nb::cast<BlockMask>(core_)})) {}
    NumberedMask(const NumberedMask&) = delete;
    NumberedMask& operator=(const NumberedMask&) = delete;
    ~NumberedMask() { numbered_masks().remove(number_); }

    /// As the operator's `scale`.
    double scale() const { return static_cast<double>(number_); }

  private:
    nb::object core_;
    std::int64_t number_;
};

/// The site of a call, passed as a dropout that nothing else has: -1 and below.
std::shared_ptr<DerivedSite> site_of(Value dropout) {
    const double code = std::bit_cast<double>(dropout);
    std::shared_ptr<DerivedSite> site;
    if (code <= -1) site = numbered_sites().find(static_cast<std::int64_t>(-code) - 1);
    if (site) return site;
    // What torch says of its operator.
    throw std::runtime_error(
        "_scaled_dot_product_fused_attention_overrideable not implemented. This is an operator for "
        "privateuse1 backends, please use TORCH_LIBRARY_IMPL to override this function ");
}

thread_local bool kernel_failed = false;
thread_local std::string backward_error;  ///< torch's C functions do not pass it on

Value make_undefined() {
    stable::TensorHandle made = nullptr;
    stable::check(stable::functions().aoti_torch_new_uninitialized_tensor(&made), "make a tensor");
    return reinterpret_cast<Value>(made);
}

/// (Tensor query, key, value, Tensor? attn_bias, float dropout_p, bool is_causal,
///  bool return_debug_mask, float? scale) -> (Tensor output, logsumexp, cum_seq_q, cum_seq_k,
///  SymInt max_q, max_k, Tensor philox_seed, philox_offset, debug_attn_mask). attn_bias is the
/// operand after value, if there is one, and scale the number of a block mask; max_q and max_k
/// return the number of operands and that of the mask.
void fused_forward(Value* stack, std::uint64_t, std::uint64_t) {
    std::vector<OwnedTensor> operands;
    operands.reserve(4);
    for (std::size_t i = 0; i < 3; ++i) operands.emplace_back(stack[i]);
    if (const auto fourth = stable::take_optional(stack[3])) operands.emplace_back(*fourth);
    const Value scale = stable::take_optional(stack[7]).value_or(0);
    const auto mask = static_cast<std::int64_t>(std::bit_cast<double>(scale));
    std::vector<OwnedTensor> results;
    kernel_failed = true;
    without_python_errors([&] {
        const auto site = site_of(stack[4]);
        results = run_site(site->forward(), operands, 0, numbered_masks().find(mask));
    });
    kernel_failed = false;
    stack[0] = results[0].release();
    stack[1] = results[1].release();
    for (const std::size_t i : {2, 3, 6, 7, 8}) stack[i] = make_undefined();
    stack[4] = operands.size();
    stack[5] = static_cast<Value>(mask);
}

/// (Tensor grad_out, query, key, value, attn_bias, bool[4] grad_input_mask, Tensor out, logsumexp,
///  cum_seq_q, cum_seq_k, SymInt max_q, max_k, float dropout_p, bool is_causal,
///  Tensor philox_seed, philox_offset, float? scale) -> (Tensor grad_query, grad_key, grad_value,
///  grad_attn_bias)
void fused_backward(Value* stack, std::uint64_t, std::uint64_t) {
    std::vector<OwnedTensor> tensors;  // whatever fails after this frees them
    tensors.reserve(11);
    for (const std::size_t i : {0, 1, 2, 3, 4, 6, 7, 8, 9, 14, 15}) tensors.emplace_back(stack[i]);
    const std::vector<Value> wanted = stable::take_values(stack[5]);
    stable::take_optional(stack[16]);
    if (!tensors[0].is_defined()) {  // nothing reaches out: torch's node asks all the same
        for (std::size_t i = 0; i < 4; ++i) stack[i] = make_undefined();
        return;
    }
    const std::size_t count = stack[10];
    std::vector<OwnedTensor> operands;
    operands.reserve(count + 3);
    for (std::size_t i = 1; i <= count; ++i) operands.push_back(std::move(tensors.at(i)));
    for (const std::size_t i : {5, 6, 0}) operands.push_back(std::move(tensors[i]));
    std::vector<bool> needed;
    for (std::size_t i = 0; i < count; ++i) needed.push_back((wanted.at(i) & 1) != 0);
    try {
        without_python_errors([&] {
            const auto derived = site_of(stack[12])->backward(needed);
            std::vector<OwnedTensor> gradients =
                run_site(derived->site, operands, 0,
                         numbered_masks().find(static_cast<std::int64_t>(stack[11])));
            for (std::size_t i = 0; i < 4; ++i) {
                const int place = i < count ? derived->places[i] : -1;
                stack[i] = place < 0 ? make_undefined()
                                     : gradients[static_cast<std::size_t>(place)].release();
            }
        });
    } catch (const std::exception& error) {
        backward_error = error.what();
        throw;
    }
}

/// The same where torch would record that the gradients have none. By operators of ours, which have
/// the same schema: the first one has that kernel; the second one, for gradients that may be
/// differentiated, is a Python function whose autograd Function refuses that by name.
void fused_backward_with_gradients(Value* stack, std::uint64_t, std::uint64_t) {
    const bool twice = stable::functions().aoti_torch_grad_mode_is_enabled();
    const char* const name =
        twice ? "tilewright::fused_backward_twice" : "tilewright::fused_backward";
    backward_error.clear();
    const auto status = stable::functions().aoti_torch_call_dispatcher(name, "", stack);
    if (status != 0 && !backward_error.empty())
        throw std::runtime_error(std::exchange(backward_error, {}));
    stable::check(status, "compute gradients");
}

}  // namespace

bool fused_has_failed() {
    return std::exchange(kernel_failed, false);
}

}  // namespace tilewright::torch

namespace tilewright::python {

void bind_fused(nb::module_& module) {
    using namespace torch;
    module.def(
        "implement_fused",
        [] {
            const std::string name = "_scaled_dot_product_fused_attention_overrideable";
            for (const char* key : {"CPU", "CUDA"}) {
                void* const library = stable::make_library("aten", key);
                stable::implement(library, name.c_str(), fused_forward);
                stable::implement(library, (name + "_backward").c_str(), fused_backward);
                stable::implement(stable::make_library("tilewright", key), "fused_backward",
                                  fused_backward);
                void* const autograd =
                    stable::make_library("aten", (std::string("Autograd") + key).c_str());
                stable::implement(autograd, (name + "_backward").c_str(),
                                  fused_backward_with_gradients);
            }
        },
        "Implements torch's operator for fused attention of other libraries; only after "
        "implement_operators, where that returned True, and the definition of fused_backward.");
    module.def(
        "fused_site",
        [](double dropout) { return site_of(std::bit_cast<Value>(dropout))->forward()->site; },
        nb::arg("dropout"), "The site that this dropout_p stands for.");
    module.def(
        "fused_mask",
        [](std::int64_t number) {
            return nb::borrow(nb::handle(numbered_masks().find(number).object));
        },
        nb::arg("number"), "The core of the block mask of a number, None for 0.");
    nb::class_<NumberedMask>(module, "NumberedMask")
        .def(nb::init<nb::object>(), nb::arg("core"))
        .def_prop_ro("scale", &NumberedMask::scale);
    module.def("fused_has_failed", torch::fused_has_failed,
               "Whether its kernel is what failed since the last such question.");
    module.def(
        "fused_dropout",
        [](const std::string& text) {
            return -static_cast<double>(numbered_sites().number(text)) - 1;
        },
        nb::arg("text"), "What stands for the site of this text as that operator's dropout_p.");
}

}  // namespace tilewright::python
