// Your own CUDA C++ as an operation on tensors: compiled by NVRTC for the dtypes of its inputs,
// with typed attributes, a workspace and, if you give one, a function for the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// The value of a scalar attribute, or of a field of a struct.
using AttributeNumber = std::variant<bool, std::int64_t, double>;
/// The value of an attribute: a number, the name of an enumerator or dtype, or a struct's fields.
using AttributeValue =
    std::variant<bool, std::int64_t, double, std::string, std::map<std::string, AttributeNumber>>;
using KernelAttributes = std::map<std::string, AttributeValue>;

/// Which values an attribute may have, and how the kernel takes it.
struct AttributeType {
    enum class Kind : std::uint8_t {
        scalar,       ///< bool, an integer, f32 or f64
        enumeration,  ///< one of some named numbers: an `int`, or an `enum` of that size
        dtype,        ///< a dtype's name: a `tw::DType`, or a type argument of the template
        structure,    ///< a struct of scalars, passed by value
    };
    Kind kind = Kind::scalar;
    DType scalar = DType::f32;
    std::vector<std::pair<std::string, std::int32_t>> enumerators = {};
    std::string name = {};  ///< the struct's name in CUDA C++
    std::vector<std::pair<std::string, DType>> fields = {};

    AttributeType(DType type) : scalar(type) {}
    /// UserError without enumerators.
    static AttributeType enumeration(std::vector<std::pair<std::string, std::int32_t>> enumerators);
    static AttributeType dtype();
    /// Laid out as in C; compilation fails if the struct of this name has another layout.
    static AttributeType structure(std::string name,
                                   std::vector<std::pair<std::string, DType>> fields);
};

/// What the functions of the options are given: the input types and attributes of a call.
struct KernelSignature {
    std::vector<TensorType> inputs;
    KernelAttributes attributes;
};

/// One attribute: by default a parameter of the kernel after its arrays.
struct KernelAttribute {
    std::string name;
    AttributeType type;
    std::optional<AttributeValue> value = {};  ///< default, for calls that give none
    /// Computes the value from the inputs and the attributes before this one. Replaces `value`;
    /// calls may not give one.
    std::function<AttributeValue(const KernelSignature&)> function = {};
    bool passed = true;  ///< false: only functions of the options see it, not the kernel
};

/// One to three extents, x first; may be a function of the signature.
class LaunchExtents {
  public:
    LaunchExtents() = default;
    LaunchExtents(std::int64_t extent) : extents_{extent} {}
    LaunchExtents(std::initializer_list<std::int64_t> extents) : extents_(extents) {}
    LaunchExtents(std::vector<std::int64_t> extents) : extents_(std::move(extents)) {}
    template <typename F>
    requires std::is_invocable_r_v < std::vector<std::int64_t>, F,
    const KernelSignature& > LaunchExtents(F function) : function_(std::move(function)) {}

    std::vector<std::int64_t> of(const KernelSignature& signature) const {
        return function_ ? function_(signature) : extents_;
    }
    bool given() const { return function_ || !extents_.empty(); }

  private:
    std::vector<std::int64_t> extents_;
    std::function<std::vector<std::int64_t>(const KernelSignature&)> function_;
};

/// A `__global__` function and the threads that run it.
struct CudaLaunch {
    std::string kernel = {};      ///< qualified name in the source; empty: the operation's name
    LaunchExtents grid = {1};     ///< blocks: x up to 2^31 - 1, y and z up to 65,535
    LaunchExtents block = {256};  ///< threads of a block, up to 1,024
    LaunchExtents shared = {0};   ///< bytes of dynamic shared memory
    LaunchExtents cluster = {1};  ///< blocks of a cluster (sm_90 and later)
    /// What the template is instantiated with. Each entry names an input or output (the C++ type of
    /// its elements) or an attribute (a type for a dtype, else its number).
    std::vector<std::string> template_arguments = {};
};

/// What a call runs on the CPU: a tile program on inputs and outputs, as IR text, or a
/// `tw_cpu_function` (tilewright/cpu_function.h) named `entry` in the shared library at path
/// `library` ("": in the process itself).
struct CpuFunction {
    std::string ir = {};
    std::string library = {};
    std::string entry = {};
};

struct CudaKernelOptions {
    std::vector<std::string> inputs = {}, outputs = {};  ///< names, in the kernel's order
    std::function<std::vector<TensorType>(const KernelSignature&)> out_type = {};
    /// Run in order; by default one with the operation's name. All take the same parameters:
    /// inputs, outputs, workspace, and attributes that are passed and not template arguments.
    std::vector<CudaLaunch> launches = {};
    std::vector<KernelAttribute> attributes = {};
    /// Bytes; if given, the kernel takes a pointer to them, aligned to 256, after the outputs.
    LaunchExtents workspace = {};
    bool clear_workspace = false;  ///< set its bytes to 0 before the launches
    /// Makes the batch of `CudaPlan::batched` a grid axis: arrays are `tw::batched<T>` parameters,
    /// and the grid has at most two other axes. Otherwise each batch element has its own launch.
    bool batch_in_grid = false;
    std::function<CpuFunction(const KernelSignature&)> cpu = {};
    std::string file = {};  ///< name of the source in NVRTC's log; "NAME.cu" when empty
    std::vector<std::pair<std::string, std::string>> headers = {};  ///< (name, text) to include
    std::vector<std::string> options = {};                          ///< for NVRTC: "-DX=1", "-I..."
    /// C++ types of elements that replace those of tilewright.cuh: {{bf16, "__nv_bfloat16"}}.
    std::map<DType, std::string> types = {};
};

/// A kernel for fixed input types and attributes, ready to run. It has a text form, for other
/// processes. Immutable; may run on many threads at once. Copies share what is compiled.
class CudaPlan {
  public:
    /// The plan whose `text` this is. UserError for other text.
    explicit CudaPlan(std::string_view text);

    const std::string& name() const;
    const std::string& text() const;
    /// Types of the arrays that `run` takes, including the batch dimension.
    const std::vector<TensorType>& inputs() const;
    const std::vector<TensorType>& outputs() const;
    bool has_cpu() const;

    /// Runs on the inputs followed by the outputs, all on one device; on a GPU, on this thread's
    /// CUDA stream, where warm runs neither wait nor, without a workspace, allocate. Arrays with
    /// gaps are copied. UserError when the number, dtypes, shapes or devices of the arrays do not
    /// match, an output is read-only or shares memory with another array, the stream belongs to
    /// another device, the source does not compile (with NVRTC's log), or, on the CPU, there is no
    /// CPU function.
    void run(std::span<const Tensor> arrays) const;

    /// The plan over a batch: `mapped` says which inputs have a leading dimension of extent `size`;
    /// all outputs then have it.
    CudaPlan batched(const std::vector<bool>& mapped, std::int64_t size) const;

    /// The PTX that NVRTC makes of the source for a GPU such as "sm_90a"; needs no GPU.
    std::string ptx(const std::string& arch = "sm_80") const;

  private:
    friend class CudaKernel;
    struct State;
    explicit CudaPlan(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

/// CUDA C++ and what is needed to launch it. May be called from many threads; each signature is
/// compiled once for each device. Copies share compiled kernels.
class CudaKernel {
  public:
    /// UserError for options that contradict each other. Nothing is compiled yet.
    CudaKernel(std::string source, std::string name, CudaKernelOptions options);

    /// Runs on the inputs, on their device, and returns the outputs.
    std::vector<Tensor> run(const std::vector<Tensor>& inputs,
                            const KernelAttributes& attributes = {}) const;
    /// Runs into the caller's tensors, which have the outputs' dtypes and shapes.
    void into(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
              const KernelAttributes& attributes = {}) const;
    /// Runs and returns the only output.
    Tensor operator()(const std::vector<Tensor>& inputs,
                      const KernelAttributes& attributes = {}) const;

    /// The plan for a signature. UserError when inputs or attributes do not match, or the functions
    /// of the options return what cannot be launched.
    CudaPlan plan(const std::vector<TensorType>& inputs,
                  const KernelAttributes& attributes = {}) const;

    const std::string& name() const;
    const CudaKernelOptions& options() const;

  private:
    struct State;
    std::shared_ptr<const State> state_;
};

/// CUDA C++ as an operation on tensors; `name` appears in messages and, unless the launches say
/// otherwise, names the `__global__` function.
CudaKernel cuda_kernel(std::string source, std::string name, CudaKernelOptions options);

}  // namespace tilewright
