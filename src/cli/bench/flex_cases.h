// The cases of the FlexAttention notebook, at any size, and cases from texts.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tilewright/attention.h"

namespace tilewright::cli {

/// Sizes that a case is made for.
struct FlexSizes {
    std::int64_t batch = 1, heads = 4, kv_heads = 4, length = 1024, kv_length = 1024, head_dim = 64;
    Device device = {};  ///< of the arrays that mods read
};

/// One case: masks and scores of a shape. A packed one has one batch of `q_len` tokens in all.
struct FlexCase {
    std::string name;
    std::int64_t q_len = 0, kv_len = 0;
    AttentionOptions options;
    /// Longest sequence of a correctness check: pairs enough that masks become data, as in what is
    /// timed, and what tells the case from others within it.
    std::int64_t check_length = 576;
};

/// The notebook's names, in its order.
std::vector<std::string> flex_case_names();
/// A case named by its texts; an empty text is no mod.
FlexCase text_case(const std::string& mask, const std::string& score, const FlexSizes& sizes);
/// UserError names the known ones. Windows clip; image cases keep rows x columns = length; as many
/// keys as queries, but in `vision`.
FlexCase flex_case(const std::string& name, const FlexSizes& sizes);

/// What a benchmark of attention runs on.
struct AttentionInputs {
    Tensor q, k, v, dout;
};

/// Values of a shape by a seed.
using MakeRandom = std::function<Tensor(const Tensor::Dims& shape, std::uint32_t seed)>;
/// Arrays of these sizes.
AttentionInputs attention_inputs(const MakeRandom& random, const FlexSizes& sizes,
                                 Layout layout = Layout::bhsd);
/// Those of a case made for these sizes, which has lengths and a layout of its own.
AttentionInputs attention_inputs(const MakeRandom& random, const FlexCase& flex_case,
                                 FlexSizes sizes);
/// The case for PyTorch's flex_attention, added to a job of bench/torch_baseline.py.
void describe_case(const FlexCase& flex_case, const FlexSizes& sizes, nlohmann::json& job);

/// How many pairs attend.
struct Density {
    double pairs = 0;   ///< query-key pairs of one batch and head
    double blocks = 0;  ///< pairs in blocks of 128 x 128 that are not empty
};

/// The mask of these options, analytic parts included, or what the score mod turns into -inf.
Mod mask_of(const AttentionOptions& options);
/// The mean over the batches and heads of the mask.
Density density(const BlockMask& mask);
/// The sum over causal sequences that start at these rows.
Density packed_density(const Tensor& starts);

}  // namespace tilewright::cli
