// The rules of reductions and scans in programs without roles.
#include <algorithm>
#include <map>

#include "cuda/schedule/scan_lines.h"
#include "cuda/schedule/verify_rules.h"

namespace tilewright::cuda::schedule {
namespace {

int axis_of(const Instruction& made) {
    return static_cast<int>(made.number("axis"));
}

/// The bits of a thread's number that move along an axis.
std::vector<std::int64_t> thread_bits_along(const Layout& layout,
                                            const std::vector<std::uint64_t>& bases, int axis) {
    std::vector<std::int64_t> bits;
    for (std::size_t bit = 0; bit < bases.size(); ++bit) {
        if (layout.unpack(bases[bit])[static_cast<std::size_t>(axis)] != 0) {
            bits.push_back(static_cast<std::int64_t>(bit));
        }
    }
    return bits;
}

bool has_axis(const Program& p, const Instruction& made, Value value) {
    return axis_of(made) >= 0 && axis_of(made) < p.type(value).type.shape.rank();
}

Broken broken_reduction(const Program& p, const Instruction& made) {
    const Value source = made.operands.at(0), result = made.result();
    const std::string& name = p.value_name(result);
    if (!has_axis(p, made, source)) return broken("%{} is not reduced along an axis", name);
    const Layout from = layout_in(p, source);
    if (layout_in(p, result) != from.without(axis_of(made))) {
        return broken("%{} has another layout than the rest of %{}", name, p.value_name(source));
    }
    if (p.type(result).type.dtype != combined_dtype(p.type(source).type.dtype)) {
        return broken("%{} has another dtype than the elements of %{}", name, p.value_name(source));
    }
    const bool indices = gives_index(reduction_of(made));
    if (made.results.size() != (indices ? 2U : 1U)) {
        return broken("%{} has {} index beside it", name, indices ? "no" : "an");
    }
    if (indices) {
        ValueType expected = p.type(result);
        expected.type.dtype = DType::i32;
        if (p.type(made.results[1]) != expected) {
            return broken("%{} is no index for %{}", p.value_name(made.results[1]), name);
        }
    }
    const bool across = !thread_bits_along(from, from.warp, axis_of(made)).empty();
    if (across != made.has("parts")) {
        return broken("the warps have {} of %{}", across ? "parts" : "all", name);
    }
    if (made.has("partial") && (across || reduction_of(made) != ir::Reduction::sum)) {
        return broken("%{} is no sum of a warp", name);
    }
    return std::nullopt;
}

/// A scan goes from register to register, then from lane to lane, then from warp to warp.
Broken broken_scan(const Program& p, const Instruction& made, Value source, Value result) {
    const std::string& name = p.value_name(result);
    if (!has_axis(p, made, source)) return broken("%{} is not scanned along an axis", name);
    const Layout layout = layout_in(p, source);
    if (layout_in(p, result) != layout) {
        return broken("%{} has another layout than %{}", name, p.value_name(source));
    }
    const DType from = p.type(source).type.dtype, to = p.type(result).type.dtype;
    const bool widens = made.has("parts") && made.is(ir::Op::scan);
    if (to != (widens ? combined_dtype(from) : from)) {
        return broken("%{} has another dtype than the elements of %{}", name, p.value_name(source));
    }
    const int axis = axis_of(made);
    const std::int64_t neighbours = neighbours_along(layout, axis);
    std::int64_t next = neighbours, of_lanes = neighbours, of_warps = neighbours;
    for (const auto* bases : {&layout.lane, &layout.warp}) {
        const std::vector<std::int64_t> bits = thread_bits_along(layout, *bases, axis);
        if (bases == &layout.warp) {
            // A thread may have elements of several places in its warp.
            of_lanes = next;
            const auto has = [&](std::uint64_t basis) {
                return layout.unpack(basis)[static_cast<std::size_t>(axis)] == next;
            };
            while (!bits.empty() && std::any_of(layout.reg.begin(), layout.reg.end(), has))
                next *= 2;
            of_warps = next;
        }
        for (std::size_t i = 0; i < bits.size(); ++i, next *= 2) {
            const std::uint64_t basis = (*bases)[static_cast<std::size_t>(bits[i])];
            const std::int64_t at = layout.unpack(basis)[static_cast<std::size_t>(axis)];
            if (bits[i] != static_cast<std::int64_t>(i) || at != next) {
                return broken("threads do not follow each other in the scan %{}", name);
            }
        }
    }
    for (const std::uint64_t basis : layout.reg) {
        const std::int64_t at = layout.unpack(basis)[static_cast<std::size_t>(axis)];
        if ((at >= neighbours && at < of_lanes) || (at >= of_warps && at < next)) {
            return broken("elements that a thread scans for %{} are not neighbours", name);
        }
    }
    if (!thread_bits_along(layout, layout.warp, axis).empty() != made.has("parts")) {
        return broken("the warps have {} of %{}", made.has("parts") ? "all" : "parts", name);
    }
    return std::nullopt;
}

/// Totals of lines follow the tiles of a scan that has them.
Broken broken_totals(const Program& p, const Instruction& made) {
    const std::size_t count = scanned_tiles(made);
    for (std::size_t i = count; i < made.results.size(); ++i) {
        const Value of = made.results[i - count];
        const std::string& name = p.value_name(made.results[i]);
        if (made.has("parts") || made.has("exclusive")) {
            return broken("%{} is no total of all elements of %{}", name, p.value_name(of));
        }
        if (layout_in(p, made.results[i]) != totals_layout(layout_in(p, of), axis_of(made)) ||
            p.type(made.results[i]).type.dtype != p.type(of).type.dtype) {
            return broken("%{} has not the type of totals of %{}", name, p.value_name(of));
        }
    }
    if (made.results.size() != (made.has("totals") ? 2 : 1) * made.operands.size()) {
        return broken("%{} has not one total for each tile", p.value_name(made.results[0]));
    }
    return std::nullopt;
}

/// The function of a scan is a block: it takes the elements before and those after, and yields as
/// many, from scalars alone.
Broken broken_function(const Program& p, const Instruction& made) {
    const std::string& name = p.value_name(made.result());
    const std::size_t count = scanned_tiles(made);
    if (made.operands.size() != count || made.blocks.size() != 1 ||
        made.blocks[0].arguments.size() != 2 * count || made.blocks[0].body.empty()) {
        return broken("%{} has no function of two elements each", name);
    }
    const auto is_element = [&](Value value, std::size_t of) {
        return !p.is_tile(value) &&
               p.type(value).type.dtype == p.type(made.results[of % count]).type.dtype;
    };
    for (std::size_t i = 0; i < 2 * count; ++i) {
        if (!is_element(made.blocks[0].arguments[i], i)) {
            return broken("%{} is no element of what %{} scans",
                          p.value_name(made.blocks[0].arguments[i]), name);
        }
    }
    const Instruction& last = made.blocks[0].body.back();
    bool yields = last.is(ir::Op::yield) && last.operands.size() == count;
    for (std::size_t i = 0; yields && i < count; ++i) yields = is_element(last.operands[i], i);
    if (!yields) return broken("the function of %{} does not yield its elements", name);
    for (const Instruction& inner : made.blocks[0].body) {
        if (&inner == &last || inner.is(ir::Op::constant)) continue;
        if (inner.op != Op::tile || !ir::is_elementwise(inner.tile) || p.is_tile(inner.result())) {
            return broken("the function of %{} has more than elementwise operations", name);
        }
    }
    return std::nullopt;
}

/// What has `parts`, and how it is completed.
using Parts = std::map<Value, const Instruction*>;

Broken broken_transfer(const Program& p, const Instruction& made, const Parts& parts,
                       std::string_view buffers) {
    const bool scans = made.is(Op::write_totals) || made.is(Op::join_totals);
    const auto found = parts.find(made.operands.at(0));
    const std::string& name = p.value_name(made.operands[0]);
    if (found == parts.end() || found->second->is(ir::Op::reduce) == scans) {
        return broken("%{} has no parts of a {}", name, scans ? "scan" : "reduction");
    }
    const Instruction& origin = *found->second;
    if (made.operands != origin.results) return broken("%{} is not all that warps have", name);
    const Layout from = layout_in(p, origin.operands[0]);
    const std::vector<std::int64_t> warps = thread_bits_along(from, from.warp, axis_of(origin));
    std::int64_t elements = 1;
    if (scans) {
        if (axis_of(made) != axis_of(origin) || made.has("reverse") != origin.has("reverse")) {
            return broken("%{} is scanned in another order", name);
        }
        if (made.has("combine") != origin.is(ir::Op::associative_scan)) {
            return broken("%{} is scanned by another operation", name);
        }
        if (!made.results.empty() && made.has("exclusive") != origin.has("exclusive")) {
            return broken("%{} is scanned with other elements", name);
        }
        const int lanes = p.blocks > 1 ? 1 : 32;
        elements = static_cast<std::int64_t>(totals_of_warp(lines_of_scan(from, origin))) * lanes *
                   p.warps() * kScanSlot * (p.blocks > 1 ? 2 : 1);
    } else {
        if (made.list("warps") != warps) return broken("%{} is shared by other warps", name);
        elements = covered(p.type(made.operands[0]).type.shape).size() << warps.size();
    }
    for (std::size_t i = 0; i < made.operands.size(); ++i) {
        const std::string& buffer = nth_symbol(made, buffers, static_cast<int>(i));
        const int bytes = scans ? 1 : size_of(p.type(made.operands[i]).type.dtype);
        if (elements * bytes > p.buffer(buffer).slot_bytes()) {
            return broken("parts of %{} are larger than @{}", name, buffer);
        }
    }
    if (made.results.empty()) return std::nullopt;
    if (reduction_of(made) != reduction_of(origin)) {
        return broken("parts of %{} are combined by another operation", name);
    }
    const std::size_t count = scans ? scanned_tiles(made) : made.results.size();
    for (std::size_t i = 0; i < count; ++i) {
        ValueType joined = p.type(made.results[i]);
        if (scans && !made.has("combine")) joined.type.dtype = combined_dtype(joined.type.dtype);
        if (count != made.operands.size() || joined != p.type(made.operands[i])) {
            return broken("%{} has another type than %{}", p.value_name(made.results[i]), name);
        }
    }
    return scans ? broken_totals(p, made) : std::nullopt;
}

}  // namespace

Broken reductions(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (made.is(ir::Op::reduce)) return broken_reduction(p, made);
        if (made.is(ir::Op::scan)) {
            Broken found = broken_scan(p, made, made.operands.at(0), made.result());
            return found ? found : broken_totals(p, made);
        }
        if (made.is(ir::Op::associative_scan)) {
            Broken found = broken_function(p, made);
            for (std::size_t i = 0; !found && i < scanned_tiles(made); ++i) {
                found = broken_scan(p, made, made.operands[i], made.results[i]);
            }
            return found ? found : broken_totals(p, made);
        }
        if (made.is(Op::narrow)) {
            const ValueType &from = p.type(made.operands.at(0)), &to = p.type(made.result());
            if (from.layout != to.layout || from.type.dtype != combined_dtype(to.type.dtype) ||
                from.type.dtype == to.type.dtype) {
                return broken("%{} is not %{} in fewer bits", p.value_name(made.result()),
                              p.value_name(made.operands[0]));
            }
        }
        return std::nullopt;
    });
}

Broken parts_of_warps(const Program& p) {
    Parts parts;
    each_instruction(p.body, [&](const Instruction& made) {
        if (!made.has("parts")) return;
        for (const Value result : made.results) parts[result] = &made;
    });
    std::map<Value, const Instruction*> written;
    return first(p.body, [&](const Instruction& made) -> Broken {
        const bool writes = made.is(Op::write_parts) || made.is(Op::write_totals);
        if (writes || made.is(Op::join_parts) || made.is(Op::join_totals)) {
            if (Broken found = broken_transfer(p, made, parts, writes ? "writes" : "reads")) {
                return found;
            }
            const Instruction*& write = written[made.operands[0]];
            if (writes) {
                write = &made;
                return std::nullopt;
            }
            for (int i = 0; i < std::ssize(made.operands); ++i) {
                const std::string& buffer = nth_symbol(made, "reads", i);
                if (write == nullptr || nth_symbol(*write, "writes", i) != buffer) {
                    return broken("@{} does not have the parts of %{}", buffer,
                                  p.value_name(made.operands[static_cast<std::size_t>(i)]));
                }
            }
            return std::nullopt;
        }
        const auto read = std::find_if(made.operands.begin(), made.operands.end(),
                                       [&](Value value) { return parts.contains(value); });
        if (read == made.operands.end()) return std::nullopt;
        return broken("%{} is read before its parts are joined", p.value_name(*read));
    });
}

Broken broken_sharing(const Program& p) {
    bool exchanges = false;
    Broken found = first_block(p.body, [&](const Block& block) -> Broken {
        for (std::size_t i = 0; i < block.body.size(); ++i) {
            const Instruction& made = block.body[i];
            if (made.is(Op::barrier)) return broken("threads of a block meet");
            if (made.is(Op::print) || made.is(Op::print_tile)) return broken("it prints");
            if (is_access(made) && !(made.is(Op::access) && made.has("uses"))) {
                for (const char* const how : {"reads", "writes", "copies", "uses", "to"}) {
                    if (made.has(how)) {
                        return broken("`{}` needs the memory of a block", name(made.op));
                    }
                }
            }
            if (made.is(Op::copy_tile)) return broken("a tile is copied to the memory of a block");
            if (!made.is(Op::write_totals)) continue;
            exchanges = true;
            if (i + 2 >= block.body.size() || !block.body[i + 1].is(Op::meet) ||
                !block.body[i + 2].is(Op::join_totals)) {
                return broken("blocks do not meet before they join totals");
            }
            const Layout& layout = *p.type(made.operands.at(0)).layout;
            if (count_along(layout, layout.lane, axis_of(made)) != std::ssize(layout.lane)) {
                return broken("a warp has more than one line");
            }
        }
        return std::nullopt;
    });
    if (found) return found;
    return exchanges ? std::nullopt : broken("blocks have no totals to exchange");
}

Broken sharing(const Program& p) {
    return p.blocks > 1 ? broken_sharing(p) : std::nullopt;
}

}  // namespace tilewright::cuda::schedule
