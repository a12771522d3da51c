// Mods: tracing of lambdas, captures, promotion, combination, errors.
#include "tilewright/mod.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "mod/evaluate.h"
#include "tilewright/error.h"
#include "tilewright/masks.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;

Tensor floats(std::vector<float> values, Tensor::Dims shape) {
    return Tensor::from_vector(values, std::move(shape));
}
Tensor ints(std::vector<std::int32_t> values, Tensor::Dims shape) {
    return Tensor::from_vector(values, std::move(shape));
}

double score_at(const Mod& mod, double score, std::int64_t b, std::int64_t h, std::int64_t q,
                std::int64_t kv, DType dtype = f32) {
    return mod::Evaluator(mod::trace(mod, dtype)).score(score, b, h, q, kv);
}
bool mask_at(const Mod& mod, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
    return mod::Evaluator(mod::trace(mod)).mask(b, h, q, kv);
}

std::string error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const UserError& error) {
        return error.what();
    }
    return "no error";
}

TEST(Mod, KindIsTheNumberOfArguments) {
    EXPECT_EQ(Mod([](auto, auto, auto q, auto kv) { return q >= kv; }).kind(), Mod::Kind::mask);
    EXPECT_EQ(Mod([](auto s, auto, auto, auto, auto) { return s; }).kind(), Mod::Kind::score);
    EXPECT_EQ(Mod([](Tile s, Tile, Tile, Tile, Tile) { return s; }).kind(), Mod::Kind::score);
    EXPECT_FALSE(Mod().defined());
}

TEST(Mod, AlibiByClosure) {
    const Capture slopes = capture(floats({0.5F, 0.25F}, {2}), "slopes");
    const Mod mod = [slopes](auto s, auto, auto h, auto q, auto kv) {
        return s + slopes[h] * (kv - q);
    };
    EXPECT_EQ(score_at(mod, 1, 0, 1, 10, 2), 1 - 0.25 * 8);
    ASSERT_EQ(mod.captures().size(), 1U);
    EXPECT_EQ(mod.captures()[0].name(), "slopes");
}

TEST(Mod, PositionsDoNotOverflowPast46k) {
    const Mod mod = [](auto, auto, auto q, auto kv) { return q * kv > 0; };
    EXPECT_TRUE(mask_at(mod, 0, 0, 50000, 50000));
    const Mod wide = [](auto, auto, auto q, auto kv) { return q * q * 1000003 > kv; };
    EXPECT_TRUE(mask_at(wide, 0, 0, 1 << 20, 5));
}

TEST(Mod, ChainedGathersOfAnyRank) {
    const Capture sequence = capture(ints({0, 0, 1, 1, 1}, {5}));
    const Capture offsets = capture(ints({0, 2}, {2}));
    const Capture bias = capture(floats({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {2, 2, 3}));
    const Mod mod = [=](auto s, auto b, auto h, auto q, auto kv) {
        return s + bias[{b, h, kv - offsets[sequence[q]]}];
    };
    EXPECT_EQ(score_at(mod, 0, 1, 1, 3, 4), 6 + 3 + 2);
    EXPECT_EQ(mod.captures().size(), 3U);
}

TEST(Mod, NegativeIndicesCountFromTheEnd) {
    const Capture table = capture(floats({1, 2, 3}, {3}), "table");
    const Mod moving = [table](auto, auto, auto, auto q, auto kv) { return table[q - kv]; };
    EXPECT_EQ(score_at(moving, 0, 0, 0, 0, 1), 3);
    EXPECT_EQ(score_at(moving, 0, 0, 0, 1, 4), 1);
    const Capture places = capture(ints({-1, -3, 1, 0}, {4}));
    const Mod chained = [=](auto, auto, auto, auto q, auto) { return table[places[q]]; };
    for (const auto& [q, want] : {std::pair(0, 3.0), {1, 1.0}, {2, 2.0}, {3, 1.0}})
        EXPECT_EQ(score_at(chained, 0, 0, 0, q, 0), want);
    const Mod last = [table](auto, auto, auto, auto, auto) { return table[-1] - table[-3]; };
    EXPECT_EQ(score_at(last, 0, 0, 0, 0, 0), 2);
    EXPECT_EQ(score_at(parse_mod("table[-1] + table[kv - 1]", {{"table", table.tensor()}}), 0, 0, 0,
                       0, 0),
              6);
}

TEST(Mod, IndicesFurtherOutsideAreClamped) {
    const Capture table = capture(floats({1, 2, 3}, {3}));
    const Mod mod = [table](auto, auto, auto, auto q, auto kv) { return table[q - kv]; };
    EXPECT_EQ(score_at(mod, 0, 0, 0, 0, 5), 1);
    EXPECT_EQ(score_at(mod, 0, 0, 0, 9, 0), 3);
    const Capture empty = capture(Tensor::zeros(f32, {0}));
    EXPECT_EQ(score_at([empty](auto, auto, auto, auto q, auto) { return empty[q]; }, 0, 0, 0, 9, 0),
              0);
    // For front ends that resolve negative indices themselves.
    const Mod own = [table](auto, auto, auto, auto q, auto kv) {
        return table.element({q - kv}, Capture::Negative::clamped);
    };
    EXPECT_EQ(score_at(own, 0, 0, 0, 0, 1), 1);
}

TEST(Mod, LiteralIndicesOutsideAreErrors) {
    const Capture table = capture(floats({1, 2, 3}, {3}), "table");
    for (const std::int64_t index : {3, -4}) {
        const Mod mod = [=](auto, auto, auto, auto, auto) { return table[index]; };
        EXPECT_THAT(error_of([&] { mod::trace(mod); }),
                    HasSubstr("expected an index of -3 to 2 in dimension 0 of capture `table` but "
                              "got " +
                              std::to_string(index)));
    }
    const auto parse = [&] { parse_mod("score + table[3]", {{"table", table.tensor()}}); };
    EXPECT_THAT(error_of(parse), HasSubstr("at column 9"));
}

TEST(Mod, PositionsThatCannotBeNegativeCostNothing) {
    const Capture table = capture(Tensor::zeros(f32, {8, 8}));
    const auto selects = [](const Mod& mod) {
        return mod.ir().find("select") != std::string::npos;
    };
    EXPECT_FALSE(selects([=](auto s, auto, auto h, auto q, auto kv) {
        return s + table(h, q) + table(h / 4, q * 64 + kv % 8) + table(abs(q - kv), minimum(q, kv));
    }));
    EXPECT_TRUE(
        selects([=](auto s, auto, auto h, auto q, auto kv) { return s + table(h, q - kv); }));
}

TEST(Mod, ScalarCapturesChangeWithoutTracing) {
    Tensor offset = Tensor::scalar(i32, 3);
    const Capture shift = capture(offset);
    const Mod mod = [shift](auto, auto, auto q, auto kv) { return q + shift >= kv; };
    EXPECT_TRUE(mask_at(mod, 0, 0, 0, 3));
    const auto* before = &mod::trace(mod);
    offset.fill(1);
    EXPECT_FALSE(mask_at(mod, 0, 0, 0, 3));
    EXPECT_EQ(before, &mod::trace(mod));
}

TEST(Mod, RowsAreUnrolled) {
    const Capture rows = capture(floats({1, 2, 3, 4, 5, 6}, {2, 3}));
    const Mod mod = [rows](auto s, auto, auto, auto q, auto kv) {
        const Row a = rows.row(q), b = rows.row(kv);
        return s + dot(a, b) + max(a - b) + sum(a * 2 + b);
    };
    EXPECT_EQ(score_at(mod, 0, 0, 0, 0, 1), 4 + 10 + 18 - 3 + 2 * 6 + 15);
}

TEST(Mod, PromotionMixesIntegersAndFloats) {
    const auto value = [](const Mod& mod) { return score_at(mod, 0.5, 0, 0, 7, 2); };
    EXPECT_EQ(value([](auto s, auto, auto, auto q, auto kv) { return s + (q - kv); }), 5.5);
    EXPECT_EQ(value([](auto, auto, auto, auto q, auto) { return q * 0.5; }), 3.5);
    // C++ integer division truncates; the Python forms round down.
    EXPECT_EQ(value([](auto, auto, auto, auto q, auto kv) { return (kv - q) / 2; }), -2);
    EXPECT_EQ(value([](auto, auto, auto, auto q, auto kv) { return floordiv(kv - q, 2); }), -3);
    EXPECT_EQ(value([](auto, auto, auto, auto q, auto kv) { return (kv - q) % 3; }), -2);
    EXPECT_EQ(value([](auto, auto, auto, auto q, auto kv) { return floormod(kv - q, 3); }), 1);
    EXPECT_EQ(value([](auto, auto, auto, auto, auto) { return 2; }), 2);
    const Capture half = capture(floats({0.5F}, {1}).to(f16));
    EXPECT_EQ(value([half](auto s, auto, auto h, auto, auto) { return s + half[h]; }), 1);
}

TEST(Mod, ScoresOfF64KeepTheirBits) {
    const Mod mod = [](auto s, auto, auto, auto, auto) { return s + 1e-12; };
    EXPECT_EQ(score_at(mod, 1, 0, 0, 0, 0, f64), 1 + 1e-12);
    EXPECT_EQ(score_at(mod, 1, 0, 0, 0, 0, f32), 1);
}

TEST(Mod, TanhIsExactUnlessApproxIsAsked) {
    const Mod exact = [](auto s, auto, auto, auto, auto) { return tanh(s); };
    const Mod approx = [](auto s, auto, auto, auto, auto) { return tanh(s, true); };
    EXPECT_THAT(exact.ir(), ::testing::Not(HasSubstr("approx")));
    EXPECT_THAT(approx.ir(), HasSubstr("approx"));
}

TEST(Mod, BranchesChooseElementByElement) {
    const Mod mod = [](auto s, auto, auto, auto q, auto kv) {
        return cond(
            q > kv, [&] { return s * 2; }, [&] { return s - 1; });
    };
    EXPECT_EQ(score_at(mod, 4, 0, 0, 1, 0), 8);
    EXPECT_EQ(score_at(mod, 4, 0, 0, 0, 1), 3);
}

TEST(Mod, MasksCombine) {
    const Mod band = masks::causal() & masks::sliding_window(2);
    EXPECT_TRUE(mask_at(band, 0, 0, 5, 3));
    EXPECT_FALSE(mask_at(band, 0, 0, 5, 2));
    EXPECT_TRUE(mask_at(~band, 0, 0, 5, 2));
    EXPECT_TRUE(mask_at(
        band | [](auto, auto, auto, auto kv) { return kv == 0; }, 0, 0, 9, 0));
    EXPECT_FALSE(mask_at(band ^ masks::causal(), 0, 0, 5, 4));
    EXPECT_TRUE(mask_at(or_masks({band, masks::prefix_lm(1)}), 0, 0, 9, 0));
    EXPECT_FALSE(mask_at(and_masks({band, masks::prefix_lm(1)}), 0, 0, 9, 0));
}

TEST(Mod, CapturesAreListedInTheOrderOfFirstUse) {
    const Capture a = capture(floats({1}, {1}), "a"), b = capture(floats({1}, {1}), "b");
    const Mod mod = [=](auto s, auto, auto h, auto, auto) { return s + b[h] * a[h] + b[0]; };
    ASSERT_EQ(mod.captures().size(), 2U);
    EXPECT_EQ(mod.captures()[0].name(), "b");
    EXPECT_EQ(mod.captures()[1].name(), "a");
}

TEST(Mod, CheckedTraceNamesTheIndexOutside) {
    const Capture table = capture(floats({1, 2, 3}, {3}), "table");
    const Mod mod = [table](auto, auto, auto, auto q, auto) { return table[q]; };
    const mod::Traced& traced = mod::trace(mod, f32, true);
    EXPECT_THAT(traced.text, HasSubstr("debug_check"));
    EXPECT_THAT(traced.text, HasSubstr("table"));
    EXPECT_THAT(mod::trace(mod).text, ::testing::Not(HasSubstr("debug_check")));
}

TEST(Mod, ErrorsSayWhatToDo) {
    const auto traced = [](const Mod& mod) { return error_of([&] { mod.ir(); }); };
    EXPECT_THAT(
        traced([](auto, auto, auto q, auto kv) { return q - kv; }),
        HasSubstr("[mask_mod] expected mask_mod to return a bool scalar but it returns i64"));
    EXPECT_THAT(traced([](auto s, auto, auto, auto, auto) { return s > 0; }),
                HasSubstr("choose scores with where("));
    const Capture table = capture(floats({1, 2, 3}, {3}), "table");
    EXPECT_THAT(traced([table](auto s, auto, auto, auto, auto) { return table[s]; }),
                HasSubstr("expected an integer index in dimension 0 of capture `table`"));
    EXPECT_THAT(traced([table](auto, auto, auto h, auto q, auto) { return table(h, q); }),
                HasSubstr("expected 1 indices for capture `table` of type f32[3] but got 2"));
    EXPECT_THAT(error_of([&] { table.element({0}); }), HasSubstr("inside a mod"));
    EXPECT_THAT(error_of([] { capture(Tensor()); }), HasSubstr("undefined"));
    EXPECT_THAT(
        error_of([] { masks::causal() & Mod([](auto s, auto, auto, auto, auto) { return s; }); }),
        HasSubstr("mask mod"));
    Tile escaped;
    const Mod leaks = [&escaped](auto s, auto, auto, auto, auto) {
        escaped = s;
        return s;
    };
    leaks.ir();
    EXPECT_THAT(traced([escaped](auto, auto, auto, auto, auto) { return escaped + 1; }),
                HasSubstr("one of another trace"));
}

TEST(Mod, FromIrIsTheModOnOtherArrays) {
    const auto alibi = [](const Capture& slopes) {
        return Mod(
            [slopes](auto s, auto, auto h, auto q, auto kv) { return s + slopes[h] * (kv - q); });
    };
    const Mod mod = alibi(capture(floats({0.5F, 0.25F}, {2})));
    const Tensor other = floats({3, 7, 1}, {3});
    const Mod again = Mod::from_ir(mod.ir(), {capture(other)});
    EXPECT_EQ(again.kind(), Mod::Kind::score);
    EXPECT_EQ(again.ir(), mod.ir());
    EXPECT_EQ(score_at(again, 1, 0, 1, 10, 2), 1 - 7 * 8);
    // Traced again: for another dtype, and inside another mod.
    EXPECT_EQ(score_at(again, 1, 0, 1, 10, 2, f64), 1 - 7 * 8);
    const Mod twice = [again](auto s, auto b, auto h, auto q, auto kv) {
        return again(again(s, b, h, q, kv), b, h, q, kv);
    };
    EXPECT_EQ(score_at(twice, 1, 0, 1, 10, 2), 1 - 2 * 7 * 8);
    ASSERT_EQ(twice.captures().size(), 1U);
    EXPECT_EQ(twice.captures()[0].tensor().raw(), other.raw());

    const Mod causal = Mod::from_ir(masks::causal().ir(), {});
    EXPECT_EQ(causal.kind(), Mod::Kind::mask);
    EXPECT_TRUE(mask_at(causal, 0, 0, 5, 5));
    EXPECT_FALSE(mask_at(causal, 0, 0, 5, 6));
}

TEST(Mod, FromIrRefusesWhatIsNoMod) {
    const auto from_ir = [](const std::string& text, std::vector<Capture> captures) {
        return error_of([&] { Mod::from_ir(text, std::move(captures)); });
    };
    const std::string causal = masks::causal().ir();
    EXPECT_THAT(from_ir("nonsense", {}), HasSubstr("[parse]"));
    EXPECT_THAT(from_ir("func @f(%x: f32) { yield %x }", {}),
                HasSubstr("expected the IR of a mod"));
    EXPECT_THAT(from_ir(causal, {capture(ints({1}, {1}))}), HasSubstr("expected 0 arrays"));
    const Mod documents = masks::document(capture(ints({1, 2}, {2})));
    EXPECT_THAT(from_ir(documents.ir(), {capture(floats({1, 2}, {2}))}),
                HasSubstr("expected array 0 of the IR of a mod to be"));
}

TEST(Mod, BatchedIrIsTheModOfEveryProblem) {
    const Tensor slopes = floats({1, 2, 3, 4}, {2, 2}), table = floats({10, 20, 30}, {3});
    const Capture per_batch = capture(slopes), fixed = capture(table);
    const Mod mod = [=](auto s, auto b, auto h, auto q, auto kv) {
        const Tile slope = per_batch(b, h);  // read first
        return s + slope * (kv - q) + fixed[q];
    };
    const Tensor many = floats({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {3, 2, 2});
    const std::string text = batched_mod_ir(mod.ir(), 2, {true, false});
    const Mod all = Mod::from_ir(text, {capture(many), capture(table)});
    for (std::int64_t problem = 0; problem < 3; ++problem) {
        for (std::int64_t b = 0; b < 2; ++b) {
            const double slope = many.get({problem, b, 1});
            EXPECT_EQ(score_at(all, 1, problem * 2 + b, 1, 2, 7), 1 + slope * 5 + 30);
        }
    }
    // With one batch per problem, its index is the problem's.
    const Mod of_one = [=](auto b, auto h, auto, auto) { return per_batch(b, h) > 2; };
    const Mod of_many = Mod::from_ir(batched_mod_ir(of_one.ir(), 1, {true}),
                                     {capture(floats({1, 2, 3, 4}, {2, 1, 2}))});
    EXPECT_FALSE(mask_at(of_many, 0, 1, 0, 0));
    EXPECT_TRUE(mask_at(of_many, 1, 0, 0, 0));
    EXPECT_THAT(error_of([&] { batched_mod_ir(mod.ir(), 2, {true}); }),
                HasSubstr("expected 2 flags"));
}

TEST(Mod, DerivativeOfTheCallersOwn) {
    const Capture slopes = capture(floats({0.5F, 0.25F}, {2}));
    const Mod mod = [slopes](auto s, auto, auto h, auto, auto) { return s * slopes[h]; };
    const auto body = [&](std::span<const Tile> x) -> std::vector<Operand> {
        const std::source_location here;
        return {Operand(x[5] * 3, here), Operand(x[2], here), Operand(x[5] * x[0], here)};
    };
    const std::string text = mod.derivative_ir(body);
    const Mod with = mod.with_derivative(text, {0});
    const mod::Traced& traced = mod::trace(with);
    ASSERT_NE(traced.derivative, nullptr);
    ASSERT_EQ(traced.gathers.size(), 1U);
    EXPECT_EQ(traced.gathers[0].indices, std::vector<std::size_t>{1});
    EXPECT_EQ(traced.gathers[0].value, 2U);
    EXPECT_EQ(mod::trace(mod).derivative, nullptr);
    EXPECT_THAT(error_of([&] { mod.with_derivative(text, {}); }), HasSubstr("with 1 results"));
    EXPECT_THAT(error_of([&] { mod.with_derivative(text, {1}); }), HasSubstr("arrays below 1"));
    EXPECT_THAT(error_of([&] { masks::causal().with_derivative(text, {}); }),
                HasSubstr("expected the mod to be a score mod"));
}

TEST(Mod, ReadsSaysWhetherBatchAndHeadMatter) {
    const Capture ids = capture(ints({0, 1, 2, 3}, {2, 2}));
    const auto reads = [](const Mod& mod) {
        return std::pair(mod.reads().batch, mod.reads().head);
    };
    EXPECT_EQ(reads(masks::causal()), std::pair(false, false));
    EXPECT_EQ(reads(masks::document(ids)), std::pair(true, false));
    EXPECT_EQ(reads([](auto s, auto, auto h, auto, auto) { return s * h; }),
              std::pair(false, true));
    EXPECT_EQ(reads([](auto b, auto, auto q, auto kv) {
                  return cond(
                      q > kv, [&] { return b > 0; }, [&] { return q == kv; });
              }),
              std::pair(true, false));
}

TEST(Mod, EvaluateAppliesItToNumbers) {
    const Mod mod = [](auto s, auto b, auto h, auto q, auto kv) { return s + b + h * 2 + q - kv; };
    EXPECT_EQ(mod.evaluate(0.25, 1, 2, 3, 4), 4.25);
    EXPECT_TRUE(masks::causal().evaluate(0, 0, 3, 3));
    EXPECT_FALSE(masks::causal().evaluate(0, 0, 3, 4));
    EXPECT_THAT(error_of([&] { mod.evaluate(0, 0, 3, 3); }),
                HasSubstr("expected a mod applied to"));
}

TEST(Mod, LinesOfOtherLanguagesStandInErrorsAndText) {
    const Capture table = capture(floats({1, 2, 3}, {3}), "table");
    const Mod mod = Mod([table](auto s, auto, auto, auto q, auto) {
                        return s + table[q];
                    }).written_at("mods.py", 12);
    EXPECT_THAT(mod.ir(f32, true), HasSubstr("loc \"mods.py\" 12"));
    EXPECT_THAT(mod.ir(), ::testing::Not(HasSubstr("loc")));
    EXPECT_EQ(detail::exchange_source_line({}, 0).line, 0);
    const auto line_of = [](const Mod& m) {
        for (const ir::Instruction& i : mod::trace(m, f32, true).function->body.body) {
            if (i.op == ir::Op::debug_check)
                return std::pair(std::string(i.location.file), i.location.line);
        }
        return std::pair(std::string("no check"), 0);
    };
    EXPECT_EQ(line_of(mod), std::pair(std::string("mods.py"), 12));
    // A mod from text has the checks of the checked mode, with the lines named in the text.
    const Mod again = Mod::from_ir(mod.ir(f32, true), {table});
    EXPECT_EQ(line_of(again), std::pair(std::string("mods.py"), 12));
    EXPECT_EQ(line_of(Mod::from_ir(mod.ir(), {table})).second, 0);
    EXPECT_EQ(score_at(again, 1, 0, 0, 1, 0), 3);
}

TEST(Mod, ShiftedTextsCountFromAnOrigin) {
    const Capture ids = capture(ints({0, 1, 2, 3}, {4}));
    const Capture of_batch = capture(ints({5, 6}, {1, 2}));
    const Mod mod = [=](auto b, auto h, auto q, auto kv) {
        const auto id = ids[b];  // read first, and so the first array
        return id + of_batch(b, q) * 10 + h * 100 == kv;
    };
    EXPECT_EQ(mod_axes(mod.ir()), (std::vector<std::string>{"b", "bq"}));
    const Tensor origin = Tensor::from_vector(std::vector<std::int32_t>{2, 3}, {2});
    const auto value = [&](const std::vector<bool>& local, std::int64_t want) {
        const Mod shifted =
            Mod::from_ir(shifted_mod_ir(mod.ir(), local), {capture(origin), ids, of_batch});
        return mask_at(shifted, 0, 1, 1, want);
    };
    // ids of all batches, at 2 + 0; of_batch of this shard's, at 0; heads from 3 on.
    EXPECT_TRUE(value({false, true}, 2 + 60 + 400));
    EXPECT_TRUE(value({true, true}, 0 + 60 + 400));
    EXPECT_THAT(error_of([&] { shifted_mod_ir(mod.ir(), {true}); }), HasSubstr("expected 2 flags"));
    const Mod mixed = [=](auto b, auto h, auto q, auto) { return ids[b] == ids[h] && q >= 0; };
    EXPECT_EQ(mod_axes(mixed.ir()), std::vector<std::string>{"."});
}

}  // namespace
}  // namespace tilewright
