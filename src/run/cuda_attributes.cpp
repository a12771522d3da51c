// Attributes of users' CUDA kernels.
#include "run/cuda_attributes.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "support/check.h"

namespace tilewright::run {
namespace {

using Kind = AttributeType::Kind;

bool is_passable(DType dtype) {
    return dtype == boolean || is_integer(dtype) || dtype == f32 || dtype == f64;
}

AttributeValue wide(const AttributeNumber& number) {
    return std::visit([](auto value) { return AttributeValue(value); }, number);
}

[[noreturn]] void refuse(const std::string& op, const std::string& name, std::string_view wanted,
                         const AttributeValue& value) {
    user_error(op, "expected the attribute `{}` to be {} but got {}", name, wanted,
               to_string(value));
}

template <typename T>
std::string raw_bytes(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
}

template <typename T>
std::string integer(const std::string& op, const std::string& name, DType dtype,
                    const AttributeValue& value) {
    const auto* const number = std::get_if<std::int64_t>(&value);
    const bool fits = number != nullptr && (std::is_signed_v<T> || *number >= 0) &&
                      static_cast<std::int64_t>(static_cast<T>(*number)) == *number;
    if (!fits)
        refuse(op, name, fmt::format("an integer that fits {}", tilewright::name(dtype)), value);
    return raw_bytes(static_cast<T>(*number));
}

std::string scalar(const std::string& op, const std::string& name, DType dtype,
                   const AttributeValue& value) {
    switch (dtype) {
        case DType::boolean:
            if (!std::holds_alternative<bool>(value)) refuse(op, name, "a bool", value);
            return raw_bytes(std::get<bool>(value));
        case DType::i8:
            return integer<std::int8_t>(op, name, dtype, value);
        case DType::u8:
            return integer<std::uint8_t>(op, name, dtype, value);
        case DType::i16:
            return integer<std::int16_t>(op, name, dtype, value);
        case DType::u16:
            return integer<std::uint16_t>(op, name, dtype, value);
        case DType::i32:
            return integer<std::int32_t>(op, name, dtype, value);
        case DType::u32:
            return integer<std::uint32_t>(op, name, dtype, value);
        case DType::i64:
            return integer<std::int64_t>(op, name, dtype, value);
        case DType::u64:
            return integer<std::uint64_t>(op, name, dtype, value);
        default:
            break;
    }
    double number = 0;
    if (const auto* const whole = std::get_if<std::int64_t>(&value)) {
        number = static_cast<double>(*whole);
    } else if (const auto* const real = std::get_if<double>(&value)) {
        number = *real;
    } else {
        refuse(op, name, fmt::format("a number ({})", tilewright::name(dtype)), value);
    }
    return dtype == f32 ? raw_bytes(static_cast<float>(number)) : raw_bytes(number);
}

std::int32_t enumerator(const std::string& op, const KernelAttribute& attribute,
                        const AttributeValue& value) {
    std::vector<std::string> names;
    const auto* const text = std::get_if<std::string>(&value);
    for (const auto& [name, number] : attribute.type.enumerators) {
        if (text != nullptr && *text == name) return number;
        names.push_back(fmt::format("'{}'", name));
    }
    refuse(op, attribute.name, fmt::format("one of {}", fmt::join(names, ", ")), value);
}

/// The layout of fields in C.
struct Layout {
    std::vector<std::size_t> offsets;
    std::size_t size = 0;
};

Layout layout_of(const AttributeType& type) {
    Layout layout;
    std::size_t alignment = 1;
    const auto round_up = [](std::size_t at, std::size_t to) { return (at + to - 1) / to * to; };
    for (const auto& [name, dtype] : type.fields) {
        const std::size_t size = size_of(dtype);
        alignment = std::max(alignment, size);
        layout.offsets.push_back(round_up(layout.size, size));
        layout.size = layout.offsets.back() + size;
    }
    layout.size = round_up(layout.size, alignment);
    return layout;
}

std::string structure(const std::string& op, const KernelAttribute& attribute,
                      const AttributeValue& value) {
    using Fields = std::map<std::string, AttributeNumber>;
    std::vector<std::string> names;
    for (const auto& [name, dtype] : attribute.type.fields) names.push_back(name);
    const auto* const fields = std::get_if<Fields>(&value);
    const bool fits =
        fields != nullptr && fields->size() == names.size() &&
        std::all_of(names.begin(), names.end(), [&](const auto& n) { return fields->contains(n); });
    if (!fits) {
        refuse(op, attribute.name,
               fmt::format("the fields {} of {}", fmt::join(names, ", "), attribute.type.name),
               value);
    }
    const Layout layout = layout_of(attribute.type);
    std::string bytes(layout.size, '\0');
    for (std::size_t i = 0; i < names.size(); ++i) {
        const std::string field =
            scalar(op, attribute.name + "." + names[i], attribute.type.fields[i].second,
                   wide(fields->at(names[i])));
        bytes.replace(layout.offsets[i], field.size(), field);
    }
    return bytes;
}

/// Equal size, and equal names and types in order, which designated initialisers check, mean the
/// same layout.
std::string structure_check(const AttributeType& type) {
    std::vector<std::string> designators, types;
    for (const auto& [name, dtype] : type.fields) {
        designators.push_back(fmt::format(".{} = {{}}", name));
        types.push_back(fmt::format("requires twd::check::is_number<decltype(s.{}), {}, {}>();",
                                    name, size_of(dtype), is_float(dtype)));
    }
    return fmt::format(
        "twd::check::same<T, ::{0}> && sizeof(::{0}) == {1} && []<class S>(S*) {{ return "
        "requires(S "
        "s) {{ S{{{2}}}; {3} }}; }}(static_cast<::{0}*>(nullptr))",
        type.name, layout_of(type).size, fmt::join(designators, ", "), fmt::join(types, " "));
}

std::string article(DType dtype) {
    const std::string_view name = tilewright::name(dtype);
    return fmt::format("{} {}", name[0] == 'i' || name[0] == 'f' ? "an" : "a", name);
}

}  // namespace

std::string to_string(const AttributeValue& value) {
    return std::visit(
        [](const auto& held) -> std::string {
            using T = std::decay_t<decltype(held)>;
            if constexpr (std::is_same_v<T, std::string>) {
                return fmt::format("'{}'", held);
            } else if constexpr (std::is_arithmetic_v<T>) {
                return fmt::format("{}", held);
            } else {
                std::vector<std::string> fields;
                for (const auto& [name, number] : held) {
                    fields.push_back(fmt::format("{} = {}", name, to_string(wide(number))));
                }
                return fmt::format("{{{}}}", fmt::join(fields, ", "));
            }
        },
        value);
}

void check_attribute_type(const std::string& op, const KernelAttribute& attribute) {
    const auto expect_passable = [&](const std::string& name, DType dtype) {
        if (is_passable(dtype)) return;
        user_error(op, "expected the attribute `{}` of bool, integers, f32 or f64 but got {}", name,
                   tilewright::name(dtype));
    };
    const AttributeType& type = attribute.type;
    if (type.kind == Kind::scalar) expect_passable(attribute.name, type.scalar);
    if (type.kind == Kind::enumeration && type.enumerators.empty()) {
        user_error(op, "expected enumerators of the attribute `{}` but got none", attribute.name);
    }
    if (type.kind != Kind::structure) return;
    if (type.fields.empty() || type.name.empty()) {
        user_error(op, "expected a name and fields of the struct `{}` but got none",
                   attribute.name);
    }
    for (const auto& [name, dtype] : type.fields) {
        expect_passable(attribute.name + "." + name, dtype);
    }
}

DType dtype_value(const std::string& op, const KernelAttribute& attribute,
                  const AttributeValue& value) {
    const auto* const text = std::get_if<std::string>(&value);
    const std::optional<DType> dtype = text == nullptr ? std::nullopt : parse_dtype(*text);
    if (!dtype) refuse(op, attribute.name, "the name of a dtype", value);
    return *dtype;
}

std::string template_number(const std::string& op, const KernelAttribute& attribute,
                            const AttributeValue& value) {
    const AttributeType& type = attribute.type;
    if (type.kind == Kind::enumeration) {
        // An integer does not convert to an `enum class`, whose name is not known here.
        return fmt::format("twd::check::Enumerator{{{}}}", enumerator(op, attribute, value));
    }
    if (type.kind == Kind::structure || is_float(type.scalar)) {
        user_error(
            op,
            "expected a dtype, an integer, a bool or an enumeration as template argument but "
            "got the attribute `{}`",
            attribute.name);
    }
    scalar(op, attribute.name, type.scalar, value);  // UserError if it does not fit
    return to_string(value);
}

PlannedAttribute planned_attribute(const std::string& op, const KernelAttribute& attribute,
                                   const AttributeValue& value) {
    const AttributeType& type = attribute.type;
    PlannedAttribute planned{attribute.name, "twd::check::is_number<T, 4, false>()", "", ""};
    switch (type.kind) {
        case Kind::scalar:
            planned.check = fmt::format("twd::check::is_number<T, {}, {}>()", size_of(type.scalar),
                                        is_float(type.scalar));
            planned.wants = article(type.scalar);
            planned.bytes = scalar(op, attribute.name, type.scalar, value);
            break;
        case Kind::enumeration:
            planned.wants = "an int or an enum of that size";
            planned.bytes = raw_bytes(enumerator(op, attribute, value));
            break;
        case Kind::dtype:
            planned.wants = "a tw::DType or an int";
            planned.bytes = raw_bytes(static_cast<std::int32_t>(dtype_value(op, attribute, value)));
            break;
        case Kind::structure:
            planned.check = structure_check(type);
            planned.wants =
                fmt::format("{}, with the fields and offsets of the attribute", type.name);
            planned.bytes = structure(op, attribute, value);
            break;
    }
    return planned;
}

}  // namespace tilewright::run
