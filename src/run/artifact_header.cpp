// The C++17 header of an artifact: a class whose call operator has a typed pointer for each array.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "run/artifact_format.h"
#include "tilewright/version.h"

namespace tilewright::run {
namespace {

/// The C++17 type of an element; narrow floats are their bits.
const char* element_type(DType dtype) {
    switch (dtype) {
        case DType::boolean:
            return "bool";
        case DType::i8:
            return "std::int8_t";
        case DType::i16:
            return "std::int16_t";
        case DType::i32:
            return "std::int32_t";
        case DType::i64:
            return "std::int64_t";
        case DType::u8:
            return "std::uint8_t";
        case DType::u16:
            return "std::uint16_t";
        case DType::u32:
            return "std::uint32_t";
        case DType::u64:
            return "std::uint64_t";
        case DType::f32:
            return "float";
        case DType::f64:
            return "double";
        default:
            return size_of(dtype) == 2 ? "std::uint16_t" : "std::uint8_t";
    }
}

/// The DLPack code and number of bits.
std::string dlpack_type(DType dtype) {
    const char* code = is_float(dtype) ? "kDLFloat" : "kDLInt";
    switch (dtype) {
        case DType::boolean:
            code = "kDLBool";
            break;
        case DType::bf16:
            code = "kDLBfloat";
            break;
        case DType::f8e4m3:
            code = "kDLFloat8_e4m3fn";
            break;
        case DType::f8e5m2:
            code = "kDLFloat8_e5m2";
            break;
        case DType::u8:
        case DType::u16:
        case DType::u32:
        case DType::u64:
            code = "kDLUInt";
            break;
        default:
            break;
    }
    return fmt::format("{{{}, {}, 1}}", code, 8 * size_of(dtype));
}

constexpr std::string_view kHead =
    R"(// {name}, exported by Tilewright {version}: a launcher in C++17. Link tilewright::tilewright.
#pragma once

#include <tilewright/c_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tilewright_artifacts {{

/// The artifact of one folder, loaded for one device. Runs on many threads at once.
class {name} {{
  public:
    /// `folder` holds the files that were exported with this header. Throws std::runtime_error
    /// with the reason where they are missing, damaged, of another export, or not for the device:
    /// {{kDLCPU, 0}} or {{kDLCUDA, ordinal}}.
    explicit {name}(const std::string& folder, DLDevice device = {{kDLCPU, 0}}) : device_(device) {{
        check(tw_artifact_load(folder.c_str(), device, "{checksum}", &artifact_));
    }}
    {name}(const {name}&) = delete;
    {name}& operator=(const {name}&) = delete;
    ~{name}() {{ tw_artifact_release(artifact_); }}

    /// Arrays are row-major, on the device:
)";

constexpr std::string_view kTail = R"(
  private:
    template <int rank>
    DLTensor view(const void* data, DLDataType type, const std::int64_t (&shape)[rank],
                  int dims) const {{
        return {{const_cast<void*>(data), device_, dims, type, const_cast<std::int64_t*>(shape), nullptr, 0}};
    }}
    static void check(tw_status status) {{
        if (status != TW_OK) throw std::runtime_error(tw_error());
    }}

    DLDevice device_;
    tw_artifact* artifact_ = nullptr;
}};

}}  // namespace tilewright_artifacts
)";

}  // namespace

std::string identifier(const std::string& name) {
    static constexpr auto kKeywords = std::to_array<std::string_view>(
        {"alignas",   "alignof",   "and",      "asm",      "auto",     "bool",     "break",
         "case",      "catch",     "char",     "class",    "compl",    "const",    "constexpr",
         "continue",  "decltype",  "default",  "delete",   "do",       "double",   "else",
         "enum",      "explicit",  "export",   "extern",   "false",    "float",    "for",
         "friend",    "goto",      "if",       "inline",   "int",      "long",     "mutable",
         "namespace", "new",       "noexcept", "not",      "nullptr",  "operator", "or",
         "private",   "protected", "public",   "register", "return",   "short",    "signed",
         "sizeof",    "static",    "struct",   "switch",   "template", "this",     "throw",
         "true",      "try",       "typedef",  "typeid",   "typename", "union",    "unsigned",
         "using",     "virtual",   "void",     "volatile", "while",    "xor",      "concept",
         "requires",  "stream",    "std"});
    std::string result;
    for (const char c : name)
        result += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' ? c : '_';
    if (result.empty() || std::isdigit(static_cast<unsigned char>(result[0])) != 0)
        result.insert(0, "_");
    const bool is_taken = std::find(kKeywords.begin(), kKeywords.end(), result) != kKeywords.end();
    return is_taken ? result + "_" : result;
}

std::string launcher_header(const std::string& name, const std::string& checksum,
                            const std::vector<Artifact::Parameter>& parameters) {
    const std::string own = identifier(name);
    std::string text = fmt::format(kHead, fmt::arg("name", own), fmt::arg("checksum", checksum),
                                   fmt::arg("version", TILEWRIGHT_VERSION));
    std::string arguments, shapes, views;
    for (const Artifact::Parameter& parameter : parameters) {
        // Arrays must not share a name with a member or a type.
        std::string array = identifier(parameter.name);
        if (array == own) array += "_";
        const TensorType& type = parameter.type;
        text += fmt::format("    /// - {}: {}{}{}\n", array, to_string(type),
                            parameter.written ? ", written" : "",
                            parameter.written && !parameter.result ? " in place" : "");
        arguments += fmt::format("{}{}* {}, ", parameter.written ? "" : "const ",
                                 element_type(type.dtype), array);
        shapes +=
            fmt::format("        static constexpr std::int64_t shape_{}[] = {{{}}};\n", array,
                        type.shape.empty() ? "1" : fmt::format("{}", fmt::join(type.shape, ", ")));
        views += fmt::format("            view({0}, {1}, shape_{0}, {2}),\n", array,
                             dlpack_type(type.dtype), type.shape.size());
    }
    text +=
        "    /// On a GPU the work goes to `stream` (a CUstream or cudaStream_t) and nothing "
        "waits.\n";
    text += fmt::format("    void operator()({}void* stream = nullptr) const {{\n{}", arguments,
                        shapes);
    text += fmt::format(
        "        const DLTensor views_[] = {{\n{}        }};\n"
        "        const DLTensor* arrays_[{}];\n"
        "        for (int i = 0; i < {}; ++i) arrays_[i] = views_ + i;\n"
        "        if (device_.device_type == kDLCUDA) check(tw_set_cuda_stream(stream));\n"
        "        check(tw_artifact_run(artifact_, arrays_, {}));\n    }}\n",
        views, parameters.size(), parameters.size(), parameters.size());
    return text + fmt::format(kTail);
}

}  // namespace tilewright::run
