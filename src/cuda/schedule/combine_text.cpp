// Text of elements that reductions and scans combine.
#include "cuda/schedule/combine_text.h"

#include <fmt/format.h>

#include "cuda/codegen/element_text.h"
#include "ir/evaluate.h"

namespace tilewright::cuda::schedule {
using ir::Reduction;

std::string combined(Reduction kind, DType dtype, const std::string& a, const std::string& b) {
    const bool floats = is_float(dtype);
    switch (kind) {
        case Reduction::sum:
            return floats ? fmt::format("{} + {}", a, b) : fmt::format("ops::add({}, {})", a, b);
        case Reduction::prod:
            return floats ? fmt::format("{} * {}", a, b) : fmt::format("ops::mul({}, {})", a, b);
        case Reduction::max:
        case Reduction::any:
            return dtype == DType::boolean ? fmt::format("{} || {}", a, b)
                                           : fmt::format("ops::max({}, {})", a, b);
        case Reduction::logsumexp:
            return fmt::format("ops::log_add_exp({}, {})", a, b);
        default:
            return dtype == DType::boolean ? fmt::format("{} && {}", a, b)
                                           : fmt::format("ops::min({}, {})", a, b);
    }
}

std::string neutral(Reduction kind, DType dtype) {
    if (kind == Reduction::argmax) kind = Reduction::max;
    if (kind == Reduction::argmin) kind = Reduction::min;
    return literal(dtype, ir::identity(kind, dtype));
}

// Shuffles move words: smaller integers are shuffled as int.
std::string shuffled(const char* instruction, DType dtype, const std::string& value,
                     const std::string& lane) {
    const bool small = !is_float(dtype) && size_of(dtype) < 4;
    return fmt::format("{}(0xffffffffu, {}, {})", instruction,
                       small ? fmt::format("static_cast<int>({})", value) : value, lane);
}

}  // namespace tilewright::cuda::schedule
