// Conversion of the arguments that texts pass to library functions.
#include "mod/library.h"

#include "support/check.h"

namespace tilewright::mod {

void Arguments::expected(const char* what, std::size_t i) const {
    const auto name = i < parameters_.size() ? parameters_[i] : std::string_view("argument");
    if (!has(i)) user_error("parse_mod", "expected {} for `{}` but it was left out", what, name);
    struct Describe {
        std::string operator()(std::int64_t value) const { return std::to_string(value); }
        std::string operator()(double value) const { return fmt::format("{}", value); }
        std::string operator()(bool value) const { return value ? "True" : "False"; }
        std::string operator()(const Capture& array) const {
            return "an array of type " + array.tensor().type_name();
        }
        std::string operator()(const Mod&) const { return "a mask"; }
        std::string operator()(const std::string& name) const {
            return "the function `" + name + "`";
        }
    };
    user_error("parse_mod", "expected {} for `{}` but got {}", what, name,
               std::visit(Describe(), *values_[i]));
}

std::int64_t Arguments::integer(std::size_t i) const {
    if (has(i)) {
        if (const auto* value = std::get_if<std::int64_t>(&*values_[i])) return *value;
    }
    expected("an integer", i);
}

double Arguments::number(std::size_t i) const {
    if (has(i)) {
        if (const auto* value = std::get_if<double>(&*values_[i])) return *value;
        if (const auto* value = std::get_if<std::int64_t>(&*values_[i])) {
            return static_cast<double>(*value);
        }
    }
    expected("a number", i);
}

bool Arguments::flag(std::size_t i, bool otherwise) const {
    if (!has(i)) return otherwise;
    if (const auto* value = std::get_if<bool>(&*values_[i])) return *value;
    expected("True or False", i);
}

Capture Arguments::array(std::size_t i) const {
    if (is_array(i)) return std::get<Capture>(*values_[i]);
    expected("a bound array", i);
}

Mod Arguments::mask(std::size_t i) const {
    if (has(i)) {
        if (const auto* value = std::get_if<Mod>(&*values_[i])) return *value;
    }
    expected("a mask", i);
}

std::string Arguments::function(std::size_t i) const {
    if (has(i)) {
        if (const auto* value = std::get_if<std::string>(&*values_[i])) return *value;
    }
    expected("a function's name", i);
}

const LibraryEntry* find_entry(std::string_view name) {
    for (const auto library : {mask_library(), score_library()}) {
        for (const LibraryEntry& entry : library) {
            if (entry.name == name) return &entry;
        }
    }
    return nullptr;
}

}  // namespace tilewright::mod
