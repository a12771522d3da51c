// One broken function per rule, which the verifier has to report.
#include "ir/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ir/builder.h"
#include "ir/parse.h"
#include "tilewright/error.h"

namespace tilewright::ir {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kGood = R"(
func @mod(%s: f32) {
  %e = exp %s : f32
  yield %e
}
func @kernel(%x: ref<f32[64]>, %t: scratch<f32[8]>, %n: i64) grid [8] {
  %zero = constant 0 : i64
  %one = constant 1 : i64
  %a = load %x[%n : 8] : f32[8]
  %r = for_loop %i = %zero, %n, %one carry (%c = %a) : f32[8] {
    %d = exp %c : f32[8]
    %m = call @mod(%d) : f32[8]
    yield %m
  }
  store %x[%n : 8], %r
  yield
}
)";

using Break = void (*)(Function&);

// The instruction at a position of the kernel's body, and the loop's block.
Instruction& at(Function& f, std::size_t i) {
    return f.body.body.at(i);
}
Block& loop(Function& f) {
    return at(f, 3).blocks.at(0);
}
Function& edit(std::shared_ptr<const Function>& callee) {
    auto copy = std::make_shared<Function>(*callee);
    callee = copy;
    return *copy;
}

const std::map<std::string_view, Break> kBreaks = {
    {"nesting",
     [](Function& f) {
         for (int i = 0; i < 64; ++i) {
             Instruction branch;
             branch.op = Op::if_else;
             branch.blocks.resize(2);
             branch.blocks[0] = std::move(f.body);
             f.body = Block{};
             f.body.body.push_back(std::move(branch));
         }
     }},
    {"handles", [](Function& f) { at(f, 4).operands[1] = Value{1000}; }},
    {"single_definition", [](Function& f) { at(f, 1).results = at(f, 0).results; }},
    {"dominance", [](Function& f) { at(f, 4).operands[2] = loop(f).body[0].result(); }},
    {"terminators", [](Function& f) { loop(f).body.pop_back(); }},
    {"parameters",
     [](Function& f) {
         f.set_type(f.parameters()[2], {DType::i64, {4}});
     }},
    {"refs",
     [](Function& f) {
         f.body.arguments.push_back(f.add_ref({DType::f32, {kDynamic}, Space::scratch, -1}));
     }},
    {"ref_use", [](Function& f) { at(f, 4).operands[2] = f.parameters()[0]; }},
    {"types",
     [](Function& f) {
         f.set_type(at(f, 2).result(), {DType::f32, {9}});
     }},
    {"constants",
     [](Function& f) {
         Instruction constant;
         constant.op = Op::constant;
         constant.attributes = ConstantAttributes{300};
         constant.results = {f.add_value({DType::i8, {}})};
         f.body.body.insert(f.body.body.begin(), std::move(constant));
     }},
    {"approx",
     [](Function& f) {
         loop(f).body[0].op = Op::erf, loop(f).body[0].attributes = MathAttributes{true};
     }},
    {"grid", [](Function& f) { f.grid = {-2}; }},
    {"mods",
     [](Function& f) {
         Function& mod = edit(loop(f).body[1].get<CallAttributes>().callee);
         mod.body.arguments.push_back(mod.add_ref({DType::f32, {8}, Space::scratch, -1}));
         loop(f).body[1].operands.push_back(f.parameters()[1]);
         loop(f).body[1].operands.resize(2);
     }},
    {"callees",
     [](Function& f) {
         Function& mod = edit(loop(f).body[1].get<CallAttributes>().callee);
         mod.body.body.back().operands.clear();
         loop(f).body[1].results.clear();
         loop(f).body[2].operands = loop(f).body[0].results;
     }},
};

TEST(Verify, AcceptsTheUnbrokenFunction) {
    EXPECT_NO_THROW(verify(parse(kGood)));
}

TEST(Verify, EveryRuleCanFail) {
    for (const Rule& rule : rules()) {
        const auto broken = kBreaks.find(rule.name);
        ASSERT_NE(broken, kBreaks.end()) << "no test breaks " << rule.name;
        Function f = parse(kGood);
        broken->second(f);
        try {
            verify(f);
            ADD_FAILURE() << rule.name << " was not broken";
        } catch (const UserError& error) {
            EXPECT_THAT(error.what(), HasSubstr("(" + std::string(rule.name) + ")"));
            EXPECT_THAT(error.what(), HasSubstr(std::string(rule.statement)));
        }
    }
}

TEST(Verify, NamesTheInstructionAndItsOperands) {
    Function f = parse(kGood);
    at(f, 4).operands[2] = loop(f).body[0].result();
    try {
        verify(f);
        FAIL();
    } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("in @kernel"));
        EXPECT_THAT(error.what(), HasSubstr("`store %x[%n : 8], %d`"));
    }
}

}  // namespace
}  // namespace tilewright::ir
