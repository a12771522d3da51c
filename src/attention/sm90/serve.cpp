// From problems on tensors to the launches of the Hopper kernels.
#include "attention/sm90/serve.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <vector>

#include "attention/mask_cache.h"
#include "attention/sm90/backward.h"
#include "attention/sm90/forward.h"
#include "attention/sm90/mask_lists.h"
#include "attention/tune.h"
#include "cuda/runtime/stream.h"
#include "run/cuda_memory.h"
#include "support/debug_log.h"
#include "support/memo.h"
#include "tilewright/masks.h"

namespace tilewright::attn::sm90 {
namespace {

cuda::DeviceAddress address_of(const Tensor& tensor) {
    return tensor.defined() ? reinterpret_cast<cuda::DeviceAddress>(tensor.raw()) : 0;
}

DeviceTensor view_of(const Tensor& tensor) {
    DeviceTensor result;
    result.address = address_of(tensor);
    std::copy_n(tensor.shape().begin(), 4, result.shape.begin());
    std::copy_n(tensor.strides().begin(), 4, result.strides.begin());
    return result;
}

/// The tensor where the copy engine can reach it, else a new one of its type.
Tensor writable(const char* argument, const Tensor& tensor) {
    bool fits = address_of(tensor) % 16 == 0;
    for (int d = 0; d < 3; ++d) {
        const std::int64_t stride = tensor.strides()[static_cast<std::size_t>(d)];
        fits = fits && (tensor.dim(d) == 1 || stride % 8 == 0);
    }
    fits = fits && (tensor.dim(3) == 1 || tensor.strides()[3] == 1);
    if (fits || tensor.size() == 0) return tensor;
    debug_log("attention",
              "slow path: {} is copied, since its address or a stride is no multiple of 16 bytes",
              argument);
    return Tensor::empty(tensor.dtype(), tensor.shape(), tensor.device());
}

/// The tensor where the copy engine can read it, else a copy of it.
Tensor readable(const char* argument, const Tensor& tensor) {
    const Tensor result = writable(argument, tensor);
    if (result.raw() != tensor.raw()) result.copy_from(tensor);
    return result;
}

/// One function object for each text, whatever mod it came from: the engine knows mods by address.
std::shared_ptr<const ir::Function> canonical(const std::string& text, auto make) {
    static auto* const kFunctions = new Memo<std::string, std::shared_ptr<const ir::Function>>(
        "mods of the Hopper engine", 512);
    return kFunctions->get(text, make);
}

/// The score mod, with the mask mod (if there is one) folded in.
std::shared_ptr<const ir::Function> combined_mod(const Problem& p) {
    if (!p.score && !p.mask) return nullptr;
    if (!p.mask) return canonical(p.score->text, [&] { return p.score->function; });
    return canonical("masked\n" + (p.score ? p.score->text : "") + "\n" + p.mask->text, [&] {
        return std::make_shared<const ir::Function>(
            with_mask(p.score ? p.score->function.get() : nullptr, *p.mask->function));
    });
}

std::vector<CaptureView> captures_of(const Problem& p) {
    std::vector<CaptureView> views;
    for (const Tensor& tensor : p.captured) {
        views.push_back({address_of(tensor), tensor.dtype(), tensor.shape(), tensor.strides()});
    }
    return views;
}

/// Everything that masks by position: the data, or the diagonals of causal and window.
BlockMask mask_with_diagonals(const Problem& p) {
    const std::int64_t left = p.options.window_left, right = p.options.right();
    if (left < 0 && right < 0) return p.block_mask;
    const BlockMask band = mask_of_mod(masks::window(left, right),
                                       {p.batch, p.query_heads, p.query_length, p.kv_length});
    return intersection(p.block_mask, band);
}

/// The lists of a mask on a GPU, copied once; they live as long as the plan they come from.
DeviceMask lists_on(const Problem& p, const mask::PlanOptions& options) {
    using Lists = std::shared_ptr<const UploadedLists>;
    using Key = std::tuple<Identity<const mask::MaskPlan>, int, std::int64_t>;
    static auto* const kLists = new Memo<Key, Lists>("lists of masks on GPUs", kWhileAlive);
    const auto plan = mask::plan(mask_with_diagonals(p), options);
    const Lists lists = kLists->get({Identity(plan), p.device.index, p.options.group}, [&] {
        cuda::expect_no_capture("attention", "the mask to be on the GPU");
        // Freeing memory waits for the kernels that read it.
        kLists->take_if([](const Key& key, const Lists&) { return std::get<0>(key).is_gone(); });
        debug_log("attention", "a mask of {} bytes is copied to {}", plan->nbytes(),
                  to_string(p.device));
        return std::make_shared<const UploadedLists>(*plan, p.query_length, p.kv_length,
                                                     p.device.index, p.options.group);
    });
    return lists->mask();
}

/// Those for tiles of queries: the forward's, and where heads are wide the backward's too.
DeviceMask query_lists_on(const Problem& p) {
    return lists_on(p, plan_options(static_cast<int>(p.head_dim), static_cast<int>(p.value_dim)));
}

/// i32 starts of packed sequences on the GPU.
Tensor starts_on(const Problem& p, const std::vector<std::int64_t>& starts) {
    std::vector<std::int32_t> narrow(starts.begin(), starts.end());
    narrow.resize((narrow.size() + 1) / 2 * 2);
    std::vector<std::int64_t> words(narrow.size() / 2);
    std::memcpy(words.data(), narrow.data(), narrow.size() * sizeof(narrow[0]));
    return run::constant(words, p.device);
}

/// The small arrays of a problem in the form the kernels want, for as long as this lives.
struct SmallArrays {
    Tensor sinks, q_starts, kv_starts;

    SmallArrays(const Problem& p, ProblemInputs& inputs) {
        if (p.sinks.defined()) sinks = p.sinks.to(f32).contiguous();
        if (p.packed()) {
            q_starts = starts_on(p, p.starts);
            kv_starts = starts_on(p, p.kv_starts);
        }
        inputs.sinks = address_of(sinks);
        inputs.q_starts = address_of(q_starts);
        inputs.kv_starts = address_of(kv_starts);
    }
};

constexpr cuda::DeviceAddress kSomewhere = 256;  // stands for memory that is not there yet

/// What both passes are given of a problem whose tensors are readable, without what they write and
/// temporary memory.
template <typename Inputs>
Inputs inputs_of(const Problem& p) {
    Inputs inputs;
    inputs.dtype = p.query.dtype();
    inputs.query = view_of(p.query);
    inputs.key = view_of(p.key);
    inputs.value = view_of(p.value);
    inputs.scale = p.options.scale;
    if (!p.block_mask.defined()) {
        if (p.options.window_left >= 0) inputs.lower_diagonal = -p.options.window_left;
        if (p.options.right() >= 0) inputs.upper_diagonal = p.options.right();
    }
    inputs.score_mod = combined_mod(p);
    inputs.captures = captures_of(p);
    inputs.q_segments = address_of(p.segment_ids);
    inputs.kv_segments = address_of(p.kv_segment_ids);
    inputs.sequences = p.packed() ? static_cast<std::int64_t>(p.starts.size()) - 1 : 0;
    if (p.kv_lengths.defined()) {
        inputs.kv_lengths = address_of(p.kv_lengths);
        inputs.length_bytes = static_cast<int>(size_of(p.kv_lengths.dtype()));
    }
    inputs.dropout = p.features.dropout;
    inputs.seed = p.seed;
    inputs.lse = inputs.workspace = kSomewhere;
    inputs.out = inputs.query;
    inputs.out.shape[3] = p.value_dim;
    inputs.out.address = kSomewhere;
    return inputs;
}

/// What both passes cannot serve.
std::string why_not(const Problem& p) {
    const cuda::DeviceInfo& info = cuda::device_info(p.device.index);
    if (info.major != 9 || info.minor != 0) {
        return fmt::format("{} is {} and not of compute capability 9.0", to_string(p.device),
                           info.arch());
    }
    if (p.segment_ids.defined() && p.segment_ids.dtype() != DType::i32) {
        return "segment ids are 64-bit integers";
    }
    if (p.is_part && (p.score || p.mask || p.features.dropout > 0)) {
        return "mods or dropout count from the origin of a larger call";
    }
    if (p.block_mask.defined() && p.segment_ids.defined()) {
        return "a mask as data stands beside segment ids";
    }
    if (p.block_mask.defined() && p.packed()) {
        return "a mask as data stands beside packed sequences";
    }
    return {};
}

/// The text of the UserError that `check` throws; empty when it throws none.
std::string complaint(auto check) {
    try {
        check();
    } catch (const UserError& error) {
        return error.what();
    }
    return {};
}

void compile_backward_ahead(const Problem& p);

/// Of these trials those nearest to the caller's blocks, in their order.
template <typename TrialConfig>
std::vector<TrialConfig> nearest(const std::vector<TrialConfig>& trials,
                                 const AttentionBlocks& wish, auto block_m, auto block_n) {
    const auto distance = [&](const TrialConfig& trial) {
        return (wish.q > 0 ? std::abs(wish.q - block_m(trial)) : 0) +
               (wish.kv > 0 ? std::abs(wish.kv - block_n(trial)) : 0);
    };
    std::int64_t least = distance(trials.front());
    for (const TrialConfig& trial : trials) least = std::min(least, distance(trial));
    std::vector<TrialConfig> result;
    std::copy_if(trials.begin(), trials.end(), std::back_inserter(result),
                 [&](const TrialConfig& trial) { return distance(trial) == least; });
    return result;
}

/// Configurations of the forward that the caller's hints leave.
std::vector<ForwardConfig> trials_of(const Problem& p, const ForwardDesc& desc) {
    const int multiprocessors = cuda::device_info(p.device.index).multiprocessors;
    if (!p.autotune && p.forward_blocks == AttentionBlocks()) {
        return {choose_forward(desc, multiprocessors)};
    }
    return nearest(
        forward_trials(desc, multiprocessors), p.forward_blocks,
        [](const ForwardConfig& config) { return std::int64_t{config.block_m()}; },
        [](const ForwardConfig& config) { return std::int64_t{config.block_n}; });
}

std::vector<BackwardConfig> trials_of(const Problem& p, const BackwardDesc& desc) {
    return nearest(
        backward_trials(desc), p.backward_blocks,
        [](const BackwardConfig& config) { return std::int64_t{config.block_m}; },
        [](const BackwardConfig& config) { return std::int64_t{config.block_n()}; });
}

/// The numbers that tell trials apart, for the autotuner.
Config numbers_of(const ForwardConfig& config) {
    return Config{{"q", config.block_m()},
                  {"kv", config.block_n},
                  {"stages", config.stages},
                  {"query_buffers", config.query_buffers},
                  {"shares", config.shares}};
}
Config numbers_of(const BackwardConfig& config) {
    return Config{{"q", config.block_m}, {"kv", config.block_n()}, {"stages", config.stages}};
}

/// The first of the trials, or the fastest where the caller asks for that.
template <typename TrialConfig>
TrialConfig chosen(const Problem& p, const char* pass, const std::vector<TrialConfig>& trials,
                   const std::function<void(const TrialConfig&)>& run) {
    if (!p.autotune || trials.size() == 1) return trials.front();
    std::vector<Config> numbers;
    for (const TrialConfig& trial : trials) numbers.push_back(numbers_of(trial));
    return trials[tuned(p, pass, numbers, [&](std::size_t place) { run(trials[place]); })];
}

/// As if already copied to where the engine can read it.
DeviceTensor as_readable(DeviceTensor tensor) {
    tensor.address = kSomewhere;
    std::int64_t stride = 1;
    for (std::size_t d = 4; d-- > 0;) {
        tensor.strides[d] = stride;
        stride *= tensor.shape[d];
    }
    return tensor;
}

}  // namespace

std::string why_not_forward(const Problem& p) {
    if (std::string reason = why_not(p); !reason.empty()) return reason;
    return complaint([&] {
        ForwardInputs inputs = inputs_of<ForwardInputs>(p);
        for (DeviceTensor* tensor : {&inputs.query, &inputs.key, &inputs.value, &inputs.out}) {
            *tensor = as_readable(*tensor);
        }
        if (p.packed()) inputs.q_starts = inputs.kv_starts = kSomewhere;
        check_forward(inputs);
    });
}

void run_forward(const Problem& given, const AttentionOutput& result) {
    Problem p = given;
    p.query = readable("query", p.query);
    p.key = readable("key", p.key);
    p.value = readable("value", p.value);
    ForwardInputs inputs = inputs_of<ForwardInputs>(p);
    const Tensor out = writable("out", result.out);
    inputs.out = view_of(out);
    inputs.lse = address_of(result.lse);
    inputs.row_max = address_of(result.max_scores);
    const SmallArrays arrays(p, inputs);
    if (p.block_mask.defined()) {
        inputs.mask = query_lists_on(p);
    }
    const ForwardDesc desc = check_forward(inputs);
    const auto launch = [&](const ForwardConfig& config) {
        const auto bytes = static_cast<std::int64_t>(forward_workspace_bytes(desc, config));
        const Tensor workspace = Tensor::empty(u8, {bytes}, p.device);
        inputs.workspace = address_of(workspace);
        const ForwardKernels kernels = load_forward(desc, config, p.device.index, [&] {
            if (p.gradient) compile_backward_ahead(p);
        });
        launch_forward(inputs, desc, config, kernels, cuda::current_stream());
    };
    const ForwardConfig config =
        chosen<ForwardConfig>(p, "sm90 forward", trials_of(p, desc), launch);
    debug_log("attention", "sm90 forward: tiles of {} x {}, {} stages{}{}{}", config.block_m(),
              config.block_n, config.stages,
              config.group > 1 ? fmt::format(", {} heads in a tile", config.group) : "",
              config.shares > 0 ? fmt::format(", blocks in {} shares", config.shares) : "",
              desc.mask_bits ? ", mask as data"
              : desc.listed  ? ", listed blocks"
                             : "");
    launch(config);
    if (out.raw() != result.out.raw()) result.out.copy_from(out);
    if (p.gradient) compile_backward_ahead(p);
}

namespace {

BackwardInputs backward_inputs_of(const Problem& p) {
    auto inputs = inputs_of<BackwardInputs>(p);
    inputs.deterministic = p.deterministic;
    return inputs;
}

/// Captures of the score mod whose gradient is wanted.
std::vector<bool> wanted_captures(const Problem& p) {
    std::vector<bool> wanted = p.differentiable();
    wanted.resize(p.captured.size());
    return wanted;
}

/// Lists of the mask that are still to be made: which ones depends on the configuration.
void add_coming_lists(const Problem& p, BackwardInputs& inputs) {
    inputs.mask = DeviceMask{.q_len = p.query_length, .kv_len = p.kv_length, .by_key = true};
    if (is_wide(p.head_dim, p.value_dim)) {
        inputs.query_mask = DeviceMask{.q_len = p.query_length, .kv_len = p.kv_length};
    }
}

/// The backward of a problem before there is memory for it. UserError for what cannot be served.
BackwardDesc backward_ahead(const Problem& p) {
    BackwardInputs inputs = backward_inputs_of(p);
    inputs.grad_out = inputs.out;
    inputs.grad_query = inputs.query;
    inputs.grad_key = inputs.key;
    inputs.grad_value = inputs.value;
    for (DeviceTensor* tensor :
         {&inputs.query, &inputs.key, &inputs.value, &inputs.out, &inputs.grad_out,
          &inputs.grad_query, &inputs.grad_key, &inputs.grad_value}) {
        *tensor = as_readable(*tensor);
    }
    if (p.packed()) inputs.q_starts = inputs.kv_starts = kSomewhere;
    if (p.sinks.defined()) inputs.sinks = inputs.grad_sinks = kSomewhere;
    for (const bool wanted : wanted_captures(p)) {
        inputs.grad_captures.push_back(wanted ? kSomewhere : 0);
    }
    if (p.block_mask.defined()) add_coming_lists(p, inputs);
    return check_backward(inputs);
}

}  // namespace

namespace {

/// The backward of a problem, or why there is none.
std::string find_backward(const Problem& p, BackwardDesc& desc) {
    if (std::string reason = why_not(p); !reason.empty()) return reason;
    if (p.score && p.score->derivative) return "the score mod has a derivative of the caller's own";
    return complaint([&] { desc = backward_ahead(p); });
}

}  // namespace

std::string why_not_backward(const Problem& p) {
    BackwardDesc unused;
    return find_backward(p, unused);
}

namespace {

/// Starts the compilation of the backward's kernels, once for each.
void compile_backward_ahead(const Problem& p) {
    // Problems that were here already cost no more than a look: this follows every forward.
    const std::vector<bool> features{p.deterministic,           p.packed(),
                                     p.sinks.defined(),         p.block_mask.defined(),
                                     p.segment_ids.defined(),   p.kv_lengths.defined(),
                                     p.features.dropout > 0,    p.options.scale > 0,
                                     p.options.window_left < 0, p.options.right() < 0};
    const std::tuple problem{
        Identity(combined_mod(p)), p.differentiable(), features,    p.query.dtype(),
        p.query.shape(),           p.key.shape(),      p.value_dim, p.device.index};
    static auto* const kSeen = new Memo<std::remove_const_t<decltype(problem)>, bool>(
        "problems whose backward is compiled ahead", 512);
    if (kSeen->find(problem)) return;
    kSeen->put(problem, true);
    BackwardDesc desc;
    if (!find_backward(p, desc).empty()) return;
    const BackwardConfig config = trials_of(p, desc).front();
    static auto* const kStarted =
        new Memo<std::string, bool>("backward kernels compiled ahead", 512);
    const std::string key = backward_key(desc, config);
    if (kStarted->find(key)) return;
    kStarted->put(key, true);
    for (cuda::CompileRequest& unit : generate_backward(desc, config)) {
        cuda::compile_in_background(std::move(unit));
    }
}

}  // namespace

void run_backward(const Problem& given, const AttentionOutput& forward, const Tensor& dout,
                  const Tensor& dlse, AttentionGradients& gradients) {
    Problem p = given;
    p.query = readable("query", p.query);
    p.key = readable("key", p.key);
    p.value = readable("value", p.value);
    const Tensor out = readable("forward.out", forward.out), grad_out = readable("dout", dout);
    const Tensor lse = forward.lse.contiguous();
    const Tensor grad_lse = dlse.defined() ? dlse.to(f32).contiguous() : Tensor();
    BackwardInputs inputs = backward_inputs_of(p);
    inputs.out = view_of(out);
    inputs.grad_out = view_of(grad_out);
    inputs.lse = address_of(lse);
    inputs.grad_lse = address_of(grad_lse);
    const Tensor* const results[] = {&gradients.query, &gradients.key, &gradients.value};
    const Tensor written[] = {writable("gradients.query", gradients.query),
                              writable("gradients.key", gradients.key),
                              writable("gradients.value", gradients.value)};
    inputs.grad_query = view_of(written[0]);
    inputs.grad_key = view_of(written[1]);
    inputs.grad_value = view_of(written[2]);
    const SmallArrays arrays(p, inputs);
    const Tensor grad_sinks =
        p.sinks.defined() ? Tensor::empty(f32, p.sinks.shape(), p.device) : Tensor();
    inputs.grad_sinks = address_of(grad_sinks);
    std::vector<Tensor> grad_captures;
    const std::vector<bool> wanted = wanted_captures(p);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        grad_captures.push_back(wanted[i] ? Tensor::empty(f32, p.captured[i].shape(), p.device)
                                          : Tensor());
        inputs.grad_captures.push_back(address_of(grad_captures.back()));
    }
    if (p.block_mask.defined()) add_coming_lists(p, inputs);
    inputs.workspace = kSomewhere;
    const BackwardDesc desc = check_backward(inputs);
    if (p.block_mask.defined()) {
        inputs.mask = lists_on(p, backward_plan_options(choose_backward(desc)));
        if (is_wide(p.head_dim, p.value_dim)) inputs.query_mask = query_lists_on(p);
    }
    const auto launch = [&](const BackwardConfig& config) {
        const auto bytes = static_cast<std::int64_t>(backward_workspace_bytes(desc, config));
        const Tensor workspace = Tensor::empty(u8, {bytes}, p.device);
        inputs.workspace = address_of(workspace);
        launch_backward(inputs, desc, config, load_backward(desc, config, p.device.index),
                        cuda::current_stream());
    };
    const BackwardConfig config =
        chosen<BackwardConfig>(p, "sm90 backward", trials_of(p, desc), launch);
    debug_log("attention", "sm90 backward: tiles of {} x {}, {} stages{}", config.block_m,
              config.block_n(), config.stages, desc.deterministic ? ", deterministic" : "");
    launch(config);
    for (std::size_t i = 0; i < 3; ++i) {
        if (written[i].raw() != results[i]->raw()) results[i]->copy_from(written[i]);
    }
    if (grad_sinks.defined()) gradients.sinks = grad_sinks.to(p.sinks.dtype());
    gradients.captured.clear();
    for (std::size_t i = 0; i < grad_captures.size(); ++i) {
        if (wanted[i]) gradients.captured.push_back(grad_captures[i].to(p.captured[i].dtype()));
    }
}

}  // namespace tilewright::attn::sm90
