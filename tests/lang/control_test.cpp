// Loops, branches and their carries.
#include "tests/lang/trace_support.h"

namespace tilewright::lang {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct State {
    Tile sum;
    Tile count;
};

TEST(ForLoop, CarriesTilesTuplesAndStructs) {
    with_input([](Ref x) {
        const Tile one = for_loop(0, 4, x.load(), [](auto, auto acc) { return acc * 2; });
        EXPECT_EQ(one.shape(), (Extents{8, 16}));
        const auto [a, b] = for_loop(0, 4, std::tuple(x.load(), 0), [](auto i, auto carry) {
            auto [sum, n] = carry;
            return std::tuple(sum + i, n + 1);
        });
        EXPECT_EQ(a.dtype(), f32);
        EXPECT_EQ(b.dtype(), i32);
        const State state =
            for_loop(0, 4, 2, State{x.load(), constant(0, i64)}, [](Tile i, State s) {
                return State{s.sum, s.count + i};
            });
        EXPECT_EQ(state.count.dtype(), i64);
        const auto many = for_loop(0, 4, std::vector<Tile>{x.load(), iota(4)},
                                   [](Tile, std::vector<Tile> v) { return v; });
        EXPECT_EQ(many[1].shape(), (Extents{4}));
    });
}

TEST(ForLoop, LiteralCarriesFollowTheBody) {
    with_input([](Ref x) {
        EXPECT_EQ(for_loop(0, 4, 0, [](auto i, auto acc) { return acc + i; }).dtype(), i64);
        EXPECT_EQ(
            for_loop(0, 4, 0, [&](auto, auto acc) { return acc + x.at(0, 0).load(); }).dtype(),
            f32);
    });
}

TEST(ForLoop, CarriesComeBackInTheirForm) {
    with_input([](Ref x) {
        const auto pair = for_loop(0, 4, std::pair(0, x.load()), [](auto i, auto carry) {
            static_assert(std::is_same_v<decltype(carry), std::pair<Tile, Tile>>);
            return std::pair(carry.first + i, carry.second);
        });
        static_assert(std::is_same_v<decltype(pair), const std::pair<Tile, Tile>>);
        EXPECT_EQ(pair.first.dtype(), i64);
        const auto array = for_loop(0, 4, std::array{0, 1}, [&](auto, auto carry) {
            return std::array{carry[0] + x.at(0, 0).load(), carry[1]};
        });
        EXPECT_EQ(array[0].dtype(), f32);
        EXPECT_EQ(array[1].dtype(), i32);
    });
}

TEST(ForLoop, LiteralsThatTheBodyReturnsFollowTheCarry) {
    with_input([](Ref x) {
        const auto [m, n] =
            for_loop(0, 4, std::tuple(x.load(), constant(0, i64)),
                     [](auto, auto carry) { return std::tuple(std::get<0>(carry), 1); });
        EXPECT_EQ(n.dtype(), i64);
        EXPECT_EQ(for_loop(0, 4, x.load(), [](auto, auto) { return 0; }).shape(), (Extents{8, 16}));
        EXPECT_THAT(
            error_of([&] { for_loop(0, 4, iota(4), [](auto, auto) { return 1.5; }); }),
            HasSubstr("[for_loop] expected carry 0 to stay i32[4] but the body returns f32"));
        EXPECT_THAT(
            error_of([&] { for_loop(0, 4, 300, [](auto, auto) { return constant(1, u8); }); }),
            HasSubstr("[for_loop] expected a value of u8 but got 300"));
    });
}

TEST(ForLoop, ChangedCarriesAreErrors) {
    with_input([](Ref x) {
        const Tile t = x.load();
        EXPECT_THAT(
            error_of([&] { for_loop(0, 4, t, [](auto, auto acc) { return acc.to(f64); }); }),
            HasSubstr("expected carry 0 to stay f32[8, 16] but the body returns f64[8, 16]"));
        EXPECT_THAT(error_of([&] { for_loop(0, 4, 0, [](auto) {}); }),
                    HasSubstr("expected `step` to be positive but got 0"));
    });
}

TEST(ForLoop, BodiesMayWorkByStoresAlone) {
    const auto function = traced({output(f32, {8, 4})}, [](Ref z) {
        for_loop(0, 8, [&](Tile i) { z.at(i).store(1); });
        for_loop(0, 8, 2, [&](auto i) { z.at(i).store(2); });
    });
    EXPECT_EQ(count(function, ir::Op::for_loop), 2);
    EXPECT_EQ(count(function, ir::Op::store), 2);
}

TEST(Bodies, ValuesDoNotEscape) {
    with_input([](Ref x) {
        Tile acc = x.load();
        for_loop(0, 4, [&](auto) { acc = acc + 1; });
        EXPECT_THAT(error_of([&] { acc + 1; }), HasSubstr("return it through the carry"));
    });
}

TEST(Cond, ReturnsTheBranchesResult) {
    const auto function = traced(
        {output(f32, {8})},
        [](Ref z) {
            const Tile t = cond(
                program_id(0) == 0, [] { return ones({8}, f32); }, [] { return zeros({8}, f32); });
            when(program_id(0) > 2, [&] { z.store(t); });
            EXPECT_THAT(error_of([&] { when(t > 0, [] {}); }),
                        HasSubstr("expected a bool scalar condition but got bool[8]"));
        },
        {4});
    EXPECT_EQ(count(function, ir::Op::if_else), 2);
}

TEST(Cond, LiteralsFollowTheOtherBranch) {
    const auto result = [](auto then_branch, auto else_branch) {
        std::string type;
        with_input([&](Ref x) {
            const Tile t = cond(x.at(0, 0).load() > 0, then_branch, else_branch);
            const auto shape = t.shape();
            type = ir::to_string(ir::Type{t.dtype(), ir::Shape(std::span(shape))});
        });
        return type;
    };
    const auto floats = [] { return zeros({8}, bf16); };
    const auto integers = [] { return iota(8); };
    EXPECT_EQ(result([] { return 1; }, [] { return 2.5; }), "f32");
    EXPECT_EQ(result(floats, [] { return 1; }), "bf16[8]");
    EXPECT_EQ(result([] { return 2.5; }, floats), "bf16[8]");
    EXPECT_EQ(result([] { return 2.5; }, integers), "f32[8]");
    EXPECT_EQ(result(integers, [] { return 2.5; }), "f32[8]");
}

TEST(Cond, ReturnsWhatACarryMayBe) {
    with_input([](Ref x) {
        const Tile on = x.at(0, 0).load() > 0;
        const auto [a, b] = cond(
            on, [&] { return std::tuple(x.load(), 1); },
            [&] { return std::tuple(x.load() * 2, 2.5); });
        EXPECT_EQ(b.dtype(), f32);
        const auto pair = cond(
            on, [&] { return std::pair(x.load(), 1); }, [&] { return std::pair(0, 2); });
        EXPECT_EQ(pair.first.shape(), (Extents{8, 16}));
        EXPECT_EQ(pair.second.dtype(), i32);
        const State state = cond(
            on,
            [&] {
                return State{x.load(), iota(4)};
            },
            [&] {
                return State{x.load(), iota(4)};
            });
        EXPECT_EQ(state.count.shape(), (Extents{4}));
    });
}

TEST(Cond, DifferentTypesAreErrors) {
    with_input([](Ref x) {
        const Tile t = x.load(), on = x.at(0, 0).load() > 0;
        EXPECT_THAT(
            error_of([&] {
                cond(
                    on, [&] { return t; }, [&] { return t.to(i32); });
            }),
            AllOf(HasSubstr("[cond] expected both branches to return the same types but result 0 "
                            "is f32[8, 16] in the first and i32[8, 16] in the second"),
                  HasSubstr("control_test.cpp:")));
        EXPECT_THAT(error_of([&] {
                        cond(
                            on, [&] { return std::vector<Tile>{t}; },
                            [&] {
                                return std::vector<Tile>{t, t};
                            });
                    }),
                    HasSubstr("but got 1 from the first and 2 from the second"));
    });
}

TEST(WhileLoop, LiteralCarriesFollowTheBody) {
    with_input([](Ref x) {
        const auto [last, total] = while_loop(
            std::tuple(0, 0), [](auto carry) { return std::get<0>(carry) < 8; },
            [&](auto carry) {
                auto [i, sum] = carry;
                return std::tuple(i + 1, sum + x.at(i, 0).load());
            });
        EXPECT_EQ(last.dtype(), i32);
        EXPECT_EQ(total.dtype(), f32);
    });
}

TEST(WhileLoop, TracesConditionAndBody) {
    const auto function = traced({output(i64, {})}, [](Ref z) {
        const Tile last = while_loop(
            constant(1, i64), [](auto v) { return v < 100; }, [](auto v) { return v * 2; });
        z.store(last);
    });
    EXPECT_EQ(count(function, ir::Op::while_loop), 1);
}

TEST(Scan, StacksTheResults) {
    const ir::Function function = with_input([](Ref x) {
        const auto [carry, ys] = scan(zeros({16}, f32), x.load(), [](auto acc, auto row) {
            return std::pair(acc + row, sum(acc));
        });
        EXPECT_EQ(carry.shape(), (Extents{16}));
        EXPECT_EQ(ys.shape(), (Extents{8}));
    });
    EXPECT_EQ(count(function, ir::Op::for_loop), 1);
}

TEST(Scan, LiteralCarriesFollowTheBodyAndResultsMayBeTuples) {
    with_input([](Ref x) {
        const auto [carry, ys] = scan(0, x.load(), [](auto acc, auto row) {
            return std::pair(acc + sum(row), std::tuple(row * 2, acc));
        });
        EXPECT_EQ(carry.dtype(), f32);
        EXPECT_EQ(std::get<0>(ys).shape(), (Extents{8, 16}));
        EXPECT_EQ(std::get<1>(ys).shape(), (Extents{8}));
        EXPECT_EQ(std::get<1>(ys).dtype(), f32);
    });
}

TEST(Scan, TracedAsideLeavesNoScratch) {
    // Literal carries make both loops trace their bodies twice.
    const ir::Function function = with_input([](Ref x) {
        for_loop(0, 3, 0, [&](auto, auto total) {
            const auto [carry, ys] = scan(
                0, x.load(), [](auto acc, auto row) { return std::pair(acc + sum(row), acc); });
            return total + carry + sum(ys);
        });
    });
    int scratch = 0;
    for (ir::Value parameter : function.parameters()) {
        scratch += function.ref_type(parameter).space == ir::Space::scratch;
    }
    EXPECT_EQ(scratch, 2);
}

TEST(Scan, ScalarsAndFullRanksAreErrors) {
    const auto same = [](auto acc, auto row) { return std::pair(acc, row); };
    EXPECT_THAT(error_of([&] { with_input([&](Ref) { scan(0, constant(1, f32), same); }); }),
                HasSubstr("[scan] expected a tile of rank >= 1 but got a scalar"));
    const auto wide = [](auto acc, auto row) {
        return std::pair(acc, broadcast_to(row, {1, 1, 1, 1, 1, 1, 1, 16}));
    };
    EXPECT_THAT(error_of([&] { with_input([&](Ref x) { scan(0, x.load(), wide); }); }),
                HasSubstr("[scan] expected results of rank below 8"));
}

TEST(Handles, OutsideATraceAreErrors) {
    EXPECT_THAT(error_of([] { iota(4); }), HasSubstr("inside a kernel while it is traced"));
    Tile kept;
    with_input([&](Ref x) { kept = x.load(); });
    with_input([&](Ref) {
        EXPECT_THAT(error_of([&] { kept + 1; }), HasSubstr("one of another trace"));
        EXPECT_THAT(error_of([&] { Tile() + 1; }), HasSubstr("an empty Tile"));
    });
}

TEST(Dot, ShapesAreChecked) {
    with_input([](Ref x) {
        const Tile t = x.load();
        EXPECT_EQ(dot(t, t, {.trans_b = true}).shape(), (Extents{8, 8}));
        EXPECT_EQ(dot(t.to(bf16), t.to(bf16), {.trans_a = true}).dtype(), f32);
        const auto message = error_of([&] { dot(t, t); });
        EXPECT_THAT(message, HasSubstr("[dot]"));
        EXPECT_THAT(message, HasSubstr("control_test.cpp:"));
    });
}

TEST(Grid, AxesAreChecked) {
    traced({},
           [] {
               EXPECT_THAT(error_of([] { program_id(2); }),
                           HasSubstr("2-dimensional grid of kernel `test` but got 2"));
               EXPECT_EQ(num_programs(1).dtype(), i64);
           },
           {2, 3});
}

}  // namespace
}  // namespace tilewright::lang
