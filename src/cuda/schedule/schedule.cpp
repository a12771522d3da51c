// The passes in order.
#include "cuda/schedule/schedule.h"

#include <utility>

#include "cuda/schedule/assign_layouts.h"
#include "cuda/schedule/defer_sums.h"
#include "cuda/schedule/guard_masks.h"
#include "cuda/schedule/insert_barriers.h"
#include "cuda/schedule/join_iterations.h"
#include "cuda/schedule/join_soft_caps.h"
#include "cuda/schedule/lower.h"
#include "cuda/schedule/materialise.h"
#include "cuda/schedule/pair_blocks.h"
#include "cuda/schedule/ping_pong.h"
#include "cuda/schedule/place_shared.h"
#include "cuda/schedule/place_waits.h"
#include "cuda/schedule/prepare.h"
#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/select_dots.h"
#include "cuda/schedule/split_epilogue.h"
#include "cuda/schedule/stage.h"
#include "cuda/schedule/warp_specialise.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright::cuda::schedule {

bool is_for(const std::string& arch) {
    return arch == "sm_90a";
}

bool may_copy(const ir::Function& kernel, const std::string& arch) {
    bool has_dot = false;
    ir::walk(kernel.body, [&](const ir::Instruction& made) { has_dot |= made.op == ir::Op::dot; });
    return has_dot && is_for(arch);
}

namespace {

struct Pass {
    std::string_view name;
    Level level;
    void (*run)(Program&);
    std::string_view of_chains = {};  ///< what it runs for chained products
};
constexpr Pass kPasses[] = {{"lower", Level::lowered, [](Program&) {}},
                            {"join_iterations", Level::lowered, join_iterations},
                            {"select_dots", Level::selected, select_dots, "select_chain"},
                            {"materialise", Level::selected, materialise},
                            {"assign_layouts", Level::laid_out, assign_layouts},
                            {"guard_masks", Level::laid_out, guard_masks},
                            {"defer_sums", Level::laid_out, defer_sums},
                            {"join_soft_caps", Level::laid_out, join_soft_caps},
                            {"stage", Level::staged, stage, "stage_chain"},
                            {"warp_specialise", Level::specialised, warp_specialise},
                            {"pair_blocks", Level::specialised, pair_blocks},
                            {"place_waits", Level::waiting, place_waits, "pipeline_dots"},
                            {"split_epilogue", Level::split, split_epilogue},
                            {"ping_pong", Level::split, ping_pong},
                            {"place_shared", Level::placed, place_shared},
                            {"insert_barriers", Level::synchronised, insert_barriers}};
bool is_called(const Pass& pass, std::string_view name) {
    return !name.empty() && (pass.name == name || pass.of_chains == name);
}

Program scheduled(const ir::Function& prepared, const Target& target, const Tile& tile, Level up_to,
                  std::string_view last) {
    Program program = lower(prepared, target);
    program.wanted_pairs = tile.pairs;
    program.turns = tile.turns ? 2 : 1;
    if (target.choice) {
        program.order.group = target.choice->group;
        if (target.choice->stages > 0) program.stages = target.choice->stages;
    }
    for (const Pass& pass : kPasses) {
        if (pass.level > up_to) break;
        pass.run(program);
        check(program);
        if (is_called(pass, last)) break;
    }
    return program;
}

}  // namespace

Program schedule(const ir::Function& kernel, const Target& target, Level up_to,
                 std::string_view last) {
    if (!is_for(target.arch)) throw Refused("it is for sm_90a only");
    std::string reason;
    const std::vector<Tile> tiles =
        target.choice ? std::vector{target.choice->tile} : tiles_to_try(kernel);
    for (const Tile& tile : tiles) {
        const Prepared prepared = prepare_for_wgmma(kernel, tile);
        std::string refusal = prepared.refusal;
        if (refusal.empty()) {
            try {
                return scheduled(prepared.kernel, target, tile, up_to, last);
            } catch (const Refused& refused) {
                refusal = refused.what();
            }
        }
        if (reason.empty()) reason = std::move(refusal);  // that of the best tile
    }
    throw Refused(reason);
}

std::optional<Generated> generate_scheduled(const ir::Function& kernel, const Target& target) {
    if (!is_for(target.arch)) return std::nullopt;
    try {
        Generated generated = print_cuda(schedule(kernel, target));
        const int warps = generated.threads / 32, asked = kernel.hints.num_warps;
        if (asked != 0 && asked != warps - 4) {
            debug_log(kernel.name, "num_warps {} is not used: wgmma has {} and 4 that load", asked,
                      warps - 4);
        }
        return generated;
    } catch (const Refused& refused) {
        debug_log(kernel.name, "no wgmma: {}", refused.what());
        return std::nullopt;
    }
}

std::string why_not_scheduled(const ir::Function& kernel, const Target& target) {
    try {
        schedule(kernel, target);
        return {};
    } catch (const Refused& refused) {
        return refused.what();
    }
}

Generated generate_best(const ir::Function& kernel, const Target& target) {
    if (auto scheduled = generate_scheduled(kernel, target)) return *std::move(scheduled);
    return cuda::generate(cuda::prepare(kernel, target.arch), target);
}

Program schedule_any(const ir::Function& kernel, const Target& target, Level up_to,
                     std::string_view last) {
    std::string reason = "it is not for sm_90a";
    if (is_for(target.arch)) {
        try {
            return schedule(kernel, target, up_to, last);
        } catch (const Refused& refused) {
            reason = refused.what();
        }
    }
    debug_log(kernel.name, "no wgmma: {}", reason);
    if (up_to < Level::split) {
        user_error(kernel.name, "expected a level of {} for kernels without wgmma but got `{}`: {}",
                   level_names(Level::split), last.empty() ? name(up_to) : last, reason);
    }
    return scheduled_without_roles(cuda::prepare(kernel, target.arch), target, up_to);
}

std::string level_names(Level first) {
    std::string names;
    for (int i = static_cast<int>(first); i < kNumLevels; ++i) {
        names += fmt::format("{}{}", names.empty() ? "" : ", ", name(static_cast<Level>(i)));
    }
    return names;
}

std::optional<Level> level_of_pass(std::string_view pass) {
    for (const Pass& one : kPasses) {
        if (is_called(one, pass)) return one.level;
    }
    return std::nullopt;
}

std::string pass_names() {
    std::string names;
    for (const Pass& one : kPasses) {
        for (const std::string_view name : {one.name, one.of_chains}) {
            if (!name.empty()) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
        }
    }
    return names;
}

}  // namespace tilewright::cuda::schedule
