// Programs in the scheduled form, for its tests.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/schedule/insert_barriers.h"
#include "cuda/schedule/place_shared.h"
#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "tests/run/chained_programs.h"
#include "tests/run/scheduled_programs.h"

namespace tilewright::cuda::schedule {

inline Target dense_target(const ir::Function& function) {
    Target target = target_of("sm_90a");
    for (ir::Value parameter : function.parameters()) {
        if (function.is_ref(parameter)) target.facts.push_back({true, true, true});
    }
    return target;
}

inline ir::Function kernel_of(const testing_support::Product& options) {
    return ir::parse(testing_support::product(options).text);
}

inline Program program_of(const testing_support::Product& options,
                          Level up_to = Level::synchronised) {
    const ir::Function function = kernel_of(options);
    return schedule(function, dense_target(function), up_to);
}

/// The same in tiles of this choice.
inline Program program_of(const testing_support::Product& options, const Choice& choice,
                          Level up_to = Level::synchronised) {
    const ir::Function function = kernel_of(options);
    Target target = dense_target(function);
    target.choice = choice;
    return schedule(function, target, up_to);
}

/// Tiles of 128 x 192, of which two warpgroups have one each, alternately.
inline const Choice kAlternating{.tile = {128, 192, Pairs::none, true}};

/// Enough programs of 128 x 256 for every multiprocessor.
inline const testing_support::Product kMatmul{"matmul", 2048, 4096, 4096, 256, 256};

/// A product of tf32 that is computed as its transpose, in tiles of 256 x 128.
inline const testing_support::Product kTf32{"tf32", 4096, 4096, 4096, 256, 256, "f32", "f32"};

inline std::string refusal(const ir::Function& function, const Target& target) {
    try {
        schedule(function, target);
    } catch (const Refused& refused) {
        return refused.what();
    }
    return "";
}

/// The program whose operands are copied by threads in pieces of this many bytes.
inline Program copied_program(int bytes, Level up_to = Level::synchronised) {
    const ir::Function function = kernel_of(kMatmul);
    Target target = dense_target(function);
    for (RefFacts& facts : target.facts) {
        facts = {false, false, false, bytes};
    }
    return schedule(function, target, up_to);
}

/// All programs: products and attention.
inline std::vector<testing_support::CudaProgram> all_programs() {
    std::vector<testing_support::CudaProgram> all = testing_support::scheduled_programs();
    for (auto& one : testing_support::chained_programs()) all.push_back(std::move(one));
    return all;
}

/// Causal attention of 16 heads of 4096 x 128.
inline Program attention_of(Level up_to = Level::synchronised) {
    const ir::Function function = ir::parse(
        testing_support::attention({"attention", 16, 4096, 4096, 128, 128, 128, true}).text);
    return schedule(function, dense_target(function), up_to);
}

/// A program without roles at level `split`, whose text is this after the head.
inline Program program_without_roles(const std::string& text, const std::string& grid = "[]") {
    return parse("schedule @p arch @sm_80 level @split grid " + grid +
                 " groups [] rows [] columns [] order 8 stages 0 shared 0 {\n" + text + "}");
}

/// The CUDA text of such a program after the passes that are left; no rule is broken on the way.
inline ThreadText text_after_passes(Program program) {
    place_shared(program);
    EXPECT_EQ(broken_rule(program), std::nullopt);
    insert_barriers(program);
    EXPECT_EQ(broken_rule(program), std::nullopt);
    return print_threads(program);
}

/// A change to a program's text, and the rule that it breaks.
struct Breach {
    const char* rule;
    Level level;
    const char *from, *to;
};

/// Expects the text to break the breach's rule, and no rule before it.
inline void expect_broken(const std::string& text, const Breach& breach) {
    const auto broken = broken_rule(parse(text));
    ASSERT_TRUE(broken.has_value()) << text;
    EXPECT_THAT(*broken, ::testing::StartsWith(std::string(breach.rule) + ": ")) << text;
}

/// Replaces the first place of the breach in a text.
inline void apply(const Breach& breach, std::string& text) {
    const std::size_t at = text.find(breach.from);
    ASSERT_NE(at, std::string::npos) << text;
    text.replace(at, std::string(breach.from).size(), breach.to);
}

/// Expects that each breach breaks its rule in the text of `program_at(level)`, which `change`
/// edits.
template <typename Breaches, typename ProgramAt, typename Change>
void expect_all_broken(const Breaches& breaches, ProgramAt&& program_at, Change&& change) {
    for (const Breach& breach : breaches) {
        SCOPED_TRACE(fmt::format("{}: {} -> {}", breach.rule, breach.from, breach.to));
        const Program program = program_at(breach.level);
        ASSERT_EQ(broken_rule(program), std::nullopt);
        std::string text = print(program);
        ASSERT_EQ(print(parse(text)), text);
        change(breach, text);
        expect_broken(text, breach);
    }
}

/// Four products in turn, of 4000 queries and 4096 keys of 128.
inline Program gradients_of(Level up_to = Level::synchronised, bool adds = false) {
    const ir::Function function =
        ir::parse(testing_support::gradients_of_keys(4000, 4096, 128, adds).text);
    return schedule(function, dense_target(function), up_to);
}

}  // namespace tilewright::cuda::schedule
