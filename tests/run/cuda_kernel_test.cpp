// Users' CUDA C++: compilation by NVRTC, runs on a GPU or the stand-in, CPU functions, refusals.
#include "tilewright/cuda_kernel.h"

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/memory.h"
#include "support.h"
#include "tests/cuda/test_support.h"
#include "tilewright/cpu_function.h"
#include "tilewright/run.h"

extern "C" [[gnu::visibility("default")]] const char* tw_test_scale(const DLTensor* arrays,
                                                                    std::int32_t count,
                                                                    const void* const* attributes) {
    if (count != 2) return "two arrays";
    const auto n = *static_cast<const std::int64_t*>(attributes[0]);
    const auto factor = *static_cast<const float*>(attributes[1]);
    if (arrays[0].dtype.code != kDLFloat || arrays[0].dtype.bits != 32) return "expected x of f32";
    for (std::int64_t i = 0; i < n; ++i) {
        static_cast<float*>(arrays[1].data)[i] = factor * static_cast<float*>(arrays[0].data)[i];
    }
    return nullptr;
}

namespace tilewright {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kScale = R"(
#include <tilewright.cuh>

template <typename T>
__global__ void scale(const T* x, T* y, long long count, float factor) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) y[i] = tw::to<T>(tw::widen(x[i]) * factor);
}
)";

LaunchExtents blocks_of(int threads) {
    return [threads](const KernelSignature& s) {
        std::int64_t count = 1;
        for (const std::int64_t n : s.inputs[0].shape) count *= n;
        return std::vector<std::int64_t>{(count + threads - 1) / threads};
    };
}

std::vector<TensorType> like_input(const KernelSignature& s) {
    return {s.inputs[0]};
}

KernelAttribute count_of_input() {
    return {.name = "count", .type = i64, .function = [](const KernelSignature& s) {
                std::int64_t count = 1;
                for (const std::int64_t n : s.inputs[0].shape) count *= n;
                return AttributeValue(count);
            }};
}

CudaKernelOptions scale_options() {
    return {.inputs = {"x"},
            .outputs = {"y"},
            .out_type = like_input,
            .launches = {{.grid = blocks_of(64), .block = 64, .template_arguments = {"x"}}},
            .attributes = {count_of_input(), {.name = "factor", .type = f32, .value = 2.0}}};
}

template <typename Body>
std::string error_of(Body body) {
    try {
        body();
    } catch (const UserError& error) {
        return error.what();
    }
    return "no error";
}

std::string ptx_of(const std::string& source, CudaKernelOptions options,
                   TensorType x = {f32, {100}}, const std::string& arch = "sm_90a") {
    return cuda_kernel(source, "scale", std::move(options)).plan({x}).ptx(arch);
}

// ---- Tests that only need NVRTC.

bool no_nvrtc() {
    return std::getenv("TW_FAKE_GPU") != nullptr || !cuda::nvrtc_report().found();
}
#define TW_REQUIRE_REAL_NVRTC() \
    if (no_nvrtc()) GTEST_SKIP() << "NOT RUN: no NVRTC"

TEST(CudaKernel, CompilesForTheDtypesOfItsInputs) {
    TW_REQUIRE_REAL_NVRTC();
    for (const DType dtype : {f32, f64, f16, bf16}) {
        const std::string ptx = ptx_of(kScale, scale_options(), {dtype, {100}});
        EXPECT_THAT(ptx, HasSubstr("scaleI")) << name(dtype);
        EXPECT_THAT(ptx, HasSubstr(dtype == f64 ? "mul.f64" : "mul.f32"));
    }
}

TEST(CudaKernel, LogsOfTheCompilerHaveTheLinesOfTheSource) {
    TW_REQUIRE_REAL_NVRTC();
    CudaKernelOptions options = scale_options();
    options.file = "scale_of_mine.cu";
    const std::string message = error_of(
        [&] { ptx_of("#include <tilewright.cuh>\n\nnonsense;\n" + std::string(kScale), options); });
    EXPECT_THAT(message, HasSubstr("[scale] expected CUDA C++ that compiles for sm_90a"));
    EXPECT_THAT(message, HasSubstr("scale_of_mine.cu(3): error"));
}

TEST(CudaKernel, ParametersOtherThanWhatIsPassedDoNotCompile) {
    TW_REQUIRE_REAL_NVRTC();
    const auto message = [](const std::string& parameters) {
        return error_of([&] {
            ptx_of("template <class T> __global__ void scale(" + parameters + ") {}",
                   scale_options());
        });
    };
    EXPECT_EQ(message("const T* x, T* y, long long count, float factor"), "no error");
    EXPECT_EQ(message("const float4* x, void* y, long count, const float factor"), "no error");
    EXPECT_THAT(message("const T* x, T* y, int count, float factor"),
                HasSubstr("expected `count`, parameter 3 of scale, to be an i64"));
    EXPECT_THAT(message("const T* x, T* y, long long count, double factor"),
                HasSubstr("expected `factor`, parameter 4 of scale, to be an f32"));
    EXPECT_THAT(message("T* x, T* y, long long count, float factor"),
                HasSubstr("expected `x`, parameter 1 of scale, to be a pointer to const elements"));
    EXPECT_THAT(
        message("const T* x, const T* y, long long count, float factor"),
        HasSubstr("expected `y`, parameter 2 of scale, to be a pointer to elements of f32"));
    EXPECT_THAT(message("const int* x, T* y, long long count, float factor"),
                HasSubstr("to be a pointer to const elements of f32"));
    EXPECT_THAT(message("const T* x, T* y, long long count"),
                HasSubstr("expected 4 parameters of scale"));
}

TEST(CudaKernel, StructsAreComparedFieldByField) {
    TW_REQUIRE_REAL_NVRTC();
    CudaKernelOptions options = scale_options();
    options.attributes = {{.name = "d",
                           .type = AttributeType::structure(
                               "Descriptor", {{"flag", boolean}, {"rows", i64}, {"eps", f32}}),
                           .value = std::map<std::string, AttributeNumber>{
                               {"flag", true}, {"rows", std::int64_t{3}}, {"eps", 0.5}}}};
    const auto message = [&](const std::string& fields) {
        return error_of([&] {
            ptx_of("struct Descriptor {" + fields +
                       "};\ntemplate <class T> __global__ void scale(const T* x, T* y, Descriptor "
                       "d) {}",
                   options);
        });
    };
    EXPECT_EQ(message("bool flag; long long rows; float eps;"), "no error");
    for (const char* const fields :
         {"bool flag; int rows; float eps;", "bool flag; long long rows; int eps;",
          "long long rows; bool flag; float eps;", "float eps; long long rows; bool flag;"}) {
        EXPECT_THAT(message(fields), HasSubstr("expected `d`, parameter 3 of scale")) << fields;
    }
}

// ---- Runs.

Tensor on_gpu(const Tensor& tensor) {
    return tensor.to(Device::cuda());
}

TEST(CudaCallsOfUsers, EveryDtypeAndOddSizes) {
    TW_REQUIRE_GPU();
    const CudaKernel scale = cuda_kernel(kScale, "scale", scale_options());
    for (const DType dtype : {f32, f64, f16, bf16}) {
        for (const std::int64_t count : {1, 63, 64, 65, 1000}) {
            const Tensor x = Tensor::arange(dtype, std::min<std::int64_t>(count, 200));
            const Tensor y = scale({on_gpu(x)}, {{"factor", 0.5}});
            ASSERT_EQ(y.dtype(), dtype);
            const std::vector<float> have = y.to_vector<float>(), want = x.to_vector<float>();
            for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(have[i], want[i] / 2);
        }
    }
    EXPECT_EQ(scale({on_gpu(Tensor::empty(f32, {0}))}).size(), 0);
}

TEST(CudaCallsOfUsers, ArraysWithGapsAndOutputsOfTheCaller) {
    TW_REQUIRE_GPU();
    const CudaKernel scale = cuda_kernel(kScale, "scale", scale_options());
    const Tensor x = on_gpu(Tensor::arange(f32, 12)).reshape({3, 4}).transpose({1, 0});
    const Tensor all = Tensor::zeros(f32, {4, 6}, Device::cuda());
    scale.into({all.slice(1, 0, 3, 2)}, {x});
    EXPECT_THAT(all.to_vector<int>(), ElementsAre(0, 0, 8, 0, 16, 0, 2, 0, 10, 0, 18, 0, 4, 0, 12,
                                                  0, 20, 0, 6, 0, 14, 0, 22, 0));
}

constexpr const char* kEveryAttribute = R"(
#include <tilewright.cuh>

enum class Mode : int { add = 3, multiply = 5 };
struct Descriptor { bool negate; long long rows; float eps; };

template <typename Out, int kSteps, bool kTwice>
__global__ void every(const float* x, Out* y, bool flag, signed char small, unsigned long long big,
                      double wide, Mode mode, tw::DType dtype, Descriptor d) {
    const float value = x[0];
    y[0] = static_cast<Out>(value);
    y[1] = kSteps;
    y[2] = kTwice;
    y[3] = flag;
    y[4] = small;
    y[5] = static_cast<Out>(big);
    y[6] = static_cast<Out>(wide);
    y[7] = mode == Mode::multiply ? 5 : 0;
    y[8] = dtype == tw::DType::bf16;
    y[9] = d.negate;
    y[10] = static_cast<Out>(d.rows);
    y[11] = static_cast<Out>(d.eps);
}
)";

CudaKernel every_attribute() {
    return cuda_kernel(
        kEveryAttribute, "every",
        {.inputs = {"x"},
         .outputs = {"y"},
         .out_type =
             [](const KernelSignature& s) {
                 const auto& name = std::get<std::string>(s.attributes.at("out"));
                 return std::vector<TensorType>{{*parse_dtype(name), {12}}};
             },
         .launches = {{.block = 1, .template_arguments = {"out", "steps", "twice"}}},
         .attributes = {
             {.name = "out", .type = AttributeType::dtype()},
             {.name = "steps", .type = i32},
             {.name = "twice", .type = boolean, .value = true},
             {.name = "flag", .type = boolean},
             {.name = "small", .type = i8},
             {.name = "big", .type = u64},
             {.name = "wide", .type = f64},
             {.name = "mode", .type = AttributeType::enumeration({{"add", 3}, {"multiply", 5}})},
             {.name = "kind", .type = AttributeType::dtype(), .value = "bf16"},
             {.name = "d",
              .type = AttributeType::structure(
                  "Descriptor", {{"negate", boolean}, {"rows", i64}, {"eps", f32}})}}});
}

KernelAttributes every_value() {
    return {{"out", "f32"},
            {"steps", std::int64_t{7}},
            {"flag", true},
            {"small", std::int64_t{-8}},
            {"big", std::int64_t{9}},
            {"wide", 2.5},
            {"mode", "multiply"},
            {"d", std::map<std::string, AttributeNumber>{
                      {"negate", true}, {"rows", std::int64_t{1000}}, {"eps", 0.25}}}};
}

TEST(CudaCallsOfUsers, EveryKindOfAttribute) {
    TW_REQUIRE_GPU();
    const CudaKernel every = every_attribute();
    const Tensor x = on_gpu(Tensor::scalar(f32, 4).reshape({1}));
    KernelAttributes attributes = every_value();
    EXPECT_THAT(every({x}, attributes).to_vector<double>(),
                ElementsAre(4, 7, 1, 1, -8, 9, 2.5, 5, 1, 1, 1000, 0.25));
    attributes["out"] = "i32";
    attributes["twice"] = false;
    EXPECT_THAT(every({x}, attributes).to_vector<double>(),
                ElementsAre(4, 7, 0, 1, -8, 9, 2, 5, 1, 1, 1000, 0));
}

constexpr const char* kColumnSums = R"(
#include <tilewright.cuh>

__global__ void partial(const float* x, float* y, float* sums, int rows, int columns) {
    const int column = threadIdx.x;
    float sum = 0;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) sum += x[row * columns + column];
    sums[blockIdx.x * columns + column] += sum;
}
__global__ void total(const float* x, float* y, float* sums, int rows, int columns) {
    float sum = 0;
    for (int part = 0; part < 4; ++part) sum += sums[part * columns + threadIdx.x];
    y[threadIdx.x] = sum;
}
)";

CudaKernelOptions sum_options() {
    const auto extent = [](int d) {
        return [d](const KernelSignature& s) -> AttributeValue {
            return s.inputs[0].shape[static_cast<std::size_t>(d)];
        };
    };
    const LaunchExtents columns = [](const KernelSignature& s) {
        return std::vector<std::int64_t>{s.inputs[0].shape[1]};
    };
    return {.inputs = {"x"},
            .outputs = {"y"},
            .out_type =
                [](const KernelSignature& s) {
                    return std::vector<TensorType>{{f32, {s.inputs[0].shape[1]}}};
                },
            .launches = {{.kernel = "partial", .grid = 4, .block = columns},
                         {.kernel = "total", .grid = 1, .block = columns}},
            .attributes = {{.name = "rows", .type = i32, .function = extent(0)},
                           {.name = "columns", .type = i32, .function = extent(1)}},
            .workspace =
                [](const KernelSignature& s) {
                    return std::vector<std::int64_t>{16 * s.inputs[0].shape[1]};
                },
            .clear_workspace = true};
}

TEST(CudaCallsOfUsers, SeveralLaunchesShareAWorkspace) {
    TW_REQUIRE_GPU();
    const CudaKernel sums = cuda_kernel(kColumnSums, "column_sums", sum_options());
    const Tensor x = on_gpu(Tensor::arange(f32, 32 * 7).reshape({7, 32}));
    for (int again = 0; again < 3; ++again) {
        const std::vector<float> y = sums({x}).to_vector<float>();
        for (std::size_t c = 0; c < 32; ++c) {
            EXPECT_EQ(y[c], 7 * static_cast<float>(c) + 32 * (0 + 1 + 2 + 3 + 4 + 5 + 6));
        }
    }
}

constexpr const char* kRowTimes = R"(
#include <tilewright.cuh>

__global__ void times(tw::batched<const float> x, tw::batched<const float> w, tw::batched<float> y) {
    y[threadIdx.x] = x[threadIdx.x] * w[threadIdx.x];
}
)";
constexpr const char* kRowTimesRaw = R"(
__global__ void times(const float* x, const float* w, float* y) {
    y[threadIdx.x] = x[threadIdx.x] * w[threadIdx.x];
}
)";

TEST(CudaCallsOfUsers, BatchesInTheGridAndOneByOne) {
    TW_REQUIRE_GPU();
    const Tensor x = on_gpu(Tensor::arange(f32, 2 * 3 * 4).reshape({2, 3, 4}));
    const Tensor w = on_gpu(Tensor::arange(f32, 3 * 4).reshape({3, 4}));
    for (const bool in_grid : {true, false}) {
        const CudaKernel times = cuda_kernel(in_grid ? kRowTimes : kRowTimesRaw, "times",
                                             {.inputs = {"x", "w"},
                                              .outputs = {"y"},
                                              .out_type = like_input,
                                              .launches = {{.block = 4}},
                                              .batch_in_grid = in_grid});
        const TensorType row{f32, {4}};
        const CudaPlan plan =
            times.plan({row, row}).batched({true, true}, 3).batched({true, false}, 2);
        EXPECT_EQ(plan.inputs()[1], (TensorType{f32, {3, 4}}));
        EXPECT_EQ(plan.outputs()[0], (TensorType{f32, {2, 3, 4}}));
        const Tensor y = Tensor::empty(f32, {2, 3, 4}, Device::cuda());
        CudaPlan(plan.text()).run(std::vector{x, w, y});  // through its text
        const std::vector<float> have = y.to_vector<float>();
        for (std::size_t i = 0; i < have.size(); ++i) {
            EXPECT_EQ(have[i], static_cast<float>(i * (i % 12))) << in_grid;
        }
    }
}

TEST(CudaCallsOfUsers, RefuseWhatWouldBeAFault) {
    TW_REQUIRE_GPU();
    const CudaKernel scale = cuda_kernel(kScale, "scale", scale_options());
    const Tensor x = on_gpu(Tensor::arange(f32, 100));
    EXPECT_THAT(error_of([&] { scale.into({x}, {x}); }),
                HasSubstr("expected `y` apart from `x` but they share memory"));
    EXPECT_THAT(error_of([&] { scale.into({Tensor::empty(f32, {100})}, {x}); }),
                HasSubstr("expected `y` on cuda:0, where `x` is, but it is on cpu"));
    const Tensor host = Tensor::arange(f32, 100);
    const Tensor lies = Tensor::from_data(host.raw(), f32, {100}, {}, {}, Device::cuda());
    EXPECT_NE(error_of([&] { scale({lies}); }), "no error");
    EXPECT_THAT(
        error_of([&] { scale({Tensor::arange(f32, 100)}); }),
        HasSubstr("expected arrays on a GPU, since the kernel has no function for the CPU"));
    CudaKernelOptions greedy = scale_options();
    greedy.launches[0].shared = 900000;
    EXPECT_THAT(error_of([&] { cuda_kernel(kScale, "scale", greedy)({x}); }),
                HasSubstr("bytes of shared memory"));
    if (cuda::device_count() > 1) {
        const cuda::Stream other(1);
        const CudaScope scope(other.handle());
        EXPECT_THAT(error_of([&] { scale({x}); }),
                    HasSubstr("expected a stream of cuda:0, where the arrays are, but the current "
                              "one belongs to cuda:1"));
    }
}

// ---- CPU functions.

CudaKernelOptions with_cpu(CpuFunction cpu) {
    CudaKernelOptions options = scale_options();
    options.cpu = [cpu](const KernelSignature&) { return cpu; };
    return options;
}

TEST(CudaKernel, RunsALibrarysFunctionOnTheCpu) {
    const CudaKernel scale = cuda_kernel(kScale, "scale", with_cpu({.entry = "tw_test_scale"}));
    EXPECT_THAT(scale({Tensor::arange(f32, 4)}, {{"factor", 3.0}}).to_vector<int>(),
                ElementsAre(0, 3, 6, 9));
    const CudaPlan plan = scale.plan({{f32, {2}}}).batched({true}, 3);
    const Tensor x = Tensor::arange(f32, 6).reshape({3, 2}), y = Tensor::empty(f32, {3, 2});
    plan.run(std::vector{x, y});
    EXPECT_THAT(y.to_vector<int>(), ElementsAre(0, 2, 4, 6, 8, 10));
    EXPECT_THAT(error_of([&] { scale({Tensor::arange(f64, 4)}); }),
                HasSubstr("[scale] expected x of f32"));
    EXPECT_THAT(error_of([&] {
                    cuda_kernel(kScale, "scale",
                                with_cpu({.entry = "missing"}))({Tensor::arange(f32, 4)});
                }),
                HasSubstr("expected the CPU function `missing` in this process"));
    EXPECT_THAT(error_of([&] {
                    cuda_kernel(kScale, "scale", with_cpu({.library = "/no.so", .entry = "f"}))(
                        {Tensor::arange(f32, 4)});
                }),
                HasSubstr("expected a shared library with its CPU function but got /no.so"));
}

TEST(CudaKernel, RunsATileProgramOnTheCpu) {
    const CudaKernel scale = cuda_kernel(kScale, "scale", with_cpu({.ir = R"(
func @twice(%x: ref<f32[4]>, %y: ref<f32[4]>) {
  %zero = constant 0 : i64
  %a = load %x[%zero : 4] : f32[4]
  %b = add %a, %a : f32[4]
  store %y[%zero : 4], %b
  yield
})"}));
    EXPECT_THAT(scale({Tensor::arange(f32, 4)}).to_vector<int>(), ElementsAre(0, 2, 4, 6));
    EXPECT_THAT(error_of([&] { scale({Tensor::arange(f32, 5)}); }),
                HasSubstr("expected `x` to be f32[4] but got f32[5]"));
}

// ---- Refusals before anything runs.

std::string refusal(CudaKernelOptions options, const KernelAttributes& attributes = {},
                    std::vector<TensorType> inputs = {{f32, {100}}}) {
    return error_of(
        [&] { cuda_kernel(kScale, "scale", std::move(options)).plan(inputs, attributes); });
}

TEST(CudaKernel, RefusesAttributesThatDoNotFit) {
    EXPECT_EQ(refusal(scale_options()), "no error");
    EXPECT_THAT(refusal(scale_options(), {{"factor", "two"}}),
                HasSubstr("[scale] expected the attribute `factor` to be a number (f32) but got "
                          "'two'"));
    EXPECT_THAT(refusal(scale_options(), {{"facto", 2.0}}),
                HasSubstr("expected attributes among (factor) but got `facto`"));
    EXPECT_THAT(refusal(scale_options(), {{"count", std::int64_t{2}}}),
                HasSubstr("expected no value of the attribute `count`, which is computed"));
    const auto every = [](const std::string& name, const AttributeValue& value) {
        KernelAttributes attributes = every_value();
        attributes[name] = value;
        return error_of([&] { every_attribute().plan({{f32, {1}}}, attributes); });
    };
    EXPECT_EQ(every("steps", std::int64_t{1}), "no error");
    EXPECT_THAT(every("steps", 1.5), HasSubstr("`steps` to be an integer that fits i32"));
    EXPECT_THAT(every("steps", std::int64_t{1} << 40), HasSubstr("an integer that fits i32"));
    EXPECT_THAT(every("big", std::int64_t{-1}), HasSubstr("an integer that fits u64 but got -1"));
    EXPECT_THAT(every("flag", std::int64_t{1}), HasSubstr("`flag` to be a bool but got 1"));
    EXPECT_THAT(every("mode", "divide"), HasSubstr("one of 'add', 'multiply' but got 'divide'"));
    EXPECT_THAT(every("out", "f33"), HasSubstr("`out` to be the name of a dtype but got 'f33'"));
    EXPECT_THAT(every("d", std::map<std::string, AttributeNumber>{{"rows", std::int64_t{1}}}),
                HasSubstr("the fields negate, rows, eps of Descriptor but got {rows = 1}"));
    KernelAttributes missing = every_value();
    missing.erase("steps");
    EXPECT_THAT(error_of([&] {
                    every_attribute().plan({{f32, {1}}}, missing);
                }),
                HasSubstr("expected a value of the attribute `steps` but it is missing"));
}

TEST(CudaKernel, RefusesWhatCannotBeLaunched) {
    const auto with = [](LaunchExtents grid, LaunchExtents block) {
        CudaKernelOptions options = scale_options();
        options.launches[0].grid = std::move(grid);
        options.launches[0].block = std::move(block);
        return refusal(std::move(options));
    };
    EXPECT_EQ(with({1, 65535, 65535}, {32, 1, 32}), "no error");
    EXPECT_THAT(with(0, 32), HasSubstr("expected a grid of 1 to 2147483647 blocks along x but got "
                                       "[0, 1, 1]"));
    EXPECT_THAT(with(std::int64_t{1} << 31, 32), HasSubstr("blocks along x"));
    EXPECT_THAT(with({1, 65536}, 32), HasSubstr("1 to 65535 blocks along y"));
    EXPECT_THAT(with(1, 0), HasSubstr("expected a block of 1 to 1024 threads along x"));
    EXPECT_THAT(with(1, 1025), HasSubstr("expected a block of at most 1024 threads"));
    EXPECT_THAT(with(1, {64, 32}), HasSubstr("expected a block of at most 1024 threads"));
    EXPECT_THAT(with(1, {1, 1, 65}), HasSubstr("1 to 64 threads along z"));
    EXPECT_THAT(with({1, 1, 1, 1}, 32), HasSubstr("one to three extents of the grid"));
    CudaKernelOptions options = scale_options();
    options.launches[0].cluster = 3;
    EXPECT_THAT(refusal(options), HasSubstr("clusters that divide the grid [2, 1, 1]"));
    options = scale_options();
    options.workspace = -1;
    EXPECT_THAT(refusal(options), HasSubstr("expected a workspace of 0 to"));
}

TEST(CudaKernel, RefusesInputsAndNamesThatDoNotFit) {
    EXPECT_THAT(refusal(scale_options(), {}, {}), HasSubstr("expected 1 inputs (x) but got 0"));
    CudaKernelOptions options = scale_options();
    options.outputs = {"x"};
    EXPECT_THAT(refusal(options), HasSubstr("its own name but got `x` twice"));
    options.outputs = {"y z"};
    EXPECT_THAT(refusal(options), HasSubstr("expected a name of an input, output or attribute"));
    options = scale_options();
    options.options = {"--Ofast-compile=max"};
    EXPECT_THAT(refusal(options), HasSubstr("options that hold for one compilation"));
    options = scale_options();
    options.launches[0].template_arguments = {"w"};
    EXPECT_THAT(refusal(options), HasSubstr("as template argument of scale but got 'w'"));
    options = scale_options();
    options.launches[0].template_arguments = {"x", "factor"};
    EXPECT_THAT(refusal(options), HasSubstr("an integer, a bool or an enumeration"));
    options = scale_options();
    options.attributes[1].type = bf16;
    EXPECT_THAT(refusal(options), HasSubstr("`factor` of bool, integers, f32 or f64 but got bf16"));
    EXPECT_THAT(error_of([] { cuda_kernel("  ", "scale", scale_options()); }),
                HasSubstr("expected CUDA C++ as source but got an empty text"));
    EXPECT_THAT(error_of([] { CudaPlan("{}"); }), HasSubstr("expected the text of a plan"));
    const CudaKernel scale = cuda_kernel(kScale, "scale", scale_options());
    EXPECT_THAT(error_of([&] { scale.into({}, {Tensor::arange(f32, 3)}); }),
                HasSubstr("expected 1 inputs and 1 outputs but got 1 arrays"));
    EXPECT_THAT(error_of([&] { scale.into({Tensor::empty(f32, {4})}, {Tensor::arange(f32, 3)}); }),
                HasSubstr("expected `y` to be f32[3] but got f32[4]"));
}

}  // namespace
}  // namespace tilewright
