// The passes that rewrite soft caps and join constant factors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "ir/passes/fold_factors.h"
#include "ir/passes/soft_caps.h"
#include "tests/ir/run_pass.h"

namespace tilewright::ir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(SoftCaps, AreApproximateWhereOnlyTheAbsoluteErrorMatters) {
    const auto all_after = [](std::string_view readers) {
        return after(soft_caps, "  %t = tanh %a : f32\n" + std::string(readers));
    };
    // 20 tanh(a), and (1 + tanh(a)) (1 - tanh(a)) for its derivative.
    const std::string capped = all_after(
        "  %k = constant 20 : f32\n  %i = constant 1 : f32\n  %s = mul %k, %t : f32\n  store "
        "%y[%0], %s\n  %u = add %i, %t : f32\n  %v = sub %i, %t : f32\n  %d = mul %u, %v : f32\n"
        "  store %y[%1], %d\n");
    EXPECT_THAT(capped, HasSubstr("approx"));
    EXPECT_THAT(capped, Not(HasSubstr("tanh")));
    // A large factor, another value, and a result of its own.
    for (const char* reader : {"  %k = constant 200 : f32\n  %s = mul %k, %t : f32\n",
                               "  %s = mul %t, %a : f32\n", "  %s = neg %t : f32\n"}) {
        EXPECT_THAT(all_after(std::string(reader) + "  store %y[%0], %s\n"), HasSubstr("tanh"))
            << reader;
    }
    EXPECT_THAT(all_after("  store %y[%0], %t\n"), HasSubstr("tanh"));
}

TEST(SoftCaps, HaveShortDerivatives) {
    const std::string head = "  %t = tanh %a : f32\n  %i = constant 1 : f32\n";
    const std::string by_sums =
        "  %u = add %i, %t : f32\n  %v = sub %i, %t : f32\n  %d = mul %v, %u : f32\n";
    const std::string by_square = "  %u = mul %t, %t : f32\n  %d = sub %i, %u : f32\n";
    for (const std::string& derivative : {by_sums, by_square}) {
        // g 20 (1 - t^2) 0.05, as differentiation leaves it.
        const std::string text =
            after(soft_caps, head + derivative +
                                 "  %cap = constant 20 : f32\n  %f = constant 0.05 : f32\n"
                                 "  %g = mul %a, %cap : f32\n  %h = mul %g, %d : f32\n"
                                 "  %r = mul %h, %f : f32\n  store %y[%0], %r\n");
        EXPECT_THAT(text, Not(HasSubstr("constant 20"))) << text;
        EXPECT_THAT(text, Not(HasSubstr("constant 0.05"))) << text;
        EXPECT_THAT(text, Not(HasSubstr(" = sub "))) << text;
        EXPECT_THAT(text, HasSubstr("= neg ")) << text;
    }
    // Without a soft cap, and with factors that are too large, nothing changes.
    const std::string scaled =
        "  %cap = constant 20 : f32\n  %f = constant 0.1 : f32\n"
        "  %g = mul %a, %cap : f32\n  %h = mul %g, %a : f32\n"
        "  %r = mul %h, %f : f32\n  store %y[%0], %r\n";
    EXPECT_THAT(after(soft_caps, scaled), HasSubstr("constant 20"));
    std::string large = head + "  %s = mul %i, %t : f32\n  store %y[%1], %s\n" + scaled;
    large.replace(large.find("constant 20"), 11, "constant 1e10");
    EXPECT_THAT(after(soft_caps, large), HasSubstr("constant 10000000000"));
}

TEST(SoftCaps, MultiplyByReciprocalsOfConstants) {
    // 20 tanh(a / 20), as users write it, with the factor of its derivative: g / 20.
    const std::string capped =
        "  %k = constant 20 : f32\n  %w = div %a, %k : f32\n  %t = tanh %w : f32\n"
        "  %s = mul %k, %t : f32\n  store %y[%0], %s\n  %g = div %s, %k : f32\n"
        "  store %y[%1], %g\n";
    const std::string text = after(soft_caps, capped);
    EXPECT_THAT(text, Not(HasSubstr(" = div "))) << text;
    EXPECT_THAT(text, HasSubstr("constant 0.05")) << text;
    // Other divisors, and functions without a soft cap, stay as they are.
    std::string large = capped;
    large.replace(large.find("div %s, %k"), 10, "div %s, %a");
    EXPECT_THAT(after(soft_caps, large), HasSubstr("div %")) << large;
    EXPECT_THAT(after(soft_caps,
                      "  %k = constant 20 : f32\n  %w = div %a, %k : f32\n"
                      "  store %y[%0], %w\n"),
                HasSubstr(" = div "));
}

TEST(SoftCaps, KeepAnExactTanhOnCpus) {
    const auto mod = [](std::string_view body) {
        Function f = parse(
            "func @f(%s: f32, %g: f32) {\n"
            "  %k = constant 20 : f32\n  %i = constant 1 : f32\n" +
            std::string(body) + "}\n");
        exact_soft_caps(f);
        verify(f);
        return print(f);
    };
    // 20 tanh(s / 20) and its derivative, g 20 (1 + t) (1 - t) / 20.
    const std::string capped =
        "  %w = div %s, %k : f32\n  %t = tanh %w : f32\n  %c = mul %k, %t : f32\n";
    const std::string text =
        mod(capped +
            "  %h = mul %g, %k : f32\n  %u = add %i, %t : f32\n  %v = sub %i, %t : f32\n"
            "  %x = mul %u, %v : f32\n  %y = mul %h, %x : f32\n  %d = div %y, %k : f32\n"
            "  yield %c, %d\n");
    EXPECT_THAT(text, HasSubstr(" = tanh ")) << text;
    EXPECT_THAT(text, Not(HasSubstr("approx"))) << text;
    EXPECT_THAT(text, Not(HasSubstr(" = div "))) << text;
    EXPECT_THAT(text, HasSubstr("constant 0.05")) << text;
    // The result may differ in its last bits. One that is rounded down or compared may not, as
    // buckets of positions: 60 * (1 / 20) is above 3 or below.
    EXPECT_THAT(mod(capped + "  %d = div %g, %k : f32\n  yield %c, %d\n"),
                Not(HasSubstr(" = div ")));
    EXPECT_THAT(mod(capped + "  %d = div %g, %k : f32\n  %f = floor %d : f32\n  yield %c, %f\n"),
                HasSubstr(" = div %"));
    // A large cap, a tanh that is a result of its own, and functions without one.
    for (const char* body :
         {"  %b = constant 200 : f32\n  %w = div %s, %b : f32\n  %t = tanh %w : f32\n"
          "  %c = mul %b, %t : f32\n  yield %c, %g\n",
          "  %w = div %s, %k : f32\n  %t = tanh %w : f32\n  yield %t, %g\n",
          "  %w = div %s, %k : f32\n  yield %w, %g\n"}) {
        EXPECT_THAT(mod(body), HasSubstr(" = div ")) << body;
    }
}

TEST(SoftCaps, JoinNoConstantsWhoseProductIsUnusual) {
    const std::string head =
        "  %t = tanh %a : f32\n  %i = constant 1 : f32\n  %s = mul %i, %t : f32\n"
        "  store %y[%1], %s\n";
    const auto joined = [&](const std::string& first, const std::string& second) {
        return after(soft_caps, head + "  %k = constant " + first + " : f32\n  %l = constant " +
                                    second +
                                    " : f32\n  %g = mul %a, %k : f32\n  %h = mul %g, %a : f32\n" +
                                    "  %r = mul %h, %l : f32\n  store %y[%0], %r\n");
    };
    EXPECT_THAT(joined("1024", "512"), HasSubstr("constant 524288 : f32"));
    EXPECT_THAT(joined("1024", "2048"), HasSubstr("constant 2048 : f32"));
    EXPECT_THAT(joined("0.0009765625", "0.00048828125"), HasSubstr("constant 0.0009765625 : f32"));
}

TEST(FoldFactors, JoinsFactorsOfASumBeforeAFunction) {
    const std::string text =
        after(fold_factors,
              "  %cap = constant 20 : f32\n  %l = constant 1.5 : f32\n  %s = mul %cap, %a : f32\n"
              "  %u = fma %s, %l, %a : f32\n  %e = exp2 %u approx : f32\n  store %y[%0], %e\n");
    EXPECT_THAT(text, HasSubstr("constant 30 : f32"));
    EXPECT_THAT(text, Not(HasSubstr(" = mul ")));
}

TEST(FoldFactors, AddsWhatFollows) {
    const std::string text = after(
        fold_factors,
        "  %l = logistic %a approx : f32\n  %two = constant 2 : f32\n  %less = constant -1 : f32\n"
        "  %cap = constant 5 : f32\n  %off = constant 7 : f32\n  %m = fma %l, %two, %less : f32\n"
        "  %r = fma %m, %cap, %off : f32\n  store %y[%0], %r\n");
    EXPECT_THAT(text, HasSubstr("constant 10 : f32"));
    EXPECT_THAT(text, HasSubstr("constant 2 : f32"));  // 7 - 5
    EXPECT_THAT(text, Not(HasSubstr("constant 7 : f32")));
}

TEST(FoldFactors, JoinsConstantsAroundApproximateFunctions) {
    const std::string scaled =
        "  %j = constant 0.25 : f32\n  %k = constant 3 : f32\n  %s = mul %a, %j : f32\n"
        "  %u = mul %k, %s : f32\n";
    const std::string rest =
        "  %two = constant 2 : f32\n  %less = constant -1 : f32\n  %cap = constant 5 : f32\n"
        "  %m = fma %l, %two, %less : f32\n  %r = mul %cap, %m : f32\n  store %y[%0], %r\n";
    const std::string folded =
        after(fold_factors, scaled + "  %l = logistic %u approx : f32\n" + rest);
    EXPECT_THAT(folded, HasSubstr("constant 0.75 : f32"));
    EXPECT_THAT(folded, HasSubstr("constant 10 : f32"));
    EXPECT_THAT(folded, HasSubstr("constant -5 : f32"));
    EXPECT_THAT(folded, Not(HasSubstr("constant 3 : f32")));
    // The accurate function keeps its operand's bits, and its result's.
    const std::string kept = after(fold_factors, scaled + "  %l = logistic %u : f32\n" + rest);
    EXPECT_THAT(kept, Not(HasSubstr("constant 0.75 : f32")));
    EXPECT_THAT(kept, Not(HasSubstr("constant 10 : f32")));
}

TEST(FoldFactors, ComputesNothingTwiceForAnotherReader) {
    const std::string before =
        "  %cap = constant 20 : f32\n  %l = constant 1.5 : f32\n  %s = mul %cap, %a : f32\n"
        "  %u = fma %s, %l, %a : f32\n  %e = exp2 %u approx : f32\n  store %y[%0], %e\n";
    EXPECT_THAT(after(fold_factors, before + "  store %y[%1], %u\n"),
                Not(HasSubstr("constant 30 : f32")));
    const std::string with_sum =
        "  %l = logistic %a approx : f32\n  %two = constant 2 : f32\n  %less = constant -1 : f32\n"
        "  %cap = constant 5 : f32\n  %off = constant 7 : f32\n  %m = fma %l, %two, %less : f32\n"
        "  %r = fma %m, %cap, %off : f32\n  store %y[%0], %r\n";
    EXPECT_THAT(after(fold_factors, with_sum + "  store %y[%1], %m\n"),
                Not(HasSubstr("constant 10 : f32")));
}

}  // namespace
}  // namespace tilewright::ir
