// The Hopper kernels as an engine.
#include "attention/sm90/engine.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/sm90/arrays.h"
#include "attention/sm90/backward.h"
#include "attention/sm90/first_call.h"
#include "attention/sm90/forward.h"
#include "attention/sm90/mask_lists.h"
#include "attention/sm90/record.h"
#include "cuda/runtime/launches.h"
#include "support/debug_log.h"
#include "support/memo.h"

namespace tilewright::attn::sm90 {
namespace {

/// A forward pass as its kernels see it, and the tiles chosen for it.
struct ForwardChoice : EngineConfig {
    ForwardDesc desc;
    ForwardConfig config;

    ForwardChoice(ForwardDesc of, const ForwardConfig& chosen)
        : desc(std::move(of)), config(chosen) {}
    Config numbers() const override {
        return Config{{"q", config.block_m()},
                      {"kv", config.block_n},
                      {"stages", config.stages},
                      {"query_buffers", config.query_buffers},
                      {"stream_k", config.stream_k}};
    }
};

struct BackwardChoice : EngineConfig {
    BackwardDesc desc;
    BackwardConfig config;

    BackwardChoice(BackwardDesc of, const BackwardConfig& chosen)
        : desc(std::move(of)), config(chosen) {}
    Config numbers() const override {
        return Config{{"q", config.block_m}, {"kv", config.block_n()}, {"stages", config.stages}};
    }
};

const ForwardChoice& forward_of(const EngineConfig& config) {
    return static_cast<const ForwardChoice&>(config);
}
const BackwardChoice& backward_of(const EngineConfig& config) {
    return static_cast<const BackwardChoice&>(config);
}

/// Why neither pass supports a call.
std::optional<Refusal> refused(const AttentionSpec& spec) {
    if (!spec.on_gpu()) return Refusal{"the tensors are in CPU memory"};
    const cuda::DeviceInfo& info = cuda::device_info(spec.device.index);
    if (info.major != 9 || info.minor != 0) {
        return Refusal{fmt::format("{} is {} and not of compute capability 9.0",
                                   to_string(spec.device), info.arch())};
    }
    if (spec.segment_ids && spec.segment_ids != DType::i32)
        return Refusal{"segment ids are 64-bit integers"};
    if (spec.is_part && (spec.score || spec.mask || spec.dropout > 0))
        return Refusal{"mods or dropout count from the origin of a larger call"};
    if (spec.block_mask && spec.segment_ids)
        return Refusal{"a mask as data stands beside segment ids"};
    if (spec.block_mask && spec.packed())
        return Refusal{"a mask as data stands beside packed sequences"};
    // Each of their operations becomes text for the pairs of a tile, 64 or more of a thread, with
    // which the GPU's compiler takes minutes.
    constexpr std::int64_t kMostOperations = 1024;
    if (num_operations(spec.score) + num_operations(spec.mask) > kMostOperations)
        return Refusal{fmt::format("mods have more than {} operations", kMostOperations)};
    if (spec.pass == Pass::backward && spec.score.derivative)
        return Refusal{"the score mod has a derivative of the caller's own"};
    return std::nullopt;
}

/// The tiles nearest to the block sizes that the caller asked for, in the given order.
template <typename Tiles>
std::vector<Tiles> nearest(const std::vector<Tiles>& tiles, const AttentionBlocks& wish,
                           auto block_m, auto block_n) {
    const auto distance = [&](const Tiles& of) {
        return (wish.q > 0 ? std::abs(wish.q - block_m(of)) : 0) +
               (wish.kv > 0 ? std::abs(wish.kv - block_n(of)) : 0);
    };
    std::int64_t least = distance(tiles.front());
    for (const Tiles& of : tiles) least = std::min(least, distance(of));
    std::vector<Tiles> result;
    std::copy_if(tiles.begin(), tiles.end(), std::back_inserter(result),
                 [&](const Tiles& of) { return distance(of) == least; });
    return result;
}

/// The forward's tiles that match the caller's hints; a single one if nothing is to be measured.
std::vector<ForwardConfig> tiles_of(const AttentionSpec& spec, const ForwardDesc& desc) {
    const int multiprocessors = cuda::device_info(spec.device.index).multiprocessors;
    if (!spec.autotune && spec.forward_blocks == AttentionBlocks()) {
        return {choose_forward(desc, multiprocessors)};
    }
    return nearest(
        forward_trials(desc, multiprocessors), spec.forward_blocks,
        [](const ForwardConfig& config) { return std::int64_t{config.block_m()}; },
        [](const ForwardConfig& config) { return std::int64_t{config.block_n}; });
}

std::vector<BackwardConfig> tiles_of(const AttentionSpec& spec, const BackwardDesc& desc) {
    return nearest(
        backward_trials(desc), spec.backward_blocks,
        [](const BackwardConfig& config) { return std::int64_t{config.block_m}; },
        [](const BackwardConfig& config) { return std::int64_t{config.block_n()}; });
}

/// Starts to compile the backward kernels that belong to a forward pass, once for each: compact
/// kernels while the first forward call compiles its own, the others after it.
void compile_backward_ahead(AttentionSpec spec, cuda::StreamHandle stream, bool first_call) {
    // Called after every forward, so a spec seen before costs only a lookup.
    spec.pass = Pass::backward;
    static auto* const kSeen =
        new Memo<AttentionSpec, bool>("problems whose backward is compiled ahead", 512);
    if (kSeen->find(spec)) return;
    BackwardDesc desc;
    const bool supported = !refused(spec) && !describe(spec, desc);
    if (!supported) {
        kSeen->put(spec, true);
        return;
    }
    const BackwardConfig config = tiles_of(spec, desc).front();
    const std::vector<cuda::CompileRequest> units = generate_backward(desc, config);
    if (first_call && compile_compact({&spec, stream}, units)) return;
    kSeen->put(spec, true);
    static auto* const kStarted =
        new Memo<std::string, bool>("backward kernels compiled ahead", 512);
    const std::string key = backward_key(desc, config);
    if (kStarted->find(key)) return;
    kStarted->put(key, true);
    compile_ahead(units);
}

/// Launches what the first call of a variant may run. Compact kernels keep registers in memory, for
/// which the GPU may have no room; the second attempt waits for the kernels of later calls.
template <typename Launch>
void launch_or_wait(const FirstCall& call, const Launch& launch) {
    try {
        launch(call);
    } catch (const CudaError& error) {
        debug_log("attention", "sm90: a launch is tried again: {}", error.what());
        launch(FirstCall{});
    }
}

/// The arrays that both passes read, in `Inputs` of one of them.
template <typename Inputs>
std::vector<Placed<Inputs>> read_by(const PlacedArrays& arrays, const AttentionBuffers& b) {
    using Address = cuda::DeviceAddress&;
    const auto query = [](Inputs& to, std::size_t) -> Address { return to.query.address; };
    const auto key = [](Inputs& to, std::size_t) -> Address { return to.key.address; };
    const auto value = [](Inputs& to, std::size_t) -> Address { return to.value.address; };
    const auto sinks = [](Inputs& to, std::size_t) -> Address { return to.sinks; };
    const auto segments = [](Inputs& to, std::size_t) -> Address { return to.q_segments; };
    const auto kv_segments = [](Inputs& to, std::size_t) -> Address { return to.kv_segments; };
    const auto lengths = [](Inputs& to, std::size_t) -> Address { return to.kv_lengths; };
    const auto captured = [](Inputs& to, std::size_t n) -> Address {
        return to.captures[n].address;
    };
    std::vector<Placed<Inputs>> read = {
        {arrays.query, query},   {arrays.key, key},         {arrays.value, value},
        {arrays.sinks, sinks},   {b.segment_ids, segments}, {b.kv_segment_ids, kv_segments},
        {b.kv_lengths, lengths},
    };
    for (std::size_t i = 0; i < b.captured.size(); ++i)
        read.push_back({b.captured[i], captured, i});
    return read;
}

void record_forward(std::uint64_t count, const ForwardInputs& inputs, const ForwardKernels& kernels,
                    const ForwardChoice& choice, const PlacedArrays& arrays,
                    const AttentionBuffers& b, const Tensor& written,
                    const std::shared_ptr<const UploadedLists>& lists) {
    using Inputs = ForwardInputs;
    using Address = cuda::DeviceAddress&;
    const auto out = [](Inputs& to, std::size_t) -> Address { return to.out.address; };
    const auto lse = [](Inputs& to, std::size_t) -> Address { return to.lse; };
    const auto maximum = [](Inputs& to, std::size_t) -> Address { return to.row_max; };
    const auto workspace = [](Inputs& to, std::size_t) -> Address { return to.workspace; };
    const auto launch = [desc = choice.desc, config = choice.config, lists](
                            const Inputs& moved, const ForwardKernels& loaded_kernels,
                            cuda::StreamHandle stream) {
        launch_forward(moved, desc, config, loaded_kernels, stream);
    };
    record(count, inputs, kernels, read_by<Inputs>(arrays, b),
           {{written, out},
            {b.result.lse, lse},
            {b.result.max_scores, maximum},
            {b.workspace, workspace}},
           launch);
}

void run_forward(const AttentionSpec& spec, const ForwardChoice& choice, const AttentionBuffers& b,
                 cuda::StreamHandle stream) {
    const auto& [desc, config] = std::tie(choice.desc, choice.config);
    ForwardInputs inputs;
    const PlacedArrays arrays(spec, b, inputs);
    const Tensor out = writable("out", b.result.out);
    inputs.out = view_of(out);
    inputs.lse = address_of(b.result.lse);
    inputs.row_max = address_of(b.result.max_scores);
    std::shared_ptr<const UploadedLists> lists;
    if (spec.block_mask) {
        lists = lists_on(spec, b, plan_options(config));
        inputs.mask = lists->mask();
    }
    check_arrays(inputs);
    debug_log("attention", "sm90 forward: tiles of {} x {}, {} stages{}{}{}", config.block_m(),
              config.block_n, config.stages,
              config.group > 1 ? fmt::format(", {} heads in a tile", config.group) : "",
              config.stream_k > 0 ? fmt::format(", stream-K over {} CTAs", config.stream_k) : "",
              desc.mask_bits ? ", mask as data"
              : desc.listed  ? ", listed blocks"
                             : "");
    launch_or_wait({&spec, stream}, [&](const FirstCall& call) {
        const ForwardKernels kernels = load_forward(desc, config, spec.device.index, call, [&] {
            if (spec.gradient) compile_backward_ahead(spec, stream, /*first_call=*/true);
        });
        const std::uint64_t before = cuda::launched_by_thread();
        launch_forward(inputs, desc, config, kernels, stream);
        record_forward(cuda::launched_by_thread() - before, inputs, kernels, choice, arrays, b, out,
                       lists);
    });
    if (out.raw() != b.result.out.raw()) b.result.out.copy_from(out);
    if (spec.gradient) compile_backward_ahead(spec, stream, /*first_call=*/false);
}

/// Gradients that are not wanted are written all the same.
Tensor target(const char* argument, const Tensor& gradient, const Tensor& like) {
    return gradient.defined() ? writable(argument, gradient)
                              : Tensor::empty(like.dtype(), like.shape(), like.device());
}

/// `own`: out, dout, lse and dlse; `written`: the gradients of query, key and value.
void record_backward(std::uint64_t count, const BackwardInputs& inputs,
                     const BackwardKernels& kernels, const BackwardChoice& choice,
                     const PlacedArrays& arrays, const AttentionBuffers& b,
                     const std::array<Tensor, 4>& own, std::span<const Tensor> written,
                     const std::array<std::shared_ptr<const UploadedLists>, 2>& lists) {
    using Inputs = BackwardInputs;
    using Address = cuda::DeviceAddress&;
    const auto out = [](Inputs& to, std::size_t) -> Address { return to.out.address; };
    const auto dout = [](Inputs& to, std::size_t) -> Address { return to.grad_out.address; };
    const auto lse = [](Inputs& to, std::size_t) -> Address { return to.lse; };
    const auto dlse = [](Inputs& to, std::size_t) -> Address { return to.grad_lse; };
    const auto dq = [](Inputs& to, std::size_t) -> Address { return to.grad_query.address; };
    const auto dk = [](Inputs& to, std::size_t) -> Address { return to.grad_key.address; };
    const auto dv = [](Inputs& to, std::size_t) -> Address { return to.grad_value.address; };
    const auto sinks = [](Inputs& to, std::size_t) -> Address { return to.grad_sinks; };
    const auto workspace = [](Inputs& to, std::size_t) -> Address { return to.workspace; };
    const auto captured = [](Inputs& to, std::size_t n) -> Address { return to.grad_captures[n]; };
    std::vector<Placed<Inputs>> read = read_by<Inputs>(arrays, b);
    read.insert(read.end(), {{own[0], out}, {own[1], dout}, {own[2], lse}, {own[3], dlse}});
    std::vector<Placed<Inputs>> outputs = {
        {written[0], dq},          {written[1], dk},         {written[2], dv},
        {b.sinks_gradient, sinks}, {b.workspace, workspace},
    };
    for (std::size_t i = 0; i < b.captured_gradients.size(); ++i)
        outputs.push_back({b.captured_gradients[i], captured, i});
    const auto launch = [desc = choice.desc, config = choice.config, lists](
                            const Inputs& moved, const BackwardKernels& loaded_kernels,
                            cuda::StreamHandle stream) {
        launch_backward(moved, desc, config, loaded_kernels, stream);
    };
    record(count, inputs, kernels, std::move(read), std::move(outputs), launch);
}

void run_backward(const AttentionSpec& spec, const BackwardChoice& choice,
                  const AttentionBuffers& b, cuda::StreamHandle stream) {
    const auto& [desc, config] = std::tie(choice.desc, choice.config);
    BackwardInputs inputs;
    const PlacedArrays arrays(spec, b, inputs);
    inputs.deterministic = spec.deterministic;
    const Tensor out = readable("forward.out", b.result.out), grad_out = readable("dout", b.dout);
    const Tensor lse = b.result.lse.contiguous();
    const Tensor grad_lse = b.dlse.defined() ? b.dlse.to(f32).contiguous() : Tensor();
    inputs.out = view_of(out);
    inputs.grad_out = view_of(grad_out);
    inputs.lse = address_of(lse);
    inputs.grad_lse = address_of(grad_lse);
    const Tensor* const wanted[] = {&b.query_gradient, &b.key_gradient, &b.value_gradient};
    const Tensor written[] = {target("gradients.query", b.query_gradient, b.query),
                              target("gradients.key", b.key_gradient, b.key),
                              target("gradients.value", b.value_gradient, b.value)};
    inputs.grad_query = view_of(written[0]);
    inputs.grad_key = view_of(written[1]);
    inputs.grad_value = view_of(written[2]);
    inputs.grad_sinks = address_of(b.sinks_gradient);
    for (const Tensor& gradient : b.captured_gradients) {
        inputs.grad_captures.push_back(address_of(gradient));
    }
    std::array<std::shared_ptr<const UploadedLists>, 2> lists;
    if (spec.block_mask) {
        lists[0] = lists_on(spec, b, backward_plan_options(choose_backward(desc)));
        inputs.mask = lists[0]->mask();
        if (desc.over_128()) {
            lists[1] = query_lists_on(spec, b);
            inputs.query_mask = lists[1]->mask();
        }
    }
    check_arrays(inputs, desc);
    debug_log("attention", "sm90 backward: tiles of {} x {}, {} stages{}", config.block_m,
              config.block_n(), config.stages, desc.deterministic ? ", deterministic" : "");
    launch_or_wait({&spec, stream}, [&](const FirstCall& call) {
        const BackwardKernels kernels = load_backward(desc, config, spec.device.index, call);
        const std::uint64_t before = cuda::launched_by_thread();
        launch_backward(inputs, desc, config, kernels, stream);
        record_backward(cuda::launched_by_thread() - before, inputs, kernels, choice, arrays, b,
                        {out, grad_out, lse, grad_lse}, written, lists);
    });
    for (std::size_t i = 0; i < std::size(wanted); ++i) {
        if (wanted[i]->defined() && written[i].raw() != wanted[i]->raw())
            wanted[i]->copy_from(written[i]);
    }
}

class Sm90Engine : public Engine {
  public:
    EngineId id() const override { return EngineId::sm90; }
    const char* description() const override { return "kernels for Hopper GPUs"; }

    std::optional<Refusal> supports(const AttentionSpec& spec) const override {
        if (std::optional<Refusal> reason = refused(spec)) return reason;
        ForwardDesc forward;
        BackwardDesc backward;
        return spec.pass == Pass::forward ? describe(spec, forward) : describe(spec, backward);
    }

    ConfigPtr choose(const AttentionSpec& spec) const override { return trials(spec).front(); }

    std::vector<ConfigPtr> trials(const AttentionSpec& spec) const override {
        return spec.pass == Pass::forward ? choices<ForwardChoice, ForwardDesc>(spec)
                                          : choices<BackwardChoice, BackwardDesc>(spec);
    }

    std::int64_t workspace(const AttentionSpec& spec, const EngineConfig& config) const override {
        if (spec.pass == Pass::forward) {
            const ForwardChoice& choice = forward_of(config);
            return static_cast<std::int64_t>(forward_workspace_bytes(choice.desc, choice.config));
        }
        const BackwardChoice& choice = backward_of(config);
        return static_cast<std::int64_t>(backward_workspace_bytes(choice.desc, choice.config));
    }

    void launch(const AttentionSpec& spec, const EngineConfig& config,
                const AttentionBuffers& buffers, void* stream) const override {
        if (spec.pass == Pass::forward) {
            run_forward(spec, forward_of(config), buffers, stream);
        } else {
            run_backward(spec, backward_of(config), buffers, stream);
        }
    }

    /// The kernels isolate keys that data hides, but not those hidden by a mask that they evaluate.
    bool isolates_hidden_keys(const AttentionSpec& spec) const override { return !spec.mask; }

  private:
    template <typename Choice, typename Desc>
    static std::vector<ConfigPtr> choices(const AttentionSpec& spec) {
        Desc desc;
        const std::optional<Refusal> refusal = describe(spec, desc);
        TW_ASSERT(!refusal, "{}", refusal->reason);
        std::vector<ConfigPtr> result;
        for (const auto& config : tiles_of(spec, desc)) {
            result.push_back(std::make_shared<Choice>(desc, config));
        }
        return result;
    }
};

}  // namespace

const Engine& engine() {
    static const Sm90Engine kEngine;
    return kEngine;
}

}  // namespace tilewright::attn::sm90
