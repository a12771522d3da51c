// Readable listing of bytecode.
#include <fmt/format.h>

#include <algorithm>

#include "cpu/bytecode.h"
#include "cpu/machine.h"

namespace tilewright::cpu {
namespace {

std::string text_of(Home home, std::uint32_t index) {
    switch (home) {
        case Home::none:
            return "-";
        case Home::buffer:
            return fmt::format("b{}", index);
        case Home::constant:
            return fmt::format("const+{}", index);
        case Home::slot:
            return fmt::format("s{}", index);
        case Home::view:
            return fmt::format("v{}", index);
        case Home::strip:
            return fmt::format("t{}", index);
    }
    return "?";
}

std::string text_of(const Tile& tile) {
    std::string text = text_of(tile.home, tile.index);
    if (tile.offset != 0) text += fmt::format("+{}", tile.offset);
    if (tile.home == Home::slot || tile.home == Home::none) return text;
    return text + fmt::format(":{}{}{}", name(tile.dtype), ir::to_string(tile.shape),
                              tile.lane_axis >= 0 ? fmt::format("@{}", tile.lane_axis) : "");
}

std::string text_of(const StripSource& source) {
    std::string text = text_of(source.home, source.index);
    if (source.offset != 0) text += fmt::format("+{}", source.offset);
    if (source.home == Home::slot || source.home == Home::none) return text;
    const bool rows = source.row_stride != 0 || source.view_row_axis >= 0;
    const char* form = source.lane_stride == 0 ? (rows ? "|" : "") : (rows ? "" : "_");
    return text + form;
}

std::string text_of(const Access& access) {
    std::string text = fmt::format("r{}[", access.ref);
    for (std::size_t i = 0; i < access.indices.size(); ++i) {
        const AccessIndex& index = access.indices[i];
        if (i > 0) text += ", ";
        switch (index.kind) {
            case ir::Index::Kind::scalar:
                text += fmt::format("s{}", index.slot);
                break;
            case ir::Index::Kind::slice:
                text += fmt::format("s{}:{}", index.slot, access.shape[index.axis]);
                if (index.stride != 1) text += fmt::format(":{}", index.stride);
                break;
            case ir::Index::Kind::tile:
                text += text_of(index.tile);
                break;
        }
    }
    return text + "]";
}

struct Printer {
    std::string operator()(const ScalarOp& op) const {
        std::string text = fmt::format("s{} = {}", op.out, ir::name(op.op));
        for (int i = 0; i < op.num_inputs; ++i) {
            text += fmt::format("{} s{}", i ? "," : "", op.in[i]);
        }
        return text;
    }
    std::string operator()(const ScalarMove& move) const {
        return fmt::format("s{} = s{}", move.to, move.from);
    }
    std::string operator()(const ScalarQuery& query) const {
        if (query.op == ir::Op::extent) {
            return fmt::format("s{} = extent r{} {}", query.out, query.ref, query.axis);
        }
        return fmt::format("s{} = {} {}", query.out, ir::name(query.op), query.axis);
    }
    std::string operator()(const Jump& jump) const { return fmt::format("jump {}", jump.target); }
    std::string operator()(const JumpUnless& jump) const {
        return fmt::format("jump {} unless s{}", jump.target, jump.condition);
    }
    std::string operator()(const LoopTest& test) const {
        return fmt::format("jump {} if s{} >= s{}", test.target, test.iv, test.hi);
    }
    std::string operator()(const LoopNext& next) const {
        return fmt::format("s{} += s{}, jump {}", next.iv, next.step, next.target);
    }
    std::string operator()(const Chain& chain) const {
        std::string text = fmt::format("strips {} rows x {} lanes, {} rows at a time", chain.rows,
                                       chain.lanes, chain.strip_rows);
        for (std::size_t at = 0; at < chain.ops.size(); ++at) {
            const StripOp& op = chain.ops[at];
            const auto run =
                std::find_if(chain.fused.begin(), chain.fused.end(),
                             [&](const auto& r) { return r.first <= at && at < r.last; });
            const char* mark = run == chain.fused.end() ? " " : run->compiled ? "#" : "|";
            text += fmt::format("\n      {} {} = {}", mark, text_of(op.out), op.name());
            for (int i = 0; i < op.num_inputs; ++i) {
                text += fmt::format("{} {}", i ? "," : "", text_of(op.in[i]));
            }
        }
        return text;
    }
    std::string operator()(const ReduceRows& reduce) const {
        return fmt::format("{} = reduce_rows {} {} ({} x {} x {})", text_of(reduce.out),
                           ir::name(reduce.reduction), text_of(reduce.in), reduce.outer,
                           reduce.extent, reduce.inner);
    }
    std::string operator()(const ArgReduce& reduce) const {
        return fmt::format("{} = {} {} axis {}", text_of(reduce.out), ir::name(reduce.reduction),
                           text_of(reduce.in), reduce.axis);
    }
    std::string operator()(const SortLines& sort) const {
        std::string results = sort.out.home == Home::none ? "" : text_of(sort.out);
        if (sort.places.home != Home::none) {
            results += (results.empty() ? "places " : ", places ") + text_of(sort.places);
        }
        return fmt::format("{} = sort {} axis {}{}", results, text_of(sort.in), sort.axis,
                           sort.descending ? " descending" : "");
    }
    std::string operator()(const ScanRows& scan) const {
        return fmt::format("{} = scan_rows {} {} ({} x {} x {})", text_of(scan.out),
                           ir::name(scan.reduction), text_of(scan.in), scan.outer, scan.extent,
                           scan.inner);
    }
    std::string operator()(const CombineScan& scan) const {
        std::string out, in;
        for (const StripSource& each : scan.out)
            out += (out.empty() ? "" : ", ") + (each.home == Home::none ? "_" : text_of(each));
        for (const StripSource& each : scan.in) in += (in.empty() ? "" : ", ") + text_of(each);
        const bool compiled = scan.in_registers != nullptr || scan.down_rows != nullptr ||
                              (!scan.combine.fused.empty() && scan.combine.fused[0].compiled);
        return fmt::format("{} = combine {} along {}{} ({} x {} x {}, {} lanes){}", out, in,
                           scan.along_lanes ? "lanes" : "rows", scan.reverse ? " reverse" : "",
                           scan.outer, scan.extent, scan.inner, scan.lanes,
                           compiled                     ? " #"
                           : scan.combine.fused.empty() ? ""
                                                        : " |");
    }
    std::string operator()(const Move& move) const {
        return fmt::format("{} = move {} {}", text_of(move.out), text_of(move.in),
                           ir::to_string(move.box));
    }
    std::string operator()(const Pick& pick) const {
        return fmt::format("{} = pick {} at s{}", text_of(pick.out), text_of(pick.in), pick.at);
    }
    std::string operator()(const Interleave& interleave) const {
        return fmt::format("{} = interleave {}{}", text_of(interleave.out), text_of(interleave.in),
                           interleave.kept >= 0 ? " and keep" : "");
    }
    std::string operator()(const Dot& dot) const {
        return fmt::format("{} {} {} {} {}", text_of(dot.out), dot.accumulate ? "+=" : "=",
                           dot.by_rows ? "dot_rows" : "dot", text_of(dot.broadcast),
                           text_of(dot.vector)) +
               (dot.scale.home == Home::none ? "" : " scaled by " + text_of(dot.scale)) +
               (dot.maxima.home == Home::none ? "" : ", max " + text_of(dot.maxima)) +
               (dot.unread.empty() ? "" : " in part");
    }
    std::string operator()(const Load& load) const {
        if (load.factor.home != Home::none)
            return fmt::format("{} = sum of {} * load {}", text_of(load.sum), text_of(load.factor),
                               text_of(load.access));
        return fmt::format("{} = load {}", text_of(load.out), text_of(load.access));
    }
    std::string operator()(const LoadView& load) const {
        return fmt::format("v{} = view {} or copy to {}", load.view, text_of(load.access),
                           text_of(load.copy));
    }
    std::string operator()(const SubView& part) const {
        return fmt::format("v{} = part of v{}", part.view, part.from);
    }
    std::string operator()(const StoreView& store) const {
        return fmt::format("v{} = view {} to {}", store.view, text_of(store.access),
                           store.loads ? "add to" : "write") +
               (store.copy.home == Home::none ? "" : " or keep in " + text_of(store.copy));
    }
    std::string operator()(const Store& store) const {
        return fmt::format("store {} {}", text_of(store.access), text_of(store.value)) +
               (store.mask.home == Home::none ? "" : " mask " + text_of(store.mask)) +
               (store.view < 0 ? "" : fmt::format(" unless v{} is there", store.view));
    }
    std::string operator()(const Atomic& atomic) const {
        return fmt::format("{} = {} {} {}", text_of(atomic.out), ir::name(atomic.op),
                           text_of(atomic.access), text_of(atomic.value));
    }
    std::string operator()(const Print& print) const {
        return fmt::format("print \"{}\"", print.text);
    }
    std::string operator()(const MachineCode& code) const {
        return fmt::format("machine code of the next {}", code.count);
    }
    std::string operator()(const Halt&) const { return "halt"; }
};

}  // namespace

std::string to_string(const Program& program) {
    std::string text = fmt::format("program {}: {} buffers, {} KiB a thread\n", program.kernel.name,
                                   program.buffers.size(), program.arena_bytes / 1024);
    for (std::size_t i = 0; i < program.refs.size(); ++i) {
        text += fmt::format("  r{}: {} {}\n", i, ir::to_string(program.refs[i].type),
                            program.refs[i].name);
    }
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        text += fmt::format("  b{}: {} bytes at {}\n", i, program.buffers[i].bytes,
                            program.buffers[i].offset);
    }
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        text += fmt::format("{:4}  {}\n", i, to_string(program, i));
    }
    return text;
}

std::string to_string(const Program& program, std::size_t instruction) {
    return std::visit(Printer{}, program.code[instruction]);
}

}  // namespace tilewright::cpu
