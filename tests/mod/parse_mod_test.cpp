// Text of masks and scores: Python's grammar and arithmetic, names, errors with columns.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "mod/evaluate.h"
#include "tests/support/throws.h"
#include "tilewright/error.h"
#include "tilewright/lang/functions.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright {
namespace {

using testing::throws;

using ::testing::HasSubstr;

Bindings arrays() {
    return {
        {"slopes", Tensor::from_vector(std::vector<float>{0.5F, 0.25F}, {2})},
        {"bias", Tensor::from_vector(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3})},
        {"doc", Tensor::from_vector(std::vector<std::int32_t>{0, 0, 1, 1}, {4})},
        {"offsets", Tensor::from_vector(std::vector<std::int32_t>{0, 2}, {2})},
        {"cap", Tensor::scalar(f32, 20)},
    };
}

/// The result at b 1, h 1, q 3, kv 2 for a score of 0.5.
double score_of(const std::string& text) {
    const Mod mod = parse_mod(text, arrays(), Mod::Kind::score);
    return mod::Evaluator(mod::trace(mod)).score(0.5, 1, 1, 3, 2);
}
bool mask_of(const std::string& text) {
    const Mod mod = parse_mod(text, arrays());
    EXPECT_EQ(mod.kind(), Mod::Kind::mask) << text;
    return mod::Evaluator(mod::trace(mod)).mask(1, 1, 3, 2);
}

/// The error of a text, and the column it points to (0: none).
std::pair<std::string, int> error_of(const std::string& text, std::optional<Mod::Kind> kind = {}) {
    try {
        parse_mod(text, arrays(), kind);
    } catch (const UserError& error) {
        const std::string what = error.what();
        const auto column = what.find("column ");
        if (column == std::string::npos) return {what, 0};
        // The mark is below the column, indented by four spaces.
        const auto mark = what.size() - what.rfind('\n') - 1;
        const int number = std::stoi(what.substr(column + 7));
        EXPECT_EQ(what.back(), '^');
        EXPECT_EQ(static_cast<int>(mark), number + 4) << what;
        return {what, number};
    }
    return {"no error", 0};
}

TEST(ParseMod, ArithmeticAndPrecedenceAreThoseOfPython) {
    const std::pair<const char*, double> cases[] = {
        {"1 + 2 * 3", 7},
        {"(1 + 2) * 3", 9},
        {"-2 ** 2", -4},
        {"2 ** -1", 0.5},
        {"2 ** 3 ** 2", 512},
        {"7 // 2", 3},
        {"-7 // 2", -4},
        {"-7 % 3", 2},
        {"7 % -3", -2},
        {"-7.5 // 2", -4},
        {"-7.5 % 2", 0.5},
        {"1 / 2", 0.5},
        {"1 if 2 < 1 else 3", 3},
        {"1 if q > kv else 2 if q == kv else 3", 1},
        {"1 | 2 ^ 3 & 2", 1 | (2 ^ (3 & 2))},
        {"1 << 2 + 1", 8},
        {"~5", -6},
        {"1_000 + 2.5e-1 + .5 + 5.", 1005.75},
        {"min(3, 1, 2) + max(1, 2)", 3},
        {"abs(-3) + abs(-0.5)", 3.5},
        {"q / 2", 1.5},
        {"kv / q", 2.0F / 3.0F},
        {"(kv - q) // 2", -1},
        {"(kv - 2 * q) % 3", 2},
        {"(kv - 2 * q) / 3 * 3", -4},
        {"q ** 2 + 2 ** kv", 13},
        {"score ** 2", 0.25},
        {"q ** 0 | 4", 5},
        {"score * 2 - -1", 2},
        {"score - q - kv", -4.5},
        {"exp(0) + exp2(3) + log(1)", 9},
        {"tanh(score)", std::tanh(0.5F)},
        {"clamp(score, 0.75, 1)", 0.75},
        {"relu(-1) + relu(score) + square(3)", 9.5},
        {"softplus(0) + softplus(score)", std::log(2.0) + std::log1p(std::exp(0.5))},
        {"sqrt(4) + floor(-0.5)", 1},
        {"sigmoid(0)", 0.5},
        {"where(q > kv, score, -inf)", 0.5},
        {"-inf if q > kv else score", -INFINITY},
        {"int(2.7) + float(q) / 2", 3.5},
        {"score + slopes[h]", 0.75},
        {"slopes[h] * (kv - q)", -0.25},
        {"bias[h, q - kv]", 4},
        {"bias[h, q + 100] + bias[-2, -3]", 5},
        {"bias[h - 2, kv - q] + bias[0, -1]", 7},
        {"cap * tanh(score / cap)", 20 * std::tanh(0.5F / 20)},
        {"q - offsets[doc[q]]", 1},
        {"score if True else 0", 0.5},
        {"score +\n  1", 1.5},
    };
    for (const auto& [text, value] : cases) {
        EXPECT_FLOAT_EQ(score_of(text), static_cast<float>(value)) << text;
    }
}

TEST(ParseMod, FunctionsOfTheTableAreKnown) {
    for (const ElementwiseFunction& function : elementwise_functions()) {
        const auto text = [&](const char* x) {
            return fmt::format(fmt::runtime(function.operands == 2 ? "{}({}, 2)" : "{}({})"),
                               function.name, x);
        };
        const auto want = static_cast<float>(function.value(0.5, 2));
        EXPECT_FLOAT_EQ(score_of(text("score")), want) << function.name;
        EXPECT_FLOAT_EQ(score_of(text("0.5")), want) << function.name;
        if (!function.approx) continue;
        EXPECT_FLOAT_EQ(score_of(fmt::format("{}(score, approx=True)", function.name)), want);
    }
    EXPECT_EQ(score_of("nextafter(score, 2)"), std::nextafter(0.5F, 2.0F));
}

TEST(ParseMod, MasksCompareAndCombine) {
    const std::pair<const char*, bool> cases[] = {
        {"q >= kv", true},
        {"0 <= q - kv <= 1", true},
        {"0 < q - kv < 1", false},
        {"1 < 2 < 3 != 4 > q", true},
        {"not q >= kv", false},
        {"not q < kv and kv == 2", true},
        {"q < kv or kv == 2 and h == 0", false},
        {"(q < kv) | ~(kv != 2)", true},
        {"q > kv and not False", true},
        {"doc[q] == doc[kv]", true},
        {"causal", true},
        {"causal() & sliding_window(0)", false},
        {"causal & sliding_window(w=1)", true},
        {"~causal", false},
        {"prefix_lm(100) | document(doc)", true},
        {"document(doc) & (kv < 2 + 0)", false},
        {"True", true},
        {"b == 1 & h", true},
    };
    for (const auto& [text, value] : cases) EXPECT_EQ(mask_of(text), value) << text;
}

TEST(ParseMod, LibraryNamesTakeTheCurrentScore) {
    EXPECT_FLOAT_EQ(score_of("alibi(slopes)"), 0.25F);
    EXPECT_FLOAT_EQ(score_of("alibi(2)"), 0.5F - 1.0F / 256);
    EXPECT_FLOAT_EQ(score_of("softcap(2)"), 2 * std::tanh(0.25F));
    EXPECT_FLOAT_EQ(score_of("softcap(2, alibi(slopes))"), 2 * std::tanh(0.125F));
    EXPECT_FLOAT_EQ(score_of("softcap(2, approx=True, alibi(slopes))"), 2 * std::tanh(0.125F));
    EXPECT_FLOAT_EQ(score_of("softcap(2, True, score * 2)"), 2 * std::tanh(0.5F));
    EXPECT_FLOAT_EQ(score_of("alibi(slopes) + relative_position"), 0.25F + 1.5F);
    EXPECT_FLOAT_EQ(score_of("checkerboard if causal else -inf"), 0.25F);
    EXPECT_FLOAT_EQ(score_of("activation(relu, 0.25)"), std::log(0.75F));
    EXPECT_FLOAT_EQ(score_of("activation(f=square)"), std::log(0.25F));
    EXPECT_FLOAT_EQ(score_of("activation(relu, n=1, score * 2)"), std::log(2.0F));
    EXPECT_EQ(parse_mod("alibi(8)").kind(), Mod::Kind::score);
    EXPECT_EQ(parse_mod("q - kv").kind(), Mod::Kind::score);
}

TEST(ParseMod, ComposePassesOneScoreToTheOther) {
    EXPECT_FLOAT_EQ(score_of("compose(softcap(2), alibi(slopes))"), 2 * std::tanh(0.125F));
    EXPECT_FLOAT_EQ(score_of("compose(alibi(slopes), softcap(2))"), 2 * std::tanh(0.25F) - 0.25F);
    EXPECT_FLOAT_EQ(score_of("compose(score * score, compose(score + 1, score * 4))"), 9);
    EXPECT_FLOAT_EQ(score_of("compose(score / 2, 1) + score"), 1);
    EXPECT_FLOAT_EQ(score_of("compose(softcap(2, score + 1), score * 2) if causal else 0"),
                    2 * std::tanh(1.0F));
    EXPECT_EQ(parse_mod("compose(score + 1, score)").kind(), Mod::Kind::score);
}

TEST(ParseMod, CapturesAreTheBoundArraysThatAreUsed) {
    const Mod mod = parse_mod("score + bias[h, q] * slopes[h]", arrays());
    ASSERT_EQ(mod.captures().size(), 2U);
    EXPECT_EQ(mod.captures()[0].name(), "bias");
    EXPECT_EQ(mod.captures()[1].name(), "slopes");
}

TEST(ParseMod, ErrorsPointAtTheColumn) {
    struct Case {
        const char* text;
        int column;
        const char* message;
    };
    const Case cases[] = {
        {"", 1, "expected an expression but the text ends"},
        {"q >=", 5, "expected an expression but the text ends"},
        {"q >= kv)", 8, "expected an operator or the end but got `)`"},
        {"(q >= kv", 9, "expected `)` but the text ends"},
        {"q = kv", 3, "expected `==` to compare but got `=`"},
        {"q $ kv", 3, "expected an expression but got `$`"},
        {"q >= k", 6, "b, h, q, kv, score, bias, cap, doc, offsets, slopes"},
        {"q !kv", 3, "expected an operator or the end but got `!`"},
        {"é", 1, "expected an expression but got `é`"},
        {"slopes + 1", 1, "expected an index of `slopes`, f32[2], as in slopes[q]"},
        {"q + bias[h]", 5, "expected 2 indices of `bias`, f32[2, 3], but got 1"},
        {"slopes[score] + 1", 1, "expected an integer index"},
        {"q[0] > 1", 1, "expected an array but `q` is a scalar"},
        {"slopes(h) > 0", 1, "expected `slopes[...]` but got `slopes(...)`"},
        {"erf(q, kv) > 1", 1, "expected 1 argument of `erf` but got 2"},
        {"exp(q, kv) > 1", 1, "expected True or False for `approx`"},
        {"exp + 1", 1, "expected the arguments of `exp`"},
        {"q > 1 and kv", 7, "expected bools but got i64"},
        {"not q", 1, "expected a bool but got i64"},
        {"q + (1 // 0)", 8, "expected a divisor other than 0"},
        {"q > 99999999999999999999", 5, "expected an integer below 2^63"},
        {"q > 9223372036854775807 + 1", 25, "fits in 64 bits"},
        {"causal & sliding_window(1.5)", 10, "expected an integer for `w` but got 1.5"},
        {"sliding_window", 1, "expected `sliding_window(w)` but `w` was left out"},
        {"sliding_window(1, 2)", 19, "expected at most 1 argument of `sliding_window`"},
        {"sliding_window(x=1)", 18, "expected no argument named `x` of `sliding_window`"},
        {"document(slopes)", 1, "expected ids"},
        {"q > 3 x", 7, "expected an operator or the end but got `x`"},
        {"where(q, 1, 2)", 1, "expected a bool condition"},
        {"1 if q else 2", 3, "expected a bool condition"},
        {"q.x", 2, "expected an operator but got `.`"},
        {"12abc", 3, "expected an operator but got `a`"},
        {"softcap(-1)", 1, "expected a positive finite cap but got -1"},
        {"f(q)", 1, "a function or a library name but got `f`"},
        {"compose(alibi(8))", 1, "expected `compose(outer, inner)`, two scores, but got 1"},
        {"compose(outer=alibi(8), inner=score)", 1, "but got 2 arguments with names"},
        {"compose", 1, "or a library name but got `compose`"},
        {"activation(abs)", 1, "relu, sigmoid, softplus, exp, square but got `abs`"},
        {"activation(8)", 1, "expected a function's name for `f` but got 8"},
        {"sliding_window(exp)", 1, "expected an integer for `w` but got the function `exp`"},
        {"slopes[]", 8, "expected an index but got `]`"},
    };
    for (const Case& c : cases) {
        const auto [message, column] = error_of(c.text);
        EXPECT_THAT(message, HasSubstr(c.message)) << c.text;
        EXPECT_EQ(column, c.column) << c.text << "\n" << message;
    }
}

TEST(ParseMod, ErrorsNameTheLineFromTheSecondOn) {
    const std::string message = error_of("q >= kv\n  and foo").first;
    EXPECT_THAT(message, HasSubstr("line 2, column 7"));
}

TEST(ParseMod, KindsAreChecked) {
    EXPECT_THAT(error_of("score > 0", Mod::Kind::mask).first,
                HasSubstr("expected a mask, which has no `score` at column 1"));
    EXPECT_THAT(error_of("alibi(8) > 0", Mod::Kind::mask).first, HasSubstr("`alibi` is a score"));
    EXPECT_THAT(error_of("compose(1, 2) > 0", Mod::Kind::mask).first,
                HasSubstr("`compose` is a score"));
    EXPECT_THAT(error_of("q - kv", Mod::Kind::mask).first, HasSubstr("expected a mask"));
    EXPECT_THAT(error_of("q >= kv", Mod::Kind::score).first, HasSubstr("score if ... else -inf"));
    EXPECT_THAT(
        [&] {
            parse_mod("q", {{"q", Tensor::scalar(f32, 1)}});
        },
        throws("expected a name that is not taken for an array but got `q`"));
    EXPECT_THAT(
        [&] {
            parse_mod("q", {{"a b", Tensor::scalar(f32, 1)}});
        },
        throws("expected letters, digits and _ for an array but got `a b`"));
    EXPECT_THAT(
        [&] {
            parse_mod("q", {{"x", Tensor()}});
        },
        throws("expected a tensor but it is undefined"));
}

TEST(ParseMod, DeepTextsAreRefused) {
    const auto repeat = [](const std::string& text, int times) {
        std::string result;
        for (int i = 0; i < times; ++i) result += text;
        return result;
    };
    for (const std::string& text :
         {repeat("(", 5000) + "q" + repeat(")", 5000), repeat("-", 5000) + "q",
          "q" + repeat("+q", 5000), repeat("not ", 5000) + "q", "q" + repeat("**q", 5000),
          repeat("1 if q else ", 5000) + "2", repeat("exp(", 5000)}) {
        EXPECT_THAT(error_of(text).first, HasSubstr("operations deep"));
    }
    EXPECT_THAT(error_of(repeat("q+", 40000)).first, HasSubstr("at most 65536 bytes"));
}

TEST(ParseMod, AnyTextParsesOrIsAUserError) {
    const char* const pieces[] = {
        "q",
        "kv",
        "h",
        "b",
        "score",
        "slopes",
        "bias",
        "doc",
        "(",
        ")",
        "[",
        "]",
        ",",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "&",
        "|",
        "^",
        "~",
        "<<",
        ">>",
        "<",
        "<=",
        "==",
        "and ",
        "or ",
        "not ",
        " if ",
        " else ",
        "1",
        "0",
        "2.5",
        "1e3",
        "inf",
        "True",
        "exp(",
        "min(",
        "where(",
        "softcap(",
        "compose(",
        "activation(",
        "relu",
        "alibi(",
        "causal",
        "document(doc)",
        "9223372036854775807",
        ".",
        "=",
        "\n",
        "\xc3\xa9",
        "cap",
        "bias[h, q]",
        "slopes[h]",
        "sliding_window(",
    };
    std::mt19937 generator(1);
    const Bindings bound = arrays();
    int parsed = 0;
    for (int i = 0; i < 6000; ++i) {
        std::string text;
        const auto count = 1 + generator() % 12;
        for (std::size_t n = 0; n < count; ++n) text += pieces[generator() % std::size(pieces)];
        if (i % 4 == 0) {
            text = "softcap(20, alibi(slopes)) if 0 <= q - kv < 7 else -inf";
            text[generator() % text.size()] = static_cast<char>(generator() % 256);
        }
        try {
            const Mod mod = parse_mod(text, bound);
            mod::Evaluator evaluator(mod::trace(mod));
            if (mod.kind() == Mod::Kind::mask) {
                evaluator.mask(0, 1, 2, 3);
            } else {
                evaluator.score(0.5, 0, 1, 2, 3);
            }
            ++parsed;
        } catch (const UserError&) {
        }
    }
    EXPECT_GT(parsed, 100);
}

}  // namespace
}  // namespace tilewright
