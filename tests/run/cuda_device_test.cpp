// Kernels and tensors on a GPU: random programs and the programs of every path against the
// reference machine, guard bytes, calls, copies, graph capture; refusals with and without a GPU.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cpu/interpreter.h"
#include "cuda/runtime/memory.h"
#include "ir/evaluate.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "run/cuda_executable.h"
#include "run/executable.h"
#include "tests/cuda/graph.h"
#include "tests/cuda/test_support.h"
#include "tests/run/cuda_arrays.h"
#include "tests/run/random_products.h"
#include "tests/run/scheduled_programs.h"
#include "tests/support/portable_program.h"
#include "tests/support/seeds.h"
#include "tests/support/throws.h"
#include "tilewright/lang.h"
#include "tilewright/program.h"
#include "tilewright/run.h"

namespace tilewright {
namespace {

using testing::throws;

using Buffers = std::vector<std::vector<std::byte>>;
constexpr std::size_t kGuard = 256;  // bytes on both sides of every array
constexpr int kGuardByte = 0x5a;

/// Host buffers copied to a GPU between guards, and back.
class Mirror {
  public:
    explicit Mirror(const Buffers& buffers) : host_(buffers) {
        for (const auto& buffer : buffers) {
            device_.emplace_back(0, buffer.size() + 2 * kGuard);
            device_.back().fill(kGuardByte);
            device_.back().upload(buffer.data(), buffer.size(), kGuard);
        }
    }
    /// The same arguments, pointing into the GPU's copies.
    ir::Arguments arguments(ir::Arguments host) {
        for (ir::RefArgument& ref : host.refs) {
            for (std::size_t i = 0; i < host_.size(); ++i) {
                auto* const at = static_cast<std::byte*>(ref.data);
                if (at >= host_[i].data() && at <= host_[i].data() + host_[i].size()) {
                    ref.data =
                        reinterpret_cast<void*>(device_[i].address() + kGuard +
                                                static_cast<std::size_t>(at - host_[i].data()));
                    break;
                }
            }
        }
        return host;
    }
    Buffers& host() { return host_; }
    /// Copies back; false if a guard was written.
    bool fetch() {
        bool intact = true;
        for (std::size_t i = 0; i < host_.size(); ++i) {
            std::vector<std::byte> all(host_[i].size() + 2 * kGuard);
            device_[i].download(all.data(), all.size());
            for (std::size_t b = 0; b < kGuard; ++b) {
                intact = intact && all[b] == std::byte{kGuardByte} &&
                         all[all.size() - 1 - b] == std::byte{kGuardByte};
            }
            if (!host_[i].empty()) {
                std::memcpy(host_[i].data(), all.data() + kGuard, host_[i].size());
            }
        }
        return intact;
    }

  private:
    Buffers host_;
    std::vector<cuda::Buffer> device_;
};

TEST(CudaDevice, RandomProgramsGiveWhatTheReferenceGives) {
    TW_REQUIRE_GPU();
    const tilewright::testing::Seeds seeds = tilewright::testing::seeds(60);
    int failures = 0;
    for (std::uint64_t seed = seeds.begin; seed < seeds.end && failures < 5; ++seed) {
        const auto program = tilewright::testing::portable_program(seed);
        const Buffers start = tilewright::testing::portable_buffers(program, seed);
        Buffers expected = start;
        cpu::interpret(program.function, arguments_of(program, expected));
        Mirror mirror(start);
        const auto executable = run::make_cuda_executable(program.function, 0);
        executable->run(mirror.arguments(arguments_of(program, mirror.host())));
        EXPECT_TRUE(mirror.fetch()) << "seed " << seed << " wrote outside its arrays";
        const std::string text = difference(program, expected, mirror.host());
        if (text.empty()) continue;
        ADD_FAILURE() << "TILEWRIGHT_TEST_SEED=" << seed << ": " << text << "\n"
                      << ir::print(program.function);
        ++failures;
    }
}

TEST(CudaDevice, ProgramsOfEveryPathGiveWhatTheReferenceGives) {
    TW_REQUIRE_GPU();
    std::vector<testing_support::CudaProgram> programs = testing_support::cuda_programs();
    for (auto& program : testing_support::scheduled_programs()) {
        programs.push_back(std::move(program));
    }
    for (const auto& program : programs) {
        SCOPED_TRACE(program.name);
        const ir::Function function = ir::parse(program.text);
        testing_support::ProgramArrays expected(function, program.extents),
            got(function, program.extents);
        expected.arguments.grid = got.arguments.grid =
            program.grid.empty() ? function.grid : program.grid;
        cpu::interpret(function, expected.arguments);
        std::vector<cuda::Buffer> device;
        ir::Arguments arguments = got.arguments;
        for (auto& memory : got.memory) {
            const std::size_t bytes = memory.size() * sizeof(memory[0]);
            device.emplace_back(0, bytes);
            device.back().upload(memory.data(), bytes);
            arguments.refs[device.size() - 1].data =
                reinterpret_cast<void*>(device.back().address());
        }
        run::make_cuda_executable(function, 0)->run(arguments);
        for (std::size_t i = 0; i < device.size(); ++i) {
            device[i].download(got.memory[i].data(),
                               got.memory[i].size() * sizeof(got.memory[i][0]));
            EXPECT_TRUE(relative_error(function, i, expected, got) <= program.relative)
                << "array " << i << ": " << relative_error(function, i, expected, got);
        }
    }
}

TEST(CudaDevice, RandomProductsGiveWhatTheTileMachineGives) {
    TW_REQUIRE_GPU();
    constexpr std::uint64_t kTogether = 16;  // compiled at once
    const tilewright::testing::Seeds seeds = tilewright::testing::seeds(48);
    for (std::uint64_t begin = seeds.begin; begin < seeds.end; begin += kTogether) {
        struct Case {
            testing_support::CudaProgram program;
            ir::Function function;
            testing_support::ProgramArrays expected, got;
            std::unique_ptr<run::Executable> executable;
        };
        std::vector<std::unique_ptr<Case>> cases;
        for (std::uint64_t seed = begin; seed < std::min(seeds.end, begin + kTogether); ++seed) {
            testing_support::CudaProgram program = testing_support::RandomProduct(seed).program();
            ir::Function function = ir::parse(program.text);
            testing_support::ProgramArrays arrays(function, program.extents);
            cases.push_back(std::make_unique<Case>(
                Case{program, function, {function, program.extents}, std::move(arrays), {}}));
            Case& c = *cases.back();
            for (auto* each : {&c.expected, &c.got}) {
                each->poison_output();
                each->arguments.grid = function.grid;
            }
            c.executable = run::make_cuda_executable(function, 0);
            c.executable->compile_ahead(c.got.arguments);
            run::make_host_executable(function)->run(c.expected.arguments);
        }
        for (const auto& c : cases) {
            std::vector<cuda::Buffer> device;
            ir::Arguments arguments = c->got.arguments;
            for (auto& memory : c->got.memory) {
                const std::size_t bytes = memory.size() * sizeof(memory[0]);
                device.emplace_back(0, bytes);
                device.back().upload(memory.data(), bytes);
                arguments.refs[device.size() - 1].data =
                    reinterpret_cast<void*>(device.back().address());
            }
            c->executable->run(arguments);
            device.back().download(c->got.memory.back().data(),
                                   c->got.memory.back().size() * sizeof(c->got.memory[0][0]));
            EXPECT_EQ(relative_error(c->function, device.size() - 1, c->expected, c->got), 0)
                << c->program.name << "\n"
                << c->program.text;
        }
    }
}

Call scaled_sum() {
    return call(
        kernel("scaled_sum", [](Ref x, Ref y, Ref z) { z.store(x.load() * 2.0 + y.load()); }),
        {.grid = {4},
         .in = {BlockSpec({64}, [](auto i) { return block(i); }),
                BlockSpec({64}, [](auto i) { return block(i); })},
         .out = {BlockSpec({64}, [](auto i) { return block(i); })},
         .out_type = {{f32, {200}}}});
}

TEST(CudaCalls, RunWhereTheirInputsAre) {
    TW_REQUIRE_GPU();
    const Tensor x = Tensor::arange(f32, 200), y = Tensor::full(f32, {200}, 3);
    const Call program = scaled_sum();
    const Tensor want = program(x, y);
    const Tensor got = program(x.to(Device::cuda()), y.to(Device::cuda()));
    EXPECT_EQ(got.device(), Device::cuda());
    EXPECT_EQ(got.to(Device{}).to_vector<float>(), want.to_vector<float>());
    // Strided views: slower access, the same elements.
    const Tensor wide = Tensor::zeros(f32, {200, 3}).to(Device::cuda());
    wide.select(1, 1).copy_from(x);
    EXPECT_EQ(program(wide.select(1, 1), y.to(Device::cuda())).to_vector<float>(),
              want.to_vector<float>());
    EXPECT_EQ(wide.select(1, 2).to_vector<float>(), std::vector<float>(200, 0.0f));
    const Tensor back = Tensor::from_dlpack(got.to_dlpack());
    EXPECT_EQ(back.device(), Device::cuda());
    EXPECT_EQ(back.raw(), got.raw());
}

TEST(CudaCalls, CompileAhead) {
    TW_REQUIRE_GPU();
    const Tensor x = Tensor::arange(f32, 200), y = Tensor::full(f32, {200}, 3);
    const Call program = scaled_sum();
    const Tensor poisoned = Tensor::full(f32, {200}, -7, Device::cuda());
    const std::vector<Tensor> inputs{x.to(Device::cuda()), y.to(Device::cuda())};
    program.compile_ahead({poisoned}, inputs);
    program.compile_ahead({poisoned}, inputs);
    EXPECT_EQ(program.num_traces(), 1);
    EXPECT_EQ(poisoned.to_vector<float>(), std::vector<float>(200, -7.0f)) << "it ran";
    program.into({poisoned}, inputs);
    EXPECT_EQ(program.num_traces(), 1);
    EXPECT_EQ(poisoned.to_vector<float>(), program(x, y).to_vector<float>());
    program.compile_ahead({poisoned}, inputs);  // which is already loaded
    // On a CPU it only traces.
    const Call fresh = scaled_sum();
    const Tensor z = Tensor::full(f32, {200}, -7);
    fresh.compile_ahead({z}, {x, y});
    EXPECT_EQ(z.to_vector<float>(), std::vector<float>(200, -7.0f));
    EXPECT_EQ(fresh.num_traces(), 1);
}

TEST(CudaCalls, AreCapturedInGraphs) {
    TW_REQUIRE_GPU();
    const Call program = scaled_sum();
    const Tensor x = Tensor::arange(f32, 200).to(Device::cuda()),
                 y = Tensor::zeros(f32, {200}, Device::cuda()),
                 z = Tensor::zeros(f32, {200}, Device::cuda());
    const cuda::Stream stream(0);
    synchronize(Device::cuda());
    set_cuda_stream(stream.handle());
    {
        const testing_support::Graph graph(stream, [&] {
            program.into({z}, {x, y});  // loads the kernel
        });
        y.fill(5);
        graph.launch(stream);
        synchronize(Device::cuda());
    }
    EXPECT_EQ(z.to_vector<float>()[199], 2 * 199 + 5);
    set_cuda_stream(nullptr);
}

TEST(CudaCalls, RefusesMixedDevicesAndHostPointers) {
    TW_REQUIRE_GPU();
    const Call program = scaled_sum();
    const Tensor x = Tensor::arange(f32, 200), y = x.to(Device::cuda());
    EXPECT_THAT([&] { program(x, y); }, throws("expected all inputs on one device"));
    const Tensor lie = Tensor::from_data(x.raw(), f32, {200}, {}, {}, Device::cuda());
    EXPECT_THAT([&] { program(lie, y); },
                throws("expected an address in device memory but got host address"));
    EXPECT_THAT([&] { y.get({0}); },
                throws("expected a tensor in CPU memory but got one on cuda:0"));
    EXPECT_THAT(
        [&] {
            program.into({Tensor::zeros(f32, {200})}, {y, y});
        },
        throws("expected output"));
    EXPECT_THAT([&] { Tensor::empty(f32, {2}, Device::cuda(99)); },
                throws("expected a device ordinal below "));
}

TEST(CudaCalls, StreamsOfAnotherDeviceAreRefused) {
    TW_REQUIRE_GPU();
    if (cuda::device_count() < 2) GTEST_SKIP() << "NOT RUN: needs two GPUs";
    const Call sum = scaled_sum();
    const Tensor x = Tensor::arange(f32, 200).to(Device::cuda());
    const Tensor y = x.to(Device::cuda(1));
    sum(x, x);  // warm, and compiled
    const Program on_gpu(sum.ir({x, x}), {.device = Device::cuda()});
    const std::string refusal =
        "expected a stream of cuda:0, where the arrays are, but the current one belongs to cuda:1";
    const cuda::Stream other(1);
    const CudaScope scope(other.handle());
    EXPECT_THAT(error_of([&] { sum(x, x); }), HasSubstr(refusal));
    EXPECT_THAT(error_of([&] { on_gpu.run(std::vector{x, x, x.clone()}); }), HasSubstr(refusal));
    sum(y, y);
    other.synchronize();
}

TEST(CudaCalls, ScratchBeyondSharedMemoryLiesInAWorkspace) {
    TW_REQUIRE_GPU();
    // Program i keeps x + i in scratch memory of 256 KiB. More programs exist than run at once.
    const std::int64_t programs = std::getenv("TW_FAKE_GPU") != nullptr ? 3 : 300;
    const Call program =
        call(kernel("hoarder",
                    [](Ref x, Ref y, Ref scratch) {
                        scratch.store(x.load() + program_id(0).to(f32));
                        // Halves are distributed over threads differently from the whole.
                        for (const std::int64_t half : {0, 32}) {
                            const Tile rows = scratch.at(ds(32 - half, 32)).load();
                            y.at(ds(0, 1024), ds(half, 32)).store(transpose(rows));
                        }
                    }),
             {.grid = {programs},
              .in = {BlockSpec()},
              .out = {BlockSpec({squeezed, all, all}, [](auto i) { return block(i, 0, 0); })},
              .out_type = {{f32, {programs, 1024, 64}}},
              .scratch = {{f32, {64, 1024}}}});
    const Tensor x = Tensor::arange(f32, 65536).reshape({64, 1024});
    ::setenv("TILEWRIGHT_DEBUG", "1", 1);
    ::testing::internal::CaptureStderr();
    const Tensor y = program(x.to(Device::cuda()));
    ::unsetenv("TILEWRIGHT_DEBUG");
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                ::testing::HasSubstr("slow path: scratch of 262144 bytes a program"));
    EXPECT_EQ(y.to_vector<float>(), program(x).to_vector<float>());
}

TEST(CudaCalls, CopiesConvertStridesAndTypesOnTheGpu) {
    TW_REQUIRE_GPU();
    const Device gpu = Device::cuda();
    const Tensor x = Tensor::arange(f32, 60).reshape({3, 4, 5});
    const Tensor view = x.to(gpu).transpose({2, 0, 1}).slice(2, 1, 3);
    const Tensor want = x.transpose({2, 0, 1}).slice(2, 1, 3);
    EXPECT_EQ(view.contiguous().to_vector<float>(), want.to_vector<float>());
    EXPECT_EQ(view.to(i64).to_vector<float>(), want.to_vector<float>());
    // Gaps are not overwritten.
    const Tensor wide = Tensor::full(bf16, {4, 6}, 7, gpu);
    wide.slice(1, 1, 3, 2).fill(2);
    EXPECT_EQ(wide.select(0, 3).to_vector<float>(), (std::vector<float>{7, 2, 7, 2, 7, 2}));
    EXPECT_EQ(Tensor::full(u8, {3}, 5, gpu).to_vector<int>(), (std::vector<int>{5, 5, 5}));
    EXPECT_EQ(Tensor::full(f64, {2}, -0.5, gpu).to_vector<double>(),
              (std::vector<double>{-0.5, -0.5}));
    if (cuda::device_count() > 1) {
        const Tensor far = view.to(f16).to(Device::cuda(1));
        EXPECT_EQ(far.device(), Device::cuda(1));
        EXPECT_EQ(far.to_vector<float>(), want.to_vector<float>());
    }
}

// Launching takes the same time for both.
TEST(CudaDevice, TheAutotunerMeasuresWorkAndNotLaunches) {
    TW_REQUIRE_GPU();
    const std::string folder =
        ::testing::TempDir() + "/tilewright_tune_" + std::to_string(::getpid());
    ::setenv("TILEWRIGHT_CACHE_DIR", folder.c_str(), 1);
    const Tuned sum = autotune({{{"block", 1}}, {{"block", 256}}}, "sum")([](const Config& config) {
        const std::int64_t block = config["block"];
        const Kernel add = kernel("sum", [block](Ref x, Ref z) {
            z.store(for_loop(0, x.shape()[0] / block, 0.0, [&](auto i, auto total) {
                return total + tilewright::sum(x.at(ds(i * block, block)).load());
            }));
        });
        return call(add, {.out_type = {{f32, {}}}});
    });
    const Tensor x = Tensor::full(f32, {65536}, 1);
    const Tensor on_gpu = x.to(Device::cuda());
    EXPECT_EQ(sum(on_gpu).to(Device{}).get({}), 65536);
    EXPECT_EQ(sum.best_config({on_gpu})["block"], 256);
    EXPECT_EQ(sum.num_measured(), 2);
    sum(x);  // the CPU's choice is separate
    EXPECT_EQ(sum.num_measured(), 4);
    ::unsetenv("TILEWRIGHT_CACHE_DIR");
    std::filesystem::remove_all(folder);
}

TEST(CudaDevice, SaysThatThereIsNoGpu) {
    if (cuda::device_count() != 0) GTEST_SKIP() << "NOT RUN: this machine has a GPU";
    EXPECT_THAT([&] { Tensor::zeros(f32, {2}, Device::cuda()); }, throws("[cuda] expected a"));
    const Tensor x = Tensor::arange(f32, 200);
    const Tensor lie = Tensor::from_data(x.raw(), f32, {200}, {}, {}, Device::cuda());
    EXPECT_THAT([&] { scaled_sum()(lie, lie); }, throws("[cuda] expected a"));
    EXPECT_THAT([&] { lie.to(Device{}); }, throws("[cuda] expected a"));
}

}  // namespace
}  // namespace tilewright
