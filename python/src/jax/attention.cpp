// Attention as custom calls.
#include "tilewright/attention.h"

#include <string>
#include <string_view>

#include "attention_site.h"
#include "jax/ffi.h"

namespace tilewright::jax {
namespace {

python::AttentionSpec spec_of(const Attributes& given) {
    python::AttentionSpec spec;
    spec.operands = given.text("operands");
    spec.score_mod = given.text("score_mod");
    spec.mask_mod = given.text("mask_mod");
    spec.derivative = given.text("derivative");
    spec.gathers = python::numbers_of(given.get<std::string_view>("gathers"));
    spec.options.scale = given.get<double>("scale");
    spec.options.causal = given.get<bool>("causal");
    spec.options.window = {given.get<std::int64_t>("window_left"),
                           given.get<std::int64_t>("window_right")};
    spec.options.dropout = given.get<double>("dropout");
    spec.options.layout = given.get<bool>("bshd") ? Layout::bshd : Layout::bhsd;
    spec.options.checked = given.get<bool>("checked");
    spec.options.deterministic = given.get<bool>("deterministic");
    spec.options.gradient = given.get<bool>("gradient");
    const auto blocks = [&](const char* pass) {
        const std::vector<std::size_t> sizes =
            python::numbers_of(given.get<std::string_view>(pass));
        return AttentionBlocks{.q = static_cast<std::int64_t>(sizes.at(0)),
                               .kv = static_cast<std::int64_t>(sizes.at(1)),
                               .num_warps = static_cast<int>(sizes.at(2)),
                               .num_stages = static_cast<int>(sizes.at(3))};
    };
    spec.options.forward_blocks = blocks("forward_blocks");
    spec.options.backward_blocks = blocks("backward_blocks");
    spec.options.engine = given.text("engine");
    spec.options.precision = given.text("precision");
    spec.options.autotune = given.get<bool>("autotune");
    spec.counts_from_origin = given.get<bool>("counts_from_origin");
    spec.host = given.text("host");
    const auto words = given.get<ffi::Span<const std::uint32_t>>("host_words");
    spec.host_words = {words.begin(), words.size()};
    return spec;
}

/// One attention call; its attributes are the fields of AttentionSpec.
class AttentionCall {
  public:
    explicit AttentionCall(const Attributes& given) : site_(spec_of(given)) {}
    bool repeats() const { return site_.repeats(); }

  protected:
    python::AttentionOperands read(const CustomCall& call) const {
        return site_.read(call.operands);
    }

  private:
    python::AttentionSite site_;
};

/// Results: out, lse and, if there is a third, max_scores.
struct ForwardSite : AttentionCall {
    using AttentionCall::AttentionCall;
    void run(const CustomCall& call) const {
        const python::AttentionOperands given = read(call);
        const bool with_maximum = call.results.size() > 2;
        attention_into(
            {call.results.at(0), call.results.at(1), with_maximum ? call.results[2] : Tensor()},
            given.query, given.key, given.value, given.options);
    }
};

/// Results: the gradients of query, key, value, of the sinks if there are any, and of each `dscore`
/// array.
struct BackwardSite : AttentionCall {
    using AttentionCall::AttentionCall;
    void run(const CustomCall& call) const {
        const python::AttentionOperands given = read(call);
        AttentionGradients gradients{
            call.results.at(0), call.results.at(1), call.results.at(2), {}, {}};
        std::size_t next = 3;
        if (given.options.sinks.defined()) gradients.sinks = call.results.at(next++);
        gradients.captured.assign(call.results.begin() + static_cast<std::ptrdiff_t>(next),
                                  call.results.end());
        attention_backward_into(gradients, given.query, given.key, given.value,
                                {given.out, given.lse, {}}, given.dout, given.options, given.dlse);
    }
};

}  // namespace

void add_attention_targets(nb::list& targets) {
    add_target<ForwardSite, CommandBuffers::yes>(targets, "tilewright_attention");
    // The same calls if the host reads an operand.
    add_target<ForwardSite, CommandBuffers::no>(targets, "tilewright_attention_host");
    // Its temporary memory is too large to keep for every call.
    add_target<BackwardSite, CommandBuffers::no>(targets, "tilewright_attention_backward");
}

}  // namespace tilewright::jax
