// Scans with a function of the user's in generated CUDA, on the host emulation of a thread block,
// against the reference machine.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

#include "cpu/interpreter.h"
#include "ir/passes/pipeline.h"
#include "ir/passes/stream_scans.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "lang/trace.h"
#include "tests/cuda/emulate.h"
#include "tests/run/cuda_arrays.h"
#include "tests/support/sources.h"
#include "tilewright/lang.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Extents = std::vector<std::int64_t>;

struct ScanCase {
    ir::Function function;
    std::vector<Extents> extents;
    double relative = 0;
};

/// Inputs of such types, and then outputs.
template <typename F>
ScanCase traced_scan(std::string name, F&& body,
                     const std::vector<std::pair<DType, Extents>>& inputs,
                     const std::vector<std::pair<DType, Extents>>& outputs, double relative = 0) {
    ScanCase result;
    result.relative = relative;
    lang::Signature signature;
    const auto add = [&](const std::pair<DType, Extents>& array, lang::Parameter::Role role) {
        signature.parameters.push_back({fmt::format("p{}", signature.parameters.size()),
                                        role,
                                        array.first,
                                        array.second,
                                        {},
                                        -1,
                                        role == lang::Parameter::Role::output});
        result.extents.push_back(array.second);
    };
    for (const auto& array : inputs) add(array, lang::Parameter::Role::input);
    for (const auto& array : outputs) add(array, lang::Parameter::Role::output);
    result.function = lang::trace(kernel(std::move(name), std::forward<F>(body)), signature);
    return result;
}

/// Results of all cases are those of the reference machine; returns the text of their kernels.
std::vector<std::string> check_scans(const std::vector<ScanCase>& cases,
                                     const std::string& arch = "sm_90a") {
    std::vector<ir::Function> prepared;
    std::vector<cuda::Generated> kernels;
    std::vector<std::string> texts;
    for (const ScanCase& made : cases) {
        SCOPED_TRACE(made.function.name);
        prepared.push_back(cuda::prepare(made.function, arch));
        cuda::Target target = cuda::target_of(arch);
        const testing_support::ProgramArrays arrays(made.function, made.extents);
        target.facts = cuda::facts_of(prepared.back(), arrays.arguments);
        kernels.push_back(cuda::generate(prepared.back(), target));
        texts.push_back(kernels.back().source);
    }
    const testing_support::EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const ir::Function& function = cases[i].function;
        testing_support::ProgramArrays expected(function, cases[i].extents),
            got(function, cases[i].extents);
        got.poison_output();
        cpu::interpret(function, expected.arguments);
        cuda::LaunchArguments arguments(prepared[i], got.arguments);
        emulated.run(i, arguments, static_cast<unsigned>(i));
        for (std::size_t a = 0; a < cases[i].extents.size(); ++a) {
            const double error = relative_error(function, a, expected, got);
            EXPECT_TRUE(error <= cases[i].relative)
                << function.name << " array " << a << ": " << error;
        }
    }
    return texts;
}

/// Affine maps one after the other, which do not commute.
constexpr auto kThen = [](auto f, auto g) {
    return std::pair(f.first * g.first, f.second * g.first + g.second);
};

/// The recurrence of maps m x + c, of which both parts are stored.
ScanCase recurrence(DType dtype, const Extents& shape, int axis, bool reverse, int warps,
                    double relative) {
    ScanCase result = traced_scan(
        fmt::format("maps_{}_{}_{}{}_{}", name(dtype), fmt::join(shape, "x"), axis,
                    reverse ? "_reverse" : "", warps),
        [=](Ref m, Ref c, Ref products, Ref sums) {
            const auto [all, last] =
                associative_scan(kThen, std::pair(m.load(), c.load()), axis, reverse);
            products.store(all);
            sums.store(last);
        },
        {{dtype, shape}, {dtype, shape}}, {{dtype, shape}, {dtype, shape}}, relative);
    result.function.hints.num_warps = warps;
    return result;
}

TEST(CudaScans, RecurrencesOfEveryDtypeGiveWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    using enum DType;
    std::vector<ScanCase> cases;
    int turn = 0;
    for (const auto& [dtype, relative] : {std::pair{f32, 1e-5},
                                          {f64, 1e-13},
                                          {f16, 4e-3},
                                          {bf16, 4e-2},
                                          {i8, 0.0},
                                          {u8, 0.0},
                                          {i16, 0.0},
                                          {i32, 0.0},
                                          {u32, 0.0},
                                          {i64, 0.0},
                                          {u64, 0.0}}) {
        // Within a thread, within a warp, over several; rows side by side; lengths that are no
        // power of two, which have elements outside before all others in reverse.
        for (const auto& [shape, axis, warps] : {std::tuple{Extents{3, 77}, 1, 0},
                                                 {Extents{37, 9}, 0, 4},
                                                 {Extents{2, 1000}, 1, 4},
                                                 {Extents{5, 3}, 1, 1},
                                                 {Extents{2, 1555}, 1, 16},
                                                 {Extents{3, 50, 4}, 1, 2}}) {
            const bool reverse = ++turn % 2 == 0;
            cases.push_back(recurrence(dtype, shape, axis, reverse, warps, relative));
            if (dtype == i32) cases.push_back(recurrence(i32, shape, axis, !reverse, warps, 0));
        }
    }
    // Lengths around those of threads, warps and blocks.
    for (const std::int64_t n : {2, 4, 5, 31, 33, 65, 96, 127, 129, 160, 257, 384, 640, 2561}) {
        for (const bool reverse : {false, true})
            cases.push_back(recurrence(i32, {2, n}, 1, reverse, n % 3 == 0 ? 8 : 4, 0));
    }
    for (const std::string& text : check_scans(cases)) EXPECT_THAT(text, HasSubstr("_combine("));
}

TEST(CudaScans, TuplesOfSeveralDtypesAndCapturedScalars) {
    TW_REQUIRE_SOURCES();
    using enum DType;
    std::vector<ScanCase> cases;
    for (const std::int64_t n : {45, 700}) {
        for (const bool reverse : {false, true}) {
            const Extents shape = {3, n};
            // How many, the largest, where the first one is, and whether there was a 0.
            cases.push_back(traced_scan(
                fmt::format("tuple_{}{}", n, reverse ? "_reverse" : ""),
                [=](Ref x, Ref count, Ref most, Ref place, Ref any) {
                    const Tile value = x.load();
                    const auto elements = std::tuple(constant(1, i64) + iota(shape, 1).to(i64) * 0,
                                                     value, iota(shape, 1).to(i16), value == 0);
                    const auto result = associative_scan(
                        [](auto f, auto g) {
                            const auto [fn, fv, fp, fz] = f;
                            const auto [gn, gv, gp, gz] = g;
                            const Tile later = gv > fv;
                            return std::tuple(fn + gn, where(later, gv, fv), where(later, gp, fp),
                                              fz | gz);
                        },
                        elements, 1, reverse);
                    count.store(std::get<0>(result));
                    most.store(std::get<1>(result));
                    place.store(std::get<2>(result));
                    any.store(std::get<3>(result).to(u8));
                },
                {{f32, shape}}, {{i64, shape}, {f32, shape}, {i16, shape}, {u8, shape}}));
            // Products of matrices of residues: eight values would be two; the modulus is a scalar
            // that is loaded.
            cases.push_back(traced_scan(
                fmt::format("matrices_{}{}", n, reverse ? "_reverse" : ""),
                [=](Ref x, Ref modulus, Ref a, Ref b) {
                    const Tile value = x.load(), p = modulus.at(0).load() + 7;
                    const auto result = associative_scan(
                        [=](auto f, auto g) {
                            return std::array{
                                (f[0] * g[0] + f[1] * g[2]) % p, (f[0] * g[1] + f[1] * g[3]) % p,
                                (f[2] * g[0] + f[3] * g[2]) % p, (f[2] * g[1] + f[3] * g[3]) % p};
                        },
                        std::array{value, value + 1, value * 3, value + 2}, 1, reverse);
                    a.store(result[1]);
                    b.store(result[2]);
                },
                {{i32, shape}, {i32, {1}}}, {{i32, shape}, {i32, shape}}));
            // One factor for all lanes of a row.
            cases.push_back(traced_scan(
                fmt::format("factor_{}{}", n, reverse ? "_reverse" : ""),
                [=](Ref m, Ref c, Ref y) {
                    const Tile factor = m.load();
                    y.store(associative_scan(kThen, std::pair(factor + zeros(shape, i32), c.load()),
                                             1, reverse)
                                .second);
                },
                {{i32, {3, 1}}, {i32, shape}}, {{i32, shape}}));
        }
    }
    for (const std::string& text : check_scans(cases)) EXPECT_THAT(text, HasSubstr("_combine("));
}

// What lines combine to is in all threads; past the end of lines, functions change it.
TEST(CudaScans, LastElementsOfLinesAreThoseOfTheReference) {
    TW_REQUIRE_SOURCES();
    std::vector<ScanCase> cases;
    for (const auto& [shape, axis, warps] : {std::tuple{Extents{5, 3}, 1, 1},
                                             {Extents{3, 77}, 1, 2},
                                             {Extents{4, 96}, 1, 2},
                                             {Extents{2, 300}, 1, 4},
                                             {Extents{64, 6}, 0, 4},
                                             {Extents{2, 2048}, 1, 2},
                                             {Extents{2, 4096}, 1, 16},
                                             {Extents{1, 6144}, 1, 8}}) {
        for (const bool reverse : {false, true}) {
            Extents starts(2, 0), sizes = shape;
            const auto along = static_cast<std::size_t>(axis);
            starts[along] = reverse ? 0 : shape[along] - 1;
            sizes[along] = 1;
            ScanCase made = traced_scan(
                fmt::format("last_{}_{}_{}{}", fmt::join(shape, "x"), axis, warps,
                            reverse ? "_reverse" : ""),
                [=](Ref m, Ref c, Ref n, Ref all, Ref products, Ref sums, Ref running, Ref most) {
                    const auto maps =
                        associative_scan(kThen, std::pair(m.load(), c.load()), axis, reverse);
                    all.store(maps.second);
                    products.store(slice(maps.first, starts, sizes));
                    sums.store(slice(maps.second, starts, sizes));
                    running.store(slice(cumsum(c.load(), axis, reverse), starts, sizes));
                    most.store(slice(cummax(n.load(), axis, reverse), starts, sizes));
                },
                {{DType::i32, shape}, {DType::i32, shape}, {DType::bf16, shape}},
                {{DType::i32, shape},
                 {DType::i32, sizes},
                 {DType::i32, sizes},
                 {DType::i32, sizes},
                 {DType::bf16, sizes}});
            made.function.hints.num_warps = warps;
            cases.push_back(std::move(made));
        }
    }
    check_scans(cases);
}

// Several scans in a loop, whose totals go through the same shared memory.
TEST(CudaScans, ScansInLoops) {
    TW_REQUIRE_SOURCES();
    const Extents shape = {2, 900};
    ScanCase made = traced_scan("loop",
                                [=](Ref m, Ref c, Ref y) {
                                    const Tile maps = m.load();
                                    y.store(for_loop(0, 3, c.load(), [&](Tile, Tile carried) {
                                        const auto up =
                                            associative_scan(kThen, std::pair(maps, carried), 1);
                                        return associative_scan(kThen, up, 1, true).second;
                                    }));
                                },
                                {{DType::i32, shape}, {DType::i32, shape}}, {{DType::i32, shape}});
    made.function.hints.num_warps = 8;
    const std::string text = check_scans({made})[0];
    // The totals of eight warps are scanned by the lanes of each.
    EXPECT_THAT(text, HasSubstr("_all0, lane - 4)"));
    EXPECT_THAT(text, Not(HasSubstr("_all0, lane - 8)")));
}

/// A program that scans lines along an axis in one tile: an affine recurrence with a factor for all
/// lanes, places, a scalar and a mask, a running sum and the largest element so far.
ScanCase long_lines(DType dtype, const Extents& shape, int axis, bool reverse) {
    Extents factors(shape.size(), 1);
    return traced_scan(
        fmt::format("lines_{}_{}_{}{}", name(dtype), fmt::join(shape, "x"), axis,
                    reverse ? "_reverse" : ""),
        [=](Ref m, Ref c, Ref scale, Ref maps, Ref sums, Ref most) {
            const Tile by = scale.at(0).load(), added = c.load();
            const Tile places = (iota(shape, axis) % 7).to(dtype);
            const auto then = [=](auto f, auto g) {
                return std::pair(f.first * g.first * by, f.second * g.first * by + g.second);
            };
            maps.store(associative_scan(
                           then, std::pair(m.load() * 0.5 + zeros(shape, dtype), added + places),
                           axis, reverse)
                           .second);
            const Tile whole = (added * 8).to(i32) - iota(shape, axis) % 5;
            sums.store(cumsum(whole, axis, reverse));
            most.store(cummax(where(whole > 3, whole, -whole), axis, reverse));
        },
        {{dtype, factors}, {dtype, shape}, {dtype, {1}}},
        {{dtype, shape}, {DType::i32, shape}, {DType::i32, shape}}, 1e-5);
}

// The pass alone: pieces of 64 elements or more, with and without a rest.
TEST(CudaScans, PiecesOfLongLinesGiveWhatWholeLinesGive) {
    for (const auto& [shape, axis] : {std::pair{Extents{3, 300}, 1},
                                      {Extents{700}, 0},
                                      {Extents{512, 2}, 0},
                                      {Extents{2, 256}, 1},
                                      {Extents{2, 129, 2}, 1}}) {
        for (const bool reverse : {false, true}) {
            const ScanCase made = long_lines(DType::f64, shape, axis, reverse);
            SCOPED_TRACE(made.function.name);
            ir::Function whole = made.function, pieces = made.function;
            ir::optimise(pieces);
            const ir::StreamScansReport report = ir::stream_scans(pieces, 256);
            ASSERT_EQ(report.refusal, "");
            EXPECT_EQ(report.scans, 3);
            ir::verify(pieces);
            ir::optimise(pieces);
            std::int64_t largest = 0;
            ir::walk(pieces.body, [&](const ir::Instruction& each) {
                for (const ir::Value value : each.results)
                    largest = std::max(largest, pieces.type(value).shape.size());
            });
            EXPECT_LE(largest, 256);
            testing_support::ProgramArrays expected(whole, made.extents), got(whole, made.extents);
            got.poison_output();
            cpu::interpret(whole, expected.arguments);
            cpu::interpret(pieces, got.arguments);
            for (std::size_t a = 0; a < made.extents.size(); ++a)
                EXPECT_LE(relative_error(whole, a, expected, got), 1e-12) << a;
        }
    }
}

TEST(CudaScans, WhatIsNotDonePieceByPieceIsNamed) {
    const Extents shape = {2, 1000};
    const auto refusal = [&](auto&& body) {
        ir::Function function = traced_scan("refused", body, {{DType::f32, shape}},
                                            {{DType::f32, shape}, {DType::f32, shape}})
                                    .function;
        ir::optimise(function);
        const ir::Function before = function;
        const ir::StreamScansReport report = ir::stream_scans(function, 256);
        EXPECT_EQ(ir::print(function), ir::print(before));
        EXPECT_FALSE(report.changed());
        return report.refusal;
    };
    EXPECT_THAT(refusal([](Ref x, Ref y, Ref z) {
                    y.store(cumsum(x.load(), 1));
                    z.store(cumsum(x.load(), 1, true));
                }),
                HasSubstr("both directions"));
    EXPECT_THAT(refusal([](Ref x, Ref y, Ref z) {
                    const Tile running = cumsum(x.load(), 1);
                    y.store(running);
                    z.store(running / sum(running, 1, true));
                }),
                HasSubstr("`reduce` reads the whole axis"));
    EXPECT_THAT(refusal([](Ref x, Ref y, Ref z) {
                    const auto products = [](Tile v) {
                        return associative_scan([](Tile a, Tile b) { return a * b; }, v, 1);
                    };
                    const auto [all, pullback] = vjp(products, x.load());
                    y.store(all);
                    z.store(pullback(1.0));
                }),
                HasSubstr("`slice` moves elements along the axis"));
    EXPECT_THAT(refusal([](Ref x, Ref y, Ref z) {
                    y.store(cumlogsumexp(x.load(), 1));
                    z.store(x.load());
                }),
                HasSubstr("pieces of a scan of logsumexp in f32 are not joined exactly"));
    EXPECT_THAT(refusal([](Ref x, Ref y, Ref z) {
                    y.store(cumsum(x.load(), 1));
                    z.store(cumsum(y.load(), 1));
                }),
                HasSubstr("the kernel reads what it stores"));
    EXPECT_EQ(refusal([](Ref x, Ref y, Ref z) {
                  y.store(x.load());
                  z.store(x.load());
              }),
              "");
}

// Lines that fit neither registers nor shared memory.
TEST(CudaScans, LongLinesAreScannedInPieces) {
    TW_REQUIRE_SOURCES();
    using enum DType;
    std::vector<ScanCase> cases = {long_lines(f32, {1, 262144}, 1, false),
                                   long_lines(f32, {40001, 2}, 0, true),
                                   long_lines(f64, {3, 20001}, 1, true)};
    cases.push_back(recurrence(i32, {1, 100003}, 1, false, 0, 0));
    cases.push_back(recurrence(i8, {1, 262144}, 1, true, 16, 0));
    // It would fit shared memory, but not the registers of threads.
    cases.push_back(recurrence(i8, {1, 65536}, 1, false, 0, 0));
    // Without clusters: a line in a thread block.
    for (const std::string& text : check_scans(cases, "sm_80"))
        EXPECT_THAT(text, HasSubstr("for (i64"));
}

// On GPUs with clusters, several thread blocks scan the lines of a program that has the GPU for
// itself: pieces with and without a rest, more totals than a warp has lanes, and fewer.
TEST(CudaScans, BlocksOfAClusterShareLongLines) {
    TW_REQUIRE_SOURCES();
    using enum DType;
    std::vector<ScanCase> cases;
    const auto add = [&](ScanCase made, int warps) {
        made.function.hints.num_warps = warps;
        cases.push_back(std::move(made));
    };
    for (const bool reverse : {false, true}) {
        for (const std::int64_t n : {65536, 40001, 32771})
            cases.push_back(recurrence(i32, {1, n}, 1, reverse, n == 40001 ? 8 : 4, 0));
        cases.push_back(recurrence(f32, {2, 20001}, 1, reverse, 2, 1e-5));
        cases.push_back(recurrence(f64, {1, 20480}, 1, reverse, 2, 1e-12));
        cases.push_back(recurrence(i64, {1, 20001}, 1, reverse, 16, 0));
        cases.push_back(recurrence(bf16, {1, 40000}, 1, reverse, 4, 4e-2));
        add(long_lines(f32, {1, 50000}, 1, reverse), 4);
        const auto sums = [=](Ref x, Ref y) { y.store(cumsum(x.load(), 1, reverse)); };
        const auto products = [=](Ref x, Ref y) { y.store(cumprod(x.load(), 1, reverse)); };
        const auto most = [=](Ref x, Ref y) { y.store(cummax(x.load(), 1, reverse)); };
        const char* const way = reverse ? "_reverse" : "";
        for (const std::int64_t n : {65536, 40001}) {
            const Extents shape = {1, n};
            add(traced_scan(fmt::format("sums{}_{}", way, n), sums, {{i32, shape}}, {{i32, shape}}),
                4);
            add(traced_scan(fmt::format("float_sums{}_{}", way, n), sums, {{f32, shape}},
                            {{f32, shape}}, 1e-5),
                n == 65536 ? 16 : 1);
            add(traced_scan(fmt::format("products{}_{}", way, n), products, {{u32, shape}},
                            {{u32, shape}}),
                8);
            add(traced_scan(fmt::format("most{}_{}", way, n), most, {{bf16, shape}},
                            {{bf16, shape}}),
                2);
        }
    }
    for (const std::string& text : check_scans(cases)) {
        EXPECT_THAT(text, HasSubstr("blocks each")) << text.substr(0, 200);
        EXPECT_THAT(text, Not(HasSubstr("__syncthreads")));
    }
}

// What is carried to the next piece goes through no memory, and neighbouring threads load and store
// what lies side by side.
TEST(CudaScans, PiecesCarryInRegistersWhatTheyCombineTo) {
    const Extents shape = {1, 262144};
    const auto text_of = [&](const ir::Function& function) {
        const ir::Function prepared = cuda::prepare(function, "sm_80");
        cuda::Target target = cuda::target_of("sm_80");
        target.facts.assign(4, {.vectors = true, .dense = true});
        return cuda::generate(prepared, target).source;
    };
    const auto count = [](const std::string& text, const std::string& words) {
        int found = 0;
        for (std::size_t at = text.find(words); at != std::string::npos;
             at = text.find(words, at + 1))
            ++found;
        return found;
    };
    const auto sums = traced_scan("sums", [](Ref x, Ref y) { y.store(cumsum(x.load(), 1)); },
                                  {{DType::f32, shape}}, {{DType::f32, shape}});
    for (const ir::Function& function :
         {recurrence(DType::f32, shape, 1, false, 0, 0).function, sums.function}) {
        const std::string text = text_of(function);
        EXPECT_THAT(text, Not(HasSubstr("kBuffer0_data")));
        const std::string loop = text.substr(text.find("for (i64"));
        EXPECT_EQ(count(loop, "__syncthreads()"), 2) << loop;
        EXPECT_THAT(loop, HasSubstr(" + 128, "));
    }
    // Short rows have eight elements a thread.
    const auto rows = traced_scan("rows", [](Ref x, Ref y) { y.store(cumsum(x.load(), 1)); },
                                  {{DType::f32, {1, 1024}}}, {{DType::f32, {1, 1024}}});
    EXPECT_THAT(text_of(rows.function), HasSubstr("sm_80: 4 warps, 1024 bytes"));
}

/// The gradients of a recurrence, which shifts along the axis and scans in both directions.
ScanCase recurrence_gradients(DType dtype, const Extents& shape, int axis, bool reverse, int warps,
                              double relative) {
    ScanCase result = traced_scan(
        fmt::format("gradients_{}_{}_{}{}_{}", name(dtype), fmt::join(shape, "x"), axis,
                    reverse ? "_reverse" : "", warps),
        [=](Ref m, Ref c, Ref d, Ref dm, Ref dc) {
            const auto scan = [=](auto maps) {
                return associative_scan(kThen, maps, axis, reverse).second;
            };
            const auto pullback = vjp(scan, std::pair(m.load(), c.load())).second;
            const auto gradients = pullback(d.load());
            dm.store(gradients.first);
            dc.store(gradients.second);
        },
        {{dtype, shape}, {dtype, shape}, {dtype, shape}}, {{dtype, shape}, {dtype, shape}},
        relative);
    result.function.hints.num_warps = warps;
    return result;
}

TEST(CudaScans, GradientsGiveWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    std::vector<ScanCase> cases;
    for (const bool reverse : {false, true}) {
        cases.push_back(recurrence_gradients(DType::f32, {3, 77}, 1, reverse, 0, 1e-5));
        cases.push_back(recurrence_gradients(DType::f64, {37, 9}, 0, reverse, 4, 1e-13));
        cases.push_back(recurrence_gradients(DType::f32, {2, 1000}, 1, reverse, 4, 1e-5));
    }
    check_scans(cases);
}

TEST(CudaScans, GradientsOfLinesThatFitNoThreadBlockAreRefused) {
    const Extents shape = {1, 262144};
    const ScanCase made = recurrence_gradients(DType::f32, shape, 1, false, 0, 0);
    try {
        cuda::generate(cuda::prepare(made.function), cuda::target_of("sm_90a"));
        FAIL() << "expected an error";
    } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("concatenate of f32[1, 262144]"));
    }
}

// What GPUs leave undefined, and other blocks of threads would notice.
TEST(CudaScans, TheEmulatorNoticesWhatIsUndefined) {
    TW_REQUIRE_SOURCES();
    const ScanCase made = recurrence(DType::i32, {1, 2048}, 1, false, 4, 0);
    const ir::Function prepared = cuda::prepare(made.function);
    testing_support::ProgramArrays arrays(made.function, made.extents);
    cuda::Target target = cuda::target_of("sm_90a");
    target.facts = cuda::facts_of(prepared, arrays.arguments);
    std::vector<cuda::Generated> kernels(5, cuda::generate(prepared, target));
    const auto plant = [&](std::size_t in, const std::string& words, const std::string& by) {
        const std::size_t at = kernels[in].source.find(words);
        ASSERT_NE(at, std::string::npos) << words << "\n" << kernels[in].source;
        kernels[in].source.replace(at, words.size(), by);
    };
    plant(1, "const i32 up0 = ", "i32 up0 = 0; if (lane != 5) up0 = ");
    plant(2, "__syncthreads();", "if (warp == 0) __syncthreads(); else __syncthreads();");
    plant(3, "load_raw(p0, ", "load_raw(p0 + 1, ");
    plant(4, "kBuffer0 = 0;", "kBuffer0 = 100000;");
    const testing_support::EmulatedKernels emulated(kernels);
    cuda::LaunchArguments arguments(prepared, arrays.arguments);
    emulated.run(0, arguments, 0);
    EXPECT_DEATH(emulated.run(1, arguments, 0), "a shuffle in divergent code");
    EXPECT_DEATH(emulated.run(2, arguments, 0), "different __syncthreads");
    // The compiler of the emulation prints no message for this one, but traps.
    const auto trapped = [](int status) {
        return WIFSIGNALED(status) && (WTERMSIG(status) == SIGILL || WTERMSIG(status) == SIGTRAP);
    };
    EXPECT_EXIT(emulated.run(3, arguments, 0), trapped, "");
    EXPECT_DEATH(emulated.run(4, arguments, 0), "past the shared memory");
}

// Functions of more values than registers should hold are scanned in steps.
TEST(CudaScans, FunctionsWithoutTextAreScannedInSteps) {
    TW_REQUIRE_SOURCES();
    const Extents shape = {2, 33};
    const ScanCase made =
        traced_scan("nine",
                    [=](Ref x, Ref y) {
                        std::vector<Tile> values;
                        for (int i = 0; i < 9; ++i) values.push_back(x.load() + i);
                        y.store(associative_scan(
                            [](const std::vector<Tile>& f, const std::vector<Tile>& g) {
                                std::vector<Tile> sums;
                                for (std::size_t i = 0; i < f.size(); ++i)
                                    sums.push_back(f[i] + g[i]);
                                return sums;
                            },
                            values, 1)[8]);
                    },
                    {{DType::i32, shape}}, {{DType::i32, shape}});
    ::setenv("TILEWRIGHT_DEBUG", "1", 1);
    ::testing::internal::CaptureStderr();
    const std::vector<std::string> texts = check_scans({made});
    const std::string log = ::testing::internal::GetCapturedStderr();
    ::unsetenv("TILEWRIGHT_DEBUG");
    EXPECT_THAT(texts[0], Not(HasSubstr("_combine(")));
    EXPECT_THAT(log, HasSubstr("nine: slow path: associative_scan in steps, since it combines 9 "
                               "values, more than 8 (at "));
}

}  // namespace
}  // namespace tilewright
