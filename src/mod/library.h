// The libraries of masks and scores as texts call them: names, parameters, factories.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tilewright/mod.h"

namespace tilewright::mod {

/// The arguments of one call of a library name in a text, by parameter index. Every accessor throws
/// a UserError "expected an integer for `w` but got ..." if the argument is of another kind.
class Arguments {
  public:
    /// A string is the name of a function.
    using Value = std::variant<std::int64_t, double, bool, Capture, Mod, std::string>;

    Arguments(std::span<const std::string_view> parameters,
              std::vector<std::optional<Value>> values)
        : parameters_(parameters.begin(), parameters.end()), values_(std::move(values)) {}

    bool has(std::size_t i) const { return i < values_.size() && values_[i].has_value(); }
    bool is_array(std::size_t i) const {
        return has(i) && std::holds_alternative<Capture>(*values_[i]);
    }
    std::int64_t integer(std::size_t i) const;
    std::int64_t integer(std::size_t i, std::int64_t otherwise) const {
        return has(i) ? integer(i) : otherwise;
    }
    double number(std::size_t i) const;  ///< integers are numbers, too
    double number(std::size_t i, double otherwise) const { return has(i) ? number(i) : otherwise; }
    bool flag(std::size_t i, bool otherwise) const;
    Capture array(std::size_t i) const;
    Mod mask(std::size_t i) const;
    std::string function(std::size_t i) const;

  private:
    [[noreturn]] void expected(const char* what, std::size_t i) const;

    std::vector<std::string_view> parameters_;
    std::vector<std::optional<Value>> values_;
};

/// One name of a library.
struct LibraryEntry {
    std::string_view name;
    Mod::Kind kind;
    std::vector<std::string_view> parameters;
    std::size_t required;  ///< number of leading parameters that must be given
    Mod (*make)(const Arguments& arguments);
};

/// Everything in tilewright/masks.h and tilewright/scores.h.
std::span<const LibraryEntry> mask_library();
std::span<const LibraryEntry> score_library();

/// The entry with this name, or null.
const LibraryEntry* find_entry(std::string_view name);

}  // namespace tilewright::mod
