// The cases of the FlexAttention notebook, at any size, and cases from text.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tilewright/attention.h"

namespace tilewright::cli {

/// Sizes for which a case is made.
struct FlexSizes {
    std::int64_t batch = 1, heads = 4, kv_heads = 4, length = 1024, kv_length = 1024, head_dim = 64;
    Device device = {};  ///< of the arrays that mods read
};

/// A case: masks and scores for a shape. A packed case has one batch of `q_len` tokens in total.
struct FlexCase {
    std::string name;
    std::int64_t q_len = 0, kv_len = 0;
    AttentionOptions options;
    /// Longest sequence of a correctness check: long enough that masks become data, as when timed,
    /// and that it covers what distinguishes the case from others.
    std::int64_t check_length = 576;
};

/// The notebook's names, in its order.
std::vector<std::string> flex_case_names();
/// A case named by its texts; empty text means no mod.
FlexCase text_case(const std::string& mask, const std::string& score, const FlexSizes& sizes);
/// A case by name; for unknown ones the UserError lists the names. Windows are clipped; image cases
/// keep rows x columns = length; all but `vision` have as many keys as queries.
FlexCase flex_case(const std::string& name, const FlexSizes& sizes);

/// The arrays that a benchmark of attention runs on.
struct AttentionInputs {
    Tensor q, k, v, dout;
};

/// Makes values of a shape from a seed.
using MakeRandom = std::function<Tensor(const Tensor::Dims& shape, std::uint32_t seed)>;
/// Arrays of these sizes.
AttentionInputs attention_inputs(const MakeRandom& random, const FlexSizes& sizes,
                                 Layout layout = Layout::bhsd);
/// Arrays for a case made for these sizes, which has its own lengths and layout.
AttentionInputs attention_inputs(const MakeRandom& random, const FlexCase& flex_case,
                                 FlexSizes sizes);
/// Adds the case, for PyTorch's flex_attention, to a job of bench/torch_baseline.py.
void describe_case(const FlexCase& flex_case, const FlexSizes& sizes, nlohmann::json& job);

/// How many pairs attend.
struct Density {
    double pairs = 0;   ///< query-key pairs of one batch and head
    double blocks = 0;  ///< pairs in non-empty blocks of 128 x 128
};

/// The mask of these options, including causal and window, or the pairs that the score mod turns
/// into -inf.
Mod mask_of(const AttentionOptions& options);
/// The mean over the batches and heads of the mask.
Density density(const BlockMask& mask);
/// The sum over causal sequences that start at these rows.
Density packed_density(const Tensor& starts);

}  // namespace tilewright::cli
