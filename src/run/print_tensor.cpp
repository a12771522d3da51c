// Prints tensors as short text.
#include <ostream>

#include "support/check.h"
#include "tilewright/tensor.h"

namespace tilewright {

namespace {

constexpr std::int64_t kMostShown = 8;  ///< elements of a dimension; longer ones show their ends
constexpr std::int64_t kEnds = 3;
constexpr std::int64_t kMostCopied = std::int64_t{1} << 20;  ///< bytes copied from a GPU

std::string elements(const Tensor& row) {
    if (row.dtype() == boolean) {
        std::vector<const char*> words;
        for (const std::uint8_t element : row.to_vector<std::uint8_t>())
            words.push_back(element != 0 ? "true" : "false");
        return fmt::format("{}", fmt::join(words, ", "));
    }
    if (is_float(row.dtype()))
        return fmt::format("{:.5g}", fmt::join(row.to_vector<double>(), ", "));
    if (is_signed(row.dtype()))
        return fmt::format("{}", fmt::join(row.to_vector<std::int64_t>(), ", "));
    return fmt::format("{}", fmt::join(row.to_vector<std::uint64_t>(), ", "));
}

std::string text_of(const Tensor& tensor, std::size_t indent) {
    if (tensor.rank() == 0) return elements(tensor.expand_dims(0));
    const std::int64_t extent = tensor.dim(0);
    const std::int64_t shown = extent > kMostShown ? kEnds : extent;
    std::vector<std::string> parts;
    const auto add = [&](std::int64_t first, std::int64_t count) {
        if (tensor.rank() == 1) {
            if (count > 0) parts.push_back(elements(tensor.slice(0, first, count)));
            return;
        }
        for (std::int64_t i = first; i < first + count; ++i)
            parts.push_back(text_of(tensor.select(0, i), indent + 1));
    };
    add(0, shown);
    if (shown < extent) {
        parts.emplace_back("...");
        add(extent - shown, shown);
    }
    const std::string between = tensor.rank() == 1 ? ", " : ",\n" + std::string(indent + 1, ' ');
    return fmt::format("[{}]", fmt::join(parts, between));
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) {
    stream << tensor.type_name();
    if (!tensor.defined()) return stream;
    if (tensor.device().kind == Device::Kind::cuda) {
        stream << " on " << to_string(tensor.device());
        if (tensor.nbytes() > kMostCopied) return stream;
    }
    return stream << (tensor.rank() < 2 ? " " : "\n") << text_of(tensor.to(Device{}), 0);
}

}  // namespace tilewright
