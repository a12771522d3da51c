// Matrix products: fragments, tensor core instructions, multiply-adds.
#include "cuda/codegen/lower_dots.h"

#include <algorithm>
#include <set>

#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

constexpr int kMaxHoistedWords = 32;  // more would spill

/// A layout without its lanes: the part of the coordinates that warps add.
Layout warps_only(Layout layout) {
    std::fill(layout.lane.begin(), layout.lane.end(), 0);
    return layout;
}

/// Distinct values of `part` over the registers of a layout, in order.
template <typename Part>
std::vector<std::int64_t> distinct(const Layout& layout, Part&& part) {
    std::set<std::int64_t> values;
    for (int r = 0; r < layout.registers(); ++r)
        values.insert(part(layout.register_coordinates(r)));
    return {values.begin(), values.end()};
}

/// Text of the packed words of a left operand whose registers the instruction can read.
std::optional<Names> register_words(Lowering& cx, const DotPlan& plan, const DotOperand& operand) {
    if (operand.transposed) return std::nullopt;
    const Value source = before_rounding(cx, operand.value);
    const Held* held = cx.find(source);
    if (held == nullptr) return std::nullopt;
    const Conversion how = conversion(held->layout, plan.a);
    if (how.kind != Conversion::Kind::relabel) return std::nullopt;
    const int k_axis = plan.a.shape.rank() - 1;
    Names words;
    for (std::size_t r = 0; r < how.source.size(); r += 2) {
        Names pair;
        for (std::size_t i = 0; i < 2; ++i) {
            const std::string& element = cx.names(*held)[how.source[r + i]];
            const std::int64_t k = plan.a.register_coordinates(static_cast<int>(r + i))[k_axis];
            pair.push_back(plan.a.has_phantoms(k_axis)
                               ? fmt::format("{} < {} ? {} : 0.0f",
                                             cx.coordinate(plan.a, k_axis, k), plan.k, element)
                               : element);
        }
        words.push_back(fmt::format("ptx::pack({}{{}}, {}, {})",
                                    plan.operand == DType::f16 ? "F16" : "Bf16", pair[0], pair[1]));
    }
    return words;
}

std::string fragment_address(Lowering& cx, const SharedTile& tile, const std::string& row,
                             const std::string& byte, std::int64_t row_part,
                             std::int64_t byte_part) {
    // The thread's part is computed once; the register's part is an xor inside the swizzled group
    // and a sum beyond it, so that one register addresses a whole operand.
    const std::string expression =
        fmt::format("swizzled<{}, {}>({}, {})", tile.row_bytes, tile.group, row, byte);
    const std::string own = cx.positions.address(expression);
    const std::string key = "address " + own + tile.offset;
    std::string base;
    for (auto scope = cx.scopes.rbegin(); scope != cx.scopes.rend() && base.empty(); ++scope) {
        const auto found = scope->fragments.find(key);
        if (found != scope->fragments.end()) base = found->second.front();
    }
    if (base.empty()) {
        base = cx.fresh("from");
        cx.line("const u32 {} = {} + {};", base, own, tile.offset);
        cx.scopes.back().fragments[key] = {base};
    }
    const std::int64_t flip = byte_part & (tile.group - 1);
    const std::int64_t shift = row_part * tile.row_bytes + (byte_part - flip);
    return fmt::format("{} + {}", flip == 0 ? base : fmt::format("({} ^ {})", base, flip), shift);
}

std::string left_key(const DotPlan& plan, const DotOperand& operand, const Coordinates& at,
                     std::int64_t k) {
    const int rank = plan.a.shape.rank();
    // Warps may have different rows in different dots of one operand.
    return fmt::format("{}{} {} {} {} {}", operand.value.id, operand.transposed ? "t" : "",
                       rank == 3 ? at[0] : 0, at[rank - 2], k, fmt::join(plan.a.warp, ","));
}

std::string shared_element_text(const SharedTile& tile, const std::string& row,
                                const std::string& column) {
    return fmt::format("shared_element<{}>(memory, {} + swizzled<{}, {}>({}, ({}) * {}))",
                       storage_type(tile.dtype), tile.offset, tile.row_bytes, tile.group, row,
                       column, size_of(tile.dtype));
}

void mma16(Lowering& cx, const Instruction& made, const DotPlan& plan, Names& c) {
    const DotOperand left = cx.facts.operand_of(made, 0), right = cx.facts.operand_of(made, 1);
    const Layout& acc = plan.accumulator;
    const int rank = acc.shape.rank(), m_axis = rank - 2, n_axis = rank - 1;
    const auto m_at = static_cast<std::size_t>(m_axis), n_at = static_cast<std::size_t>(n_axis);
    const std::optional<Names> in_place = register_words(cx, plan, left);
    if (!in_place) operand_tile(cx, plan, left);
    const SharedTile tile = operand_tile(cx, plan, right);
    copy_operands_ahead(cx, made);
    if (in_place)
        cx.access_shared("reads", {tile.buffer});
    else
        cx.access_shared("reads", {tile.buffer, operand_tile(cx, plan, left).buffer});

    const auto batches =
        distinct(acc, [&](const Coordinates& at) { return rank == 3 ? at[0] : std::int64_t{0}; });
    const auto rows = distinct(acc, [&](const Coordinates& at) { return at[m_at] & ~15; });
    const auto columns = distinct(acc, [&](const Coordinates& at) { return at[n_at] & ~7; });
    const bool has_upper = cover(plan.m).size() >= 16;
    const char* const tag = plan.operand == DType::f16 ? "F16" : "Bf16";
    const Layout warp_part = warps_only(plan.b);
    const std::string warp_n = cx.thread_coordinate(warp_part, n_axis);
    const std::int64_t tile_rows = right.transposed ? cover(plan.n).size() : cover(plan.k).size();
    std::string batch_rows;
    if (rank == 3) {
        const std::string warp_b = cx.thread_coordinate(warp_part, 0);
        if (warp_b != "0") batch_rows = fmt::format(" + {} * {}", warp_b, tile_rows);
    }
    std::map<Coordinates, int> a_places;
    if (in_place) {
        for (int r = 0; r < plan.a.registers(); r += 2) {
            a_places[plan.a.register_coordinates(r)] = r / 2;
        }
    }
    for (std::int64_t b : batches) {
        for (std::int64_t k = 0; k < cover(plan.k).size(); k += plan.step) {
            cx.comment("k {}", k);
            std::vector<Names> a;
            for (std::int64_t m : rows) {
                Coordinates at{};
                if (rank == 3) at[0] = b;
                at[m_at] = m;
                if (!in_place) {
                    a.push_back(left_words(cx, plan, left, at, k));
                    continue;
                }
                Names words;
                for (int word = 0; word < 4; ++word) {
                    Coordinates place = at;
                    if (has_upper) place[m_at] += word % 2 * 8;
                    place[n_at] = k + word / 2 * 8;
                    words.push_back((*in_place)[a_places.at(place)]);
                }
                // Packed just before use: packing all at once would hold twice the registers.
                const Names packed = numbered(cx.fresh("a"), 4);
                for (std::size_t word = 0; word < 4; ++word) {
                    cx.line("const u32 {} = {};", packed[word], words[word]);
                }
                a.push_back(packed);
            }
            // Pairs of columns that one statement multiplies.
            constexpr std::size_t kMostAtOnce = 16;
            Names sums, addresses;
            const auto multiply = [&] {
                if (addresses.empty()) return;
                Names lefts;
                for (const Names& words : a) lefts.insert(lefts.end(), words.begin(), words.end());
                schedule::Instruction& step = cx.append(schedule::Op::mma);
                step.with("rows", static_cast<std::int64_t>(rows.size()))
                    .with("columns", 2 * static_cast<std::int64_t>(addresses.size()))
                    .with_symbol("dtype", std::string(tilewright::name(plan.operand)));
                if (!right.transposed) step.flag("moved");
                step.with_text(
                    "text", fmt::format("{}, {}, {}", fmt::join(sums, ", "), fmt::join(lefts, ", "),
                                        fmt::join(addresses, ", ")));
                sums.clear();
                addresses.clear();
            };
            for (std::size_t column = 0; column < columns.size();) {
                const std::int64_t n = columns[column];
                const bool pair = column + 1 < columns.size() && columns[column + 1] == n + 8;
                const bool together = pair && has_upper;
                std::string row, byte;
                std::int64_t row_part = b * tile_rows, byte_part = 0;
                if (right.transposed) {  // stored [n, k]
                    row = pair ? "(lane & 7) + (lane >> 4) * 8" : "(lane & 7)";
                    if (warp_n != "0") row += " + " + warp_n;
                    byte = "(lane >> 3 & 1) * 16";
                    row_part += n;
                    byte_part = k * 2;
                } else {
                    row = "(lane & 15)";
                    byte = pair ? "(lane >> 4) * 16" : "0";
                    if (warp_n != "0") byte += fmt::format(" + {} * 2", warp_n);
                    row_part += k;
                    byte_part = n * 2;
                }
                const std::string address =
                    fragment_address(cx, tile, row + batch_rows, byte, row_part, byte_part);
                Names words;
                if (together) {
                    addresses.push_back(address);
                } else {
                    words = numbered(cx.fresh("b"), pair ? 4 : 2);
                    cx.line("u32 {0}; ptx::ldmatrix{1}({0}, {2});", fmt::join(words, ", "),
                            right.transposed ? "" : "_transposed", address);
                }
                for (std::size_t i = 0; i < rows.size(); ++i) {
                    for (int half = 0; half < (pair ? 2 : 1); ++half) {
                        Names d;
                        for (int e = 0; e < 4; ++e) {
                            Coordinates at{};
                            if (rank == 3) at[0] = b;
                            at[m_at] = rows[i] + (has_upper ? e / 2 * 8 : 0);
                            at[n_at] = n + half * 8 + e % 2;
                            if (!has_upper && e >= 2) {
                                d.push_back(fmt::format("unused{}", e));
                            } else {
                                d.push_back(c[acc.find_register(at)]);
                            }
                        }
                        if (together) {
                            sums.insert(sums.end(), d.begin(), d.end());
                            continue;
                        }
                        const std::string call = fmt::format(
                            "ptx::mma_m16n8k16({}{{}}, {}, {}, {}, {});", tag, fmt::join(d, ", "),
                            fmt::join(a[i], ", "), words[2 * half], words[2 * half + 1]);
                        if (has_upper)
                            cx.line("{}", call);
                        else
                            cx.line("{{ f32 unused2 = 0, unused3 = 0; {} }}", call);
                    }
                }
                column += pair ? 2 : 1;
                if (2 * rows.size() * (addresses.size() + 1) > kMostAtOnce) multiply();
            }
            multiply();
        }
    }
}

void mma_by_element(Lowering& cx, const Instruction& made, const DotPlan& plan, Names& c) {
    const DotOperand left = cx.facts.operand_of(made, 0), right = cx.facts.operand_of(made, 1);
    const SharedTile left_tile = operand_tile(cx, plan, left),
                     right_tile = operand_tile(cx, plan, right);
    copy_operands_ahead(cx, made);
    cx.access_shared("reads", {left_tile.buffer, right_tile.buffer});
    const Layout& acc = plan.accumulator;
    const int rank = acc.shape.rank(), m_axis = rank - 2, n_axis = rank - 1;
    const auto m_at = static_cast<std::size_t>(m_axis), n_at = static_cast<std::size_t>(n_axis);
    const bool tf32 = plan.unit == DotPlan::Unit::tf32;
    const std::int64_t m_step = tf32 ? 16 : 8;
    const bool has_upper = tf32 && cover(plan.m).size() >= 16;
    const auto batches =
        distinct(acc, [&](const Coordinates& at) { return rank == 3 ? at[0] : std::int64_t{0}; });
    const auto rows =
        distinct(acc, [&](const Coordinates& at) { return at[m_at] & ~(m_step - 1); });
    const auto columns = distinct(acc, [&](const Coordinates& at) { return at[n_at] & ~7; });
    // An element of an operand at register parts (b, outer, k) of its fragment layout.
    const auto element = [&](const SharedTile& tile, const Layout& layout, bool stored_k_first,
                             int outer_axis, int k_axis, std::int64_t b, std::int64_t outer,
                             std::int64_t k) {
        const std::string o = cx.coordinate(layout, outer_axis, outer),
                          inner = cx.coordinate(layout, k_axis, k);
        std::string row = stored_k_first ? inner : o;
        if (rank == 3) {
            row = fmt::format("{} + ({}) * {}", row, cx.coordinate(layout, 0, b),
                              cover(layout.shape[stored_k_first ? k_axis : outer_axis]).size());
        }
        const std::string text = shared_element_text(tile, row, stored_k_first ? o : inner);
        return tf32 ? fmt::format("ptx::to_tf32({})", text) : text;
    };
    for (std::int64_t b : batches) {
        for (std::int64_t k = 0; k < cover(plan.k).size(); k += plan.step) {
            cx.comment("k {}", k);
            std::vector<Names> a, bs;
            const char* const word = tf32 ? "u32" : "f64";
            for (std::int64_t m : rows) {
                Names words = numbered(cx.fresh("a"), tf32 ? 4 : 1);
                for (std::size_t i = 0; i < words.size(); ++i) {
                    const std::int64_t upper = has_upper && i % 2 != 0 ? 8 : 0;
                    cx.line("const {} {} = {};", word, words[i],
                            element(left_tile, plan.a, left.transposed, m_axis, n_axis, b,
                                    m + upper, k + (i >= 2 ? 4 : 0)));
                }
                a.push_back(std::move(words));
            }
            for (std::int64_t n : columns) {
                Names words = numbered(cx.fresh("b"), tf32 ? 2 : 1);
                for (std::size_t i = 0; i < words.size(); ++i) {
                    cx.line("const {} {} = {};", word, words[i],
                            element(right_tile, plan.b, !right.transposed, n_axis, m_axis, b, n,
                                    k + (i == 1 ? 4 : 0)));
                }
                for (std::size_t i = 0; i < rows.size(); ++i) {
                    Names d;
                    for (int e = 0; e < (tf32 ? 4 : 2); ++e) {
                        Coordinates at{};
                        if (rank == 3) at[0] = b;
                        at[m_at] = rows[i] + (has_upper ? e / 2 * 8 : 0);
                        at[n_at] = n + e % 2;
                        d.push_back(tf32 && !has_upper && e >= 2 ? fmt::format("unused{}", e)
                                                                 : c[acc.find_register(at)]);
                    }
                    const std::string call = fmt::format(
                        "ptx::{}{}, {}, {});", tf32 ? "mma_m16n8k8(Tf32{}, " : "mma_m8n8k4(",
                        fmt::join(d, ", "), fmt::join(a[i], ", "), fmt::join(words, ", "));
                    if (tf32 && !has_upper)
                        cx.line("{{ f32 unused2 = 0, unused3 = 0; {} }}", call);
                    else
                        cx.line("{}", call);
                }
            }
        }
    }
}

void multiply_add(Lowering& cx, const Instruction& made, const DotPlan& plan, Names& c) {
    const DotOperand left = cx.facts.operand_of(made, 0), right = cx.facts.operand_of(made, 1);
    const SharedTile left_tile = operand_tile(cx, plan, left),
                     right_tile = operand_tile(cx, plan, right);
    copy_operands_ahead(cx, made);
    cx.access_shared("reads", {left_tile.buffer, right_tile.buffer});
    const Layout& acc = plan.accumulator;
    const int rank = acc.shape.rank(), m_axis = rank - 2, n_axis = rank - 1;
    const DType result = cx.type(made.result()).dtype;
    const auto row_of = [&](const SharedTile& tile, std::int64_t b, const std::string& row) {
        if (rank != 3) return row;
        return fmt::format("{} + ({}) * {}", row, cx.coordinate(acc, 0, b),
                           cover(tile.shape[1]).size());
    };
    cx.line("#pragma unroll 4");
    cx.open(fmt::format("for (int k = 0; k < {}; ++k)", plan.k));
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> as, bs;
    const std::string wide = register_type(result);
    for (int r = 0; r < acc.registers(); ++r) {
        const Coordinates at = acc.register_coordinates(r);
        const std::int64_t b = rank == 3 ? at[0] : 0, m = at[m_axis], n = at[n_axis];
        std::string &a_name = as[{b, m}], &b_name = bs[{b, n}];
        if (a_name.empty()) {
            a_name = cx.fresh("a");
            const std::string outer = cx.coordinate(acc, m_axis, m);
            cx.line("const {} {} = {};", wide, a_name,
                    left.transposed
                        ? shared_element_text(left_tile, row_of(left_tile, b, "k"), outer)
                        : shared_element_text(left_tile, row_of(left_tile, b, outer), "k"));
        }
        if (b_name.empty()) {
            b_name = cx.fresh("b");
            const std::string outer = cx.coordinate(acc, n_axis, n);
            cx.line("const {} {} = {};", wide, b_name,
                    right.transposed
                        ? shared_element_text(right_tile, row_of(right_tile, b, outer), "k")
                        : shared_element_text(right_tile, row_of(right_tile, b, "k"), outer));
        }
        const std::string& sum = c[r];
        if (is_float(result)) {
            cx.line("{0} = ops::fma({1}, {2}, {0});", sum, a_name, b_name);
        } else {
            cx.line("{0} = ops::add({0}, ops::mul({1}, {2}));", sum, a_name, b_name);
        }
    }
    cx.close();
}

}  // namespace

const SharedTile& operand_tile(Lowering& cx, const DotPlan& plan, const DotOperand& operand) {
    // The operands of byte products may differ in signedness.
    const bool as_stored = plan.unit == DotPlan::Unit::fma || plan.unit == DotPlan::Unit::mma8;
    const DType dtype = as_stored ? cx.type(operand.value).dtype : plan.operand;
    for (auto scope = cx.scopes.rbegin(); scope != cx.scopes.rend(); ++scope) {
        const auto found = scope->shared.find(operand.value);
        if (found != scope->shared.end() &&
            (plan.unit == DotPlan::Unit::fma || found->second.dtype == dtype)) {
            return found->second;
        }
    }
    auto& tile = cx.scopes.back().shared[operand.value];
    tile = shared_copy(cx, operand.value, dtype, plan.unit != DotPlan::Unit::fma);
    return tile;
}

Names left_words(Lowering& cx, const DotPlan& plan, const DotOperand& operand,
                 const Coordinates& at, std::int64_t k) {
    const int rank = plan.a.shape.rank(), m_axis = rank - 2;
    const std::int64_t b = rank == 3 ? at[0] : 0, m = at[m_axis];
    const std::string key = left_key(plan, operand, at, k);
    for (auto scope = cx.scopes.rbegin(); scope != cx.scopes.rend(); ++scope) {
        const auto found = scope->fragments.find(key);
        if (found != scope->fragments.end()) return found->second;
    }
    const SharedTile& tile = operand_tile(cx, plan, operand);
    const Layout warp_part = warps_only(plan.a);
    const std::string warp_m = cx.thread_coordinate(warp_part, m_axis);
    const std::int64_t rows_m = cover(plan.m).size();
    const bool whole = rows_m >= 16;
    const std::int64_t rows = operand.transposed ? cover(plan.k).size() : rows_m;
    std::string batch;
    if (rank == 3) {
        const std::string warp_b = cx.thread_coordinate(warp_part, 0);
        if (warp_b != "0") batch = fmt::format(" + {} * {}", warp_b, rows);
    }
    std::string address;
    if (!operand.transposed) {
        const std::string row = fmt::format("(lane & {}){}{}", whole ? 15 : rows_m - 1,
                                            warp_m == "0" ? "" : " + " + warp_m, batch);
        address = fragment_address(cx, tile, row, "(lane >> 4) * 16", m + b * rows,
                                   k * size_of(tile.dtype));
    } else {
        const std::string row = fmt::format("(lane & 7) + (lane >> 4) * 8{}", batch);
        const std::string byte = fmt::format("{}{}", whole ? "(lane >> 3 & 1) * 16" : "0",
                                             warp_m == "0" ? "" : fmt::format(" + {} * 2", warp_m));
        address = fragment_address(cx, tile, row, byte, k + b * rows, m * 2);
    }
    const Names words = numbered(cx.fresh("a"), 4);
    cx.line("u32 {0}; ptx::ldmatrix{1}({0}, {2});", fmt::join(words, ", "),
            operand.transposed ? "_transposed" : "", address);
    return words;
}

void copy_operands_ahead(Lowering& cx, const Instruction& made) {
    if (cx.block == nullptr) return;
    bool after = false;
    for (const Instruction& other : cx.block->body) {
        if (&other == &made) {
            after = true;
        } else if (after && other.op == Op::dot) {
            const DotPlan& plan = cx.plan.dots.at(&other);
            for (int side = 0; side < 2; ++side) {
                const DotOperand operand = cx.facts.operand_of(other, side);
                if (cx.find(before_rounding(cx, operand.value)) == nullptr) continue;
                if (side == 0 && plan.unit == DotPlan::Unit::mma16 &&
                    register_words(cx, plan, operand)) {
                    continue;
                }
                operand_tile(cx, plan, operand);
            }
        }
    }
}

void lower_dot(Lowering& cx, const Instruction& made) {
    const DotPlan& plan = cx.plan.dots.at(&made);
    const Value result = made.result();
    const DType dtype = cx.type(result).dtype;
    schedule::Value init;
    if (made.operands.size() > 2) {
        init = value_in(cx, made.operands[2], plan.accumulator);
    } else {
        schedule::Instruction& zero = cx.append(schedule::make(ir::Op::constant, {}));
        zero.attributes.push_back(schedule::element_attribute(dtype, 0));
        init = cx.result_of(zero, "", plan.accumulator, dtype).value;
    }
    const Held sums = cx.declare(fmt::format("v{}", result.id), plan.accumulator, dtype, init);
    Names names = cx.names(sums);
    switch (plan.unit) {
        case DotPlan::Unit::mma16:
            mma16(cx, made, plan, names);
            break;
        case DotPlan::Unit::mma8:
            multiply_bytes(cx, made, plan, names);
            break;
        case DotPlan::Unit::fma:
            multiply_add(cx, made, plan, names);
            break;
        default:
            mma_by_element(cx, made, plan, names);
            break;
    }
    if (size_of(dtype) <= 2 && is_float(dtype)) {
        for (const std::string& each : names) {
            cx.line("{0} = rounded({1}{{}}, {0});", each, storage_type(dtype));
        }
    }
    cx.hold(result, sums);
}

void hoist_fragments(Lowering& cx, const Instruction& loop) {
    const std::set<Value> inside = Analysis::values_inside(loop);
    for (const ir::Block& body : loop.blocks) {
        ir::walk(body, [&](const Instruction& made) {
            if (made.op != Op::dot) return;
            const DotPlan& plan = cx.plan.dots.at(&made);
            for (int side = 0; side < 2; ++side) {
                const DotOperand operand = cx.facts.operand_of(made, side);
                if (inside.count(operand.value) != 0) continue;
                if (side == 0 && plan.unit == DotPlan::Unit::mma16 && !operand.transposed) {
                    const Held* held = cx.find(before_rounding(cx, operand.value));
                    if (held != nullptr &&
                        conversion(held->layout, plan.a).kind == Conversion::Kind::relabel) {
                        continue;
                    }
                }
                cx.buffers_for = "`dot`";
                operand_tile(cx, plan, operand);
                const int words = plan.a.registers() / 2;
                if (side == 1 || plan.unit != DotPlan::Unit::mma16 || words > kMaxHoistedWords ||
                    words * 2 != plan.a.registers()) {
                    continue;
                }
                const int rank = plan.a.shape.rank();
                std::set<Coordinates> pieces;
                for (int r = 0; r < plan.a.registers(); ++r) {
                    Coordinates at = plan.a.register_coordinates(r);
                    at[rank - 2] &= ~15;
                    at[rank - 1] = 0;
                    pieces.insert(at);
                }
                cx.access_shared("reads", {operand_tile(cx, plan, operand).buffer});
                cx.comment("invariant operand into registers");
                for (const Coordinates& at : pieces) {
                    for (std::int64_t k = 0; k < cover(plan.k).size(); k += plan.step) {
                        const std::string key = left_key(plan, operand, at, k);
                        cx.scopes.back().fragments[key] = left_words(cx, plan, operand, at, k);
                    }
                }
            }
        });
    }
}

}  // namespace tilewright::cuda
