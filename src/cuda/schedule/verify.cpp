// The rules of docs/reference/schedule.md, a function each; verify_order.cpp has those of what
// warps do at the same time, the other verify_*.cpp those of programs without roles.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "cuda/schedule/program.h"
#include "cuda/schedule/tools.h"
#include "cuda/schedule/verify_rules.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright::cuda::schedule {
namespace {

// V1: operands and results of an elementwise operation, or of a gather by wgmma's warpgroups, have
// one layout; those of scalars are scalars.
Broken one_layout(const Program& p) {
    const bool gathers = has_roles(p);
    return first(p.body, [&](const Instruction& made) -> Broken {
        const bool pointwise =
            made.op == Op::tile ? is_pointwise(made.tile) : made.is(Op::soft_cap);
        if (!pointwise && !(gathers && is_gather(made))) return std::nullopt;
        const auto& layout = p.type(made.result()).layout;
        if (!p.is_tile(made.result())) {
            const auto tile = std::find_if(made.operands.begin(), made.operands.end(),
                                           [&](Value operand) { return p.is_tile(operand); });
            if (tile == made.operands.end()) return std::nullopt;
            return broken("%{} is no tile, as %{} is", p.value_name(made.result()),
                          p.value_name(*tile));
        }
        if (!layout) return broken("%{} has no layout", p.value_name(made.result()));
        for (Value operand : made.operands) {
            if (p.is_tile(operand) && p.type(operand).layout != layout) {
                return broken("%{} and its operand %{} have different layouts",
                              p.value_name(made.result()), p.value_name(operand));
            }
        }
        return std::nullopt;
    });
}

// V2: an accumulator is laid out as wgmma's fragments are (PTX ISA, wgmma, register fragments).
Broken accumulators(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (!made.is(Op::wgmma)) return std::nullopt;
        const ValueType& type = p.type(made.result());
        if (type.layout == sums_layout(p, type.type.shape, groups_of(p, made))) {
            return std::nullopt;
        }
        return broken("the accumulator %{} has another layout than wgmma's",
                      p.value_name(made.result()));
    });
}

// V3: 64 or 128 rows for each warpgroup, and a number of columns that an instruction supports.
Broken shapes(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (!made.is(Op::wgmma)) return std::nullopt;
        const ir::Type& type = p.type(made.result()).type;
        const std::vector<int> groups = groups_of(p, made);
        const auto read = Product(made).registers;
        if (made.has("swapped") && !(read && p.type(*read).type.dtype == DType::f32)) {
            return broken("%{} is swapped without an operand of tf32 in registers",
                          p.value_name(made.result()));
        }
        const int columns = columns_axis(made.has("swapped") ? Sums::swapped : Sums::plain);
        const int rows = 1 - columns;
        // Of 128 rows, a thread has the sums of at most 192 columns.
        const bool twice = !made.has("swapped") && !read && groups.size() == 2 &&
                           type.shape.rank() == 2 && type.shape[rows] == 2 * kRows * groups[rows] &&
                           type.shape[columns] <= 192 * groups[columns];
        if (type.shape.rank() != 2 || groups.size() != 2 ||
            (type.shape[rows] != kRows * groups[rows] && !twice) ||
            groups[0] * groups[1] != p.consumer_groups()) {
            return broken("%{} does not have 64 rows for each warpgroup",
                          p.value_name(made.result()));
        }
        const std::int64_t n = type.shape[columns] / groups[columns];
        if (n * groups[columns] != type.shape[columns] || n % 8 != 0 || n < 8 || n > 256) {
            return broken("wgmma has no shape with {} columns", n);
        }
        return std::nullopt;
    });
}

/// Left operands of tf32 are the columns of a tile.
Broken wrong_fragments(const Program& p, const Instruction& made) {
    const Buffer& from = p.buffer(made.symbol("reads"));
    const ir::Type& type = p.type(made.result()).type;
    if (type.dtype != DType::f32 || from.dtype != DType::f32 ||
        type.shape != ir::Shape{from.columns, from.rows}) {
        return broken("%{} is no left operand that @{} holds", p.value_name(made.result()),
                      from.name);
    }
    return std::nullopt;
}

/// A panel in the layout of sums, of the slot's shape and dtype.
Broken wrong_panel(const Program& p, const Instruction& made) {
    const Buffer& from = p.buffer(made.symbol("reads"));
    const ValueType& type = p.type(made.result());
    if (type.type.dtype != from.dtype || size_of(from.dtype) != 2 || from.columns != from.panel() ||
        type.type.shape != ir::Shape{from.rows, from.columns} ||
        from.rows != kRows * p.consumer_groups() ||
        type.layout != accumulator_layout(type.type.shape, p.groups)) {
        return broken("%{} is no panel that @{} holds", p.value_name(made.result()), from.name);
    }
    return std::nullopt;
}

// V4: the slots that a product reads have its rows, columns and inner dimension.
Broken operands(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (made.is(Op::read_panel)) return wrong_panel(p, made);
        if (made.is(Op::read_fragments)) return wrong_fragments(p, made);
        if (!made.is(Op::wgmma)) return std::nullopt;
        ir::Shape tile = p.type(made.result()).type.shape;
        if (made.has("swapped")) std::swap(tile[0], tile[1]);
        const Buffer& b = p.buffer(made.symbol("b"));
        const bool ta = made.has("transpose_a"), tb = made.has("transpose_b");
        const std::int64_t n = tb ? b.rows : b.columns, kb = tb ? b.columns : b.rows;
        std::int64_t m = 0, k = 0;
        DType in = b.dtype;
        if (const auto registers = Product(made).registers) {
            const ir::Type& type = p.type(*registers).type;
            m = type.shape[0], k = type.shape[1], in = type.dtype;
        } else {
            const Buffer& a = p.buffer(made.symbol("a"));
            m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns, in = a.dtype;
        }
        if (!is_float(in) != (p.type(made.result()).type.dtype == DType::i32) ||
            (is_float(in) && p.type(made.result()).type.dtype != DType::f32)) {
            return broken("%{} is no sum of products of {}", p.value_name(made.result()),
                          tilewright::name(in));
        }
        if (size_of(in) != 2 && (ta || !tb)) {
            return broken("an operand of %{} does not lie along its inner dimension",
                          p.value_name(made.result()));
        }
        if (m != tile[0] || n != tile[1] || k != kb || k % (32 / size_of(in)) != 0 ||
            in != b.dtype) {
            return broken("the operands of %{} do not fit a product of {} x {}",
                          p.value_name(made.result()), tile[0], tile[1]);
        }
        return std::nullopt;
    });
}

// V5: what TMA supports: rank 5, boxes of 256, rows of the swizzle's 128 bytes.
Broken boxes(const Program& p) {
    for (const Map& map : p.maps) {
        const Parameter& ref = p.ref(map.ref);
        if (!ref.tensor) return broken("@{} is a map of what TMA cannot read", map.name);
        if (map.box.size() != ref.extents.size() || map.box.empty() || map.box.size() > 5) {
            return broken("@{} does not have one extent for each of up to 5 dimensions", map.name);
        }
        for (std::int64_t extent : map.box) {
            if (extent < 1 || extent > 256) return broken("@{} has a box of {}", map.name, extent);
        }
        if (map.box.back() * size_of(ref.dtype) != 128) {
            return broken("rows of @{} have {} bytes, not 128", map.name,
                          map.box.back() * size_of(ref.dtype));
        }
    }
    return std::nullopt;
}

std::size_t index_of(const Block& block, Op op, const std::string& channel = "") {
    const auto at =
        std::find_if(block.body.begin(), block.body.end(), [&](const Instruction& made) {
            return made.is(op) && (channel.empty() || made.symbol("channel") == channel);
        });
    return static_cast<std::size_t>(at - block.body.begin());
}
bool has(const Block& block, Op op, const std::string& channel = "") {
    return index_of(block, op, channel) < block.body.size();
}
std::size_t count_of(const Block& block, Op op, const std::string& channel) {
    return static_cast<std::size_t>(std::count_if(
        block.body.begin(), block.body.end(),
        [&](const Instruction& made) { return made.is(op) && made.symbol("channel") == channel; }));
}

/// A product whose slots are not awaited, or released before.
Broken not_awaited(const Program& p, const Block& block, std::set<std::string> full) {
    for (const Instruction& made : block.body) {
        if (made.is(Op::await)) full.insert(made.symbol("channel"));
        if (made.is(Op::release) && made.number("back") < 1) full.erase(made.symbol("channel"));
        if (made.is(Op::wgmma) || made.is(Op::read_fragments) || made.is(Op::read_panel)) {
            for (const std::string& channel : channels_of(p, made)) {
                if (!full.contains(channel)) {
                    return broken("%{} reads a slot of @{} that is not awaited or is released",
                                  p.value_name(made.result()), channel);
                }
            }
        }
        for (const Block& inner : made.blocks) {
            if (Broken found = not_awaited(p, inner, full)) return found;
        }
    }
    return std::nullopt;
}

// V6: an iteration acquires, publishes and loads, or awaits, multiplies and releases, and counts
// once.
Broken iterations(const Program& p) {
    for (const Channel& channel : p.channels) {
        const std::string& name = channel.name;
        const Broken found = first_block(p.body, [&](const Block& block) -> Broken {
            const bool loads = has(block, Op::tma_load, name), reads = has(block, Op::await, name);
            const bool copies = has(block, Op::thread_load, name);
            if (!loads && !copies && !reads) return std::nullopt;
            if (count_of(block, Op::next, name) != 1) {
                return broken("an iteration does not count @{} once", name);
            }
            if (copies &&
                !(index_of(block, Op::acquire, name) < index_of(block, Op::thread_load, name) &&
                  index_of(block, Op::thread_load, name) <
                      index_of(block, Op::publish_copies, name) &&
                  has(block, Op::publish_copies, name))) {
                return broken(
                    "an iteration copies to @{} before it acquires, or does not publish that",
                    name);
            }
            if (loads &&
                !(index_of(block, Op::acquire, name) < index_of(block, Op::publish, name) &&
                  index_of(block, Op::publish, name) < index_of(block, Op::tma_load, name))) {
                return broken("an iteration loads to @{} before it acquires and publishes", name);
            }
            if (reads && !(index_of(block, Op::await, name) < index_of(block, Op::release, name) &&
                           has(block, Op::release, name))) {
                return broken("an iteration does not await and release @{} in this order", name);
            }
            return std::nullopt;
        });
        if (found) return found;
    }
    return not_awaited(p, p.body, {});
}

// V7: inside of loops a count is one that the loop carries.
Broken counts(const Program& p) {
    const Uses uses(p);
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (!made.is(ir::Op::for_loop)) return std::nullopt;
        return first(made.blocks[0], [&](const Instruction& inner) -> Broken {
            if (inner.is(Op::wgmma)) return std::nullopt;  // may read a slot of all iterations
            for (Value operand : inner.operands) {
                const Instruction* const from = uses.definition(operand);
                if (from != nullptr && from->is(Op::count)) {
                    return broken("the loop does not carry the count %{}", p.value_name(operand));
                }
            }
            return std::nullopt;
        });
    });
}

// V8: a slot's bytes are those of its buffers, and every consumer warp releases it.
Broken channels(const Program& p) {
    for (const Channel& channel : p.channels) {
        std::int64_t bytes = 0;
        for (const std::string& name : channel.buffers) {
            bytes += p.buffer(name).slot_bytes();
            if (p.buffer(name).slots != channel.slots) {
                return broken("@{} has other slots than @{}", name, channel.name);
            }
        }
        if (bytes != channel.bytes) {
            return broken("@{} announces {} bytes for {}", channel.name, channel.bytes, bytes);
        }
        if (channel.copied < 0 || channel.copied > channel.bytes) {
            return broken("threads copy {} bytes of {} to @{}", channel.copied, channel.bytes,
                          channel.name);
        }
        const int releases = 4 * p.consumer_groups() * p.sharers();
        if (channel.empty_arrivals != releases) {
            return broken("@{} waits for {} warps, not {}", channel.name, channel.empty_arrivals,
                          releases);
        }
    }
    return std::nullopt;
}

// V9: values cross from one role to the other only through channels.
Broken roles(const Program& p) {
    std::map<Value, const Instruction*> homes;
    for (const Instruction& role : p.body.body) {
        if (!role.is(Op::role)) continue;
        const auto own = [&](const Block& block) {
            for (Value argument : block.arguments) homes[argument] = &role;
        };
        each_instruction(role.blocks[0], [&](const Instruction& made) {
            for (Value result : made.results) homes[result] = &role;
            for (const Block& inner : made.blocks) own(inner);
        });
    }
    for (const Instruction& role : p.body.body) {
        if (!role.is(Op::role)) continue;
        const Broken found = first(role.blocks[0], [&](const Instruction& made) -> Broken {
            for (Value operand : made.operands) {
                const auto home = homes.find(operand);
                if (home != homes.end() && home->second != &role) {
                    return broken("%{} crosses roles", p.value_name(operand));
                }
            }
            return std::nullopt;
        });
        if (found) return found;
    }
    return std::nullopt;
}

// V12: buffers do not overlap, are aligned to 1,024 bytes and fit.
Broken places(const Program& p) {
    if (!has_roles(p)) return places_in_time(p);
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    for (const Buffer& one : p.buffers) {
        if (one.offset % 1024 != 0) return broken("@{} does not lie on 1,024 bytes", one.name);
        const int copies = one.per_group ? p.all_consumer_groups() : 1;
        ranges.emplace_back(one.offset, one.offset + one.slot_bytes() * one.slots * copies);
    }
    for (const Channel& one : p.channels) {
        ranges.emplace_back(one.full, one.full + 8 * one.slots);
        ranges.emplace_back(one.empty, one.empty + 8 * one.slots);
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const std::int64_t end = i + 1 < ranges.size() ? ranges[i + 1].first : p.shared_bytes;
        if (ranges[i].first < 0 || ranges[i].second > end) {
            return broken("what lies at {} overlaps what follows", ranges[i].first);
        }
    }
    if (p.shared_bytes > 227 * 1024) return broken("{} bytes of shared memory", p.shared_bytes);
    return std::nullopt;
}

// V13: warpgroups share the registers that the block has at entry (PTX ISA, setmaxnreg).
Broken registers(const Program& p) {
    int sum = 0, groups = 0;
    for (const Role& role : p.roles) {
        if (role.registers == 0) return std::nullopt;
        if (role.registers % 8 != 0 || role.registers < 24 || role.registers > 240) {
            return broken("@{} cannot have {} registers", role.name, role.registers);
        }
        if (role.first_warp % 4 != 0) continue;  // of the warpgroup before it
        sum += role.registers * role.warps / 4;
        groups += role.warps / 4;
    }
    if (groups == 0) return std::nullopt;
    const int at_entry = 65536 / (128 * groups) / 8 * 8;
    if (sum > at_entry * groups) {
        return broken("roles take {} registers of {}", sum, at_entry * groups);
    }
    return std::nullopt;
}

// V16: an operand in registers is packed, and laid out as wgmma's fragments are.
Broken packed(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (!made.is(Op::wgmma) || !made.has("registers")) return std::nullopt;
        const Value operand = *Product(made).registers;
        const ValueType& type = p.type(operand);
        if (!type.packed) return broken("the operand %{} is not packed", p.value_name(operand));
        const Layout layout = size_of(type.type.dtype) == 4
                                  ? fragments_layout(p, type.type.shape)
                                  : accumulator_layout(type.type.shape, p.groups);
        if (type.layout != layout) {
            return broken("the operand %{} has another layout than wgmma's", p.value_name(operand));
        }
        return std::nullopt;
    });
}

// V17: undefined registers are not added to.
Broken fresh(const Program& p) {
    const Uses uses(p);
    return first(p.body, [&](const Instruction& made) -> Broken {
        for (Value operand : made.operands) {
            const Instruction* const from = uses.definition(operand);
            if (from == nullptr || !from->is(Op::fresh)) continue;
            if (!made.is(Op::wgmma) || !made.has("overwrite")) {
                return broken("%{} is read before a product sets it", p.value_name(operand));
            }
        }
        return std::nullopt;
    });
}

// V18: slots that threads copy to are published in time: at least two slots are left to the
// products, and all are full in the end.
Broken copies(const Program& p) {
    std::set<std::string> finished;
    Broken found = first(p.body, [&](const Instruction& made) -> Broken {
        if (!made.is(Op::publish_copies) && !made.is(Op::finish_copies)) return std::nullopt;
        const Channel& channel = p.channel(made.symbol("channel"));
        if (made.is(Op::finish_copies)) finished.insert(channel.name);
        if (channel.copied == 0) return broken("nobody copies to @{}", channel.name);
        const std::int64_t lag = made.number("lag");
        if (lag < 0 || lag > channel.slots - 2) {
            return broken("@{} of {} slots is published {} slots later", channel.name,
                          channel.slots, lag);
        }
        return std::nullopt;
    });
    if (found) return found;
    for (const Channel& channel : p.channels) {
        if (channel.copied > 0 && !finished.contains(channel.name)) {
            return broken("the last copies to @{} are not published", channel.name);
        }
    }
    return std::nullopt;
}

// V21: what threads have of the rows' sums is only added to, until it is joined.
Broken parts(const Program& p) {
    const Uses uses(p);
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (!made.has("partial") || !made.is(ir::Op::reduce)) return std::nullopt;
        for (const Instruction* user : uses.users(made.result())) {
            const bool is_added = user->is(ir::Op::add) ||
                                  (user->is(ir::Op::fma) && user->operands[2] == made.result());
            if (!is_added) {
                return broken("%{} has parts of sums, and is read", p.value_name(made.result()));
            }
        }
        return std::nullopt;
    });
}

enum class Programs : std::uint8_t { all, with_roles, without_roles };
struct Rule {
    std::string_view name;
    Level from;
    Broken (*check)(const Program&);
    Programs of = Programs::with_roles;
};
constexpr std::array<Rule, 38> kRules{{
    {"V1", Level::laid_out, one_layout, Programs::all},
    {"V2", Level::laid_out, accumulators},
    {"V3", Level::selected, shapes},
    {"V4", Level::staged, operands},
    {"V5", Level::staged, boxes},
    {"V6", Level::staged, iterations},
    {"V7", Level::staged, counts},
    {"V8", Level::staged, channels},
    {"V9", Level::specialised, roles},
    {"V10", Level::waiting, waits},
    {"V11", Level::waiting, fences},
    {"V12", Level::placed, places, Programs::all},
    {"V13", Level::specialised, registers},
    {"V14", Level::synchronised, proxies},
    {"V15", Level::synchronised, meetings},
    {"V16", Level::laid_out, packed},
    {"V17", Level::selected, fresh},
    {"V18", Level::specialised, copies},
    {"V19", Level::synchronised, ordered_accesses, Programs::without_roles},
    {"V20", Level::waiting, issues},
    {"V21", Level::laid_out, parts},
    {"V22", Level::split, registers_of_values, Programs::without_roles},
    {"V23", Level::split, tiles_in_memory, Programs::without_roles},
    {"V24", Level::split, views, Programs::without_roles},
    {"V25", Level::split, assignments, Programs::without_roles},
    {"V26", Level::split, reductions, Programs::without_roles},
    {"V27", Level::split, parts_of_warps, Programs::without_roles},
    {"V28", Level::split, array_accesses, Programs::without_roles},
    {"V29", Level::split, vectors_of_accesses, Programs::without_roles},
    {"V30", Level::split, targets_of_stores, Programs::without_roles},
    {"V31", Level::split, copied_tiles, Programs::without_roles},
    {"V32", Level::split, operands_in_memory, Programs::without_roles},
    {"V33", Level::split, products, Programs::without_roles},
    {"V34", Level::split, control, Programs::without_roles},
    {"V35", Level::split, sorts, Programs::without_roles},
    {"V36", Level::split, prints, Programs::without_roles},
    {"V37", Level::placed, turns},
    {"V38", Level::split, sharing, Programs::without_roles},
}};

}  // namespace

std::optional<std::string> broken_rule(const Program& program) {
    for (const Rule& rule : kRules) {
        const bool concerns =
            rule.of == Programs::all || (rule.of == Programs::with_roles) == has_roles(program);
        if (program.level < rule.from || !concerns) continue;
        if (const Broken found = rule.check(program)) {
            return fmt::format("{}: {}", rule.name, *found);
        }
    }
    return std::nullopt;
}

void check(const Program& program) {
    const char* const trace = std::getenv("TILEWRIGHT_DEBUG_PASSES");
    if (trace != nullptr && std::string_view(trace) == "1") {
        write_debug_line(name(program.level), print(program));
    }
    const auto broken = broken_rule(program);
    TW_ASSERT(!broken, "{} at level {}: {}", program.name, name(program.level), *broken);
}

}  // namespace tilewright::cuda::schedule
