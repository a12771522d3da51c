// Plain C entry points of the programmable CUDA attention kernels, for bench/flex_cuda.py.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "attention/mask_cache.h"
#include "attention/sm90/backward.h"
#include "attention/sm90/forward.h"
#include "attention/sm90/mask_lists.h"
#include "mask/block_mask.h"
#include "mod/traced.h"

using namespace tilewright;
using namespace tilewright::attn::sm90;

extern "C" {

struct TwBenchFlex {
    std::uint64_t query, key, value, out, lse, workspace, profile;
    std::int64_t shapes[4][4];  ///< query, key, value, out: (batch, head, row, column)
    std::int64_t strides[4][4];
    std::int64_t is_f16;
    double scale;
    std::int64_t causal;          ///< by diagonal
    const char* score;            ///< text of a score mod over `slopes`, or null
    std::uint64_t slopes;         ///< f32 (heads)
    const std::uint8_t* attends;  ///< host: bool (q_len, kv_len), used as lists; or null
    std::int64_t exact_maximum;
    std::int64_t warpgroups, block_n, stages, query_buffers;  ///< 0 warpgroups: heuristic
    std::int64_t ctas;     ///< thread blocks on a multiprocessor, if there are warpgroups
    std::uint64_t starts;  ///< i32 (sequences + 1): where packed sequences start; or 0
    std::int64_t sequences;
    const std::int64_t* documents;  ///< host (number + 1): causal documents, used as lists; or null
    std::int64_t num_documents;
};

}  // extern "C"

namespace {

/// A problem whose kernel is loaded and whose mask is on the device.
struct Prepared {
    ForwardInputs inputs;
    ForwardDesc desc;
    ForwardConfig config;
    ForwardKernels kernels;
    std::unique_ptr<UploadedLists> lists;
    cuda::Buffer workspace;
};

/// A backward problem, with its scratch.
struct PreparedBackward {
    BackwardInputs inputs;
    BackwardDesc desc;
    BackwardConfig config;
    BackwardKernels kernels;
    std::unique_ptr<UploadedLists> lists;
    cuda::Buffer workspace;
};

std::string& flex_error() {
    thread_local std::string text;
    return text;
}

/// Fills the inputs that both directions share; returns the device they are on.
int fill(const TwBenchFlex& call, ProblemInputs& inputs) {
    inputs.dtype = call.is_f16 != 0 ? DType::f16 : DType::bf16;
    const auto tensor = [&](std::uint64_t address, int index) {
        DeviceTensor result;
        result.address = address;
        std::copy_n(call.shapes[index], 4, result.shape.begin());
        std::copy_n(call.strides[index], 4, result.strides.begin());
        return result;
    };
    inputs.query = tensor(call.query, 0);
    inputs.key = tensor(call.key, 1);
    inputs.value = tensor(call.value, 2);
    inputs.out = tensor(call.out, 3);
    inputs.lse = call.lse;
    inputs.workspace = call.workspace;
    inputs.profile = call.profile;
    inputs.scale = call.scale;
    if (call.causal != 0) inputs.upper_diagonal = 0;
    inputs.q_starts = inputs.kv_starts = call.starts;
    inputs.sequences = call.sequences;
    if (call.score != nullptr) {
        const Tensor slopes = Tensor::zeros(f32, {inputs.query.shape[1]});
        const Mod mod = parse_mod(call.score, {{"slopes", slopes}}, Mod::Kind::score);
        const mod::Traced& traced = mod::trace(mod);
        inputs.score_mod = traced.function;
        for (std::size_t i = 0; i < traced.captures.size(); ++i) {
            inputs.captures.push_back({call.slopes, f32, slopes.shape(), slopes.strides()});
        }
    }
    return cuda::device_of(call.query, "query");
}

/// The mask of a call as data.
BlockMask mask_of(const TwBenchFlex& call, const ProblemInputs& inputs) {
    const std::int64_t q_len = inputs.query.shape[2], kv_len = inputs.key.shape[2];
    if (call.documents != nullptr) {
        const std::vector<std::int64_t> starts(call.documents,
                                               call.documents + call.num_documents + 1);
        return tilewright::attn::mask_of_sequences(starts, starts, -1, 0);
    }
    return BlockMask::from_dense(
        Tensor::from_data(const_cast<std::uint8_t*>(call.attends), boolean, {1, 1, q_len, kv_len}));
}

std::unique_ptr<UploadedLists> lists_of_mask(const BlockMask& mask, const ProblemInputs& inputs,
                                             const mask::PlanOptions& options, int device) {
    return std::make_unique<UploadedLists>(*mask::plan(mask, options), inputs.query.shape[2],
                                           inputs.key.shape[2], device,
                                           inputs.query.shape[1] / inputs.key.shape[1]);
}

bool has_mask(const TwBenchFlex& call) {
    return call.attends != nullptr || call.documents != nullptr;
}

}  // namespace

extern "C" {

const char* tw_bench_flex_error() {
    return flex_error().c_str();
}

/// The backward pass of a problem whose forward pass has written `out` and `lse`.
struct TwBenchFlexBackward {
    TwBenchFlex forward;
    std::uint64_t grad_out, grad_query, grad_key, grad_value;
    std::uint64_t grad_slopes;  ///< f32 (heads), or 0
    std::int64_t deterministic;
};

/// Compiles and uploads; on failure returns null and sets the text of tw_bench_flex_error.
void* tw_bench_flex_prepare(const TwBenchFlex* call) {
    try {
        auto prepared = std::make_unique<Prepared>();
        ForwardInputs& inputs = prepared->inputs;
        const int device = fill(*call, inputs);
        inputs.exact_maximum = call->exact_maximum != 0;
        ForwardConfig given;
        given.warpgroups = static_cast<int>(call->warpgroups);
        given.block_n = static_cast<int>(call->block_n);
        given.stages = static_cast<int>(call->stages);
        given.query_buffers = static_cast<int>(call->query_buffers);
        given.ctas = static_cast<int>(std::max<std::int64_t>(1, call->ctas));
        if (has_mask(*call)) {
            const BlockMask mask = mask_of(*call, inputs);
            const auto keys = static_cast<std::int64_t>(mask::kAtom * mask::pieces_of_row(mask));
            const auto dim = [](const DeviceTensor& x) { return static_cast<int>(x.shape[3]); };
            const ForwardConfig config =
                call->warpgroups != 0 ? given
                                      : choose_listed(dim(inputs.query), dim(inputs.value), keys);
            prepared->lists = lists_of_mask(mask, inputs, plan_options(config), device);
            inputs.mask = prepared->lists->mask();
        }
        prepared->desc = check_forward(inputs);
        prepared->config =
            choose_forward(prepared->desc, cuda::device_info(device).multiprocessors);
        if (call->warpgroups != 0) prepared->config = given;
        prepared->config.stream_k = 0;  // the workspace has no room for partial results
        prepared->workspace =
            cuda::Buffer(device, forward_workspace_bytes(prepared->desc, prepared->config));
        inputs.workspace = prepared->workspace.address();
        prepared->kernels = load_forward(prepared->desc, prepared->config, device);
        return prepared.release();
    } catch (const std::exception& error) {
        flex_error() = error.what();
        return nullptr;
    }
}

/// The same for the backward pass.
void* tw_bench_flex_prepare_backward(const TwBenchFlexBackward* call) {
    try {
        auto prepared = std::make_unique<PreparedBackward>();
        BackwardInputs& inputs = prepared->inputs;
        const int device = fill(call->forward, inputs);
        const auto like = [](DeviceTensor tensor, std::uint64_t address) {
            tensor.address = address;
            return tensor;
        };
        inputs.grad_out = like(inputs.out, call->grad_out);
        inputs.grad_query = like(inputs.query, call->grad_query);
        inputs.grad_key = like(inputs.key, call->grad_key);
        inputs.grad_value = like(inputs.value, call->grad_value);
        inputs.deterministic = call->deterministic != 0;
        if (call->grad_slopes != 0 && !inputs.captures.empty()) {
            inputs.grad_captures = {call->grad_slopes};
        }
        if (has_mask(call->forward)) {
            inputs.mask = DeviceMask{
                .q_len = inputs.query.shape[2], .kv_len = inputs.key.shape[2], .by_key = true};
        }
        inputs.workspace = 256;
        prepared->desc = check_backward(inputs);
        prepared->config = choose_backward(prepared->desc);
        if (has_mask(call->forward)) {
            prepared->lists = lists_of_mask(mask_of(call->forward, inputs), inputs,
                                            backward_plan_options(prepared->config), device);
            inputs.mask = prepared->lists->mask();
        }
        prepared->workspace =
            cuda::Buffer(device, backward_workspace_bytes(prepared->desc, prepared->config));
        inputs.workspace = prepared->workspace.address();
        prepared->kernels = load_backward(prepared->desc, prepared->config, device);
        return prepared.release();
    } catch (const std::exception& error) {
        flex_error() = error.what();
        return nullptr;
    }
}

/// Returns 0 on success.
int tw_bench_flex_launch_backward(const void* prepared, void* stream) {
    const auto& p = *static_cast<const PreparedBackward*>(prepared);
    try {
        launch_backward(p.inputs, p.desc, p.config, p.kernels, stream);
        return 0;
    } catch (const std::exception& error) {
        flex_error() = error.what();
        return 1;
    }
}

/// Returns 0 on success.
int tw_bench_flex_launch(const void* prepared, void* stream) {
    const auto& p = *static_cast<const Prepared*>(prepared);
    try {
        launch_forward(p.inputs, p.desc, p.config, p.kernels, stream);
        return 0;
    } catch (const std::exception& error) {
        flex_error() = error.what();
        return 1;
    }
}

void tw_bench_flex_release(void* prepared) {
    delete static_cast<Prepared*>(prepared);
}

}  // extern "C"
