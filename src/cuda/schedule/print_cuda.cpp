// Text of a kernel's frame and of its control flow.
#include "cuda/schedule/print_cuda.h"

#include <algorithm>
#include <cctype>

#include "cuda/codegen/element_text.h"
#include "cuda/schedule/cuda_printer.h"
#include "cuda/schedule/layout_text.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {

std::string identifier(std::string_view name) {
    std::string result;
    for (char c : name) result += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return result;
}

Generated CudaPrinter::run() {
    Generated generated;
    generated.name = "kernel_" + identifier(p_.name);
    generated.threads = 32 * p_.warps();
    generated.shared_bytes = static_cast<int>(p_.shared_bytes);
    generated.grid = p_.grid;
    generated.is_persistent = !p_.order.unequal;
    generated.has_rows = has_rows();
    generated.cluster = p_.cluster();
    generated.num_axes = static_cast<int>(p_.grid.size());
    std::string parameters;
    const auto parameter = [&](const std::string& text) {
        parameters += fmt::format("{}const {}", parameters.empty() ? "" : ", ", text);
    };
    int index = 0;
    std::map<std::string, int> refs;
    for (const Parameter& one : p_.parameters) {
        if (!one.is_ref) continue;
        refs[one.name] = index++;
        parameter(fmt::format("__grid_constant__ Array<{}, {}> {}", storage_type(one.dtype),
                              one.extents.size(), ref_name(one.name)));
    }
    generated.num_refs = index;
    for (const Parameter& one : p_.parameters) {
        if (one.is_ref) continue;
        ++generated.num_scalars;
        const std::string bits = "bits_" + identifier(one.name);
        parameter("u64 " + bits);
        line("const {} {} = ops::cast<{}>({});", register_type(one.dtype), scalar_name(one.value),
             storage_type(one.dtype),
             is_float(one.dtype) ? fmt::format("__longlong_as_double({})", bits) : bits);
    }
    for (std::size_t axis = 0; axis < p_.grid.size(); ++axis) {
        parameter(fmt::format("i64 grid{}", axis));
    }
    for (const Map& map : p_.maps) {
        parameter(fmt::format("__grid_constant__ TensorMap {}", identifier(map.name)));
        generated.maps.push_back({refs.at(map.ref), map.box, p_.ref(map.ref).dtype == DType::f32});
    }
    frame();
    for (const Instruction& made : p_.body.body) instruction(made);
    if (p_.cluster() > 1) {
        // Shared memory must not go while the other block copies to it or arrives at its barriers.
        line("__syncwarp();");
        meet_cluster();
    }
    generated.largest = "the operands of a dot";
    generated.headers = {{"wgmma_shapes.cuh", wgmma_shapes_header(shapes_)}};
    generated.source = fmt::format(
        R"(// Generated from @{} for {}: {} warps, {} bytes of shared memory.
#include "cuda/device/tile/hopper.cuh"
#include "wgmma_shapes.cuh"
using namespace twd;

extern "C" __global__ void __launch_bounds__({}, 1) {}({}) {{
    extern __shared__ __align__(1024) u8 memory[];
{}}}
)",
        p_.name, p_.arch, p_.warps(), p_.shared_bytes, generated.threads, generated.name,
        parameters, text_);
    return generated;
}

std::string CudaPrinter::name(Value value) const {
    const auto found = names_.find(value);
    if (found != names_.end()) return found->second;
    return (p_.is_tile(value) || p_.type(value).is_count ? "v" : "s") +
           identifier(p_.value_name(value));
}

std::string CudaPrinter::scalar(Value value) const {
    const Instruction* const made = uses_.definition(value);
    if (made != nullptr && made->is(ir::Op::constant)) return constant(*made);
    return name(value);
}

std::string CudaPrinter::constant(const Instruction& made) const {
    return literal(p_.type(made.result()).type.dtype,
                   static_cast<std::uint64_t>(made.attributes[0].numbers[0]));
}

const Layout& CudaPrinter::layout(Value value) const {
    const auto& layout = p_.type(value).layout;
    TW_ASSERT(layout.has_value(), "%{} has no layout", p_.value_name(value));
    return *layout;
}

int CudaPrinter::registers(Value value) const {
    constexpr int kRegisterBytes = 4;
    const ValueType& type = p_.type(value);
    const int held = type.packed ? kRegisterBytes / size_of(type.type.dtype) : 1;  // by a register
    return layout(value).registers() / held;
}

std::string CudaPrinter::declaration(Value value, const std::string& name) const {
    const std::string type =
        p_.type(value).packed ? "u32" : register_type(p_.type(value).type.dtype);
    return p_.is_tile(value) ? fmt::format("{} {}[{}]", type, name, registers(value))
                             : fmt::format("{} {}", type, name);
}

void CudaPrinter::frame() {
    line("const u32 base = shared_address(memory);");
    for (const Buffer& one : p_.buffers) {
        line("constexpr u32 k_{} = {};  // {} x {} bytes{}", identifier(one.name), one.offset,
             one.slots, one.slot_bytes(), one.per_group ? " of each warpgroup" : "");
    }
    line("const u32 lane = threadIdx.x % 32;");
    line("const u32 group = __shfl_sync(~0u, threadIdx.x / 128, 0);");
    open("if (threadIdx.x == 0)");
    for (const Channel& one : p_.channels) {
        open("for (u32 slot = 0; slot < {}; ++slot)", one.slots);
        const int by_tma = one.bytes > one.copied ? 1 : 0, by_threads = one.copied > 0 ? 128 : 0;
        line("ptx::mbarrier_init(base + {} + 8 * slot, {});", one.full, by_tma + by_threads);
        line("ptx::mbarrier_init(base + {} + 8 * slot, {});", one.empty, one.empty_arrivals);
        close();
    }
    line("ptx::fence_mbarrier_init();");
    close();
    if (p_.cluster() > 1) {
        line("const u32 rank = ptx::cluster_rank();");
        line("__syncwarp();");
        meet_cluster();
    } else {
        line("__syncthreads();");
    }
    const auto count = [&](std::vector<int> axes, const char* variable) {
        std::string text;
        for (int axis : axes) {
            text += fmt::format("{}{}", text.empty() ? "" : " * ", extent(axis));
        }
        line("const u32 {} = {};", variable, text.empty() ? "1" : text);
    };
    const bool ordered = !p_.order.rows.empty() && !p_.order.columns.empty();
    std::vector<int> others;
    for (int axis = 0; axis < static_cast<int>(p_.grid.size()); ++axis) {
        const auto in = [&](const std::vector<int>& axes) {
            return std::find(axes.begin(), axes.end(), axis) != axes.end();
        };
        if (in(p_.order.inner)) continue;
        if (!ordered || (!in(p_.order.rows) && !in(p_.order.columns))) others.push_back(axis);
    }
    if (chained_) {
        count(p_.order.inner, "inner");
        count(others, "others");
        line("const u32 programs = inner * others;");
        if (has_rows()) {
            line("const u32 first_row = programs - (gridDim.y - 1) * gridDim.x;");
            line(
                "const u32 first_program = blockIdx.y == 0 ? blockIdx.x : first_row + "
                "(blockIdx.y - 1) * gridDim.x + blockIdx.x;");
            line("const u32 last_program = blockIdx.y == 0 ? first_row : first_program + 1;");
        }
    } else {
        const auto axis = [&](const std::vector<int>& axes, const char* variable, bool paired) {
            const std::string all = std::string("all_") + variable;
            count(ordered ? axes : std::vector<int>{}, paired ? all.c_str() : variable);
            if (paired) line("const u32 {} = ({} + 1) / 2;  // pairs", variable, all);
        };
        axis(p_.order.rows, "rows", p_.pairs_rows());
        axis(p_.order.columns, "columns", p_.pairs_columns());
        count(others, "others");
        line("const u32 programs = rows * columns * others;");
    }
    others_ = std::move(others);
    thread_positions();
}

void CudaPrinter::meet_cluster() {
    line("ptx::cluster_arrive();");
    line("ptx::cluster_wait();");
}

void CudaPrinter::thread_positions() {
    each_instruction(p_.body, [&](const Instruction& made) {
        if (!made.is(ir::Op::iota) || !p_.type(made.result()).layout) return;
        const std::string text =
            thread_coordinate(layout(made.result()), static_cast<int>(made.number("axis")));
        const auto [at, added] = positions_.emplace(text, fmt::format("at{}_", positions_.size()));
        if (added) line("const int {} = {};", at->second, text);
    });
}

std::string CudaPrinter::extent(int axis) const {
    const std::int64_t extent = p_.grid[axis];
    return extent == ir::kDynamic ? fmt::format("static_cast<u32>(grid{})", axis)
                                  : fmt::format("{}u", extent);
}

void CudaPrinter::decode(const std::vector<int>& axes, const std::string& linear) {
    if (axes.empty()) return;
    line("u32 of_{} = {};", axes[0], linear);
    for (std::size_t i = axes.size(); i-- > 1;) {
        line("const i64 program{0} = of_{1} % {2};", axes[i], axes[0], extent(axes[i]));
        line("of_{} /= {};", axes[0], extent(axes[i]));
    }
    line("const i64 program{0} = of_{0};", axes[0]);
}

void CudaPrinter::instruction(const Instruction& made) {
    if (p_.mark_lines && made.line > 0) line("// @{}", made.line);
    switch (made.op) {
        case Op::tile:
            return tile(made);
        case Op::zeros:
            line("{};", declaration(made.result(), name(made.result())));
            line("set_zero({});", name(made.result()));
            return;
        case Op::fresh:
            return line("{};", declaration(made.result(), name(made.result())));
        case Op::pack:
            return pack(made);
        case Op::read_fragments:
            return read_fragments(made);
        case Op::read_panel:
            return read_panel(made);
        case Op::join_lanes:
            return join_lanes(made);
        case Op::soft_cap:
            return soft_cap(made);
        case Op::clear:
            alias(made.result(), made.operands[0]);
            line("set_zero({});", name(made.result()));
            return;
        case Op::group_start:
            line("const i64 {} = group {} {} * {};", name(made.result()),
                 made.number("axis") == 0 ? "/" : "%", p_.groups[1], made.number("step"));
            return;
        case Op::wgmma:
            return wgmma(made);
        case Op::wgmma_fence:
            ties(made.operands);
            line("ptx::wgmma_fence();");
            return;
        case Op::wgmma_commit:
            return line("ptx::wgmma_commit();");
        case Op::wgmma_wait:
            for (std::size_t i = 0; i < made.operands.size(); ++i) {
                alias(made.results[i], made.operands[i]);
            }
            line("ptx::wgmma_wait<{}>();", made.number("pending"));
            if (made.number("pending") == 0 || made.has("finished")) ties(made.operands);
            return;
        case Op::count:
            line("Slot<{}> {}{{0, {}}};", channel(made).slots, name(made.result()),
                 producer_ ? 1 : 0);
            if (producer_ && channel(made).copied > 0) {
                line("u32 {}_open = 0;  // slots that copies are under way to",
                     identifier(channel(made).name));
            }
            return;
        case Op::next:
            alias(made.result(), made.operands[0]);
            line("{}.next();", name(made.result()));
            return;
        case Op::acquire:
            line("ptx::mbarrier_wait(base + {} + 8 * {}.at, {}.parity);", channel(made).empty,
                 name(made.operands[0]), name(made.operands[0]));
            return;
        case Op::publish:
            line("{}ptx::mbarrier_arrive_expect(base + {} + 8 * {}.at, {});", by_one(),
                 channel(made).full, name(made.operands[0]),
                 channel(made).bytes - channel(made).copied);
            return;
        case Op::publish_copies:
            line("publish_copies<{}>(base + {}, {}, {}_open);", made.number("lag"),
                 channel(made).full, name(made.operands[0]), identifier(channel(made).name));
            return;
        case Op::finish_copies:
            line("finish_copies(base + {}, {}, {}_open);", channel(made).full,
                 name(made.operands[0]), identifier(channel(made).name));
            return;
        case Op::await:
            line("ptx::mbarrier_wait(base + {} + 8 * {}.at, {}.parity);", channel(made).full,
                 name(made.operands[0]), name(made.operands[0]));
            return;
        case Op::release:
            return release(made);
        case Op::tma_load:
            return tma_load(made);
        case Op::thread_load:
            return thread_load(made);
        case Op::share:
            return share(made);
        case Op::store_shared:
            return store_shared(made);
        case Op::tma_store:
            return tma_store(made);
        case Op::commit_stores:
            line("if (threadIdx.x % 128 == 0) ptx::bulk_commit();");
            return;
        case Op::wait_stores:
            if (made.has("complete")) {
                line("if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();");
            } else {
                line("if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<{}>();",
                     made.number("pending"));
            }
            return;
        case Op::fence_async:
            line("ptx::fence_async_shared();");
            return;
        case Op::group_sync:
            line("ptx::named_barrier_sync(1 + group, 128);");
            return;
        case Op::all_sync:
            line("ptx::named_barrier_sync({}, {});", 1 + p_.consumer_groups(),
                 128 * p_.consumer_groups());
            return;
        case Op::issue_begin:
            line("ptx::named_barrier_sync({} + group, 256);", barrier_of_turn(made));
            return;
        case Op::issue_end:
            line("{}ptx::named_barrier_arrive({} + (group ^ 1), 256);",
                 made.has("first") ? "if (group == 1) " : "", barrier_of_turn(made));
            return;
        case Op::skip:
            alias(made.result(), made.operands[0]);
            line("{}{}.skip({});", made.has("first") ? "if (group == 1) " : "", name(made.result()),
                 made.number("by"));
            return;
        case Op::role:
            return role(made);
        case Op::programs:
            return programs(made);
        case Op::panels:
            return panels(made);
        default:
            TW_ASSERT(false, "`{}` is of programs without roles", schedule::name(made.op));
    }
}

std::string CudaPrinter::thread_coordinate(const Layout& layout, int axis) const {
    return schedule::thread_coordinate(
        layout, axis, p_.turns == 1 ? "(threadIdx.x / 32)" : "(threadIdx.x / 32 % 4)");
}

void CudaPrinter::single(const Role& role, const Instruction& made) {
    open("if (threadIdx.x / 32 == {} && ptx::elect_lane())", role.first_warp);
    block(made.blocks[0]);
    close();
}

void CudaPrinter::role(const Instruction& made) {
    const Role& role = p_.role(made.symbol("of"));
    if (role.first_warp % 4 != 0) return;  // beside the first one of its warpgroup
    producer_ = role.name == "producer";
    by_all_ = producer_ && !role.one;
    // The warpgroup's index is uniform to the compiler, so that branches and descriptors are, too.
    const int first = role.first_warp, last = role.first_warp + role.warps;
    if (first == 0) {
        open("if (group < {})", last / 4);
    } else {
        open("if (group >= {} && group < {})", first / 4, last / 4);
    }
    if (role.registers > 0) {
        line("ptx::registers_{}<{}>();", producer_ ? "decrease" : "increase", role.registers);
    }
    for (const Instruction& other : p_.body.body) {
        if (!other.is(Op::role)) continue;
        const Role& beside = p_.role(other.symbol("of"));
        if (beside.first_warp > first && beside.first_warp < last) single(beside, other);
    }
    if (role.one) {
        single(role, made);
    } else {
        block(made.blocks[0]);
    }
    if (p_.cluster() == 1) line("return;");
    close();
    producer_ = by_all_ = false;
}

void CudaPrinter::programs(const Instruction& made) {
    const Block& body = made.blocks[0];
    for (std::size_t i = 0; i < made.operands.size(); ++i) {
        alias(body.arguments[i], made.operands[i]);
        alias(made.results[i], made.operands[i]);
    }
    const std::string of_cluster = p_.cluster() > 1 ? fmt::format(" / {}", p_.cluster()) : "";
    if (p_.turns > 1 && !producer_) {
        open(
            "for (u32 program = blockIdx.x + group * gridDim.x; program < programs; program += {} "
            "* gridDim.x)",
            p_.turns);
    } else {
        open("for (u32 program = {}; program < {}; program += gridDim.x{})",
             has_rows() ? "first_program" : "blockIdx.x" + of_cluster,
             has_rows() ? "last_program" : "programs", of_cluster);
    }
    if (!p_.order.rows.empty() && !p_.order.columns.empty()) {
        line(
            "const TilePlace place = tile_order<{}>(program % (rows * columns), rows, "
            "columns);",
            p_.pairs_rows() ? p_.order.group / 2 : p_.order.group);
        // Where one of a pair has no tile of its own, it computes the other one's.
        const bool four = p_.pairs == Pairs::both;
        decode(p_.order.rows, p_.pairs_rows() ? fmt::format("of_pair(place.row, rank{}, all_rows)",
                                                            four ? " % 2" : "")
                                              : "place.row");
        decode(p_.order.columns,
               p_.pairs_columns()
                   ? fmt::format("of_pair(place.column, rank{}, all_columns)", four ? " / 2" : "")
                   : "place.column");
        decode(others_, "program / (rows * columns)");
    } else if (chained_ && p_.order.unequal) {
        line("const TilePlace place = unequal_order(program, others, inner);");
        decode(p_.order.inner, "inner - 1 - place.column");
        decode(others_, "place.row");
    } else if (chained_) {
        decode(p_.order.inner, "program % inner");
        decode(others_, "program / inner");
    } else {
        decode(others_, "program");
    }
    block(body);
    close();
}

void CudaPrinter::panels(const Instruction& made) {
    const Block& body = made.blocks[0];
    const std::int64_t count = made.number("count");
    const std::string panel = name(body.arguments[0]);
    for (std::size_t i = 0; i < made.operands.size(); ++i) {
        alias(body.arguments[1 + i], made.operands[i]);
        if (p_.type(made.operands[i]).is_count) alias(made.result(), made.operands[i]);
    }
    open("{2} for (i64 {0} = 0; {0} < {1}; ++{0})", panel, count,
         made.has("unrolled") ? "TW_UNROLL" : "TW_ROLLED");
    block(body);
    for (std::size_t i = 0; i < made.operands.size() && count > 1; ++i) {
        if (p_.type(made.operands[i]).is_count) continue;
        const int all = layout(made.operands[i]).registers();
        const int one = layout(body.arguments[1 + i]).registers();
        line("TW_UNROLL for (int i = 0; i < {0}; ++i) {1}[i] = {1}[i + {2}];", all - one,
             name(made.operands[i]), one);
    }
    close();
}

void CudaPrinter::for_loop(const Instruction& made) {
    const Block& body = made.blocks[0];
    std::vector<Value> carried, yielded;
    for (std::size_t i = 0; i < made.results.size(); ++i) {
        const Value argument = body.arguments[1 + i], init = made.operands[3 + i];
        if (!chained_ || p_.type(argument).is_count) {
            alias(argument, init);
        } else {
            line("{};", declaration(argument, name(argument)));
            assign({argument}, {init});
        }
        if (!p_.type(argument).is_count) {
            carried.push_back(argument);
            yielded.push_back(body.body.back().operands[i]);
        }
        alias(made.results[i], argument);
    }
    const std::string at = name(body.arguments[0]), low = scalar(made.operands[0]),
                      high = scalar(made.operands[1]), step = scalar(made.operands[2]);
    open("TW_ROLLED for (i64 {0} = {1}; {0} < {2}; {0} = next_index({0}, {2}, {3}))", at, low, high,
         step);
    block(body);
    assign(carried, yielded);
    close();
}

void CudaPrinter::if_else(const Instruction& made) {
    const std::vector<Value>& otherwise = made.blocks[1].body.back().operands;
    const auto is_read = [&](std::size_t i) {
        return !p_.type(made.results[i]).is_count && uses_.count(made.results[i]) > 0;
    };
    std::vector<Value> results;
    for (std::size_t i = 0; i < made.results.size(); ++i) {
        if (p_.type(made.results[i]).is_count) alias(made.results[i], otherwise[i]);
        if (!is_read(i)) continue;
        line("{};", declaration(made.results[i], name(made.results[i])));
        results.push_back(made.results[i]);
    }
    for (std::size_t b = 0; b < 2; ++b) {
        if (b == 0) open("if ({})", scalar(made.operands[0]));
        if (b == 1) open("else");
        block(made.blocks[b]);
        std::vector<Value> yielded;
        for (std::size_t i = 0; i < made.results.size(); ++i) {
            if (is_read(i)) yielded.push_back(made.blocks[b].body.back().operands[i]);
        }
        assign(results, yielded);
        close();
    }
}

void CudaPrinter::assign(const std::vector<Value>& to, const std::vector<Value>& from) {
    // Variables that another assignment overwrites are copied first.
    std::map<Value, std::string> sources;
    for (std::size_t i = 0; i < to.size(); ++i) {
        const bool crosses = std::any_of(to.begin(), to.end(), [&](Value other) {
            return other != to[i] && name(other) == name(from[i]);
        });
        if (!crosses) continue;
        const std::string copy = fmt::format("copy{}", counter_++);
        line("{};", declaration(from[i], copy));
        set(copy, from[i]);
        sources[to[i]] = copy;
    }
    for (std::size_t i = 0; i < to.size(); ++i) {
        const auto copy = sources.find(to[i]);
        if (copy == sources.end()) {
            if (name(to[i]) != name(from[i])) set(name(to[i]), from[i]);
        } else if (p_.is_tile(to[i])) {
            each(registers(to[i]), name(to[i]) + "[i]", [&] { return copy->second + "[i]"; });
        } else {
            line("{} = {};", name(to[i]), copy->second);
        }
    }
}

void CudaPrinter::set(const std::string& variable, Value value) {
    if (p_.is_tile(value)) {
        each(registers(value), variable + "[i]", [&] { return element(value, "i"); });
    } else {
        line("{} = {};", variable, scalar(value));
    }
}

Generated print_cuda(const Program& program) {
    return CudaPrinter(program).run();
}

}  // namespace tilewright::cuda::schedule
