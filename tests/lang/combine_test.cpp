// Tracing of user-defined operators and sorting: forms, types and bad input.
#include "ir/print.h"
#include "tests/lang/trace_support.h"
#include "tilewright/lang.h"

namespace tilewright::lang {
namespace {

using testing::HasSubstr;
using testing::Not;

template <typename F>
std::string refused(F body) {
    try {
        with_input(body);
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

TEST(Combine, KeepsTheFormOfTheElements) {
    with_input([](Ref x) {
        const Tile t = x.load();
        const Tile sums = associative_scan([](Tile a, Tile b) { return a + b; }, t, -1, true);
        EXPECT_EQ(sums.shape(), (Extents{8, 16}));
        const auto [total, count] = reduce(
            [](auto a, auto b) { return std::tuple(a.first + b.first, a.second + b.second); },
            std::pair(t, iota({8, 16}, 1)), 1);
        EXPECT_EQ(total.shape(), (Extents{8}));
        EXPECT_EQ(count.dtype(), i32);
        EXPECT_EQ(reduce([](Tile a, Tile) { return a; }, t, 0, true).shape(), (Extents{1, 16}));
        // A literal result takes the tile's dtype, a scalar its shape.
        EXPECT_EQ(reduce([](Tile, Tile) { return 1; }, t).dtype(), f32);
    });
}

TEST(Combine, ScansAreOneOperation) {
    const std::string text = ir::print(with_input([](Ref x) {
        const Tile t = x.load(), scale = constant(0.5, f32);
        // The decay of a row is one element for all its lanes.
        const Tile decay = slice(t, {0, 0}, {8, 1});
        const auto [m, sums] = associative_scan(
            [&](auto a, auto b) {
                return std::pair(a.first * b.first, a.second * b.first + scale * b.second);
            },
            std::pair(decay, t));
        EXPECT_EQ(m.shape(), (Extents{8, 1}));
        EXPECT_EQ(sums.shape(), (Extents{8, 16}));
    }));
    EXPECT_THAT(text, HasSubstr("func @combine(%a0: f32, %a1: f32, %b0: f32, %b1: f32, %c0: f32)"));
    EXPECT_THAT(text, HasSubstr("axis 0 : f32[8, 16], f32[8, 16]"));
}

TEST(Combine, OtherFunctionsAreScannedInSteps) {
    const std::string text = ir::print(with_input([](Ref x) {
        const Tile t = x.load(), column = slice(t, {0, 0}, {8, 1});
        associative_scan([&](Tile a, Tile b) { return a + b * column; }, t, 1);
    }));
    EXPECT_THAT(text, Not(HasSubstr("associative_scan")));
    EXPECT_THAT(text, HasSubstr("slice"));
}

// The trace that finds out that there is no mod is the first step.
TEST(Combine, FunctionsAreTracedOnceForEachStep) {
    for (const bool reverse : {false, true}) {
        std::vector<Extents> shapes;
        const std::string text = ir::print(with_input([&](Ref x) {
            const Tile t = x.load(), column = slice(t, {0, 0}, {8, 1});
            associative_scan(
                [&](Tile a, Tile b) {
                    shapes.push_back(a.shape());
                    return a + b * column;
                },
                t, 1, reverse);
        }));
        EXPECT_THAT(shapes, testing::ElementsAre(Extents{8, 15}, Extents{8, 14}, Extents{8, 12},
                                                 Extents{8, 8}));
        std::size_t products = 0;
        for (std::size_t at = text.find("mul "); at != std::string::npos;
             at = text.find("mul ", at + 1))
            ++products;
        EXPECT_EQ(products, shapes.size()) << text;
    }
    int traces = 0;
    with_input([&](Ref x) {
        associative_scan(
            [&](Tile a, Tile b) {
                ++traces;
                return a + b;
            },
            x.load());
    });
    EXPECT_EQ(traces, 1);
}

TEST(Combine, TheLogSaysWhyThereAreSteps) {
    const auto log_of = [](const std::function<void(Tile)>& scan) {
        ::setenv("TILEWRIGHT_DEBUG", "1", 1);
        testing::internal::CaptureStderr();
        with_input([&](Ref x) { scan(x.load()); });
        ::unsetenv("TILEWRIGHT_DEBUG");
        return testing::internal::GetCapturedStderr();
    };
    const auto at = [](int line) { return fmt::format(" (at {}:{})\n", __FILE__, line); };
    int line = 0;
    EXPECT_EQ(log_of([](Tile t) { associative_scan([](Tile a, Tile b) { return a + b; }, t); }),
              "");
    std::string log = log_of([&](Tile t) {
        const Tile column = slice(t, {0, 0}, {8, 1});
        associative_scan(
            [&](Tile a, Tile b) {
                line = __LINE__ + 1;
                return a + b * column;
            },
            t, 1);
    });
    EXPECT_THAT(log, HasSubstr("slow path: associative_scan in 4 steps, since its function uses a "
                               "tile from outside of it, f32[8, 1]" +
                               at(line)));
    log = log_of([&](Tile t) {
        associative_scan(
            [&](Tile a, Tile b) {
                line = __LINE__ + 1;
                return a + max(b, 1, true);
            },
            t, 0);
    });
    EXPECT_THAT(log, HasSubstr("slow path: associative_scan in 3 steps, since its function has "
                               "`reduce`, which is not elementwise" +
                               at(line)));
    log = log_of([&](Tile t) {
        line = __LINE__ + 1;
        associative_scan([](auto a, auto) { return a; }, std::pair(t, slice(t, {0, 0}, {8, 5})));
    });
    EXPECT_THAT(log, HasSubstr("slow path: associative_scan in 3 steps, since its tiles have no "
                               "shape in common" +
                               at(line)));
    log = log_of([&](Tile t) {
        const Tile row = slice(t, {0, 0}, {1, 16});
        line = __LINE__ + 1;
        associative_scan([&](Tile, Tile) { return row; }, slice(t, {0, 0}, {2, 16}));
    });
    EXPECT_THAT(log, HasSubstr("slow path: associative_scan in 1 step, since its function uses a "
                               "tile from outside of it, f32[1, 16]" +
                               at(line)));
}

TEST(Combine, BadInputIsNamed) {
    const auto add = [](Tile a, Tile b) { return a + b; };
    EXPECT_THAT(refused([&](Ref x) { associative_scan(add, x.load(), 2); }),
                HasSubstr("[associative_scan] expected an axis in [-2, 2) but got 2"));
    EXPECT_THAT(refused([&](Ref) { reduce(add, constant(1, f32)); }),
                HasSubstr("[reduce] expected an axis in [0, 0) but got 0"));
    EXPECT_THAT(refused([](Ref x) {
                    associative_scan([](Tile a, Tile b) { return (a + b).to(i32); }, x.load());
                }),
                HasSubstr("expected combine to return f32[7, 16] for value 0 but got i32[7, 16]"));
    EXPECT_THAT(refused([](Ref x) {
                    reduce([](auto a, auto) { return a; }, std::pair(x.load(), iota(8)));
                }),
                HasSubstr("[reduce] expected tiles of rank 2 and 8 elements along axis 0 but got "
                          "[8]"));
    EXPECT_THAT(refused([&](Ref) {
                    reduce(add, zeros({0, 3}, f32));
                }),
                HasSubstr("[reduce] expected at least one element along axis 0 but got none"));
    EXPECT_THAT(
        refused([](Ref) { associative_scan([](auto a, auto) { return a; }, std::vector<Tile>()); }),
        HasSubstr("[associative_scan] expected at least one tile but got none"));
}

TEST(Order, BadInputIsNamed) {
    EXPECT_THAT(refused([](Ref) { sort(constant(1, f32)); }),
                HasSubstr("[sort] expected an axis in [0, 0) but got -1"));
    EXPECT_THAT(refused([](Ref x) { top_k(x.load(), 17); }),
                HasSubstr("[top_k] expected a count from 1 to 16 but got 17"));
    EXPECT_THAT(refused([](Ref x) { top_k(x.load(), 0); }), HasSubstr("but got 0"));
    EXPECT_THAT(refused([](Ref x) { take_along_axis(x.load(), x.load()); }),
                HasSubstr("[take_along_axis] expected `places` to be integers but got f32"));
    EXPECT_THAT(refused([](Ref x) { take_along_axis(x.load(), iota(3)); }),
                HasSubstr("[take_along_axis] expected places of rank 2 but got [3]"));
    EXPECT_THAT(refused([](Ref x) {
                    take_along_axis(x.load(), iota({3, 4}, 0));
                }),
                HasSubstr("[take_along_axis]"));
    EXPECT_THAT(refused([](Ref x) { sort_by_key(x.load(), iota(3)); }),
                HasSubstr("[sort_by_key] expected values of shape [8, 16] like the keys"));
    EXPECT_THAT(refused([](Ref x) { one_hot(x.load(), 4); }),
                HasSubstr("[one_hot] expected `places` to be integers but got f32"));
    EXPECT_THAT(refused([](Ref) { one_hot(iota(3), -1); }),
                HasSubstr("[one_hot] expected a depth >= 0 but got -1"));
    EXPECT_THAT(refused([](Ref) { one_hot(iota(3), 4, f32, 2); }),
                HasSubstr("[one_hot] expected an axis in [-2, 2) but got 2"));
}

}  // namespace
}  // namespace tilewright::lang
