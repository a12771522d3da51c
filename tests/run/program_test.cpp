// Programs from IR text: running, checks of the arrays, source lines in error texts.
#include "support.h"

namespace tilewright {
namespace {

namespace tw = tilewright;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTwice = R"(
func @twice(%x: ref<f32[8]>, %y: ref<f32[8]>) grid [2] {
  %four = constant 4 : i64
  %p = program_id axis 0 : i64
  %start = mul %p, %four : i64
  %a = load %x[%start : 4] : f32[4]
  %b = add %a, %a : f32[4]
  store %y[%start : 4], %b
  yield
})";

TEST(Program, RunsOnArraysInParameterOrder) {
    const Program program{kTwice};
    const Tensor x = Tensor::arange(f32, 8), y = Tensor::zeros(f32, {8});
    program.run(std::vector{x, y});
    EXPECT_THAT(y.to_vector<int>(), ElementsAre(0, 2, 4, 6, 8, 10, 12, 14));
    EXPECT_EQ(program.name(), "twice");
    ASSERT_EQ(program.parameters().size(), 2U);
    EXPECT_FALSE(program.parameters()[0].written);
    EXPECT_TRUE(program.parameters()[1].written);
}

TEST(Program, RunsWhatACallPrints) {
    auto add = tw::kernel("add", [](Ref x, Ref y, Ref z) { z.store(x.load() + y.load()); });
    const Tensor x = ramp({3, 5});
    const tw::Call call = tw::call(add, {.out_type = {{f32, {3, 5}}}});
    const Tensor z = Tensor::empty(f32, {3, 5});
    Program(call.ir({x, x})).run(std::vector{x, x, z});
    EXPECT_EQ(z.to_vector<float>(), call(x, x).to_vector<float>());
}

TEST(Program, RefusesArraysThatDoNotFit) {
    const Program program{kTwice};
    const Tensor x = Tensor::arange(f32, 8);
    EXPECT_THAT(error_of([&] { program.run(std::vector{x}); }),
                HasSubstr("[twice] expected 2 arrays but got 1"));
    EXPECT_THAT(error_of([&] {
                    program.run(std::vector{x, Tensor::zeros(f32, {9})});
                }),
                HasSubstr("expected `y` to be f32[8] but got f32[9]"));
    EXPECT_THAT(error_of([&] {
                    program.run(std::vector{x, Tensor::zeros(i32, {8})});
                }),
                HasSubstr("expected `y` to be f32[8] but got i32[8]"));
    EXPECT_THAT(error_of([&] {
                    program.run(std::vector{x, x});
                }),
                HasSubstr("expected `y` apart from `x`"));
    EXPECT_THAT(error_of([&] {
                    program.run(std::vector{x, Tensor::zeros(f32, {1}).broadcast_to({8})});
                }),
                HasSubstr("[twice] expected `y` to have an element for each index"));
}

TEST(Program, RunsOverABatch) {
    const std::string text = batched_ir(kTwice, {true, true}, 3);
    const Tensor x = Tensor::arange(f32, 24).reshape({3, 8}), y = Tensor::zeros(f32, {3, 8});
    Program(text).run(std::vector{x, y});
    for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(y.get({i / 8, i % 8}), 2.0 * i);

    // One x for the whole batch, and a batch of batches.
    const std::string twice = batched_ir(batched_ir(kTwice, {false, true}, 2), {true, true}, 3);
    const Tensor z = Tensor::zeros(f32, {3, 2, 8});
    Program(twice).run(std::vector{x, z});
    for (std::int64_t i = 0; i < 48; ++i) {
        EXPECT_EQ(z.get({i / 16, i / 8 % 2, i % 8}), 2.0 * (i / 16 * 8 + i % 8));
    }
}

TEST(Program, BatchesMemoryThatIsSharedAlike) {
    constexpr const char* kInPlace = R"(
func @inc(%x: ref<f32[4]> alias 0, %y: ref<f32[4]> alias 0) {
  %zero = constant 0 : i64
  %a = load %x[%zero : 4] : f32[4]
  %b = add %a, %a : f32[4]
  store %y[%zero : 4], %b
  yield
})";
    EXPECT_THAT(error_of([&] {
                    batched_ir(kInPlace, {true, false}, 2);
                }),
                HasSubstr("to be batched alike"));
    EXPECT_THAT(error_of([&] { batched_ir(kInPlace, {true}, 2); }),
                HasSubstr("a flag for each of 2 arrays of `inc` but got 1"));
    const Tensor x = Tensor::arange(f32, 8).reshape({2, 4});
    Program(batched_ir(kInPlace, {true, true}, 2)).run(std::vector{x, x});
    EXPECT_EQ(x.get({1, 3}), 14.0);
}

TEST(Program, RefusesScalarsAndFreeGrids) {
    EXPECT_THAT(error_of([] { Program{"func @f(%n: i32) { yield }"}; }),
                HasSubstr("expected Refs as parameters of `f` but got `n`"));
    EXPECT_THAT(error_of([] { Program{"func @f(%x: ref<i32>) grid [?] { yield }"}; }),
                HasSubstr("expected a grid of static extents"));
}

TEST(Program, CheckedModeNamesTheSourceLine) {
    const Program program(R"(
func @shift(%x: ref<f32[4]>, %y: ref<f32[4]>) {
  %one = constant 1 : i64
  %zero = constant 0 : i64
  loc "kernel.py" 7
  %a = load %x[%one : 4] : f32[4]
  loc "kernel.py" 8
  store %y[%zero : 4], %a
  yield
})",
                          {.checked = true, .undefined = {false, true}});
    const std::string error = error_of([&] {
        program.run(std::vector{Tensor::arange(f32, 4), Tensor::zeros(f32, {4})});
    });
    EXPECT_THAT(error, HasSubstr("kernel.py:8"));
    EXPECT_THAT(error, HasSubstr("kernel.py:7"));
}

TEST(ProgramText, OtherFormsOfAProgram) {
    EXPECT_THAT(program_text(kTwice, ProgramForm::bytecode), HasSubstr("program twice"));
    EXPECT_THAT(program_text(kTwice, ProgramForm::cuda, "sm_90a"), HasSubstr("kernel_twice"));
    EXPECT_THAT(error_of([] { program_text(kTwice, ProgramForm::cuda, "sm_12"); }),
                HasSubstr("sm_12"));
    EXPECT_THAT(error_of([] { program_text("func @", ProgramForm::bytecode); }), HasSubstr("1"));
}

TEST(ProgramCost, CountsOverTheGrid) {
    const ProgramCost cost = program_cost(kTwice);
    EXPECT_TRUE(cost.exact);
    EXPECT_EQ(cost.flops, 8);
    EXPECT_EQ(cost.bytes_read, 32);
    EXPECT_EQ(cost.bytes_written, 32);
    EXPECT_EQ(cost.array_bytes, 64);
    EXPECT_EQ(cost.transcendentals, 0);
}

TEST(ProgramCost, LanesOutsideOfTheArrayAreNotCounted) {
    // Blocks of 4 over an array of 10: the last one has two lanes in bounds.
    auto copy = tw::kernel("copy", [](Ref x, Ref z) { z.store(tw::exp(x.load())); });
    const tw::BlockSpec block{{4}, [](auto i) { return tw::block(i); }};
    const tw::Call call =
        tw::call(copy, {.grid = {3}, .in = {block}, .out = {block}, .out_type = {{f32, {10}}}});
    const ProgramCost cost = program_cost(call.ir({ramp({10})}));
    EXPECT_TRUE(cost.exact);
    EXPECT_EQ(cost.bytes_read, 40);
    EXPECT_EQ(cost.bytes_written, 40);
    EXPECT_EQ(cost.transcendentals, 12);
}

}  // namespace
}  // namespace tilewright
