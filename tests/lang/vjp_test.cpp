// Tracing of derivatives: what their programs consist of, and bad input.
#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "tests/lang/trace_support.h"
#include "tilewright/lang.h"

namespace tilewright::lang {
namespace {

using testing::HasSubstr;
using testing::Not;

/// A kernel of x and z, without instructions that nothing needs.
template <typename F>
ir::Function simplified(F body) {
    ir::Function function = traced({input(f32, {8, 16}), output(f32, {8, 16})}, body);
    ir::verify(function);
    for (bool changed = true; changed;) {
        changed = ir::fold(function).changed();
        changed |= ir::cse(function).changed();
        changed |= ir::dce(function).changed();
    }
    return function;
}

int scanned_tiles(const ir::Function& function) {
    int n = 0;
    ir::walk(function.body, [&](const ir::Instruction& made) {
        if (made.op == ir::Op::associative_scan) n += static_cast<int>(made.results.size());
    });
    return n;
}

std::string vjp_refused(const std::function<void(Tile)>& body) {
    return error_of([&] { with_input([&](Ref x) { body(x.load()); }); });
}

TEST(Vjp, KeepsTheFormsOfArgumentsAndResults) {
    with_input([](Ref x) {
        const Tile t = x.load();
        const auto [y, pullback] = vjp(
            [](std::pair<Tile, Tile> p) {
                return std::tuple(sum(p.first * p.second, 1), argmax(p.first, 1));
            },
            std::pair(t.to(f16), constant(2.0, f64)));
        EXPECT_EQ(std::get<0>(y).shape(), (Extents{8}));
        const auto [first, second] = pullback(std::tuple(1.0, 0));
        EXPECT_EQ(first.shape(), (Extents{8, 16}));
        EXPECT_EQ(first.dtype(), f32);
        EXPECT_EQ(second.shape(), (Extents{}));
        EXPECT_EQ(second.dtype(), f64);
    });
}

TEST(Vjp, ALinearRecurrenceIsOneReverseRecurrence) {
    const ir::Function function = simplified([](Ref x, Ref z) {
        const Tile a = x.load();
        const auto [h, pullback] = vjp(
            [](auto maps) {
                return associative_scan(
                           [](auto f, auto g) {
                               return std::pair(f.first * g.first, f.second * g.first + g.second);
                           },
                           maps, 1)
                    .second;
            },
            std::pair(a, a * 2));
        z.store(pullback(a).second);
    });
    // The values themselves are not needed for the gradient of the second tile.
    EXPECT_EQ(count(function, ir::Op::associative_scan), 1) << ir::print(function);
    EXPECT_EQ(scanned_tiles(function), 2);
    EXPECT_THAT(ir::print(function), HasSubstr("axis 1 reverse"));
    EXPECT_EQ(count(function, ir::Op::concatenate), 1);
}

TEST(Vjp, SumsAreSums) {
    const ir::Function function = simplified([](Ref x, Ref z) {
        const Tile t = x.load();
        const auto [y, pullback] = vjp(
            [](Tile v) {
                return associative_scan([](Tile a, Tile b) { return a + b; }, v, 0, true);
            },
            t);
        z.store(pullback(t));
    });
    EXPECT_EQ(count(function, ir::Op::associative_scan), 0) << ir::print(function);
    EXPECT_EQ(count(function, ir::Op::scan), 1);
    EXPECT_EQ(count(function, ir::Op::concatenate), 0);
    EXPECT_EQ(count(function, ir::Op::reshape), 0);
}

TEST(Vjp, OtherTilesAreConstants) {
    const ir::Function function = simplified([](Ref x, Ref z) {
        const Tile t = x.load();
        z.store(vjp([&](Tile v) { return v * t; }, t).second(1.0));
    });
    // d(v t)/dv = t, although the argument is t too.
    EXPECT_EQ(count(function, ir::Op::mul), 0) << ir::print(function);
    EXPECT_EQ(count(function, ir::Op::add), 0);
}

TEST(Vjp, BadInputIsNamed) {
    EXPECT_THAT(vjp_refused([](Tile t) { vjp([](Tile v) { return v; }, t.to(i32)); }),
                HasSubstr("[vjp] expected primals of float dtypes but value 0 is i32[8, 16]"));
    EXPECT_THAT(vjp_refused([](Tile t) {
                    const auto pullback = vjp([](Tile v) { return std::pair(v, v); }, t).second;
                    pullback(t);
                }),
                HasSubstr("[vjp] expected cotangents of 2 results but got 1"));
    EXPECT_THAT(vjp_refused([](Tile t) { vjp([](Tile v) { return v; }, t).second(iota(3)); }),
                HasSubstr("[vjp] expected a float cotangent of result 0 but got i32[3]"));
    EXPECT_THAT(vjp_refused([](Tile t) {
                    vjp([](Tile v) { return v; }, t).second(sum(t, 0));
                    vjp([](Tile v) { return v; }, t).second(sum(t, 1));
                }),
                HasSubstr("[vjp] expected a cotangent of result 0 whose shape broadcasts to [8, "
                          "16] but got [8]"));
    EXPECT_THAT(vjp_refused([](Tile t) { vjp([](Tile v) { return sort(v, 1); }, t).second(1.0); }),
                HasSubstr("[vjp] expected ops with a derivative but got sort"));
    EXPECT_THAT(
        vjp_refused([](Tile t) {
            vjp([](Tile v) { return for_loop(0, 3, v, [&](Tile, Tile now) { return now * v; }); },
                t)
                .second(1.0);
        }),
        HasSubstr("[vjp] expected ops with a derivative but got for_loop"));
    EXPECT_THAT(error_of([] {
                    traced({output(f32, {8, 16})}, [](Ref z) {
                        vjp(
                            [&](Tile v) {
                                z.store(v);
                                return v;
                            },
                            constant(1.0, f32));
                    });
                }),
                HasSubstr("[vjp] expected the function to return what depends on its arguments "
                          "but got store"));
}

TEST(Vjp, ManyCoupledResultsAreRefused) {
    const auto matrices = [](int n) {
        return [n](std::vector<Tile> a, std::vector<Tile> b) {
            // Each result depends on the next one's predecessor.
            std::vector<Tile> made;
            for (int i = 0; i < n; ++i) {
                made.push_back(a[static_cast<std::size_t>((i + 1) % n)] *
                               b[static_cast<std::size_t>(i)]);
            }
            return made;
        };
    };
    const auto gradient = [&](int n) {
        return vjp_refused([&](Tile t) {
            const std::vector<Tile> tiles(static_cast<std::size_t>(n), t);
            vjp([&](std::vector<Tile> v) { return associative_scan(matrices(n), v, 1)[0]; }, tiles)
                .second(1.0);
        });
    };
    EXPECT_EQ(gradient(4), "");
    EXPECT_THAT(gradient(5),
                HasSubstr("[vjp] associative_scan: expected a scan of which at most 4 results "
                          "depend on each other, since its derivative scans m * m + m tiles for m "
                          "of them, but got 5"));
}

}  // namespace
}  // namespace tilewright::lang
