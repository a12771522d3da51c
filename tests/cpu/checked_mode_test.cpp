// The checked mode: the text of every violation, and correct programs, which it accepts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/interpreter.h"
#include "tests/cpu/kernel_fixture.h"
#include "tilewright/error.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Reduction;
using ir::Value;
using testing::Each;
using testing::ElementsAre;

/// The text of the first violation; "clean" if there is none.
std::string check(const ir::Function& kernel, const ir::Arguments& call,
                  const CheckOptions& options = {}) {
    try {
        interpret_checked(kernel, call, options);
    } catch (const UserError& error) {
        return error.what();
    }
    return "clean";
}

CheckOptions with_outputs(std::vector<bool> outputs) {
    CheckOptions options;
    options.outputs = std::move(outputs);
    return options;
}

Value filled(Kernel& k, ir::Shape shape, double value) {
    return k.b.constant({DType::f32, shape}, value);
}

// ---- Bounds.

TEST(CheckedMode, NamesTheLoadWhoseOutsideLaneIsStored) {
    Kernel k("shift", {2});
    const Value x = k.ref("x", DType::f32, {6}), y = k.ref("y", DType::f32, {8});
    const Value start = k.b.binary(Op::mul, k.b.program_id(0), k.index(4));
    k.line(7);
    const Value tile = k.load(x, {IndexOperand::slice(start, 4)});
    k.line(8);
    k.store(y, {IndexOperand::slice(start, 4)}, k.b.unary(Op::exp, tile));
    Array<float> in(std::vector<float>(6)), out(std::vector<float>(8));
    const ir::Arguments call = arguments({in.argument(), out.argument()}, {2});
    EXPECT_EQ(
        check(k.done(), call),
        "[interpret_checked] kernel shift, program (1): expected a defined value in the store "
        "to y[6] at kernel.cpp:8 but got one made from x[6] outside its extents [6], read by "
        "the load at kernel.cpp:7 without `other`");
    CheckOptions no_bounds;
    no_bounds.bounds = false;
    EXPECT_EQ(check(k.function, call, no_bounds), "clean");
}

TEST(CheckedMode, NamesTheLaneAndNotOnlyTheLoad) {
    Kernel k("pick");
    const Value x = k.ref("x", DType::i32, {2, 3}), y = k.ref("y", DType::i32, {1});
    const Value tile = k.load(x, {k.slice(0, 2), k.slice(-2, 6)});
    k.store(y, {k.slice(0, 1)}, k.b.reshape(k.b.slice(tile, {{1, 5}, {1, 1}, {1, 1}}), {1}));
    Array<std::int32_t> in(std::vector<std::int32_t>(6), {2, 3}), out({0});
    EXPECT_EQ(
        check(k.done(), arguments({in.argument(), out.argument()})),
        "[interpret_checked] kernel pick, program (): expected a defined value in the store to "
        "y[0] but got one made from x[1, 3] outside its extents [2, 3], read by the load "
        "without `other`");
}

TEST(CheckedMode, NamesAccessesThatClaimToStayInside) {
    const auto run = [](bool load_leaves) {
        Kernel k("claim");
        const Value x = k.ref("x", DType::f32, {6}), y = k.ref("y", DType::f32, {6});
        k.line(7);
        const Value tile = k.load(x, {k.slice(load_leaves ? 4 : 2, 4)});
        k.store(y, {k.slice(3, 4)}, tile);
        k.done();
        for (auto& instruction : k.function.body.body) {
            if (auto* access = std::get_if<ir::AccessAttributes>(&instruction.attributes)) {
                access->in_bounds = true;
            }
        }
        Array<float> in(std::vector<float>(6)), out(std::vector<float>(6));
        return check(k.function, arguments({in.argument(), out.argument()}));
    };
    EXPECT_EQ(run(true),
              "[interpret_checked] kernel claim, program (): expected the load at kernel.cpp:7, "
              "which is marked in_bounds, to stay inside x with extents [6] but got x[6]");
    EXPECT_EQ(run(false),
              "[interpret_checked] kernel claim, program (): expected the store at kernel.cpp:7, "
              "which is marked in_bounds, to stay inside y with extents [6] but got y[6]");
}

/// sum(x[0:8]) of an array of 6 into y[0], the load with or without `other`.
std::string reduced(bool masked, bool with_other) {
    Kernel k("sum");
    const Value x = k.ref("x", DType::f32, {6}), y = k.ref("y", DType::f32, {1});
    const Value lane = k.b.iota({DType::i64, {8}}, 0);
    const Value mask =
        masked ? k.b.binary(Op::lt, lane, k.b.broadcast(k.b.extent(x, 0), {8})) : Value{};
    const Value other = with_other ? filled(k, {}, 0) : Value{};
    const Value tile = k.load(x, {k.slice(0, 8)}, mask, other);
    k.store(y, {k.at(0)}, k.b.reduce(Reduction::sum, tile, 0));
    Array<float> in({1, 2, 3, 4, 5, 6}), out({0});
    return check(k.done(), arguments({in.argument(), out.argument()}));
}

TEST(CheckedMode, OutsideLanesReachReductions) {
    EXPECT_THAT(reduced(false, false), testing::HasSubstr("x[6] outside its extents [6]"));
    EXPECT_EQ(reduced(true, false), "clean");
    EXPECT_EQ(reduced(false, true), "clean");
}

TEST(CheckedMode, OutsideLanesReachDots) {
    const auto run = [](bool depth_outside) {
        Kernel k("matmul");
        const Value x = k.ref("x", DType::f32, {2, 3}), y = k.ref("y", DType::f32, {3, 2});
        const Value z = k.ref("z", DType::f32, {2, 2});
        const std::int64_t m = depth_outside ? 2 : 4, depth = depth_outside ? 4 : 3;
        const Value a = k.load(x, {k.slice(0, m), k.slice(0, depth)});
        const Value b = k.load(y, {k.slice(0, depth), k.slice(0, 2)});
        k.store(z, {k.slice(0, m), k.slice(0, 2)}, k.b.dot(a, b));
        Array<float> in(std::vector<float>(6, 1), {2, 3}), other(std::vector<float>(6, 1), {3, 2});
        Array<float> out(std::vector<float>(4), {2, 2});
        return check(k.done(), arguments({in.argument(), other.argument(), out.argument()}));
    };
    EXPECT_THAT(run(true), testing::HasSubstr("x[0, 3] outside its extents [2, 3]"));
    EXPECT_EQ(run(false), "clean");  // padding rows of x only reach padding rows of z
}

TEST(CheckedMode, OutsideValuesReachBranchesLoopsAndIndices) {
    const auto run = [](const std::function<void(Kernel&, Value)>& use) {
        Kernel k("decide");
        const Value x = k.ref("x", DType::i64, {2});
        const Value y = k.ref("y", DType::i64, {4});
        static_cast<void>(y);
        k.line(1);
        const Value outside = k.load(x, {k.at(2)});
        k.line(2);
        use(k, outside);
        Array<std::int64_t> in({0, 0}), out({0, 0, 0, 0});
        return check(k.done(), arguments({in.argument(), out.argument()}));
    };
    const auto text = [](const std::string& use) {
        return "[interpret_checked] kernel decide, program (): expected a defined value in " + use +
               " at kernel.cpp:2 but got one made from x[2] outside its extents [2], read by the "
               "load at kernel.cpp:1 without `other`";
    };
    const auto nothing = [] { return std::vector<Value>{}; };
    EXPECT_EQ(run([&](Kernel& k, Value v) {
                  k.b.if_else(k.b.binary(Op::eq, v, k.index(0)), nothing, nothing);
              }),
              text("the condition of the if_else"));
    EXPECT_EQ(run([&](Kernel& k, Value v) {
                  k.b.for_loop(k.index(0), v, k.index(1), {},
                               [](Value, auto) { return std::vector<Value>{}; });
              }),
              text("the bounds of the for_loop"));
    EXPECT_EQ(run([&](Kernel& k, Value v) {
                  const Value init[] = {v};
                  k.b.while_loop(
                      init, [&](auto c) { return k.b.binary(Op::gt, c[0], k.index(0)); },
                      [](auto c) { return std::vector<Value>{c[0]}; });
              }),
              text("the condition of the while_loop"));
    EXPECT_EQ(run([&](Kernel& k, Value v) {
                  k.store(k.function.parameters()[1], {IndexOperand::scalar(v)}, k.index(1));
              }),
              text("an index of the access"));
    EXPECT_EQ(run([&](Kernel& k, Value v) {
                  const IndexOperand where[] = {k.at(3)};
                  k.b.atomic(Op::atomic_add, k.function.parameters()[1], where, v);
              }),
              text("the atomic_add on y[3]"));
    EXPECT_EQ(run([&](Kernel& k, Value v) {
                  const Value mask = k.b.binary(Op::eq, v, k.index(0));
                  k.store(k.function.parameters()[1], {k.at(1)}, k.index(1), mask);
              }),
              text("the store to y[1]"));
    EXPECT_EQ(run([](Kernel&, Value) {}), "clean");
}

TEST(CheckedMode, SelectTakesThePoisonOfTheChosenSide) {
    const auto run = [](bool guarded) {
        Kernel k("guard");
        const Value x = k.ref("x", DType::f32, {3}), y = k.ref("y", DType::f32, {4});
        const Value tile = k.load(x, {k.slice(0, 4)});
        const Value lane = k.b.iota({DType::i32, {4}}, 0);
        const Value inside = k.b.binary(Op::lt, lane, k.b.constant_int({DType::i32, {4}}, 3));
        // A comparison of an undefined value is undefined, but `and` with a defined false is not.
        const Value positive = k.b.binary(Op::gt, tile, filled(k, {4}, 0));
        const Value condition = guarded ? k.b.binary(Op::bitwise_and, positive, inside) : positive;
        k.store(y, {k.slice(0, 4)}, k.b.select(condition, tile, filled(k, {4}, -1)));
        Array<float> in({1, -2, 3}), out({0, 0, 0, 0});
        const std::string text = check(k.done(), arguments({in.argument(), out.argument()}));
        if (guarded) {
            EXPECT_THAT(out.data, ElementsAre(1, -1, 3, -1));
        }
        return text;
    };
    EXPECT_EQ(run(true), "clean");
    EXPECT_THAT(run(false), testing::HasSubstr("x[3] outside its extents [3]"));
}

TEST(CheckedMode, CallsCarryPoisonPerElement) {
    Kernel mod("twice");
    const Value s = mod.function.add_parameter(ir::Type{DType::f32, {}}, "s");
    const Value doubled[] = {mod.b.binary(Op::add, s, s)};
    mod.b.yield(doubled);
    const auto run = [&](std::int64_t rows) {
        Kernel k("apply");
        const Value x = k.ref("x", DType::f32, {3}), y = k.ref("y", DType::f32, {rows});
        const Value operands[] = {k.load(x, {k.slice(0, 4)})};
        const auto results = k.b.call(std::make_shared<const ir::Function>(mod.function), operands);
        k.store(y, {k.slice(0, 4)}, results[0]);
        Array<float> in({1, 2, 3}), out(std::vector<float>(static_cast<std::size_t>(rows)));
        return check(k.done(), arguments({in.argument(), out.argument()}));
    };
    EXPECT_EQ(run(3), "clean");
    EXPECT_THAT(run(4), testing::HasSubstr("in the store to y[3] but got one made from x[3]"));
}

TEST(CheckedMode, AStoreWithEveryLaneOutside) {
    const auto run = [](const std::function<void(Kernel&, Value)>& write) {
        Kernel k("stray", {1, 2});
        const Value y = k.ref("y", DType::f32, {4});
        k.line(3);
        write(k, y);
        Array<float> out(std::vector<float>(4));
        return check(k.done(), arguments({out.argument()}, {1, 2}),
                     {.races = false, .outputs = {}});
    };
    EXPECT_EQ(
        run([](Kernel& k, Value y) {
            const Value p = k.b.program_id(1);
            const Value row = k.b.binary(Op::mul, p, k.index(4));
            k.store(y, {IndexOperand::scalar(row)}, filled(k, {}, 1));
        }),
        "[interpret_checked] kernel stray, program (0, 1): expected the store at kernel.cpp:3 "
        "to touch y with extents [4] but got only lanes outside, the first at y[4]");
    EXPECT_EQ(run([](Kernel& k, Value y) {
                  const IndexOperand where[] = {k.slice(-6, 3)};
                  k.b.atomic(Op::atomic_add, y, where, filled(k, {3}, 1));
              }),
              "[interpret_checked] kernel stray, program (0, 0): expected the atomic_add at "
              "kernel.cpp:3 to touch y with extents [4] but got only lanes outside, the first at "
              "y[-6]");
    EXPECT_EQ(run([](Kernel& k, Value y) { k.store(y, {k.slice(2, 4)}, filled(k, {4}, 1)); }),
              "clean");
    EXPECT_EQ(run([](Kernel& k, Value y) {
                  const Value never = k.b.constant({DType::boolean, {4}}, 0);
                  k.store(y, {k.slice(9, 4)}, filled(k, {4}, 1), never);
              }),
              "clean");
}

// ---- Undefined contents.

TEST(CheckedMode, ScratchIsUndefinedInEveryProgram) {
    Kernel k("stale", {2});
    const Value y = k.ref("y", DType::f32, {2}), s = k.scratch("s", DType::f32, {2});
    const Value p = k.b.program_id(0);
    const auto first = [&] {
        k.store(s, {k.at(1)}, filled(k, {}, 3));
        return std::vector<Value>{};
    };
    k.b.if_else(k.b.binary(Op::eq, p, k.index(0)), first, [] { return std::vector<Value>{}; });
    k.line(5);
    k.store(y, {IndexOperand::scalar(p)}, k.load(s, {k.at(1)}));
    Array<float> out({0, 0});
    const ir::Arguments call = arguments({out.argument()}, {2});
    EXPECT_EQ(
        check(k.done(), call),
        "[interpret_checked] kernel stale, program (1): expected a defined value in the store "
        "to y[1] at kernel.cpp:5 but got one made from s[1] read before it was written, by the "
        "load at kernel.cpp:5");
    CheckOptions no_poison;
    no_poison.poison = false;
    EXPECT_EQ(check(k.function, call, no_poison), "clean");
}

TEST(CheckedMode, ScratchRemembersWhatIsUndefinedInIt) {
    Kernel k("stage");
    const Value x = k.ref("x", DType::f32, {3}), y = k.ref("y", DType::f32, {4});
    const Value s = k.scratch("s", DType::f32, {4});
    k.store(s, {k.slice(0, 4)}, k.load(x, {k.slice(0, 4)}));
    k.store(y, {k.slice(0, 4)}, k.load(s, {k.slice(0, 4)}));
    Array<float> in({1, 2, 3}), out({0, 0, 0, 0});
    EXPECT_THAT(check(k.done(), arguments({in.argument(), out.argument()})),
                testing::HasSubstr("the store to y[3] but got one made from x[3] outside"));
}

TEST(CheckedMode, OutputsMustBeWrittenBeforeTheyAreRead) {
    const auto run = [](bool initialised, bool atomic, const CheckOptions& options) {
        Kernel k("accumulate");
        const Value y = k.ref("y", DType::f32, {2});
        if (initialised) k.store(y, {k.slice(0, 2)}, filled(k, {2}, 0));
        const IndexOperand all[] = {k.slice(0, 2)};
        if (atomic) {
            k.b.atomic(Op::atomic_add, y, all, filled(k, {2}, 1));
        } else {
            k.store(y, {all[0]}, k.b.binary(Op::add, k.load(y, {all[0]}), filled(k, {2}, 1)));
        }
        Array<float> out({0, 0});
        return check(k.done(), arguments({out.argument()}), options);
    };
    const CheckOptions output = with_outputs({true}), data;
    for (const bool atomic : {false, true}) {
        EXPECT_EQ(run(true, atomic, output), "clean");
        EXPECT_EQ(run(false, atomic, data), "clean");
        EXPECT_THAT(run(false, atomic, output),
                    testing::HasSubstr("y[0] read before it was written"));
    }
}

TEST(CheckedMode, OutputsStartAsNaN) {
    Kernel k("half");
    const Value y = k.ref("y", DType::f32, {2, 2}), z = k.ref("z", DType::i16, {3});
    k.store(y, {k.slice(0, 2), k.at(0)}, filled(k, {2}, 1));
    k.store(z, {k.at(1)}, k.b.constant_int({DType::i16, {}}, 5));
    Array<float> out({0, 0, 0, 0}, {2, 2});
    Array<std::uint16_t> counts({0, 0, 0});
    EXPECT_EQ(
        check(k.done(), arguments({out.argument(), counts.argument()}), with_outputs({true, true})),
        "clean");
    EXPECT_EQ(out.data[0], 1);
    EXPECT_TRUE(std::isnan(out.data[1]));
    EXPECT_EQ(out.data[2], 1);
    EXPECT_TRUE(std::isnan(out.data[3]));
    EXPECT_THAT(counts.data, ElementsAre(0xaaaa, 5, 0xaaaa));
}

// ---- Races.

TEST(CheckedMode, NamesBothProgramsThatWriteOneElement) {
    Kernel k("collide", {2, 2});
    const Value y = k.ref("y", DType::f32, {2, 4});
    const Value row = k.b.program_id(1);
    k.line(11);
    k.store(y, {IndexOperand::scalar(row), k.slice(0, 4)}, filled(k, {4}, 1));
    Array<float> out(std::vector<float>(8), {2, 4});
    const ir::Arguments call = arguments({out.argument()}, {2, 2});
    EXPECT_EQ(
        check(k.done(), call),
        "[interpret_checked] kernel collide, program (1, 0): expected no other program to touch "
        "y[0, 0] but program (0, 0) wrote it at kernel.cpp:11 and program (1, 0) writes it at "
        "kernel.cpp:11");
    CheckOptions no_races;
    no_races.races = false;
    EXPECT_EQ(check(k.function, call, no_races), "clean");
}

TEST(CheckedMode, ReadsAndWritesOfTwoPrograms) {
    // Program p writes y[p] and reads y[p + shift].
    const auto run = [](std::int64_t shift) {
        Kernel k("neighbour", {3});
        const Value y = k.ref("y", DType::f32, {3}), z = k.ref("z", DType::f32, {3});
        const Value p = k.b.program_id(0);
        const Value neighbour = k.b.binary(Op::add, p, k.index(shift));
        k.line(1);
        const Value value = k.load(y, {IndexOperand::scalar(neighbour)}, {}, filled(k, {}, 0));
        k.line(2);
        k.store(y, {IndexOperand::scalar(p)}, value);
        k.store(z, {IndexOperand::scalar(p)}, value);
        Array<float> out({1, 2, 3}), copy({0, 0, 0});
        return check(k.done(), arguments({out.argument(), copy.argument()}, {3}));
    };
    EXPECT_EQ(run(0), "clean");
    EXPECT_EQ(
        run(1),
        "[interpret_checked] kernel neighbour, program (1): expected no other program to touch "
        "y[1] but program (0) read it at kernel.cpp:1 and program (1) writes it at kernel.cpp:2");
    EXPECT_EQ(
        run(-1),
        "[interpret_checked] kernel neighbour, program (1): expected no other program to touch "
        "y[0] but program (0) wrote it at kernel.cpp:2 and program (1) reads it at kernel.cpp:1");
}

TEST(CheckedMode, ReadersAreNotForgotten) {
    // Both programs read y[0], then program 1 writes it: the race is with program 0.
    Kernel k("late", {2});
    const Value y = k.ref("y", DType::f32, {2});
    const Value p = k.b.program_id(0);
    const Value value = k.load(y, {k.at(0)});
    k.b.if_else(
        k.b.binary(Op::eq, p, k.index(1)),
        [&] {
            k.store(y, {k.at(0)}, value);
            return std::vector<Value>{};
        },
        [] { return std::vector<Value>{}; });
    Array<float> out({1, 2});
    EXPECT_EQ(
        check(k.done(), arguments({out.argument()}, {2})),
        "[interpret_checked] kernel late, program (1): expected no other program to touch y[0] "
        "but program (0) read it and program (1) writes it");
}

TEST(CheckedMode, AliasedRefsSeeEachOther) {
    // x and y are one array; program p reads x[p + 1] and writes y[p].
    Kernel k("alias", {3});
    const Value x = k.ref("x", DType::f32, {3}, 0), y = k.ref("y", DType::f32, {3}, 0);
    const Value p = k.b.program_id(0);
    const Value next = k.b.binary(Op::add, p, k.index(1));
    k.line(1);
    const Value value = k.load(x, {IndexOperand::scalar(next)}, {}, filled(k, {}, 0));
    k.line(2);
    k.store(y, {IndexOperand::scalar(p)}, value);
    Array<float> data({1, 2, 3}), other({0, 0, 0});
    const ir::Function& kernel = k.done();
    EXPECT_EQ(
        check(kernel, arguments({data.argument(), data.argument()}, {3})),
        "[interpret_checked] kernel alias, program (1): expected no other program to touch y[1] "
        "but program (0) read it through x at kernel.cpp:1 and program (1) writes it at "
        "kernel.cpp:2");
    EXPECT_EQ(check(kernel, arguments({data.argument(), other.argument()}, {3})), "clean");
}

TEST(CheckedMode, ViewsThatInterleaveDoNotRace) {
    // Two programs write the even and the odd elements of one array through negative strides.
    Kernel k("interleave", {2});
    const Value even = k.ref("even", DType::f32, {2}, 0), odd = k.ref("odd", DType::f32, {2}, 0);
    const auto write = [&](Value ref) {
        return [&k, ref] {
            k.store(ref, {k.slice(0, 2)}, filled(k, {2}, 1));
            return std::vector<Value>{};
        };
    };
    k.b.if_else(k.b.binary(Op::eq, k.b.program_id(0), k.index(0)), write(even), write(odd));
    std::vector<float> data(4);
    const auto view = [&](std::size_t last) {
        ir::RefArgument argument;
        argument.data = data.data() + last;
        argument.extents = {2};
        argument.strides = {-2};
        return argument;
    };
    EXPECT_EQ(check(k.done(), arguments({view(2), view(3)}, {2})), "clean");
    EXPECT_THAT(data, Each(1.0F));
}

TEST(CheckedMode, AtomicsRaceWithPlainAccessesOnly) {
    const auto run = [](Op op) {
        Kernel k("mix", {2});
        const Value y = k.ref("y", DType::f32, {1});
        const IndexOperand where[] = {k.at(0)};
        k.line(1);
        k.b.atomic(Op::atomic_add, y, where, filled(k, {}, 1));
        k.line(2);
        if (op == Op::store) k.store(y, {where[0]}, filled(k, {}, 1));
        if (op == Op::load) k.load(y, {where[0]});
        Array<float> out({0});
        return check(k.done(), arguments({out.argument()}, {2}));
    };
    EXPECT_EQ(run(Op::atomic_add), "clean");
    EXPECT_EQ(
        run(Op::store),
        "[interpret_checked] kernel mix, program (1): expected no other program to touch y[0] but "
        "program (0) wrote it at kernel.cpp:2 and program (1) updates it at kernel.cpp:1");
    EXPECT_EQ(
        run(Op::load),
        "[interpret_checked] kernel mix, program (1): expected no other program to touch y[0] but "
        "program (0) read it at kernel.cpp:2 and program (1) updates it at kernel.cpp:1");
}

// ---- User checks, and the options.

TEST(CheckedMode, DebugCheckNamesItsElement) {
    Kernel k("assert", {2});
    const Value x = k.ref("x", DType::f32, {2, 2});
    const Value tile = k.load(x, {k.slice(0, 2), k.slice(0, 3)});
    k.line(9);
    k.b.debug_check(k.b.binary(Op::lt, tile, filled(k, {2, 3}, 3.5)), "x is small");
    Array<float> in({1, 2, 3, 4}, {2, 2});
    const ir::Function& kernel = k.done();
    const ir::Arguments call = arguments({in.argument()}, {2});
    EXPECT_EQ(
        check(kernel, call),
        "[interpret_checked] kernel assert, program (0): expected debug_check \"x is small\" to "
        "hold but got false in element [1, 1] at kernel.cpp:9");
    EXPECT_NO_THROW(interpret(kernel, call));
    in.data[3] = 0;  // undefined padding lanes are not violations by themselves
    EXPECT_EQ(check(kernel, call), "clean");
}

TEST(CheckedMode, OutputsAreOnePerRef) {
    Kernel k;
    k.ref("x", DType::f32, {1});
    Array<float> in({1});
    EXPECT_EQ(check(k.done(), arguments({in.argument()}), with_outputs({true, false})),
              "[interpret_checked] expected `outputs` for 1 Refs but got 2");
}

// ---- Clean programs.

TEST(CheckedMode, EdgeBlocksOfARowwiseSoftmax) {
    // Blocks of 4 rows over 6 rows; 5 columns in a tile of 8, masked by `other` -inf.
    Kernel k("softmax", {2});
    const Value x = k.ref("x", DType::f32, {6, 5}), y = k.ref("y", DType::f32, {6, 5});
    const Value start = k.b.binary(Op::mul, k.b.program_id(0), k.index(4));
    const Value low = k.b.constant({DType::f32, {}}, -INFINITY);
    const Value column = k.b.broadcast(k.b.iota({DType::i64, {1, 8}}, 1), {4, 8});
    const Value mask = k.b.binary(Op::lt, column, k.b.constant_int({DType::i64, {4, 8}}, 5));
    // Rows beyond the array are padding without `other`: undefined, but never stored.
    const Value rows = k.load(x, {IndexOperand::slice(start, 4), k.slice(0, 8)});
    const Value tile = k.b.select(mask, rows, k.b.broadcast(low, {4, 8}));
    const auto over_rows = [&](Value v) { return k.b.broadcast(k.b.expand_dims(v, 1), {4, 8}); };
    const Value max = over_rows(k.b.reduce(Reduction::max, tile, 1));
    const Value e = k.b.unary(Op::exp, k.b.binary(Op::sub, tile, max));
    const Value sum = over_rows(k.b.reduce(Reduction::sum, e, 1));
    k.store(y, {IndexOperand::slice(start, 4), k.slice(0, 8)}, k.b.binary(Op::div, e, sum));
    Array<float> in(std::vector<float>(30, 2), {6, 5}), out(std::vector<float>(30), {6, 5});
    EXPECT_EQ(check(k.done(), arguments({in.argument(), out.argument()}, {2}),
                    with_outputs({false, true})),
              "clean");
    EXPECT_THAT(out.data, Each(testing::FloatEq(0.2F)));
}

TEST(CheckedMode, HistogramByAtomics) {
    Kernel k("histogram", {2});
    const Value x = k.ref("x", DType::i32, {6}), bins = k.ref("bins", DType::i32, {3});
    const Value start = k.b.binary(Op::mul, k.b.program_id(0), k.index(4));
    const Value lane = k.b.iota({DType::i64, {4}}, 0);
    const Value at = k.b.binary(Op::add, k.b.broadcast(start, {4}), lane);
    const Value mask = k.b.binary(Op::lt, at, k.b.broadcast(k.b.extent(x, 0), {4}));
    const Value keys = k.load(x, {IndexOperand::slice(start, 4)}, mask);
    const IndexOperand where[] = {IndexOperand::tile(keys)};
    k.b.atomic(Op::atomic_add, bins, where, k.b.constant_int({DType::i32, {4}}, 1), mask);
    Array<std::int32_t> in({0, 2, 2, 1, 2, 0}), out({0, 0, 0});
    EXPECT_EQ(check(k.done(), arguments({in.argument(), out.argument()}, {2})), "clean");
    EXPECT_THAT(out.data, ElementsAre(2, 1, 3));
}

TEST(CheckedMode, ZeroSizeArraysAndEmptyGrids) {
    Kernel k("nothing", {ir::kDynamic});
    const Value x = k.ref("x", DType::f32, {ir::kDynamic, 3});
    k.store(x, {k.slice(0, 0), k.slice(0, 3)}, k.load(x, {k.slice(0, 0), k.slice(0, 3)}));
    Array<float> empty({}, {0, 3});
    const ir::Function& kernel = k.done();
    EXPECT_EQ(check(kernel, arguments({empty.argument()}, {3}), with_outputs({true})), "clean");
    EXPECT_EQ(check(kernel, arguments({empty.argument()}, {0})), "clean");
}

}  // namespace
}  // namespace tilewright::cpu
