// Why a program is not as fast as it might be.
#include <fmt/format.h>

#include <algorithm>

#include "cpu/machine.h"
#include "cpu/slow_paths.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/runtime/library.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "support/check.h"
#include "tilewright/program.h"

namespace tilewright {
namespace {

std::vector<Finding> explain_on_cpu(ir::Function function) {
    ir::optimise(function);
    std::vector<Finding> findings;
    for (cpu::SlowPath& path : cpu::slow_paths(*cpu::compile(function)))
        findings.push_back({std::move(path.what), std::move(path.reason), std::move(path.source)});
    return findings;
}

bool has_dot(const ir::Function& function) {
    bool found = false;
    ir::walk(function.body,
             [&](const ir::Instruction& made) { found = found || made.op == ir::Op::dot; });
    return found;
}

std::vector<Finding> explain_on_gpu(const ir::Function& function, std::string_view arch) {
    cuda::Target target = cuda::target_of(std::string(arch));
    target.facts = cuda::facts_of_dense(function, cuda::schedule::may_copy(function, target.arch));
    const cuda::Generated generated = cuda::schedule::generate_best(function, target);
    std::vector<Finding> findings;
    if (has_dot(function)) {
        const std::string reason = cuda::schedule::why_not_scheduled(function, target);
        if (!reason.empty()) findings.push_back({"not on wgmma and TMA", reason, {}});
    }
    for (const cuda::Note& note : generated.notes) {
        const ir::Location& at = note.location;
        Finding finding{note.what, note.reason,
                        at.file.empty() ? "" : fmt::format("{}:{}", at.file, at.line)};
        const bool known = std::any_of(findings.begin(), findings.end(), [&](const Finding& one) {
            return one.what == finding.what && one.source == finding.source;
        });
        if (!known) findings.push_back(std::move(finding));  // a peeled loop repeats findings
    }
    try {
        const cuda::Compiled compiled = cuda::compile(compile_request(generated, target.arch));
        if (compiled.spill_bytes > 0)
            findings.push_back({fmt::format("{} bytes are spilled", compiled.spill_bytes),
                                fmt::format("a thread of {} has {} registers; more warps "
                                            "(num_warps) or smaller blocks need fewer",
                                            generated.threads, compiled.registers),
                                {}});
    } catch (const UserError& error) {
        findings.push_back({"spilled registers are not known", error.what(), {}});
    }
    return findings;
}

}  // namespace

std::vector<Finding> explain_program(std::string_view ir, std::string_view arch) {
    ir::Function function = ir::parse(ir);
    return arch.empty() ? explain_on_cpu(std::move(function)) : explain_on_gpu(function, arch);
}

std::string explain_text(std::string_view ir, std::string_view arch) {
    const std::vector<Finding> findings = explain_program(ir, arch);
    std::string text = fmt::format(
        "{} on {}: {}\n", ir::parse(ir).name, arch.empty() ? "this CPU" : std::string(arch),
        findings.empty()
            ? "nothing found that slows it down"
            : fmt::format("{} finding{}", findings.size(), findings.size() == 1 ? "" : "s"));
    for (const Finding& finding : findings) {
        text += fmt::format("- {}{}\n  since {}\n", finding.what,
                            finding.source.empty() ? "" : fmt::format(" (at {})", finding.source),
                            finding.reason);
    }
    return text;
}

}  // namespace tilewright
