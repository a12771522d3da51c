// The cases of the FlexAttention notebook, at any size.
#pragma once

#include <string>
#include <vector>

#include "tilewright/attention.h"

namespace tilewright::cli {

/// Sizes that a case is made for.
struct FlexSizes {
    std::int64_t batch = 1, heads = 4, length = 1024, head_dim = 64;
};

/// One case: masks and scores of a shape. A packed one has one batch of `q_len` tokens in all.
struct FlexCase {
    std::string name;
    std::int64_t q_len = 0, kv_len = 0;
    AttentionOptions options;
};

/// The notebook's names, in its order.
std::vector<std::string> flex_case_names();
/// UserError names the known ones. Windows clip; image cases keep rows x columns = length.
FlexCase flex_case(const std::string& name, const FlexSizes& sizes);

}  // namespace tilewright::cli
