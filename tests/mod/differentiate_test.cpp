// The differentiate pass against finite differences in f64.
#include "ir/passes/differentiate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "cpu/interpreter.h"
#include "ir/builder.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "mod/evaluate.h"
#include "tilewright/error.h"
#include "tilewright/lang/functions.h"
#include "tilewright/scores.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;

/// The results of a function of f64 scalars, by the reference interpreter.
std::vector<double> run(ir::Function function, const std::vector<double>& arguments) {
    const std::vector<ir::Value> results = function.body.terminator().operands;
    function.body.body.pop_back();
    ir::Builder builder(function);
    const auto size = static_cast<std::int64_t>(results.size());
    const ir::Value out =
        function.add_parameter(ir::RefType{f64, {size}, ir::Space::global, -1}, "out");
    for (std::int64_t i = 0; i < size; ++i) {
        const ir::IndexOperand at = ir::IndexOperand::scalar(builder.constant_int({i64, {}}, i));
        builder.store(out, std::span(&at, 1), results[static_cast<std::size_t>(i)]);
    }
    builder.yield({});
    ir::verify(function);
    std::vector<double> values(results.size());
    ir::Arguments launch;
    ir::RefArgument ref;
    ref.data = values.data();
    ref.extents[0] = size;
    ref.strides[0] = 1;
    launch.refs.push_back(ref);
    for (double argument : arguments) {
        launch.scalars.push_back(std::bit_cast<std::uint64_t>(argument));
    }
    cpu::interpret(function, launch);
    return values;
}

/// A function of f64 scalars from the text of its body; arguments are %a, %b, %c.
ir::Function function_of(const std::string& body, int arguments) {
    std::string text = "func @f(";
    for (int i = 0; i < arguments; ++i) {
        text += (i ? ", %" : "%") + std::string(1, static_cast<char>('a' + i)) + ": f64";
    }
    return ir::parse(text + ") {\n" + body + "\n}\n");
}

void expect_derivative(const std::string& body, const std::vector<double>& at) {
    SCOPED_TRACE(body);
    const ir::Function function = function_of(body, static_cast<int>(at.size()));
    ir::Function derivative = function;
    ir::differentiate(derivative, {std::vector<bool>(at.size(), true), {}});
    std::vector<double> arguments = at;
    arguments.push_back(1);  // the cotangent
    const std::vector<double> ours = run(derivative, arguments);
    ASSERT_EQ(ours.size(), at.size());
    for (std::size_t i = 0; i < at.size(); ++i) {
        const double step = 1e-5 * std::max(1.0, std::abs(at[i]));
        std::vector<double> low = at, high = at;
        low[i] -= step;
        high[i] += step;
        const double difference = (run(function, high)[0] - run(function, low)[0]) / (2 * step);
        // The error of central differences: the step squared, plus rounding divided by the step.
        const double tolerance = 1e-8 * std::max(1.0, std::abs(difference));
        EXPECT_TRUE(std::abs(ours[i] - difference) <= tolerance)
            << "argument " << i << ": " << ours[i] << " but differences give " << difference;
    }
}

TEST(Differentiate, UnaryOps) {
    std::vector<std::string> ops{"neg", "abs", "sign"};
    for (const ElementwiseFunction& function : elementwise_functions()) {
        if (function.operands == 1 && !function.op.empty()) ops.emplace_back(function.op);
    }
    for (const std::string& op : ops) {
        expect_derivative("%r = " + op + " %a : f64\nyield %r", {0.7});
    }
    expect_derivative("%r = erfc %a : f64\nyield %r", {-1.5});
    expect_derivative("%r = cbrt %a : f64\nyield %r", {-2.0});
    expect_derivative("%r = abs %a : f64\nyield %r", {-0.7});
    expect_derivative("%r = tanh %a : f64\nyield %r", {-3.0});
}

TEST(Differentiate, BinaryAndTernaryOps) {
    for (const char* op : {"add", "sub", "mul", "div", "rem", "floormod", "pow", "min", "max"}) {
        expect_derivative(std::string("%r = ") + op + " %a, %b : f64\nyield %r", {1.7, 0.6});
        expect_derivative(std::string("%r = ") + op + " %a, %b : f64\nyield %r", {0.4, 1.6});
    }
    expect_derivative("%r = floormod %a, %b : f64\nyield %r", {-1.7, 0.6});
    expect_derivative("%r = fma %a, %b, %c : f64\nyield %r", {1.7, 0.6, 2});
    for (double x : {0.1, 0.5, 0.9}) {
        expect_derivative("%r = clamp %a, %b, %c : f64\nyield %r", {x, 0.3, 0.7});
    }
    expect_derivative("%k = lt %a, %b : bool\n%r = select %k, %a, %c : f64\nyield %r", {1, 2, 3});
    expect_derivative("%k = lt %a, %b : bool\n%r = select %k, %a, %c : f64\nyield %r", {2, 1, 3});
}

TEST(Differentiate, NextAfterHasNoDerivative) {
    ir::Function function = function_of("%r = nextafter %a, %b : f64\nyield %r", 2);
    try {
        ir::differentiate(function, {{true, false}, {}});
        ADD_FAILURE() << "differentiated";
    } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("expected ops with a derivative but got nextafter"));
    }
}

TEST(Differentiate, ChainsAndSharedValues) {
    expect_derivative(
        "%x = mul %a, %a : f64\n%y = tanh %x : f64\n%z = mul %x, %y : f64\n"
        "%w = add %z, %a : f64\nyield %w",
        {0.8});
    // Through f32, whose rounding would disturb finite differences unless it is exact.
    expect_derivative("%x = cast %a : f32\n%y = cast %x : f64\n%z = mul %y, %a : f64\nyield %z",
                      {0.0});
}

TEST(Differentiate, BranchesAndLoops) {
    const std::string branch =
        "%k = gt %a, %b : bool\n"
        "%r = if_else %k : f64 {\n%x = mul %a, %b : f64\nyield %x\n} else {\n"
        "%y = sin %a : f64\nyield %y\n}\nyield %r";
    expect_derivative(branch, {2, 1});
    expect_derivative(branch, {1, 2});
    expect_derivative(
        "%l = constant 0 : i64\n%h = constant 5 : i64\n%s = constant 2 : i64\n"
        "%r = for_loop %i = %l, %h, %s carry (%x = %a) : f64 {\n"
        "%f = cast %i : f64\n%y = mul %x, %b : f64\n%z = add %y, %f : f64\n"
        "yield %z\n}\nyield %r",
        {0.5, 1.5});
}

TEST(Differentiate, TilesInside) {
    const std::string head =
        "%i = iota axis 0 : i32[3]\n%f = cast %i : f64[3]\n%w = broadcast %a : f64[3]\n"
        "%x = mul %f, %w : f64[3]\n%bb = broadcast %b : f64[3]\n%y = add %x, %bb : f64[3]\n";
    for (const char* kind : {"sum", "max", "min"}) {
        expect_derivative(
            head + "%s = sin %y : f64[3]\n%r = reduce %s " + kind + " axis 0 : f64\nyield %r",
            {0.7, 0.2});
    }
    const std::string matrix =
        head +
        "%e = expand_dims %y axis 0 : f64[1, 3]\n%m = broadcast %e : f64[2, 3]\n"
        "%n = reshape %m : f64[3, 2]\n%t = transpose %n permutation [1, 0] : f64[2, 3]\n";
    expect_derivative(matrix +
                          "%d = dot %m, %n : f64[2, 2]\n%p = reduce %d sum axis 0 : f64[2]\n"
                          "%r = reduce %p max axis 0 : f64\nyield %r",
                      {0.7, 0.2});
    for (const char* flags :
         {"%m, %t : f64[2, 2] transpose_b", "%n, %t : f64[2, 2] transpose_a transpose_b",
          "%n, %n : f64[2, 2] transpose_a"}) {
        const std::string dot(flags);
        const auto colon = dot.find(" : f64[2, 2]");
        expect_derivative(matrix + "%d = dot " + dot.substr(0, colon) + dot.substr(colon + 12) +
                              " : f64[2, 2]\n%p = reduce %d sum axis 0 : f64[2]\n"
                              "%r = reduce %p sum axis 0 : f64\nyield %r",
                          {0.7, 0.2});
    }
}

/// The gradient of a mod of f64 scores with respect to the score, and its gathers.
struct ModGradient {
    explicit ModGradient(const Mod& mod)
        : traced(mod::trace(mod, f64)), function(*traced.function) {
        ir::DifferentiateOptions options{{true, false, false, false, false}, {}};
        for (const Capture& capture : traced.captures) {
            options.refs.push_back(capture.differentiable());
        }
        report = ir::differentiate(function, options);
        ir::verify(function);
    }
    std::vector<std::uint64_t> at(double score, std::int64_t h, std::int64_t q, std::int64_t kv,
                                  double cotangent = 1) {
        std::vector<Tensor> tensors;
        for (const Capture& capture : traced.captures) tensors.push_back(capture.tensor());
        mod::Evaluator evaluator(function, tensors);
        const std::uint64_t scalars[] = {
            std::bit_cast<std::uint64_t>(score), 0,
            static_cast<std::uint64_t>(h),       static_cast<std::uint64_t>(q),
            static_cast<std::uint64_t>(kv),      std::bit_cast<std::uint64_t>(cotangent)};
        const auto results = evaluator.run(scalars);
        return {results.begin(), results.end()};
    }

    const mod::Traced& traced;
    ir::Function function;
    ir::DifferentiateReport report;
};

double as_double(std::uint64_t bits) {
    return std::bit_cast<double>(bits);
}

TEST(Differentiate, GathersGiveIndexAndGradient) {
    const Capture slopes = capture(Tensor::from_vector(std::vector<float>{0.5F, 0.25F}, {2}));
    const Mod mod = [slopes](auto s, auto, auto h, auto q, auto kv) {
        const Tile scaled = s * slopes[h];  // in this order
        return scaled + slopes[0] * (kv - q);
    };
    ModGradient gradient(mod);
    ASSERT_EQ(gradient.report.gathers.size(), 2U);
    const auto results = gradient.at(3, 1, 5, 2, 2);
    EXPECT_EQ(as_double(results[0]), 0.25 * 2);
    const auto& first = gradient.report.gathers[0];
    const auto& second = gradient.report.gathers[1];
    EXPECT_EQ(results[first.indices[0]], 1U);
    EXPECT_EQ(as_double(results[first.value]), 6);
    EXPECT_EQ(results[second.indices[0]], 0U);
    EXPECT_EQ(as_double(results[second.value]), -6);
}

TEST(Differentiate, GradientsOfNarrowCapturesAreNotRounded) {
    const Capture table = capture(Tensor::full(bf16, {1}, 1));
    const Mod mod = [table](auto s, auto, auto h, auto, auto) { return s * table[h]; };
    ModGradient gradient(mod);
    const auto results = gradient.at(1 + 0x1p-20, 0, 0, 0);
    EXPECT_EQ(as_double(results[gradient.report.gathers[0].value]), 1 + 0x1p-20);
}

TEST(Differentiate, TheBranchNotTakenNeverGivesNaN) {
    const auto slope = [](const Mod& mod, double score) {
        return as_double(ModGradient(mod).at(score, 0, 0, 0)[0]);
    };
    EXPECT_EQ(slope([](auto s, auto, auto, auto, auto) { return where(s > 0, sqrt(s), 0.0); }, 0),
              0);
    EXPECT_EQ(slope([](auto s, auto, auto, auto, auto) { return where(s > 0, log(s), s * 2); }, 0),
              2);
    EXPECT_EQ(slope(scores::activation("relu"), -1), 0);
    EXPECT_EQ(
        slope([](auto s, auto, auto, auto,
                 auto) { return where(s > 0, log(s) + sqrt(s), where(s < -5, 1 / s, 3 * s)); },
              0),
        3);
    EXPECT_EQ(
        slope([](auto s, auto, auto, auto q, auto kv) { return where(q > kv, s, -INFINITY); }, 1),
        0);
}

TEST(Differentiate, RandomModsAgreeWithDifferences) {
    std::mt19937 generator(7);
    const auto pick = [&](int n) {
        return static_cast<int>(generator() % static_cast<unsigned>(n));
    };
    const Capture table =
        capture(Tensor::from_vector(std::vector<double>{0.3, -0.8, 1.2, 0.5}, {4}));
    for (int round = 0; round < 300; ++round) {
        const unsigned seed = generator();
        const Mod mod = [&, seed](auto s, auto, auto, auto q, auto kv) {
            std::mt19937 choose(seed);
            std::vector<Tile> values{s, table[q], table[kv].to(f64), (q - kv).to(f64)};
            const int steps = 3 + static_cast<int>(choose() % 8);
            for (int i = 0; i < steps; ++i) {
                const auto value = [&] { return values[choose() % values.size()]; };
                const Tile a = value(), b = value();
                switch (choose() % 12) {
                    case 0:
                        values.push_back(a + b);
                        break;
                    case 1:
                        values.push_back(a - b);
                        break;
                    case 2:
                        values.push_back(a * b);
                        break;
                    case 3:
                        values.push_back(a / (1.5 + b * b));
                        break;
                    case 4:
                        values.push_back(tanh(a));
                        break;
                    case 5:
                        values.push_back(exp(-abs(a)));
                        break;
                    case 6:
                        values.push_back(where(a > b, a, b * 0.5));
                        break;
                    case 7:
                        values.push_back(maximum(a, b));
                        break;
                    case 8:
                        values.push_back(clamp(a, -0.5, 0.75));
                        break;
                    case 9:
                        values.push_back(sigmoid(a));
                        break;
                    case 10:
                        values.push_back(log(1.0 + a * a));
                        break;
                    default:
                        values.push_back(cond(
                            a > 0, [&] { return sin(a) + b; }, [&] { return a * b; }));
                }
            }
            Tile sum = values.back();
            for (const Tile& x : values) sum = sum + x * 0.1;
            return sum;
        };
        ModGradient gradient(mod);
        mod::Evaluator evaluator(gradient.traced);
        const double score = 0.2 + 0.01 * pick(100), step = 1e-6;
        const auto f = [&](double x) { return evaluator.score(x, 0, 0, 1, 3); };
        const double centre = f(score);
        const double left = (centre - f(score - step)) / step,
                     right = (f(score + step) - centre) / step;
        if (std::abs(left - right) > 1e-4 * (1 + std::abs(left))) continue;  // at a kink
        const auto results = gradient.at(score, 0, 1, 3);
        const double ours = as_double(results[0]), difference = (left + right) / 2;
        EXPECT_TRUE(std::abs(ours - difference) <= 1e-6 * std::max(1.0, std::abs(difference)))
            << "seed " << seed << ": " << ours << " and " << difference << "\n"
            << gradient.traced.text;
        // And with respect to the table.
        for (int element : {1, 3}) {
            double sum = 0;
            for (const auto& gather : gradient.report.gathers) {
                if (results[gather.indices[0]] == static_cast<std::uint64_t>(element)) {
                    sum += as_double(results[gather.value]);
                }
            }
            double& cell = static_cast<double*>(table.tensor().raw())[element];
            const double kept = cell;
            cell = kept + step;
            const double high = f(score);
            cell = kept - step;
            const double low = f(score);
            cell = kept;
            if (std::abs((high - centre) - (centre - low)) > 1e-10) continue;
            const double slope = (high - low) / (2 * step);
            EXPECT_TRUE(std::abs(sum - slope) <= 1e-6 * std::max(1.0, std::abs(slope)))
                << "seed " << seed << " element " << element;
        }
    }
}

TEST(Differentiate, RefusalsNameTheOp) {
    const auto error = [](const std::string& body) {
        ir::Function function = function_of(body, 1);
        try {
            ir::differentiate(function, {{true}, {}});
        } catch (const UserError& e) {
            return std::string(e.what());
        }
        return std::string("no error");
    };
    EXPECT_THAT(error("%r = while_loop carry (%x = %a) : f64 {\n%k = lt %x, %a : bool\nyield %k\n} "
                      "do (%y) {\nyield %y\n}\nyield %r"),
                HasSubstr("without while_loop"));
    EXPECT_THAT(
        error("%n = cast %a : i64\n%l = constant 0 : i64\n%s = constant 1 : i64\n"
              "%r = for_loop %i = %l, %n, %s carry (%x = %a) : f64 {\n%y = mul %x, %a : f64\n"
              "yield %y\n}\nyield %r"),
        HasSubstr("constant bounds"));
    EXPECT_THAT(
        error("%i = iota axis 0 : i32[3]\n%f = cast %i : f64[3]\n%w = broadcast %a : f64[3]\n"
              "%r = reduce %w prod axis 0 : f64\nyield %r"),
        HasSubstr("reduce prod"));
}

}  // namespace
}  // namespace tilewright
