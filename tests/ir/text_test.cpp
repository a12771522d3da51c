// The text form: round trips, exact literals, errors with positions, and random damage.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "ir/builder.h"
#include "ir/evaluate.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "tilewright/error.h"

namespace tilewright::ir {
namespace {

using ::testing::HasSubstr;

// Every form of the grammar once.
constexpr std::string_view kEverything =
    R"(func @then(%f: f32, %g: f32, %h: f32, %i: f32, %rate: f32) {
  %0 = mul %f, %h : f32
  %1 = fma %g, %h, %i : f32
  %2 = mul %1, %rate : f32
  yield %0, %2
}

func @mod(%s: f32, %q: i32, %table: ref<f32[?]>) {
  %slope = load %table[%q] : f32
  %0 = mul %s, %slope : f32
  %1 = exp2 %0 approx : f32
  yield %1
}

func @"all of it"(%x: ref<f32[128, ?]> alias 0, %y: ref<bf16[4, 8, 16]> alias 0, %n: i32, %tmp: scratch<f32[8, 4]>, %c: ref<i32>) grid [4, ?] num_warps 8 num_stages 3 {
  %0 = program_id axis 1 : i64
  %1 = num_programs axis 0 : i64
  %2 = extent %x axis 1 : i64
  %zero = constant 0 : i64
  %step = constant 1 : i64
  %half = constant 0.5 : f32[8, 4]
  %low = constant -inf : f32[8, 4]
  %weird = constant nan : f64
  %yes = constant true : bool
  %rows = iota axis 0 : i32[8, 1]
  %columns = iota axis 1 : u16[1, 4]
  %mask = constant false : bool[8, 4]
  %3 = load %x[tile %rows, tile %columns] mask %mask other %half in_bounds : f32[8, 4]
  %4 = load %y[%zero, %0 : 8, %1 : 4 : 2] : bf16[8, 4]
  %5 = cast %4 : f32[8, 4]
  %6 = add %3, %5 : f32[8, 4]
  %7 = lt %6, %half : bool[8, 4]
  %8 = select %7, %6, %low : f32[8, 4]
  %9 = transpose %8 permutation [1, 0] : f32[4, 8]
  %10 = dot %8, %9 precision tf32 : f32[8, 8]
  %11 = dot %8, %8, %10 transpose_b : f32[8, 8]
  %12 = reduce %11 argmax axis 1 : i32[8]
  %13 = scan %11 sum axis 0 reverse exclusive : f32[8, 8]
  %rate = constant 0.25 : f32
  %p, %q = associative_scan @then(%13, %11, %rate) axis 1 reverse : f32[8, 8], f32[8, 8]
  %sorted = sort %11 axis 1 count 3 descending : f32[8, 3]
  %places = argsort %11 axis 0 count 8 : i32[8, 8]
  %14 = slice %13 starts [0, 1] sizes [4, 3] strides [2, 2] : f32[4, 3]
  %15 = concatenate %14, %14 axis 1 : f32[4, 6]
  %16 = reshape %15 : f32[24]
  %17 = expand_dims %16 axis 0 : f32[1, 24]
  %18 = broadcast %17 : f32[2, 24]
  %19 = bitcast %18 : u32[2, 24]
  %20, %21 = for_loop %iv = %zero, %2, %step carry (%acc = %8, %count = %zero) : f32[8, 4], i64 {
    %22 = if_else %yes : f32[8, 4] {
      %23 = exp %acc : f32[8, 4]
      yield %23
    } else {
      yield %acc
    }
    %24 = add %count, %iv : i64
    yield %22, %24
  }
  %25 = while_loop carry (%w = %21) : i64 {
    %26 = gt %w, %zero : bool
    yield %26
  } do (%v) {
    %27 = sub %v, %step : i64
    yield %27
  }
  for_loop %i = %zero, %25, %step {
    yield
  }
  %28 = slice %20 starts [0, 0] sizes [8, 1] strides [1, 1] : f32[8, 1]
  %29 = call @mod(%28, %rows, %x_row) : f32[8, 1]
  %30 = atomic_cas %c[], %n, %n : i32
  store %x[%zero : 8, %0], %16 mask %yes
  debug_print %n, %30 text "n {} \"then\" \\ {}\n"
  debug_check %7 text "finite"
  yield
}
)";

std::string everything() {
    // A Ref of rank 1 for the call, and a store of the right shape.
    std::string text(kEverything);
    text.replace(text.find("%n: i32"), 7, "%n: i32, %x_row: ref<f32[9]>");
    const std::string wrong = "store %x[%zero : 8, %0], %16";
    text.replace(text.find(wrong), wrong.size(), "store %x[%zero : 8, %0 : 4], %20");
    return text;
}

std::string error(const std::string& text) {
    try {
        parse(text);
    } catch (const UserError& e) {
        return e.what();
    }
    return "no error";
}

TEST(Text, EveryFormRoundTrips) {
    const std::string text = everything();
    const Function f = parse(text);
    EXPECT_EQ(print(f), text);
    EXPECT_TRUE(equal(f, parse(print(f))));
    EXPECT_EQ(f.name, "all of it");
    EXPECT_EQ(f.grid, (std::vector<std::int64_t>{4, kDynamic}));
    EXPECT_EQ(f.hints.num_stages, 3);
}

TEST(Text, EqualSeesEveryDifference) {
    const std::string text = everything();
    const Function f = parse(text);
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"0.5", "0.25"},
             {" in_bounds", ""},
             {"num_warps 8", "num_warps 4"},
             {"grid [4", "grid [5"},
             {"precision tf32", "precision tf32x3"},
             {"exp2 %0 approx", "exp2 %0"},
             {" reverse", ""},
             {"alias 0, %n", "alias 1, %n"},
             {"%5 = cast", "%new = exp %half : f32[8, 4]\n  %5 = cast"},
             {"\"finite\"", "\"infinite\""},
             {"add %3, %5", "add %5, %3"}}) {
        std::string changed = text;
        changed.replace(changed.find(from), from.size(), to);
        EXPECT_FALSE(equal(f, parse(changed))) << from;
    }
    // Names do not matter to equality.
    std::string renamed = text;
    for (std::size_t at; (at = renamed.find("%half")) != std::string::npos;) {
        renamed.replace(at, 5, "%h");
    }
    EXPECT_TRUE(equal(f, parse(renamed)));
}

TEST(Text, LocationsAreReadAndNotPrinted) {
    constexpr std::string_view kPlain = R"(func @f(%x: ref<f32[4]>) {
  %0 = constant 0 : i64
  %1 = load %x[%0 : 4] : f32[4]
  store %x[%0 : 4], %1
  yield
}
)";
    std::string text(kPlain);
    text.insert(text.find("  %1"), "  loc \"a \\\"kernel\\\".py\" 12\n");
    const Function function = parse(text);
    EXPECT_EQ(print(function), kPlain);
    const auto& body = function.body.body;
    EXPECT_EQ(body[0].location.file, "");
    EXPECT_EQ(body[1].location.file, "a \"kernel\".py");
    EXPECT_EQ(body[2].location.line, 12);
    text.replace(text.find("%x[%0 : 4], %1"), 14, "%x[%0], %1");
    EXPECT_THAT(error(text), HasSubstr("a \"kernel\".py:12"));
    EXPECT_THAT(error("func @f() { loc 3 }"), HasSubstr("expected a file name"));
}

TEST(Text, HintsBecomeUniqueIdentifiers) {
    Function f;
    f.name = "f";
    Builder b(f);
    for (const char* hint : {"a", "a", "a_1", "9 lives", "", "é"}) {
        f.set_value_name(b.constant({DType::f32, {}}, 1), hint);
    }
    b.yield({});
    const std::string text = print(f);
    EXPECT_THAT(text, HasSubstr("%a_1_1 = "));
    EXPECT_THAT(text, HasSubstr("%_9_lives = "));
    EXPECT_EQ(print(parse(text)), text);
}

TEST(Text, LiteralsAreExact) {
    std::mt19937_64 random(1);
    for (int d = 0; d < kNumDTypes; ++d) {
        const DType dtype = static_cast<DType>(d);
        for (int i = 0; i < 2000; ++i) {
            const std::uint64_t memory = random();
            const std::uint64_t bits = read_element(dtype, &memory);
            Function f;
            Builder b(f);
            Instruction constant;
            constant.op = Op::constant;
            constant.attributes = ConstantAttributes{bits};
            const Type type{dtype, {}};
            b.append(constant, &type);
            b.yield({});
            ASSERT_TRUE(equal(f, parse(print(f)))) << print(f);
        }
    }
}

TEST(Text, ErrorsPointAtTheirPlace) {
    EXPECT_EQ(error(""), "[parse] line 1, column 1: expected `func` but the text ended");
    EXPECT_EQ(error("func @f() {\n  %a = frobnicate : f32\n}"),
              "[parse] line 2, column 8: expected an operation but got `frobnicate`");
    EXPECT_EQ(error("func @f() {\n  %a = neg %b : f32\n}"),
              "[parse] line 2, column 12: expected a value defined above but got %b");
    EXPECT_EQ(error("func @f() {\n  %a = constant 300 : i8\n}"),
              "[parse] line 2, column 17: expected a value of i8 but got `300`");
    EXPECT_THAT(
        error("func @f(%x: ref<f32[4]>) {\n  %i = constant 0 : i64\n"
              "  %a = load %x[%i : 8] : f32[7]\n  yield\n}"),
        HasSubstr("line 3, column 8: expected result 0 of load to be f32[8] but got f32[7]"));
    EXPECT_THAT(
        error("func @f() {\n  %a = constant 1 : f32[2, 3]\n  %b = dot %a, %a : f32[2, 2]\n}"),
        HasSubstr("line 3, column 8: [dot] expected b with 3 rows to match a f32[2, 3]"));
    EXPECT_THAT(error("func @f() {\n  %a = constant 1 : f32\n  %a = neg %a : f32\n}"),
                HasSubstr("line 3, column 3: expected a new name but %a is already defined"));
    EXPECT_THAT(error("func @f() {\n}"), HasSubstr("every block ends in its only yield"));
    EXPECT_THAT(error("func @f() { debug_check text \"open"), HasSubstr("a closing quote"));
    EXPECT_THAT(error("func @f() { # }"), HasSubstr("got character 0x23"));
    EXPECT_THAT(error("func @f() { %r = call @g() : f32 yield }"), HasSubstr("@g"));
}

TEST(Text, DeepNestingIsRefused) {
    std::string text = "func @f() { %c = constant true : bool ";
    for (int i = 0; i < 100000; ++i) text += "if_else %c { ";
    EXPECT_THAT(error(text), HasSubstr("at most 64 nested blocks"));
}

// Damaged text throws UserError or parses; whatever parses, prints and parses again.
TEST(Text, RandomDamageNeverCrashes) {
    const std::string text = everything();
    std::mt19937 random(7);
    const auto below = [&](std::size_t n) { return random() % n; };
    const std::vector<std::string> pieces = {"%0", "%x",   "{",    "}",   "yield", "[",
                                             "]",  ":",    "f32",  "i64", "-1",    "9999999999999",
                                             ",",  "axis", "call", "\"",  "?",     "while_loop"};
    int parsed = 0;
    for (int round = 0; round < 4000; ++round) {
        std::string damaged = text;
        for (std::size_t edit = 0; edit <= below(3); ++edit) {
            const std::size_t at = below(damaged.size());
            switch (below(5)) {
                case 0:
                    damaged[at] = static_cast<char>(below(256));
                    break;
                case 1:
                    damaged.erase(at, 1 + below(20));
                    break;
                case 2:
                    damaged.insert(at, pieces[below(pieces.size())]);
                    break;
                case 3:
                    damaged.insert(at, damaged.substr(below(damaged.size()), below(60)));
                    break;
                default:
                    damaged.resize(at + 1);
                    break;
            }
        }
        try {
            const Function f = parse(damaged);
            ++parsed;
            ASSERT_EQ(print(parse(print(f))), print(f)) << damaged;
        } catch (const UserError&) {
        }
    }
    EXPECT_GT(parsed, 0);
}

TEST(Docs, OpsPageListsEveryOp) {
    std::ifstream file(TW_SOURCE_DIR "/docs/reference/ops.md");
    std::stringstream page;
    page << file.rdbuf();
    std::size_t rows = 0;
    for (std::string line; std::getline(page, line);) rows += line.starts_with("| `");
    EXPECT_EQ(rows, static_cast<std::size_t>(kNumOps));
    const auto expect_row = [&](const std::string& row) {
        EXPECT_NE(page.str().find(row), std::string::npos) << "the page lacks" << row;
    };
    for (int i = 0; i < kNumOps; ++i) {
        const std::string row = fmt::format("\n| `{}` |", name(static_cast<Op>(i)));
        const FunctionInfo* const function = function_info(static_cast<Op>(i));
        if (function == nullptr) {
            expect_row(row);
            continue;
        }
        const bool approx = info(function->op).approx;
        expect_row(fmt::format("{} {} | {} | float | as x | {} |\n", row,
                               function->operands == 2 ? "x, y" : "x", approx ? "approx" : "",
                               function->meaning));
    }
}

}  // namespace
}  // namespace tilewright::ir
