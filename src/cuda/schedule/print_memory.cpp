// Text of copies and products of slots of shared memory.
#include <algorithm>

#include "cuda/schedule/cuda_printer.h"

namespace tilewright::cuda::schedule {

void CudaPrinter::ties(const std::vector<Value>& registers) {
    for (Value value : registers) line("ptx::wgmma_tie({});", name(value));
}

void CudaPrinter::release(const Instruction& made) {
    const std::string count = name(made.operands[0]);
    const std::string slot = made.number("back") == 1 ? count + ".before()" : count + ".at";
    const std::string when =
        made.operands.size() > 1 ? scalar(made.operands[1]) + " && " : std::string();
    if (p_.cluster() > 1) {
        // To this block, and those that it shares an operand with.
        line("if ({}lane < {})", when, p_.sharers());
        line("    ptx::mbarrier_arrive_cluster(ptx::cluster_map(base + {} + 8 * {}, {}));",
             channel(made).empty, slot, p_.pairs == Pairs::both ? "rank ^ lane" : "lane");
        return;
    }
    line("if ({}lane == 0) ptx::mbarrier_arrive(base + {} + 8 * {});", when, channel(made).empty,
         slot);
}

void CudaPrinter::store_shared(const Instruction& made) {
    const Buffer& to = p_.buffer(made.symbol("to"));
    line("store_panel({}{{}}, base + k_{} + group * {}, static_cast<u32>({}) % {}, {});",
         tag(to.dtype), identifier(to.name), to.slot_bytes() * to.slots, scalar(made.operands[0]),
         to.slots, array(made.operands[1]));
}

void CudaPrinter::share(const Instruction& made) {
    const Buffer& to = p_.buffer(made.symbol("to"));
    line("store_panel({}{{}}, base + k_{} + group * {}, 0, {});", tag(to.dtype),
         identifier(to.name), kRows * 128, array(made.operands[0]));
}

std::string CudaPrinter::array(Value value) {
    if (!is_lazy(value) && p_.type(value).type.dtype != DType::boolean) return name(value);
    const std::string copy = fmt::format("copy{}", counter_++);
    line("float {}[{}];", copy, layout(value).registers());
    each(layout(value).registers(), copy + "[i]", [&] { return element(value, "i"); });
    return copy;
}

CudaPrinter::Operand CudaPrinter::operand(const std::string& buffer_name, bool k_major,
                                          std::int64_t of_group, const std::string& group,
                                          const std::string& count) const {
    const Buffer& buffer = p_.buffer(buffer_name);
    const std::int64_t panel_bytes = buffer.rows * 128;
    // Parts of a panel lie beside each other in its rows.
    const std::int64_t group_bytes = k_major ? of_group * 128
                                     : of_group < buffer.panel()
                                         ? of_group * size_of(buffer.dtype)
                                         : of_group / buffer.panel() * panel_bytes;
    std::string at = fmt::format("base + k_{}", identifier(buffer_name));
    if (!count.empty()) at += fmt::format(" + {}.at * {}", count, buffer.slot_bytes());
    if (!group.empty()) at += fmt::format(" + {} * {}", group, group_bytes);
    return {fmt::format("ptx::wgmma_descriptor_swizzle128({}, {}, 1024)", at,
                        k_major ? 16 : panel_bytes),
            k_major ? fmt::format("ptx::AlongRows<{}>", panel_bytes)
                    : std::string("ptx::AlongColumns")};
}

std::string CudaPrinter::group_along(const std::vector<int>& groups, int axis) {
    if (groups[axis] == 1) return "";
    return groups[axis == 0 ? 1 : 0] == 1 ? "group"
           : axis == 0                    ? fmt::format("group / {}", groups[1])
                                          : fmt::format("group % {}", groups[1]);
}

void CudaPrinter::wgmma(const Instruction& made) {
    const Product parts(made);
    const Value accumulator = parts.accumulator;
    alias(made.result(), accumulator);
    const bool transpose_a = made.has("transpose_a"), transpose_b = made.has("transpose_b");
    const Buffer& right_buffer = p_.buffer(made.symbol("b"));
    const std::int64_t k = transpose_b ? right_buffer.columns : right_buffer.rows;
    const std::vector<int> groups = groups_of(p_, made);
    const int columns = columns_axis(made.has("swapped") ? Sums::swapped : Sums::plain);
    const std::int64_t n = p_.type(accumulator).type.shape[columns] / groups[columns];
    const Operand right = operand(made.symbol("b"), transpose_b, n, group_along(groups, columns),
                                  name(parts.count_b));
    const int steps = static_cast<int>(k * size_of(right_buffer.dtype) / 32);
    const std::string adds = parts.condition         ? scalar(*parts.condition)
                             : made.has("overwrite") ? "0"
                                                     : "1";
    const std::int64_t rows = p_.type(accumulator).type.shape[1 - columns] / groups[1 - columns];
    const int halves = static_cast<int>(rows / kRows);
    shapes_set_.insert({static_cast<int>(n), right_buffer.dtype, parts.registers.has_value(), steps,
                        true, halves});
    shapes_.assign(shapes_set_.begin(), shapes_set_.end());
    const char* const element = tag(right_buffer.dtype);
    if (parts.registers) {
        line("ptx::wgmma<{}, {}>({}{{}}, ptx::Steps<{}>{{}}, {}, {},", transpose_b ? 0 : 1,
             right.stride, element, steps, name(accumulator), name(*parts.registers));
        line("    {}, {});", right.descriptor, adds);
        return;
    }
    const Operand left = operand(made.symbol("a"), !transpose_a, kRows, group_along(groups, 0),
                                 parts.count_a ? name(*parts.count_a) : std::string());
    line("ptx::wgmma<{}, {}, {}, {}>({}{{}}, ptx::Steps<{}>{{}}, {},", transpose_b ? 0 : 1,
         transpose_a ? 1 : 0, left.stride, right.stride, element, steps, name(accumulator));
    line("    {},", left.descriptor);
    if (halves > 1) {
        const std::string group = group_along(groups, 0);
        const std::string lower = group.empty() ? "1" : fmt::format("({} + {})", group, groups[0]);
        line("    {},", operand(made.symbol("a"), !transpose_a, kRows, lower,
                                parts.count_a ? name(*parts.count_a) : std::string())
                            .descriptor);
    }
    line("    {}, {});", right.descriptor, adds);
}

void CudaPrinter::read_panel(const Instruction& made) {
    const Buffer& from = p_.buffer(made.symbol("reads"));
    const std::string group = group_along(p_.groups, 0);
    line("{};", declaration(made.result(), name(made.result())));
    line("load_panel({}{{}}, base + k_{} + {}.at * {}{}, {});", tag(from.dtype),
         identifier(from.name), name(made.operands[0]), from.slot_bytes(),
         group.empty() ? "" : fmt::format(" + {} * {}", group, kRows * 128), name(made.result()));
    // All of a warp's threads have read before one of them releases the slot.
    line("__syncwarp();");
}

void CudaPrinter::read_fragments(const Instruction& made) {
    const Buffer& buffer = p_.buffer(made.symbol("reads"));
    const std::int64_t panel_bytes = buffer.rows * 128;
    const std::string group = group_along(p_.groups, 1 - columns_axis(sums_of(p_)));
    std::string at = fmt::format("base + k_{} + {}.at * {}", identifier(buffer.name),
                                 name(made.operands[0]), buffer.slot_bytes());
    if (!group.empty())
        at += fmt::format(" + {} * {}", group, kRows / buffer.panel() * panel_bytes);
    line("{};", declaration(made.result(), name(made.result())));
    line("read_fragments({}, {});", name(made.result()), at);
    // All of a warp's threads have read before one of them releases the slot.
    line("__syncwarp();");
}

std::string CudaPrinter::coordinates(const Instruction& made, const std::string& last,
                                     std::size_t moved, const std::string& by) const {
    const std::size_t rank = p_.map(made.symbol("map")).box.size();
    std::string text = fmt::format("coordinate({}){}", scalar(made.operands[rank - 1]), last);
    for (std::size_t d = rank - 1; d-- > 0;) {
        text += fmt::format(", coordinate({}){}", scalar(made.operands[d]), d == moved ? by : "");
    }
    return text;
}

void CudaPrinter::tma_load(const Instruction& made) {
    const Buffer& buffer = p_.buffer(made.symbol("to"));
    const std::string count = name(made.operands.back());
    const std::int64_t panels = buffer.columns / buffer.panel();
    const std::string at = fmt::format("base + k_{} + {}.at * {}", identifier(buffer.name), count,
                                       buffer.slot_bytes());
    const std::string full = fmt::format("base + {} + 8 * {}.at", channel(made).full, count);
    const std::string map = identifier(made.symbol("map"));
    if (made.has("multicast")) {
        // This block's half of the panels, or of the rows, for both blocks.
        const bool rows = made.symbol("multicast") == "rows", four = p_.pairs == Pairs::both;
        const std::string half = !four ? "rank" : rows ? "rank % 2" : "rank / 2";
        const std::string blocks = !four  ? "3"
                                   : rows ? "3 << (rank & 2)"   // blocks 0 and 1, or 2 and 3
                                          : "5 << (rank & 1)";  // 0 and 2, or 1 and 3
        if (panels % 2 == 0) {
            open("TW_UNROLL for (int q = 0; q < {}; ++q)", panels / 2);
            line("const u32 p = {} * {} + q;", half, panels / 2);
            line("ptx::tensor_load_multicast({} + p * {}, &{}, {}, {}, {});", at, buffer.rows * 128,
                 map, full, blocks, coordinates(made, fmt::format(" + p * {}", buffer.panel())));
            close();
            return;
        }
        const std::vector<std::int64_t>& box = p_.map(made.symbol("map")).box;
        std::size_t row = 0;
        while (box[row] != buffer.rows / 2) ++row;
        if (panels > 1) open("TW_UNROLL for (int p = 0; p < {}; ++p)", panels);
        line("ptx::tensor_load_multicast({} + {} * {}{}, &{}, {}, {}, {});", at, half,
             buffer.rows / 2 * 128, panels > 1 ? fmt::format(" + p * {}", buffer.rows * 128) : "",
             map, full, blocks,
             coordinates(made, panels > 1 ? fmt::format(" + p * {}", buffer.panel()) : "", row,
                         fmt::format(" + {} * {}", half, buffer.rows / 2)));
        if (panels > 1) close();
        return;
    }
    if (by_all_) open("if (threadIdx.x % 128 == 0)");
    if (panels > 1) open("TW_UNROLL for (int p = 0; p < {}; ++p)", panels);
    line("ptx::tensor_load({}{}, &{}, {}, {});", at,
         panels > 1 ? fmt::format(" + p * {}", buffer.rows * 128) : "", map, full,
         coordinates(made, panels > 1 ? fmt::format(" + p * {}", buffer.panel()) : ""));
    if (panels > 1) close();
    if (by_all_) close();
}

void CudaPrinter::thread_load(const Instruction& made) {
    const Buffer& buffer = p_.buffer(made.symbol("to"));
    const std::vector<std::int64_t>& sizes = made.list("index");
    const std::string ref = ref_name(made.symbol("of"));
    const std::size_t last = sizes.size() - 1;
    std::string data = ref + ".data", inside;
    std::size_t row = last;
    for (std::size_t d = 0; d < last; ++d) {
        if (sizes[d] != 0) {
            row = d;
            continue;
        }
        const std::string at = scalar(made.operands[d]);
        data += fmt::format(" + {} * {}.stride[{}]", at, ref, d);
        inside += fmt::format("is_inside({}, {}.extent[{}]) && ", at, ref, d);
    }
    // Where a scalar index is outside, no row is inside.
    std::string rows = fmt::format("{}.extent[{}]", ref, row);
    if (!inside.empty()) rows = inside.substr(0, inside.size() - 4) + " ? " + rows + " : 0";
    line("copy_box<{}, {}, {}>(base + k_{} + {}.at * {}, {}, {}.stride[{}],", buffer.rows,
         buffer.columns / buffer.panel(), made.number("bytes"), identifier(buffer.name),
         name(made.operands.back()), buffer.slot_bytes(), data, ref, row);
    line("    {}, {}, {}, {}.extent[{}]);", scalar(made.operands[row]), rows,
         scalar(made.operands[last]), ref, last);
}

void CudaPrinter::tma_store(const Instruction& made) {
    const Buffer& buffer = p_.buffer(made.symbol("from"));
    const std::string slot =
        fmt::format("static_cast<u32>({}) % {}", scalar(made.operands.back()), buffer.slots);
    line("if (threadIdx.x % 128 == 0)");
    line("    ptx::tensor_store(&{}, base + k_{} + group * {} + {} * {}, {});",
         identifier(made.symbol("map")), identifier(buffer.name),
         buffer.slot_bytes() * buffer.slots, slot, buffer.slot_bytes(), coordinates(made, ""));
}

}  // namespace tilewright::cuda::schedule
