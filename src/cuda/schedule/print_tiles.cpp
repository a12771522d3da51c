// Text of the tile IR's operations.
#include <algorithm>

#include "cuda/codegen/element_text.h"
#include "cuda/schedule/cuda_printer.h"
#include "cuda/schedule/layout_text.h"
#include "ir/evaluate.h"

namespace tilewright::cuda::schedule {

namespace {

/// Kinds of reductions, as flagged by `lower`.
bool is_sum(const Instruction& made) {
    return made.has("sum");
}
std::string combined(const Instruction& made, DType dtype, const std::string& a,
                     const std::string& b) {
    if (is_sum(made)) {
        return is_float(dtype) ? fmt::format("{} + {}", a, b)
                               : fmt::format("ops::add({}, {})", a, b);
    }
    return fmt::format("ops::{}({}, {})", made.has("max") ? "max" : "min", a, b);
}

/// How far apart the registers of neighbours along the last axis are; 0: in other threads.
int neighbours(const Layout& layout) {
    const auto at = std::find(layout.reg.begin(), layout.reg.end(), std::uint64_t{1});
    return at == layout.reg.end() ? 0 : 1 << (at - layout.reg.begin());
}

/// Bits of lanes, or of warps, along an axis.
unsigned bits_along(const Layout& layout, const std::vector<std::uint64_t>& bases, int axis) {
    unsigned mask = 0;
    for (std::size_t bit = 0; bit < bases.size(); ++bit) {
        if (layout.unpack(bases[bit])[axis] != 0) mask |= 1U << bit;
    }
    return mask;
}

}  // namespace

bool CudaPrinter::is_lazy(Value value) const {
    const Instruction* const made = uses_.definition(value);
    if (made == nullptr || made->op != Op::tile || !p_.is_tile(value)) return false;
    if (made->is(ir::Op::constant) || made->is(ir::Op::broadcast) ||
        made->is(ir::Op::expand_dims)) {
        return true;
    }
    if (index_.contains(value)) return true;
    if (!chained_) return false;
    // Booleans would take predicates, of which there are few.
    return ir::is_elementwise(made->tile) && p_.type(value).type.dtype == DType::boolean &&
           uses_.count(value) == 1;
}

std::string CudaPrinter::element(Value value, const std::string& index) {
    if (!p_.is_tile(value)) return scalar(value);
    if (!is_lazy(value)) return fmt::format("{}[{}]", name(value), index);
    const Instruction& made = *uses_.definition(value);
    if (made.is(ir::Op::constant)) return constant(made);
    if (made.is(ir::Op::broadcast) || made.is(ir::Op::expand_dims)) {
        const Value source = made.operands[0];
        if (!p_.is_tile(source)) return scalar(source);
        const Instruction* const from = uses_.definition(source);
        if (from != nullptr && from->is(ir::Op::constant)) return constant(*from);
        const int dropped =
            made.is(ir::Op::expand_dims) ? static_cast<int>(made.number("axis")) : -1;
        return element(source, source_register(layout(value), layout(source), dropped, index));
    }
    if (made.is(ir::Op::iota)) {
        const auto axis = static_cast<int>(made.number("axis"));
        const std::string thread = thread_coordinate(layout(value), axis);
        return fmt::format("static_cast<{}>({} + {})", register_type(p_.type(value).type.dtype),
                           positions_.at(thread), register_coordinate(layout(value), axis, index));
    }
    if (uses_.count(value) == 1 || temporaries_ == nullptr) {
        return fmt::format("({})", compute(made, index));
    }
    const auto known = shared_.find({value, index});
    if (known != shared_.end()) return known->second;
    const std::string text = compute(made, index);
    const std::string called = fmt::format("t{}", counter_++);
    temporaries_->push_back(
        fmt::format("const {} {} = {};", register_type(p_.type(value).type.dtype), called, text));
    return shared_[{value, index}] = called;
}

std::string CudaPrinter::compute(const Instruction& made, const std::string& index) {
    const DType out = p_.type(made.result()).type.dtype;
    const DType in = p_.type(made.operands[made.is(ir::Op::select) ? 1 : 0]).type.dtype;
    std::vector<std::string> x;
    for (Value operand : made.operands) x.push_back(element(operand, index));
    const std::string value = element_text(made.tile, made.has("approx"), in, out, x);
    return is_rounded(made.tile, out) ? fmt::format("rounded({}{{}}, {})", storage_type(out), value)
                                      : value;
}

void CudaPrinter::tile(const Instruction& made) {
    switch (made.tile) {
        case ir::Op::yield:
        case ir::Op::constant:
        case ir::Op::broadcast:
        case ir::Op::expand_dims:
        case ir::Op::iota:
            return;  // computed at each use
        case ir::Op::if_else:
            return if_else(made);
        case ir::Op::reduce:
            return reduce(made);
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
            line("const i64 {} = {}.extent[{}];", name(made.result()), ref_name(made.symbol("of")),
                 made.number("axis"));
            return;
        case ir::Op::load:
        case ir::Op::store:
        case ir::Op::atomic_add:
            return access(made);
        default:
            return elementwise(made);
    }
}

void CudaPrinter::elementwise(const Instruction& made) {
    const Value result = made.result();
    if (!p_.is_tile(result)) {
        line("const {} {} = {};", register_type(p_.type(result).type.dtype), name(result),
             compute(made, ""));
        return;
    }
    if (is_lazy(result)) return;
    line("{};", declaration(result, name(result)));
    const std::string target = name(result) + "[i]";
    if (!made.has("guarded")) {
        each(registers(result), target, [&] { return compute(made, "i"); });
        return;
    }
    each(registers(result), target, [&] { return element(made.operands[1], "i"); });
    open("if (!{})", scalar(made.operands[3]));
    each(registers(result), target, [&] { return compute(made, "i"); });
    close();
}

void CudaPrinter::reduce(const Instruction& made) {
    const Value from = made.operands[0], to = made.result();
    const auto axis = static_cast<int>(made.number("axis"));
    const DType dtype = p_.type(to).type.dtype;
    const std::string target = name(to);
    const ir::Reduction kind = is_sum(made)      ? ir::Reduction::sum
                               : made.has("max") ? ir::Reduction::max
                                                 : ir::Reduction::min;
    line("{};", declaration(to, target));
    line("TW_UNROLL for (int i = 0; i < {}; ++i) {}[i] = {};", registers(to), target,
         literal(dtype, ir::identity(kind, dtype)));
    const std::string place =
        fmt::format("{}[{}]", target, source_register(layout(from), layout(to), axis, "i"));
    each(registers(from), place, [&] { return combined(made, dtype, place, element(from, "i")); });
    if (made.has("partial")) return;
    const unsigned lanes = bits_along(layout(from), layout(from).lane, axis);
    for (unsigned bit = 1; bit < 32; bit *= 2) {
        if ((lanes & bit) == 0) continue;
        const std::string other = fmt::format("__shfl_xor_sync(~0u, {}[i], {})", target, bit);
        line("TW_UNROLL for (int i = 0; i < {}; ++i) {}[i] = {};", registers(to), target,
             combined(made, dtype, target + "[i]", other));
    }
}

void CudaPrinter::join_lanes(const Instruction& made) {
    const Value to = made.result();
    const std::string target = name(to);
    line("{};", declaration(to, target));
    each(registers(to), target + "[i]", [&] { return element(made.operands[0], "i"); });
    // Lanes that differ in no coordinate have parts of the same rows.
    const std::vector<std::uint64_t>& lanes = layout(to).lane;
    for (std::size_t bit = 0; bit < lanes.size(); ++bit) {
        if (lanes[bit] != 0) continue;
        line("TW_UNROLL for (int i = 0; i < {0}; ++i) {1}[i] += __shfl_xor_sync(~0u, {1}[i], {2});",
             registers(to), target, 1U << bit);
    }
}

void CudaPrinter::soft_cap(const Instruction& made) {
    const std::string target = name(made.result());
    const auto constant = [&](int i) { return element(made.operands[i], "0"); };
    line("{};", declaration(made.result(), target));
    each(registers(made.result()), target + "[i]", [&] { return element(made.operands[0], "i"); });
    line("soft_cap({}, {}, {}, {});", target, constant(1), constant(2), constant(3));
}

void CudaPrinter::pack(const Instruction& made) {
    const Value result = made.result(), from = made.operands[0];
    line("{};", declaration(result, name(result)));
    each(registers(result), name(result) + "[i]", [&] {
        return fmt::format("ptx::pack({}{{}}, {}, {})", tag(p_.type(result).type.dtype),
                           element(from, "(2 * i)"), element(from, "(2 * i + 1)"));
    });
}

void CudaPrinter::access(const Instruction& made) {
    const bool is_load = made.is(ir::Op::load);
    const Value value = is_load ? made.result() : made.operands.back();
    const Parameter& ref = p_.ref(made.symbol("of"));
    const std::vector<std::int64_t>& sizes = made.list("index");
    const bool is_tile = p_.is_tile(value);
    const int registers = is_tile ? layout(value).registers() : 1;
    const std::string held = is_tile ? name(value) : name(value) + "_";
    const bool vectors = is_tile && ref.vectors && !sizes.empty() && sizes.back() > 0;
    const int pairs = vectors ? neighbours(layout(value)) : 0;
    if (is_load) line("{} {}[{}];", register_type(ref.dtype), held, registers);
    // One test for all elements, of what is the same in a warp.
    const bool adds = made.is(ir::Op::atomic_add) && is_tile && layout(value).copied_lanes() == 0 &&
                      layout(value).copied_warps() == 0;
    const bool tested_once =
        (is_load || adds) && is_tile && !made.has("in_bounds") && !is_gather(made);
    if (tested_once) {
        Instruction whole = made;
        open("if ({})", holds_all(made, pairs != 0));
        elements(whole.flag("in_bounds").flag("even"), pairs, held);
        close();
        open("else");
    }
    elements(made, pairs, held);
    if (tested_once) close();
    if (is_load && !is_tile) {
        line("const {} {} = {}_[0];", register_type(ref.dtype), name(value), name(value));
    }
}

std::string CudaPrinter::holds_all(const Instruction& load, bool pairs) const {
    const std::vector<std::int64_t>& sizes = load.list("index");
    const std::string array = ref_name(load.symbol("of"));
    std::string inside, offset;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        const std::string at = scalar(load.operands[d]);
        inside += fmt::format("{}{} >= 0 && {} + {} <= {}.extent[{}]", d == 0 ? "" : " && ", at, at,
                              std::max<std::int64_t>(sizes[d], 1), array, d);
        offset += d + 1 == sizes.size() ? at : fmt::format("{} * {}.stride[{}] + ", at, array, d);
    }
    return pairs ? fmt::format("{} && ({}) % 2 == 0", inside, offset) : inside;
}

void CudaPrinter::elements(const Instruction& made, int pairs, const std::string& held) {
    const bool is_load = made.is(ir::Op::load);
    const Value value = is_load ? made.result() : made.operands.back();
    const Parameter& ref = p_.ref(made.symbol("of"));
    const std::string array = ref_name(ref.name);
    const std::vector<std::int64_t>& sizes = made.list("index");
    const bool is_tile = p_.is_tile(value);
    const int registers = is_tile ? layout(value).registers() : 1;
    if (pairs > 1) {
        open("TW_UNROLL for (int j = 0; j < {}; ++j)", registers / 2);
        line("const int i = j / {0} * {1} + j % {0};", pairs, 2 * pairs);
    } else {
        open("TW_UNROLL for (int i = 0; i < {}; i += {})", registers, 1 + pairs);
    }
    const std::string second = fmt::format("i + {}", pairs);
    std::string inside, offset;
    int axis = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        std::string at =
            sizes[d] == kGathered ? element(made.operands[d], "i") : scalar(made.operands[d]);
        if (sizes[d] > 0) {
            at += fmt::format(" + {} + {}", thread_coordinate(layout(value), axis),
                              register_coordinate(layout(value), axis, "i"));
            ++axis;
        }
        line("const i64 at{} = {};", d, at);
        const bool last = d + 1 == sizes.size();
        if (!last || pairs == 0) {
            inside +=
                fmt::format("{}is_inside(at{}, {}.extent[{}])", d == 0 ? "" : " && ", d, array, d);
        }
        offset += fmt::format("{}at{}{}", d == 0 ? "" : " + ", d,
                              ref.vectors && last ? "" : fmt::format(" * {}.stride[{}]", array, d));
    }
    if (sizes.empty()) offset = "0";
    if (inside.empty()) inside = "true";
    if (made.has("in_bounds")) inside = "true";
    const auto mask = [&](const std::string& index) -> std::string {
        if (!made.has("masked")) return "";
        return fmt::format(" && {}", element(made.operands[made.operands.size() - 2], index));
    };
    if (!is_load && is_tile) {
        // One of the threads that hold an element stores it.
        const unsigned lanes = layout(value).copied_lanes(), warps = layout(value).copied_warps();
        if (lanes != 0) inside = fmt::format("(lane & {}) == 0 && {}", lanes, inside);
        if (warps != 0) inside = fmt::format("(threadIdx.x / 32 & {}) == 0 && {}", warps, inside);
    }
    const bool adds = made.is(ir::Op::atomic_add);
    if (pairs > 0 && made.has("even") && is_load) {
        line("load_vector({}.data + {}, {}[i], {}[{}]);", array, offset, held, held, second);
    } else if (pairs > 0 && made.has("even") && adds && ref.dtype == DType::f32) {
        line("ptx::reduce_add_pair({}.data + {}, {}, {});", array, offset, element(value, "i"),
             element(value, "(" + second + ")"));
    } else if (pairs > 0) {
        const std::size_t last = sizes.size() - 1;
        const auto of = [&](int next) {
            const std::string within =
                made.has("in_bounds")
                    ? inside
                    : fmt::format("{} && is_inside(at{}{}, {}.extent[{}])", inside, last,
                                  next == 0 ? "" : " + 1", array, last);
            return within + mask(next == 0 ? "i" : "(" + second + ")");
        };
        line("{}_pair({}.data, {}, {}, {}, {}, {});",
             is_load ? "load"
             : adds  ? "add"
                     : "store",
             array, offset, of(0), of(1), is_load ? held + "[i]" : element(value, "i"),
             is_load ? fmt::format("{}[{}]", held, second) : element(value, "(" + second + ")"));
    } else if (is_load) {
        line("{}[i] = {} ? widen({}.data[{}]) : {};", held, inside, array, offset,
             literal(ref.dtype, 0));
    } else if (adds) {
        line("if ({}) atomic_add({}.data + {}, {});", inside, array, offset, element(value, "i"));
    } else {
        line("if ({}{}) {}.data[{}] = narrow({}{{}}, {});", inside, mask("i"), array, offset,
             storage_type(ref.dtype), element(value, "i"));
    }
    close();
}

}  // namespace tilewright::cuda::schedule
