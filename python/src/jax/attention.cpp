// Attention as custom calls.
#include "tilewright/attention.h"

#include <string>
#include <string_view>

#include "jax/ffi.h"

namespace tilewright::jax {
namespace {

/// The operands of a call by what they are.
struct Operands {
    Tensor query, key, value, out, lse, dout, dlse;
    AttentionOptions options;
};

/// The words of a text, one after the other; an empty one behind the last.
class Words {
  public:
    explicit Words(std::string_view text) : rest_(text) {}
    std::string_view next() {
        const std::size_t end = std::min(rest_.find(' '), rest_.size());
        const std::string_view word = rest_.substr(0, end);
        rest_.remove_prefix(std::min(end + 1, rest_.size()));
        return word;
    }

  private:
    std::string_view rest_;
};

void add_block_mask(AttentionOptions& options, const Tensor& words) {
    const BlockMask mask = BlockMask::from_packed(words);
    options.block_mask = options.block_mask.defined() ? options.block_mask & mask : mask;
}

std::uint64_t seed_of(const Tensor& words) {
    const auto* halves = words.data<std::uint32_t>();
    return halves[0] | std::uint64_t{halves[1]} << 32;
}

std::vector<std::size_t> numbers(std::string_view text) {
    std::vector<std::size_t> result;
    Words words(text);
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        result.push_back(std::stoul(std::string(word)));
    }
    return result;
}

/// The attribute `operands` names them in order. Arrays of a mod come once for each of its Refs:
/// `score` or, where the gradient is wanted, `dscore`; `mask`. The texts of the mods are
/// attributes, empty without one.
Operands read(const CustomCall& call) {
    Operands given;
    AttentionOptions& options = given.options;
    std::vector<Capture> score, mask;
    Words words(call.get<std::string_view>("operands"));
    for (const Tensor& operand : call.operands) {
        const std::string_view name = words.next();
        if (name == "query")
            given.query = operand;
        else if (name == "key")
            given.key = operand;
        else if (name == "value")
            given.value = operand;
        else if (name == "out")
            given.out = operand;
        else if (name == "lse")
            given.lse = operand;
        else if (name == "dout")
            given.dout = operand;
        else if (name == "dlse")
            given.dlse = operand;
        else if (name == "segment_ids")
            options.segment_ids = operand;
        else if (name == "kv_segment_ids")
            options.kv_segment_ids = operand;
        else if (name == "cu_seqlens")
            options.cu_seqlens = operand;
        else if (name == "kv_cu_seqlens")
            options.kv_cu_seqlens = operand;
        else if (name == "sinks")
            options.sinks = operand;
        else if (name == "seed")
            options.seed = seed_of(operand);
        else if (name == "block_mask")
            add_block_mask(options, operand);
        else if (name == "score")
            score.push_back(capture(operand, {}, false));
        else if (name == "dscore")
            score.push_back(capture(operand));
        else if (name == "mask")
            mask.push_back(capture(operand, {}, false));
        else
            throw InternalError("[jax] unknown operand " + std::string(name));
    }
    if (const auto text = call.get<std::string_view>("score_mod"); !text.empty()) {
        options.score_mod = Mod::from_ir(text, std::move(score));
        const auto derivative = call.get<std::string_view>("derivative");
        if (!derivative.empty()) {
            options.score_mod = options.score_mod.with_derivative(
                derivative, numbers(call.get<std::string_view>("gathers")));
        }
    }
    if (const auto text = call.get<std::string_view>("mask_mod"); !text.empty()) {
        options.mask = Mod::from_ir(text, std::move(mask));
    }
    options.scale = call.get<double>("scale");
    options.causal = call.get<bool>("causal");
    options.window = {call.get<std::int64_t>("window_left"),
                      call.get<std::int64_t>("window_right")};
    options.dropout = call.get<double>("dropout");
    options.layout = call.get<bool>("bshd") ? Layout::bshd : Layout::bhsd;
    options.checked = call.get<bool>("checked");
    options.deterministic = call.get<bool>("deterministic");
    return given;
}

/// Results out, lse, max_scores.
void attention_forward(const CustomCall& call) {
    const Operands given = read(call);
    const AttentionOutput result = attention(given.query, given.key, given.value, given.options);
    call.results.at(0).copy_from(result.out);
    call.results.at(1).copy_from(result.lse);
    call.results.at(2).copy_from(result.max_scores);
}

/// Results: the gradients of query, key, value, of the sinks if there are any, and of every array
/// `dscore`.
void attention_gradients(const CustomCall& call) {
    const Operands given = read(call);
    const AttentionGradients result =
        attention_backward(given.query, given.key, given.value, {given.out, given.lse, {}},
                           given.dout, given.options, given.dlse);
    std::vector<Tensor> gradients{result.query, result.key, result.value};
    if (result.sinks.defined()) gradients.push_back(result.sinks);
    gradients.insert(gradients.end(), result.captured.begin(), result.captured.end());
    for (std::size_t i = 0; i < gradients.size(); ++i) call.results.at(i).copy_from(gradients[i]);
}

}  // namespace

void add_attention_targets(nb::dict& targets) {
    add_target(targets, "tilewright_attention", "cpu", host_handler<attention_forward>());
    add_target(targets, "tilewright_attention_backward", "cpu",
               host_handler<attention_gradients>());
}

}  // namespace tilewright::jax
