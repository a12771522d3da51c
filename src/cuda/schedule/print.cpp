// The scheduled form as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {
namespace {

std::string list(const std::vector<std::int64_t>& numbers) {
    return fmt::format("[{}]", fmt::join(numbers, ", "));
}

std::string list(const std::vector<int>& numbers) {
    return fmt::format("[{}]", fmt::join(numbers, ", "));
}

std::string bases(const std::vector<std::uint64_t>& bases) {
    return fmt::format("[{}]", fmt::join(bases, ", "));
}

std::string in_quotes(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        if (c == '\n') {
            result += "\\n";
        } else {
            result += c;
        }
    }
    return result + '"';
}

class Printer {
  public:
    explicit Printer(const Program& program) : program_(program) { find_layouts(); }

    std::string run() {
        const Program& p = program_;
        line(
            "schedule @{} arch @{} level @{} grid {} groups {} rows {} columns {} order {} "
            "stages {} shared {}{}{}{}{}{}{} {{",
            p.name, p.arch, name(p.level), list(p.grid), list(p.groups), list(p.order.rows),
            list(p.order.columns), p.order.group, p.stages, p.shared_bytes,
            p.order.inner.empty() ? "" : " inner " + list(p.order.inner),
            p.order.unequal ? " unequal" : "", p.order.irregular ? " irregular" : "",
            p.pairs == Pairs::none ? "" : fmt::format(" pairs @{}", name(p.pairs)),
            p.turns == 1 ? "" : fmt::format(" turns {}", p.turns),
            p.blocks == 1 ? "" : fmt::format(" blocks {}", p.blocks));
        ++depth_;
        for (const Parameter& one : p.parameters) {
            if (one.is_ref) {
                line("ref @{} dtype @{} extents {}{}{}{}{}{}", one.name,
                     tilewright::name(one.dtype), list(one.extents), one.vectors ? " vectors" : "",
                     one.tensor ? " tensor" : "", one.dense ? " dense" : "",
                     one.copy_bytes == 0 ? "" : fmt::format(" copy_bytes {}", one.copy_bytes),
                     one.scratch ? " scratch" : "");
            } else {
                line("scalar @{} %{} : {}", one.name, p.value_name(one.value),
                     type(p.type(one.value)));
            }
        }
        for (std::size_t i = 0; i < layouts_.size(); ++i) {
            const Layout& layout = layouts_[i];
            line("layout @l{} shape {} reg {} lane {} warp {}", i, ir::to_string(layout.shape),
                 bases(layout.reg), bases(layout.lane), bases(layout.warp));
        }
        for (const Buffer& one : p.buffers) {
            line("buffer @{} dtype @{} rows {} columns {} slots {}{} at {}{}", one.name,
                 tilewright::name(one.dtype), one.rows, one.columns, one.slots,
                 one.per_group ? " per_group" : "", one.offset,
                 one.purpose.empty() ? "" : " purpose " + in_quotes(one.purpose));
        }
        for (const Map& one : p.maps)
            line("map @{} of @{} box {}", one.name, one.ref, list(one.box));
        for (const Channel& one : p.channels) {
            std::string buffers;
            for (const std::string& buffer : one.buffers)
                buffers += fmt::format(" buffer @{}", buffer);
            line("channel @{}{} slots {} bytes {}{} empty_arrivals {} full {} empty {}", one.name,
                 buffers, one.slots, one.bytes,
                 one.copied == 0 ? "" : fmt::format(" copied {}", one.copied), one.empty_arrivals,
                 one.full, one.empty);
        }
        for (const Role& one : p.roles) {
            line("warps @{} first {} count {} registers {}{}", one.name, one.first_warp, one.warps,
                 one.registers, one.one ? " one" : "");
        }
        block(p.body);
        --depth_;
        line("}}");
        return text_;
    }

  private:
    template <typename... Args>
    void line(fmt::format_string<Args...> format, Args&&... args) {
        text_.append(2 * depth_, ' ');
        text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
    }

    void find_layouts() {
        const auto add = [&](Value value) {
            const auto& layout = program_.type(value).layout;
            if (layout && std::find(layouts_.begin(), layouts_.end(), *layout) == layouts_.end()) {
                layouts_.push_back(*layout);
            }
        };
        each_instruction(program_.body, [&](const Instruction& made) {
            for (Value result : made.results) add(result);
            for (const Block& inner : made.blocks) {
                for (Value argument : inner.arguments) add(argument);
            }
        });
    }

    std::string type(const ValueType& of) const {
        if (of.is_count) return "count";
        std::string text = ir::to_string(of.type);
        if (of.layout) {
            const auto at = std::find(layouts_.begin(), layouts_.end(), *of.layout);
            text += fmt::format(" @l{}", at - layouts_.begin());
        }
        if (of.packed) text += " packed";
        return text;
    }

    std::string names(const std::vector<Value>& values) const {
        std::string text;
        for (Value value : values) {
            text += fmt::format("{}%{}", text.empty() ? "" : ", ", program_.value_name(value));
        }
        return text;
    }

    static std::string attribute(const Attribute& one) {
        switch (one.kind) {
            case Attribute::Kind::flag:
                return one.name;
            case Attribute::Kind::number:
                return fmt::format("{} {}", one.name, one.numbers[0]);
            case Attribute::Kind::list:
                return fmt::format("{} {}", one.name, list(one.numbers));
            case Attribute::Kind::symbol:
                return fmt::format("{} @{}", one.name, one.text);
            case Attribute::Kind::element:
                return fmt::format("{} {}", one.name, one.text);
            case Attribute::Kind::text:
                return fmt::format("{} {}", one.name, in_quotes(one.text));
        }
        return "";
    }

    void block(const Block& of) {
        for (const Instruction& made : of.body) {
            std::string text = names(made.results);
            if (!text.empty()) text += " = ";
            text += made.op == Op::tile ? ir::name(made.tile) : name(made.op);
            if (!made.operands.empty()) text += " " + names(made.operands);
            for (const Attribute& one : made.attributes) text += " " + attribute(one);
            std::string types;
            for (Value result : made.results) {
                types += (types.empty() ? " : " : ", ") + type(program_.type(result));
            }
            text += types;
            for (const Block& inner : made.blocks) {
                std::string arguments;
                for (Value argument : inner.arguments) {
                    arguments +=
                        fmt::format("{}%{} : {}", arguments.empty() ? "" : ", ",
                                    program_.value_name(argument), type(program_.type(argument)));
                }
                line("{} {{{}", text, arguments.empty() ? "" : fmt::format(" ({})", arguments));
                ++depth_;
                block(inner);
                --depth_;
                text = "}";
            }
            line("{}", text);
        }
    }

    const Program& program_;
    std::vector<Layout> layouts_;
    std::string text_;
    int depth_ = 0;
};

}  // namespace

std::string print(const Program& program) {
    return Printer(program).run();
}

}  // namespace tilewright::cuda::schedule
