// The slow parts of a compiled program, and the reasons.
#include "cpu/slow_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <variant>

#include "cpu/combine_rows.h"
#include "cpu/simd/kernels.h"

namespace tilewright::cpu {
namespace {

std::string scalar_kernels_reason() {
    const char* const wanted = std::getenv("TILEWRIGHT_TARGET");
    return wanted != nullptr && *wanted != '\0'
               ? fmt::format("TILEWRIGHT_TARGET={} asks for them", wanted)
               : "this build and machine have none for AVX2, AVX-512 or NEON";
}

/// True when an op of a chain falls back to the scalar table.
bool is_scalar(const StripOp& op, const Kernels& scalar) {
    if (op.super != Super::none || op.function == nullptr || op.stored_ref >= 0) return false;
    if (op.op == ir::Op::bitcast || op.op == ir::Op::broadcast) return false;
    const DType in = op.in[op.op == ir::Op::select ? 1 : 0].dtype;
    switch (op.kind) {
        case StripOp::Kind::map:
            return op.function == scalar.elementwise(op.op, in, op.out.dtype, false) ||
                   op.function == scalar.elementwise(op.op, in, op.out.dtype, true);
        case StripOp::Kind::reduce_rows:
            return op.function == scalar.reduce_rows(op.reduction, in);
        case StripOp::Kind::reduce_lanes:
            return op.function == scalar.reduce_lanes(op.reduction, in);
        case StripOp::Kind::scan_rows:
            return op.function == scalar.scan_rows(op.reduction, in);
        case StripOp::Kind::scan_lanes:
            return op.function == scalar.scan_lanes(op.reduction, in);
    }
    return false;
}

/// True when a dot falls back to the scalar table.
bool is_scalar(const Dot& dot, const Kernels& scalar) {
    return dot.function == scalar.gemm_f32 || dot.function == scalar.gemm_f64 ||
           dot.function == scalar.gemm_i32 || dot.function == scalar.gemm_i64;
}

/// The reason why a tile is copied; empty where the copy only fills it, or is small.
std::string copy_reason(const Move& move) {
    constexpr std::int64_t kSmall = 256;
    if (move.in.home == Home::slot || move.in.home == Home::constant || move.box.size() <= kSmall)
        return {};
    const bool whole = move.in_start == Coordinates{} && move.out_start == Coordinates{} &&
                       move.in_step == every_axis<std::int64_t>(1);
    if (!whole)
        return move.whole ? "a slice that cuts its lanes, or has a step, is a tile of its own"
                          : "its parts come from several tiles";
    if (move.in.home == Home::view) return "the array's order is not that of the lanes";
    if (move.in.lane_axis != move.out.lane_axis)
        return fmt::format("its lanes are axis {} where it is made and axis {} where it is read",
                           move.in.lane_axis, move.out.lane_axis);
    if (move.in.width != move.out.width)
        return fmt::format("its panels have {} lanes where it is made and {} where it is read",
                           move.in.width, move.out.width);
    return "a value of a loop or branch has a place of its own";
}

/// Slow paths by kind and reason, with their subjects and places.
class Findings {
  public:
    void add(const char* form, std::string subject, std::string reason, std::uint32_t line) {
        Found& found = found_[{form, std::move(reason)}];
        found.subjects.insert(std::move(subject));
        if (line != 0) found.lines.insert(line);
    }
    std::vector<SlowPath> list(const Program& program) const {
        std::vector<SlowPath> result;
        for (const auto& [key, found] : found_) {
            const std::string subjects = fmt::format("{}", fmt::join(found.subjects, ", "));
            result.push_back({fmt::format(fmt::runtime(key.first), subjects), key.second,
                              source_text(program, found.lines)});
        }
        return result;
    }

  private:
    struct Found {
        std::set<std::string> subjects;
        std::set<std::uint32_t> lines;
    };
    std::map<std::pair<std::string, std::string>, Found> found_;
};

void add_panels(const Chain& chain, Findings& findings) {
    // Panels as wide as a page are read as fast as rows.
    if (chain.rows <= 1 || chain.lanes <= chain.width || chain.width >= kStripElements) return;
    const bool joined =
        !chain.fused.empty() && std::all_of(chain.fused.begin(), chain.fused.end(),
                                            [](const FusedRun& run) { return run.joins_panels; });
    if (joined) return;
    for (const StripOp& op : chain.ops) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
            const StripSource& in = op.in[i];
            if (in.home != Home::view || in.view_row_axis < 0 || in.lane_stride == 0) continue;
            findings.add(
                "strided panels of {}",
                fmt::format("{} x {} {}", chain.rows, chain.lanes, name(in.dtype)),
                fmt::format("{} lanes ({} bytes) of all rows are worked on before the next "
                            "ones; blocks of fewer rows read memory in order",
                            chain.width, chain.width * size_of(in.dtype)),
                op.line);
        }
    }
}

}  // namespace

std::string source_text(const Program& program, const std::set<std::uint32_t>& lines) {
    std::map<std::string_view, std::set<int>> files;
    for (const std::uint32_t line : lines) {
        const ir::Location& location = program.locations[line];
        if (!location.file.empty()) files[location.file].insert(location.line);
    }
    std::string text;
    for (const auto& [file, numbers] : files)
        text += fmt::format("{}{}:{}", text.empty() ? "" : "; ", file, fmt::join(numbers, ", "));
    return text;
}

std::string to_string(const SlowPath& path) {
    return fmt::format("{}, since {}{}", path.what, path.reason,
                       path.source.empty() ? "" : fmt::format(" (at {})", path.source));
}

std::vector<SlowPath> slow_paths(const Program& program) {
    const Kernels& scalar = *find_kernels("scalar");
    const bool all_scalar = program.kernels->vector_bytes == scalar.vector_bytes;
    const std::string no_kernel =
        fmt::format("`{}` has no vector kernels for that", program.kernels->name);
    Findings findings;
    const auto note_gather = [&](const Access& access, std::uint32_t line) {
        if (access.gathers)
            findings.add("{} read or written element by element",
                         fmt::format("`{}`", program.refs[access.ref].name),
                         "the indices are tiles or a mask chooses", line);
    };
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        const Instruction& instruction = program.code[i];
        const std::uint32_t line = program.lines[i];
        if (const auto* chain = std::get_if<Chain>(&instruction)) {
            for (const StripOp& op : chain->ops) {
                if (!all_scalar && is_scalar(op, scalar))
                    findings.add("{} element by element",
                                 fmt::format("{} of {}", op.name(), name(op.in[0].dtype)),
                                 no_kernel, op.line);
            }
            add_panels(*chain, findings);
        } else if (const auto* load = std::get_if<Load>(&instruction)) {
            note_gather(load->access, line);
        } else if (const auto* store = std::get_if<Store>(&instruction)) {
            note_gather(store->access, line);
        } else if (const auto* move = std::get_if<Move>(&instruction)) {
            const std::string reason = copy_reason(*move);
            if (!reason.empty())
                findings.add("a copy of {}",
                             fmt::format("{}{}", name(move->in.dtype), ir::to_string(move->box)),
                             reason, line);
        } else if (const auto* dot = std::get_if<Dot>(&instruction)) {
            if (!all_scalar && is_scalar(*dot, scalar))
                findings.add("{} element by element", fmt::format("dot of {}", name(dot->dtype)),
                             no_kernel, line);
        }
    }
    std::vector<SlowPath> result;
    if (all_scalar) result.push_back({"scalar kernels", scalar_kernels_reason(), {}});
    for (SlowPath& path : findings.list(program)) result.push_back(std::move(path));
    ir::walk(program.kernel.body, [&](const ir::Instruction& made) {
        NoRows why;
        if (made.op != ir::Op::associative_scan || combine_rows(made, &why)) return;
        result.push_back({"associative_scan in steps", std::move(why.reason),
                          why.location.file.empty()
                              ? ""
                              : fmt::format("{}:{}", why.location.file, why.location.line)});
    });
    if (program.in_order && !program.divided)
        result.push_back({"programs run one after the other", "atomics depend on their order", {}});
    return result;
}

}  // namespace tilewright::cpu
