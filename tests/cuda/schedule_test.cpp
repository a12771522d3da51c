// The scheduled form: its text, the result of each pass, refusals, generated code.
#include "cuda/schedule/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "cuda/schedule/layout_text.h"
#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/split_product.h"
#include "tests/cuda/schedule_support.h"
#include "tests/cuda/test_support.h"
#include "tests/support/sources.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::Product;

TEST(Schedule, TextIsReadBackAtEveryLevel) {
    for (const auto& one : all_programs()) {
        SCOPED_TRACE(one.name);
        const ir::Function function = ir::parse(one.text);
        for (int level = 0; level < kNumLevels; ++level) {
            const Program program =
                schedule(function, dense_target(function), static_cast<Level>(level));
            EXPECT_EQ(program.level, static_cast<Level>(level));
            const std::string text = print(program);
            EXPECT_EQ(print(parse(text)), text);
        }
    }
}

TEST(Schedule, TextThatIsNoProgramIsRefusedWithItsPlace) {
    const std::string good = print(program_of(kMatmul));
    const std::pair<std::string, std::string> broken[] = {
        {"schedule @product", "scheme @product"},
        {"level @synchronised", "level @done"},
        {"%panel : i64", "%panel : i65"},
        {"commit_stores", "commit_everything"},
        {"yield %", "yield %un"},
        {"rows 128 columns 64", "rows columns 64"}};
    for (const auto& [from, to] : broken) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        try {
            parse(text);
            ADD_FAILURE() << to << " was taken";
        } catch (const UserError& error) {
            EXPECT_THAT(error.what(), HasSubstr("line ")) << to;
            EXPECT_THAT(error.what(), HasSubstr("expected ")) << to;
        }
    }
}

// ---- One pass after the other.

TEST(Schedule, LoweringKeepsTheOperationsOfTheTileIr) {
    const std::string text = print(program_of(kMatmul, Level::lowered));
    EXPECT_THAT(text, HasSubstr("of @x index [128, 64]"));
    EXPECT_THAT(text, HasSubstr("= dot %"));
    EXPECT_THAT(text, HasSubstr("extents [2048, 4096] vectors tensor"));
}

TEST(Schedule, DotsBecomeProductsThatDoNotAddInTheFirstIteration) {
    const std::string text = print(program_of(kMatmul, Level::selected));
    EXPECT_THAT(text, HasSubstr("groups [2, 1]"));
    EXPECT_THAT(text, HasSubstr("= zeros : f32[128, 256]"));
    EXPECT_THAT(text, HasSubstr("conditional : f32[128, 256]"));
    EXPECT_THAT(text, Not(HasSubstr("dot")));
}

TEST(Schedule, LayoutsSpreadFromAccumulators) {
    for (const auto& groups : {std::vector<int>{2, 1}, {1, 2}, {1, 1}}) {
        const ir::Shape shape{64 * groups[0], 128 * groups[1]};
        const Layout layout = accumulator_layout(shape, groups);
        // PTX ISA, register fragments of wgmma: register 4 j + 2 r + e of a thread.
        for (int warp = 0; warp < 4 * groups[0] * groups[1]; ++warp) {
            for (int lane = 0; lane < 32; lane += 5) {
                const Coordinates thread = layout.thread_coordinates(lane, warp);
                const int group = warp / 4;
                for (int index = 0; index < layout.registers(); ++index) {
                    const Coordinates at = layout.register_coordinates(index);
                    EXPECT_EQ(thread[0] + at[0], group / groups[1] * 64 + warp % 4 * 16 + lane / 4 +
                                                     index / 2 % 2 * 8);
                    EXPECT_EQ(thread[1] + at[1],
                              group % groups[1] * 128 + index / 4 * 8 + lane % 4 * 2 + index % 2);
                }
            }
        }
    }
    const std::string text = print(program_of(kMatmul, Level::laid_out));
    EXPECT_THAT(text, HasSubstr("bf16[128, 256] @l0"));
}

TEST(Schedule, OperandsComeThroughAChannel) {
    const std::string text = print(program_of(kMatmul, Level::staged));
    EXPECT_THAT(text, HasSubstr("rows 128 columns 64 slots 4"));
    EXPECT_THAT(text, HasSubstr("rows 64 columns 256 slots 4"));
    EXPECT_THAT(text, HasSubstr("bytes 49152 empty_arrivals 8"));
    EXPECT_THAT(text, Not(HasSubstr("= load")));
}

TEST(Schedule, SlotsFollowTheHintAndTheRoom) {
    ir::Function function = kernel_of(kMatmul);
    function.hints.num_stages = 2;
    EXPECT_THAT(print(schedule(function, dense_target(function), Level::staged)),
                HasSubstr("slots 2 bytes 49152"));
    function.hints.num_stages = 9;
    EXPECT_THAT(refusal(function, dense_target(function)),
                HasSubstr("9 stages are asked for, and it has at most 8"));
    Target small = dense_target(kernel_of(kMatmul));
    small.choice = Choice{.tile = {128, 64}};
    EXPECT_THAT(print(schedule(kernel_of(kMatmul), small, Level::staged)),
                HasSubstr("slots 8 bytes 24576"));
}

TEST(Schedule, RolesShareNothingButChannels) {
    const Program program = program_of(kMatmul, Level::specialised);
    ASSERT_EQ(program.roles.size(), 2U);
    const Block& producer = program.body.body[0].blocks[0];
    each_instruction(producer, [](const Instruction& made) {
        EXPECT_FALSE(made.is(Op::wgmma) || made.is(Op::await) || made.is(ir::Op::store));
    });
    const Block& consumer = program.body.body[1].blocks[0];
    each_instruction(consumer, [](const Instruction& made) {
        EXPECT_FALSE(made.is(Op::acquire) || made.is(Op::publish) || made.is(Op::tma_load));
    });
    EXPECT_EQ(program.order.rows, std::vector<int>{2});
    EXPECT_EQ(program.order.columns, std::vector<int>{3});
}

TEST(Schedule, AProductStaysInFlightWhereThereAreSlotsForIt) {
    const std::string text = print(program_of(kMatmul, Level::waiting));
    EXPECT_THAT(text, HasSubstr("pending 1"));
    EXPECT_THAT(text, HasSubstr("pending 0"));
    ir::Function function = kernel_of(kMatmul);
    function.hints.num_stages = 2;
    EXPECT_THAT(print(schedule(function, dense_target(function), Level::waiting)),
                Not(HasSubstr("pending 1")));
}

TEST(Schedule, EpiloguesAreSplitIntoPanels) {
    const std::string text = print(program_of(kMatmul, Level::split));
    EXPECT_THAT(text, HasSubstr("count 4 unrolled { (%panel : i64, "));
    EXPECT_THAT(text, HasSubstr("store_shared %panel"));
    EXPECT_THAT(text, Not(HasSubstr("= cast")));  // the store rounds
    Product f32 = kMatmul;
    f32.out = "f32";
    const std::string direct = print(program_of(f32, Level::split));
    EXPECT_THAT(direct, HasSubstr("of @z index [128, 64]"));
    EXPECT_THAT(direct, Not(HasSubstr("tma_store")));
}

TEST(Schedule, PlacesAndBarriersComeLast) {
    const Program placed = program_of(kMatmul, Level::placed);
    EXPECT_EQ(placed.shared_bytes, 4 * 49152 + 2 * 16384 + 64);
    EXPECT_THAT(print(placed), Not(HasSubstr("fence_async")));
    const std::string text = print(program_of(kMatmul));
    EXPECT_LT(text.find("fence_async"), text.rfind("group_sync"));
    EXPECT_LT(text.rfind("group_sync"), text.find("tma_store"));
    EXPECT_LT(text.find("wait_stores"), text.find("group_sync"));
}

TEST(Schedule, RegistersOfViewsAreSumsOfBits) {
    const Layout tile = accumulator_layout({128, 64}, {2, 1});
    EXPECT_EQ(register_coordinate(tile, 0, "i"), "(i / 2 % 2 * 8)");
    EXPECT_EQ(register_coordinate(tile, 1, "i"), "(i % 2 + i / 4 * 8)");
    EXPECT_EQ(source_register(tile, tile.without(0), 0, "i"), "(i % 2 + i / 4 * 2)");
    EXPECT_EQ(source_register(tile, tile.without(1), 1, "i"), "(i / 2 % 2)");
}

TEST(Schedule, FragmentsAreReadWithoutBankConflicts) {
    const Program program = program_of(kTf32, Level::laid_out);
    std::optional<Layout> layout;
    each_instruction(program.body, [&](const Instruction& made) {
        if (made.is(Op::read_fragments)) layout = program.type(made.result()).layout;
    });
    ASSERT_TRUE(layout.has_value());
    for (int warp = 0; warp < 8; ++warp) {
        for (int first = 0; first < 32; first += 16) {  // threads that read 8 bytes at once
            std::set<std::int64_t> banks;
            for (int lane = first; lane < first + 16; ++lane) {
                const Coordinates at = layout->thread_coordinates(lane, warp);
                const std::int64_t column = at[0] % 32, row = at[1];
                EXPECT_EQ(column % 2, 0);
                banks.insert((column / 4 ^ row % 8) * 4 + column % 4);
            }
            EXPECT_EQ(banks.size(), 16u) << warp << " " << first;
        }
    }
}

TEST(Schedule, ThreadsCopyWhatTmaCannotAddress) {
    for (const int bytes : {4, 8}) {
        const std::string text = print(copied_program(bytes));
        EXPECT_THAT(text, HasSubstr(fmt::format("bytes {} to @x_tile0", bytes)));
        EXPECT_THAT(text, Not(HasSubstr("tma_load")));
    }
    // Columns with unaligned starts are left to mma.sync.
    std::string shifted = testing_support::product(kMatmul).text;
    for (const std::string from = "%y[%o : 4096, %j : 256]"; shifted.find(from) != shifted.npos;) {
        shifted.replace(shifted.find(from), from.size(), "%y[%o : 4096, %pj : 256]");
    }
    const ir::Function function = ir::parse(shifted);
    Target target = dense_target(function);
    target.facts[1] = {false, false, false, 8};
    EXPECT_THAT(refusal(function, target), HasSubstr("TMA cannot load `y`"));
}

// ---- What is refused.

TEST(Schedule, RefusesWithReasons) {
    const auto changed = [](Product product, const std::string& from, const std::string& to) {
        std::string text = testing_support::product(product).text;
        const std::size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        return ir::parse(text.replace(at, from.size(), to));
    };
    Product f32 = kMatmul;
    f32.in = f32.out = "f32";
    Product across = f32;
    across.transpose_a = true;
    Product bytes = kMatmul;
    bytes.in = "i8", bytes.out = "i32";
    Product few = kMatmul;
    few.bm = 32;
    Product narrow = kMatmul;
    narrow.bm = 128, narrow.bn = 32;
    Product computed = kMatmul;
    const std::vector<std::pair<ir::Function, std::string>> cases = {
        {changed(f32, " precision tf32", ""), "operands of f32 and not the precision tf32"},
        {kernel_of(across), "of a dot of f32 is not the last one of either operand's array"},
        {kernel_of(bytes), "of a dot of i8 is not the last one of the right operand's array"},
        {changed(few, "grid [64, ", "grid [?, "), "a dot has 32 rows"},
        {changed(narrow, "grid [16, 128]", "grid [16, ?]"), "a dot has 32 columns"},
        {changed(computed, "%d = dot %a, %b", "%n = neg %a : bf16[256, 4096]\n%d = dot %n, %b"),
         "an operand of a dot is computed"},
        {changed(kMatmul, "%q = cast %d", "%e = reduce %d sum axis 1 : f32[256]\n%q = cast %d"),
         ""},
        {changed(kMatmul, "%o : 4096, %j : 256]", "%o : 4096, %j : 256 : 2]"), "has a stride"},
        {ir::parse("func @copy(%x: ref<f32[4]>, %z: ref<f32[4]>) grid [] {\n%o = constant 0 : "
                   "i64\n%a = load %x[%o : 4] : f32[4]\nstore %z[%o : 4], %a\nyield\n}"),
         "it has no dot"},
    };
    for (const auto& [function, reason] : cases) {
        EXPECT_THAT(refusal(function, dense_target(function)), HasSubstr(reason));
    }
    const ir::Function good = kernel_of(kMatmul);
    EXPECT_EQ(refusal(good, dense_target(good)), "");
    Target strided = dense_target(good);
    strided.facts[1] = {};
    EXPECT_THAT(refusal(good, strided), HasSubstr("TMA cannot load `y`"));
    Target older = dense_target(good);
    older.arch = "sm_80";
    EXPECT_THAT(refusal(good, older), HasSubstr("sm_90a only"));
    EXPECT_EQ(generate_scheduled(good, older), std::nullopt);
}

TEST(Schedule, LoopsOverSlicesAreCutAnew) {
    const auto looped = [](int slice) {
        return ir::parse(fmt::format(R"(
func @looped(%x: ref<bf16[512, 16384]>, %y: ref<bf16[16384, 512]>, %z: ref<bf16[512, 512]>) grid [4, 2] {{
  %i = program_id axis 0 : i64
  %j = program_id axis 1 : i64
  %bm = constant 128 : i64
  %bn = constant 256 : i64
  %r = mul %i, %bm : i64
  %c = mul %j, %bn : i64
  %o = constant 0 : i64
  %end = constant 16384 : i64
  %step = constant {0} : i64
  %init = constant 0 : f32[128, 256]
  %d = for_loop %k = %o, %end, %step carry (%acc = %init) : f32[128, 256] {{
    %a = load %x[%r : 128, %k : {0}] : bf16[128, {0}]
    %b = load %y[%k : {0}, %c : 256] : bf16[{0}, 256]
    %n = dot %a, %b, %acc : f32[128, 256]
    yield %n
  }}
  %q = cast %d : bf16[128, 256]
  store %z[%r : 128, %c : 256], %q
  yield
}})",
                                     slice));
    };
    const auto text = [](const ir::Function& function) {
        return print(schedule(function, dense_target(function)));
    };
    const std::string expected = text(looped(64));
    for (const int slice : {32, 128, 512}) {
        EXPECT_EQ(text(looped(slice)), expected) << slice;
        EXPECT_GT(parts_of_product(looped(slice), "sm_90a"), 1) << slice;
    }
}

TEST(Schedule, TilesFillTheMultiprocessors) {
    const auto tile = [](int m, int n, int k) {
        const Program program = program_of({"p", m, n, k, 256, 256}, Level::selected);
        return print(program);
    };
    EXPECT_THAT(tile(2048, 2048, 4096), HasSubstr("zeros : f32[128, 256]"));  // 128 tiles
    EXPECT_THAT(tile(2048, 2048, 512), HasSubstr("zeros : f32[128, 128]"));   // stores count
    EXPECT_THAT(tile(4096, 4096, 4096), HasSubstr("zeros : f32[128, 256]"));
    EXPECT_THAT(tile(1504, 2000, 3008), HasSubstr("zeros : f32[128, 192]"));  // 132
    EXPECT_THAT(tile(4112, 4112, 4112), HasSubstr("zeros : f32[256, 192]"));  // 374
    EXPECT_THAT(tile(8192, 8192, 2048), HasSubstr("turns 2"));
    EXPECT_THAT(tile(4096, 4096, 4096), Not(HasSubstr("turns")));
    EXPECT_THAT(tile(1536, 1280, 1024), HasSubstr("zeros : f32[128, 128]"));  // 120
    EXPECT_THAT(tile(1024, 1024, 1024), HasSubstr("zeros : f32[64, 128]"));   // 128
}

// ---- What is printed.

void expect_golden(const std::string& file, const std::string& text) {
    const std::filesystem::path path =
        std::filesystem::path(TW_SOURCE_FOLDER) / "tests/cuda/golden" / file;
    TW_REQUIRE_SOURCES();
    if (std::getenv("TILEWRIGHT_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
    std::ifstream from(path);
    const std::string golden(std::istreambuf_iterator<char>(from), {});
    EXPECT_EQ(text, golden) << "TILEWRIGHT_UPDATE_GOLDEN=1 writes " << path << " anew";
}

/// The program as text and as CUDA C++.
void expect_golden_texts(const std::string& name, const Program& program) {
    expect_golden(name + ".schedule", print(program));
    expect_golden(name + ".cu", print_cuda(program).source);
}

TEST(Schedule, GoldenTextOfAMatmul) {
    expect_golden_texts("matmul", program_of(kMatmul));
}

TEST(Schedule, GoldenTextOfAClusterOfFour) {
    const Program program =
        program_of({"clusters", 4104, 4104, 4104, 256, 256}, {.tile = {128, 256, Pairs::both}});
    EXPECT_EQ(program.cluster(), 4);
    expect_golden_texts("clusters", program);
}

TEST(Schedule, GoldenTextOfTurns) {
    expect_golden_texts("turns", program_of(kMatmul, kAlternating));
}

TEST(Schedule, GoldenTextOfAProductThatIsSwapped) {
    expect_golden_texts("tf32", program_of(kTf32));
}

TEST(Schedule, GoldenTextOfAttention) {
    expect_golden_texts("attention", attention_of());
}

TEST(Schedule, GoldenTextOfGradients) {
    expect_golden_texts("gradients", gradients_of());
}

TEST(Schedule, ProgramsCompileWithoutSpillsOrWarnings) {
    TW_REQUIRE_NVRTC();
    std::vector<CompileRequest> requests;
    for (const auto& one : all_programs()) {
        const ir::Function function = ir::parse(one.text);
        const auto generated = generate_scheduled(function, dense_target(function));
        ASSERT_TRUE(generated.has_value()) << one.name;
        requests.push_back(compile_request(*generated, "sm_90a"));
        requests.back().spill_limit_bytes = 0;
    }
    for (const int bytes : {4, 8}) {
        requests.push_back(compile_request(print_cuda(copied_program(bytes)), "sm_90a"));
        requests.back().spill_limit_bytes = 0;
    }
    for (const bool adds : {false, true}) {
        requests.push_back(
            compile_request(print_cuda(gradients_of(Level::synchronised, adds)), "sm_90a"));
        requests.back().spill_limit_bytes = 0;
    }
    const ir::Function matmul = kernel_of(kMatmul);
    requests.push_back(
        compile_request(*generate_scheduled(matmul, dense_target(matmul)), "sm_90a"));
    requests.back().spill_limit_bytes = 0;
    testing_support::expect_to_compile(requests);
}

}  // namespace
}  // namespace tilewright::cuda::schedule
