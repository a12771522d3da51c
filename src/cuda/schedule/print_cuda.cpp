// Text of every operation of the form.
#include "cuda/schedule/print_cuda.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "cuda/codegen/element_text.h"
#include "cuda/codegen/wgmma_shapes.h"
#include "cuda/schedule/layout_text.h"
#include "cuda/schedule/tools.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {
namespace {

std::string identifier(std::string_view name) {
    std::string result;
    for (char c : name) result += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return result;
}

class CudaPrinter {
  public:
    explicit CudaPrinter(const Program& program) : p_(program), uses_(program) {}

    Generated run() {
        Generated generated;
        generated.name = "kernel_" + identifier(p_.name);
        generated.threads = 32 * p_.warps();
        generated.shared_bytes = static_cast<int>(p_.shared_bytes);
        generated.grid = p_.grid;
        generated.is_persistent = true;
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
            line("const {} {} = ops::cast<{}>({});", register_type(one.dtype),
                 scalar_name(one.value), storage_type(one.dtype),
                 is_float(one.dtype) ? fmt::format("__longlong_as_double({})", bits) : bits);
        }
        for (std::size_t axis = 0; axis < p_.grid.size(); ++axis) {
            parameter(fmt::format("i64 grid{}", axis));
        }
        for (const Map& map : p_.maps) {
            parameter(fmt::format("__grid_constant__ TensorMap {}", identifier(map.name)));
            generated.maps.push_back({refs.at(map.ref), map.box});
        }
        frame();
        for (const Instruction& made : p_.body.body) instruction(made);
        generated.largest = "the operands of a dot";
        generated.headers = {{"wgmma_shapes.cuh", wgmma_shapes_header(shapes_)}};
        generated.source = fmt::format(
            R"(// Generated from @{} for {}: {} warps, {} bytes of shared memory.
#include "cuda/device/tile/hopper.cuh"
#include "wgmma_shapes.cuh"
using namespace tw;

extern "C" __global__ void __launch_bounds__({}, 1) {}({}) {{
    extern __shared__ __align__(1024) u8 memory[];
{}}}
)",
            p_.name, p_.arch, p_.warps(), p_.shared_bytes, generated.threads, generated.name,
            parameters, text_);
        return generated;
    }

  private:
    // ---- Text.

    template <typename... Args>
    void line(fmt::format_string<Args...> format, Args&&... args) {
        text_.append(static_cast<std::size_t>(4 * depth_), ' ');
        text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
    }
    template <typename... Args>
    void open(fmt::format_string<Args...> format, Args&&... args) {
        line("{} {{", fmt::format(format, std::forward<Args>(args)...));
        ++depth_;
    }
    void close() {
        --depth_;
        line("}}");
    }

    // ---- Names.

    static std::string ref_name(std::string_view name) { return "ref_" + identifier(name); }
    std::string scalar_name(Value value) const { return "s" + identifier(p_.value_name(value)); }
    /// The variable of a value; accumulators and counts that go through loops are one variable.
    std::string name(Value value) const {
        const auto found = names_.find(value);
        if (found != names_.end()) return found->second;
        return (p_.is_tile(value) || p_.type(value).is_count ? "v" : "s") +
               identifier(p_.value_name(value));
    }
    void alias(Value value, Value of) { names_[value] = name(of); }
    std::string scalar(Value value) const {
        const Instruction* const made = uses_.definition(value);
        if (made != nullptr && made->is(ir::Op::constant)) return constant(*made);
        return name(value);
    }
    std::string constant(const Instruction& made) const {
        return literal(p_.type(made.result()).type.dtype,
                       static_cast<std::uint64_t>(made.attributes[0].numbers[0]));
    }
    const Layout& layout(Value value) const {
        const auto& layout = p_.type(value).layout;
        TW_ASSERT(layout.has_value(), "%{} has no layout", p_.value_name(value));
        return *layout;
    }

    /// Element `index` (text) of a tile, through views of it.
    std::string element(Value value, const std::string& index) const {
        if (!p_.is_tile(value)) return scalar(value);
        const Instruction* const made = uses_.definition(value);
        if (made != nullptr && made->is(ir::Op::constant)) return constant(*made);
        if (made != nullptr && (made->is(ir::Op::broadcast) || made->is(ir::Op::expand_dims))) {
            const Value source = made->operands[0];
            if (!p_.is_tile(source)) return scalar(source);
            const int dropped =
                made->is(ir::Op::expand_dims) ? static_cast<int>(made->number("axis")) : -1;
            return element(source, source_register(layout(value), layout(source), dropped, index));
        }
        return fmt::format("{}[{}]", name(value), index);
    }

    // ---- The frame of the kernel.

    void frame() {
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
            line("ptx::mbarrier_init(base + {} + 8 * slot, 1);", one.full);
            line("ptx::mbarrier_init(base + {} + 8 * slot, {});", one.empty, one.empty_arrivals);
            close();
        }
        line("ptx::fence_mbarrier_init();");
        close();
        line("__syncthreads();");
        std::string product = "1u";
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
            if (!ordered || (!in(p_.order.rows) && !in(p_.order.columns))) others.push_back(axis);
        }
        count(ordered ? p_.order.rows : std::vector<int>{}, "rows");
        count(ordered ? p_.order.columns : std::vector<int>{}, "columns");
        count(others, "others");
        line("const u32 programs = rows * columns * others;");
        others_ = std::move(others);
    }
    std::string extent(int axis) const {
        const std::int64_t extent = p_.grid[static_cast<std::size_t>(axis)];
        return extent == ir::kDynamic ? fmt::format("static_cast<u32>(grid{})", axis)
                                      : fmt::format("{}u", extent);
    }
    /// Positions along axes from a linear one, the last axis fastest.
    void decode(const std::vector<int>& axes, const std::string& linear) {
        if (axes.empty()) return;
        line("u32 of_{} = {};", axes[0], linear);
        for (std::size_t i = axes.size(); i-- > 1;) {
            line("const i64 program{0} = of_{1} % {2};", axes[i], axes[0], extent(axes[i]));
            line("of_{} /= {};", axes[0], extent(axes[i]));
        }
        line("const i64 program{0} = of_{0};", axes[0]);
    }

    // ---- Operations.

    void block(const Block& of) {
        for (const Instruction& made : of.body) instruction(made);
    }

    void instruction(const Instruction& made) {
        switch (made.op) {
            case Op::tile:
                return tile(made);
            case Op::zeros:
                line("float {}[{}];", name(made.result()), layout(made.result()).registers());
                line("set_zero({});", name(made.result()));
                return;
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
                line("ptx::wgmma_commit();");
                return ties(made.operands);
            case Op::wgmma_wait:
                for (std::size_t i = 0; i < made.operands.size(); ++i) {
                    alias(made.results[i], made.operands[i]);
                }
                line("ptx::wgmma_wait<{}>();", made.number("pending"));
                if (made.number("pending") == 0) ties(made.operands);
                return;
            case Op::count:
                line("Slot<{}> {}{{0, {}}};", channel(made).slots, name(made.result()),
                     producer_ ? 1 : 0);
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
                line("ptx::mbarrier_arrive_expect(base + {} + 8 * {}.at, {});", channel(made).full,
                     name(made.operands[0]), channel(made).bytes);
                return;
            case Op::await:
                line("ptx::mbarrier_wait(base + {} + 8 * {}.at, {}.parity);", channel(made).full,
                     name(made.operands[0]), name(made.operands[0]));
                return;
            case Op::release: {
                const std::string count = name(made.operands[0]);
                line("if ({}lane == 0) ptx::mbarrier_arrive(base + {} + 8 * {});",
                     made.operands.size() > 1 ? scalar(made.operands[1]) + " && " : "",
                     channel(made).empty,
                     made.number("back") == 1 ? count + ".before()" : count + ".at");
                return;
            }
            case Op::tma_load:
                return tma_load(made);
            case Op::store_shared:
                line(
                    "store_panel({}{{}}, base + k_{} + group * {}, static_cast<u32>({}) % {}, {});",
                    tag(p_.buffer(made.symbol("to")).dtype), identifier(made.symbol("to")),
                    p_.buffer(made.symbol("to")).slot_bytes() * p_.buffer(made.symbol("to")).slots,
                    scalar(made.operands[0]), p_.buffer(made.symbol("to")).slots,
                    array(made.operands[1]));
                return;
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
            case Op::role:
                return role(made);
            case Op::programs:
                return programs(made);
            case Op::panels:
                return panels(made);
        }
    }

    void ties(const std::vector<Value>& accumulators) {
        for (Value value : accumulators) line("ptx::wgmma_tie({});", name(value));
    }
    const Channel& channel(const Instruction& made) const {
        return p_.channel(made.symbol("channel"));
    }
    static const char* tag(DType dtype) { return dtype == DType::f16 ? "F16" : "Bf16"; }

    /// A tile as an array of 32 registers or more, for functions of panels.
    std::string array(Value value) {
        const Instruction* const made = uses_.definition(value);
        const bool is_array = made == nullptr ||
                              !(made->is(ir::Op::constant) || made->is(ir::Op::broadcast) ||
                                made->is(ir::Op::expand_dims)) ||
                              made->op != Op::tile;
        const bool is_float = p_.type(value).type.dtype != DType::boolean;
        if (is_array && is_float) return name(value);
        const std::string copy = fmt::format("copy{}", counter_++);
        line("float {}[{}];", copy, layout(value).registers());
        open("TW_UNROLL for (int i = 0; i < {}; ++i)", layout(value).registers());
        line("{}[i] = {};", copy, element(value, "i"));
        close();
        return copy;
    }

    // ---- Dots.

    struct Operand {
        std::string descriptor, stride;
    };
    /// Descriptor of an operand's slot (PTX ISA, wgmma, matrix descriptors): `rows_per_group` rows
    /// of the result, or columns, belong to each of the warpgroups that `group` counts.
    Operand operand(const std::string& buffer_name, bool k_major, std::int64_t of_group,
                    const std::string& group, const std::string& count) const {
        const Buffer& buffer = p_.buffer(buffer_name);
        const std::int64_t panel_bytes = buffer.rows * 128;
        const std::int64_t group_bytes =
            k_major ? of_group * 128 : of_group / buffer.panel() * panel_bytes;
        std::string at = fmt::format("base + k_{} + {}.at * {}", identifier(buffer_name), count,
                                     buffer.slot_bytes());
        if (!group.empty()) at += fmt::format(" + {} * {}", group, group_bytes);
        return {fmt::format("ptx::wgmma_descriptor_swizzle128({}, {}, 1024)", at,
                            k_major ? 16 : panel_bytes),
                k_major ? fmt::format("ptx::AlongRows<{}>", panel_bytes)
                        : std::string("ptx::AlongColumns")};
    }

    void wgmma(const Instruction& made) {
        const Value accumulator = made.operands[0];
        alias(made.result(), accumulator);
        const bool conditional = made.has("conditional");
        const std::string count = name(made.operands[conditional ? 2 : 1]);
        const bool transpose_a = made.has("transpose_a"), transpose_b = made.has("transpose_b");
        const Buffer& a = p_.buffer(made.symbol("a"));
        const std::int64_t k = transpose_a ? a.rows : a.columns;
        const std::int64_t n = p_.type(accumulator).type.shape[1] / p_.groups[1];
        const auto group = [&](int axis) -> std::string {
            if (p_.groups[static_cast<std::size_t>(axis)] == 1) return "";
            return p_.groups[axis == 0 ? 1 : 0] == 1 ? "group"
                   : axis == 0                       ? fmt::format("group / {}", p_.groups[1])
                                                     : fmt::format("group % {}", p_.groups[1]);
        };
        const Operand left = operand(made.symbol("a"), !transpose_a, 64, group(0), count);
        const Operand right = operand(made.symbol("b"), transpose_b, n, group(1), count);
        const int steps = static_cast<int>(k / 16);
        shapes_set_.insert({static_cast<int>(n), a.dtype, false, steps, true});
        shapes_.assign(shapes_set_.begin(), shapes_set_.end());
        line("ptx::wgmma<{}, {}, {}, {}>({}{{}}, ptx::Steps<{}>{{}}, {},", transpose_b ? 0 : 1,
             transpose_a ? 1 : 0, left.stride, right.stride, tag(a.dtype), steps,
             name(accumulator));
        line("    {},", left.descriptor);
        line("    {}, {});", right.descriptor, conditional ? scalar(made.operands[1]) : "1");
    }

    // ---- Copies.

    std::string coordinates(const Instruction& made, const std::string& last) const {
        const std::size_t rank = p_.map(made.symbol("map")).box.size();
        std::string text = fmt::format("coordinate({}){}", scalar(made.operands[rank - 1]), last);
        for (std::size_t d = rank - 1; d-- > 0;) {
            text += fmt::format(", coordinate({})", scalar(made.operands[d]));
        }
        return text;
    }

    void tma_load(const Instruction& made) {
        const Buffer& buffer = p_.buffer(made.symbol("to"));
        const std::string count = name(made.operands.back());
        const std::int64_t panels = buffer.columns / buffer.panel();
        const std::string at = fmt::format("base + k_{} + {}.at * {}", identifier(buffer.name),
                                           count, buffer.slot_bytes());
        const std::string full = fmt::format("base + {} + 8 * {}.at", channel(made).full, count);
        const std::string map = identifier(made.symbol("map"));
        if (panels > 1) open("TW_UNROLL for (int p = 0; p < {}; ++p)", panels);
        line("ptx::tensor_load({}{}, &{}, {}, {});", at,
             panels > 1 ? fmt::format(" + p * {}", buffer.rows * 128) : "", map, full,
             coordinates(made, panels > 1 ? fmt::format(" + p * {}", buffer.panel()) : ""));
        if (panels > 1) close();
    }

    void tma_store(const Instruction& made) {
        const Buffer& buffer = p_.buffer(made.symbol("from"));
        const std::string slot =
            fmt::format("static_cast<u32>({}) % {}", scalar(made.operands.back()), buffer.slots);
        line("if (threadIdx.x % 128 == 0)");
        line("    ptx::tensor_store(&{}, base + k_{} + group * {} + {} * {}, {});",
             identifier(made.symbol("map")), identifier(buffer.name),
             buffer.slot_bytes() * buffer.slots, slot, buffer.slot_bytes(), coordinates(made, ""));
    }

    // ---- Control.

    void role(const Instruction& made) {
        const Role& role = p_.role(made.symbol("of"));
        producer_ = role.one;
        // The group is uniform to the compiler, so that branches and descriptors are.
        const int first = role.first_warp, last = role.first_warp + role.warps;
        if (first == 0) {
            open("if (group < {})", last / 4);
        } else {
            open("if (group >= {} && group < {})", first / 4, last / 4);
        }
        if (role.registers > 0) {
            line("ptx::registers_{}<{}>();", role.one ? "decrease" : "increase", role.registers);
        }
        if (role.one) open("if (threadIdx.x / 32 == {} && ptx::elect_lane())", first);
        block(made.blocks[0]);
        if (role.one) close();
        line("return;");
        close();
        producer_ = false;
    }

    void programs(const Instruction& made) {
        const Block& body = made.blocks[0];
        for (std::size_t i = 0; i < made.operands.size(); ++i) {
            alias(body.arguments[i], made.operands[i]);
            alias(made.results[i], made.operands[i]);
        }
        open("for (u32 program = blockIdx.x; program < programs; program += gridDim.x)");
        if (!p_.order.rows.empty() && !p_.order.columns.empty()) {
            line(
                "const TilePlace place = tile_order<{}>(program % (rows * columns), rows, "
                "columns);",
                p_.order.group);
            decode(p_.order.rows, "place.row");
            decode(p_.order.columns, "place.column");
            decode(others_, "program / (rows * columns)");
        } else {
            decode(others_, "program");
        }
        block(body);
        close();
    }

    void panels(const Instruction& made) {
        const Block& body = made.blocks[0];
        const std::int64_t count = made.number("count");
        const std::string panel = name(body.arguments[0]);
        for (std::size_t i = 0; i < made.operands.size(); ++i) {
            alias(body.arguments[1 + i], made.operands[i]);
        }
        open("TW_ROLLED for (i64 {0} = 0; {0} < {1}; ++{0})", panel, count);
        block(body);
        for (std::size_t i = 0; i < made.operands.size() && count > 1; ++i) {
            const int all = layout(made.operands[i]).registers();
            const int one = layout(body.arguments[1 + i]).registers();
            line("TW_UNROLL for (int i = 0; i < {0}; ++i) {1}[i] = {1}[i + {2}];", all - one,
                 name(made.operands[i]), one);
        }
        close();
    }

    void for_loop(const Instruction& made) {
        const Block& body = made.blocks[0];
        for (std::size_t i = 0; i < made.results.size(); ++i) {
            alias(body.arguments[1 + i], made.operands[3 + i]);
            alias(made.results[i], made.operands[3 + i]);
        }
        const std::string at = name(body.arguments[0]), low = scalar(made.operands[0]),
                          high = scalar(made.operands[1]), step = scalar(made.operands[2]);
        open("TW_ROLLED for (i64 {0} = {1}; {0} < {2}; {0} = round_after({0}, {2}, {3}))", at, low,
             high, step);
        block(body);
        close();
    }

    // ---- Operations of the tile IR.

    void tile(const Instruction& made) {
        switch (made.tile) {
            case ir::Op::yield:
            case ir::Op::constant:
            case ir::Op::broadcast:
            case ir::Op::expand_dims:
                return;  // where they are wanted
            case ir::Op::for_loop:
                return for_loop(made);
            case ir::Op::program_id:
                names_[made.result()] = fmt::format("program{}", made.number("axis"));
                return;
            case ir::Op::num_programs:
                line("const i64 {} = {};", name(made.result()),
                     extent(static_cast<int>(made.number("axis"))));
                return;
            case ir::Op::extent:
                line("const i64 {} = {}.extent[{}];", name(made.result()),
                     ref_name(made.symbol("of")), made.number("axis"));
                return;
            case ir::Op::load:
            case ir::Op::store:
                return access(made);
            default:
                return elementwise(made);
        }
    }

    void elementwise(const Instruction& made) {
        const Value result = made.result();
        const DType out = p_.type(result).type.dtype;
        const DType in = p_.type(made.operands[made.is(ir::Op::select) ? 1 : 0]).type.dtype;
        const auto text = [&](const std::string& index) {
            std::vector<std::string> x;
            for (Value operand : made.operands) x.push_back(element(operand, index));
            const std::string value = element_text(made.tile, made.has("approx"), in, out, x);
            return is_rounded(made.tile, out)
                       ? fmt::format("rounded({}{{}}, {})", storage_type(out), value)
                       : value;
        };
        if (!p_.is_tile(result)) {
            line("const {} {} = {};", register_type(out), name(result), text(""));
            return;
        }
        const int registers = layout(result).registers();
        line("{} {}[{}];", register_type(out), name(result), registers);
        line("TW_UNROLL for (int i = 0; i < {}; ++i) {}[i] = {};", registers, name(result),
             text("i"));
    }

    /// Elements between global memory and registers, two at a time where they are neighbours.
    void access(const Instruction& made) {
        const bool is_load = made.is(ir::Op::load);
        const Value value = is_load ? made.result() : made.operands.back();
        const Parameter& ref = p_.ref(made.symbol("of"));
        const std::string array = ref_name(ref.name);
        const std::vector<std::int64_t>& sizes = made.list("index");
        const bool is_tile = p_.is_tile(value);
        const int registers = is_tile ? layout(value).registers() : 1;
        const std::string held = is_tile ? name(value) : name(value) + "_";
        const bool pairs = is_tile && ref.vectors && !sizes.empty() && sizes.back() != 0 &&
                           !layout(value).reg.empty() && layout(value).reg[0] == 1;
        if (is_load) line("{} {}[{}];", register_type(ref.dtype), held, registers);
        open("TW_UNROLL for (int i = 0; i < {}; i += {})", registers, pairs ? 2 : 1);
        std::string inside, offset;
        int axis = 0;
        for (std::size_t d = 0; d < sizes.size(); ++d) {
            std::string at = scalar(made.operands[d]);
            if (sizes[d] != 0) {
                at += fmt::format(" + {} + {}", thread_coordinate(layout(value), axis),
                                  register_coordinate(layout(value), axis, "i"));
                ++axis;
            }
            line("const i64 at{} = {};", d, at);
            const bool last = d + 1 == sizes.size();
            if (!last || !pairs) {
                inside += fmt::format("{}is_inside(at{}, {}.extent[{}])", d == 0 ? "" : " && ", d,
                                      array, d);
            }
            offset +=
                fmt::format("{}at{}{}", d == 0 ? "" : " + ", d,
                            ref.vectors && last ? "" : fmt::format(" * {}.stride[{}]", array, d));
        }
        if (sizes.empty()) offset = "0";
        if (inside.empty()) inside = "true";
        const bool proved = made.has("in_bounds");
        if (pairs) {
            const std::size_t last = sizes.size() - 1;
            const auto of = [&](int next) {
                return proved ? std::string("true")
                              : fmt::format("{} && is_inside(at{}{}, {}.extent[{}])", inside, last,
                                            next == 0 ? "" : " + 1", array, last);
            };
            line("{}_pair({}.data, {}, {}, {}, {}, {});", is_load ? "load" : "store", array, offset,
                 of(0), of(1), is_load ? held + "[i]" : element(value, "i"),
                 is_load ? held + "[i + 1]" : element(value, "(i + 1)"));
        } else if (is_load) {
            line("{}[i] = {} ? widen({}.data[{}]) : {};", held, proved ? "true" : inside, array,
                 offset, literal(ref.dtype, 0));
        } else {
            line("if ({}) {}.data[{}] = narrow({}{{}}, {});", proved ? "true" : inside, array,
                 offset, storage_type(ref.dtype), element(value, "i"));
        }
        close();
        if (is_load && !is_tile) {
            line("const {} {} = {}_[0];", register_type(ref.dtype), name(value), name(value));
        }
    }

    const Program& p_;
    Uses uses_;
    std::map<Value, std::string> names_;
    std::vector<int> others_;
    std::set<WgmmaShape> shapes_set_;
    std::vector<WgmmaShape> shapes_;
    std::string text_;
    int depth_ = 1, counter_ = 0;
    bool producer_ = false;
};

}  // namespace

Generated print_cuda(const Program& program) {
    return CudaPrinter(program).run();
}

}  // namespace tilewright::cuda::schedule
