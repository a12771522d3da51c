// CUDA C++ of your own as an operation on tensors: compiled by NVRTC for the dtypes of its inputs,
// with typed attributes, workspace and, where there is one, a function for the CPU.
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

/// The value of an attribute, or of a field of one.
using AttributeNumber = std::variant<bool, std::int64_t, double>;
/// The value of an attribute: a number, the name of an enumerator or dtype, the fields of a struct.
using AttributeValue =
    std::variant<bool, std::int64_t, double, std::string, std::map<std::string, AttributeNumber>>;
using KernelAttributes = std::map<std::string, AttributeValue>;

/// What the value of an attribute may be, and as what the kernel takes it.
struct AttributeType {
    enum class Kind : std::uint8_t {
        scalar,       ///< bool, an integer, f32 or f64
        enumeration,  ///< one of named numbers: an `int` or an `enum` of that size
        dtype,        ///< a dtype's name: a `tw::DType`, or a type of the template
        structure,    ///< a struct of scalars, by value
    };
    Kind kind = Kind::scalar;
    DType scalar = DType::f32;
    std::vector<std::pair<std::string, std::int32_t>> enumerators = {};
    std::string name = {};  ///< of the struct in CUDA C++
    std::vector<std::pair<std::string, DType>> fields = {};

    AttributeType(DType type) : scalar(type) {}
    /// UserError unless there is an enumerator.
    static AttributeType enumeration(std::vector<std::pair<std::string, std::int32_t>> enumerators);
    static AttributeType dtype();
    /// Laid out as C does; the compilation fails where the struct of this name is another one.
    static AttributeType structure(std::string name,
                                   std::vector<std::pair<std::string, DType>> fields);
};

/// What functions that shape a call see: the types of its inputs and its attributes.
struct KernelSignature {
    std::vector<TensorType> inputs;
    KernelAttributes attributes;
};

/// One attribute: by default a parameter of the kernel after its arrays.
struct KernelAttribute {
    std::string name;
    AttributeType type;
    std::optional<AttributeValue> value = {};  ///< for calls that give none
    /// In place of `value`, and not to be given by calls: computed from the inputs and the
    /// attributes before this one.
    std::function<AttributeValue(const KernelSignature&)> function = {};
    bool passed = true;  ///< false: the kernel does not take it; functions of the options see it
};

/// One to three extents, x first, or one number; may be a function of the signature.
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

/// One `__global__` function and how many threads run it.
struct CudaLaunch {
    std::string kernel = {};      ///< its name in the source, with its namespace; empty: the op's
    LaunchExtents grid = {1};     ///< blocks: x up to 2^31 - 1, y and z up to 65,535
    LaunchExtents block = {256};  ///< threads of each, up to 1,024
    LaunchExtents shared = {0};   ///< bytes of dynamic shared memory
    LaunchExtents cluster = {1};  ///< blocks of a cluster (sm_90)
    /// What the template is instantiated with. Each entry is the name of an input or output, for
    /// the C++ type of its elements, or of an attribute: a type for a dtype, else its number.
    std::vector<std::string> template_arguments = {};
};

/// What a call runs on the CPU: IR text of a tile program on inputs and outputs, or the function
/// `entry` of the shared library at `library` ("": of the process), a `tw_cpu_function`
/// (tilewright/cpu_function.h).
struct CpuFunction {
    std::string ir = {};
    std::string library = {};
    std::string entry = {};
};

struct CudaKernelOptions {
    std::vector<std::string> inputs = {}, outputs = {};  ///< names, in the kernel's order
    std::function<std::vector<TensorType>(const KernelSignature&)> out_type = {};
    /// One, of the operation's name, if none is given. Run in order, all with the same parameters:
    /// inputs, outputs, workspace, attributes that are passed, other than those that a template
    /// argument names.
    std::vector<CudaLaunch> launches = {};
    std::vector<KernelAttribute> attributes = {};
    /// Bytes; the kernel then takes a pointer to them, aligned to 256, after the outputs.
    LaunchExtents workspace = {};
    bool clear_workspace = false;  ///< set its bytes to 0 before the launches
    /// The batch of `CudaPlan::batched` is a grid axis: arrays are `tw::batched<T>` parameters,
    /// and the grid has at most two axes. Else elements of the batch are launched in turn.
    bool batch_in_grid = false;
    std::function<CpuFunction(const KernelSignature&)> cpu = {};
    std::string file = {};  ///< as what NVRTC's log knows the source; "NAME.cu" when empty
    std::vector<std::pair<std::string, std::string>> headers = {};  ///< (name, text) to include
    std::vector<std::string> options = {};                          ///< of NVRTC: "-DX=1", "-I..."
    /// C++ types of elements where not tilewright.cuh's: {{bf16, "__nv_bfloat16"}}.
    std::map<DType, std::string> types = {};
};

/// A kernel for inputs of fixed types and fixed attributes: what runs. It is text, so that it can
/// travel. Immutable; may run on many threads at once. Copies share what is compiled.
class CudaPlan {
  public:
    /// What `text` gave. UserError for other texts.
    explicit CudaPlan(std::string_view text);

    const std::string& name() const;
    const std::string& text() const;
    /// Types of the arrays of `run`, a batch included.
    const std::vector<TensorType>& inputs() const;
    const std::vector<TensorType>& outputs() const;
    bool has_cpu() const;

    /// Runs on the inputs, then the outputs, all on one device; on a GPU on this thread's CUDA
    /// stream, where warm runs neither allocate (without workspace) nor wait. Arrays with gaps are
    /// copied. UserError where number, dtype, shape or device of the arrays do not fit, an output
    /// is read-only or shares memory with another array, the stream belongs to another device, the
    /// source does not compile (with NVRTC's log), or, on the CPU, there is no CPU function.
    void run(std::span<const Tensor> arrays) const;

    /// The plan over a batch: `mapped` says which inputs have a leading dimension of extent
    /// `size`, as all outputs then have.
    CudaPlan batched(const std::vector<bool>& mapped, std::int64_t size) const;

    /// What NVRTC makes of the source for a GPU such as "sm_90a"; needs no GPU.
    std::string ptx(const std::string& arch = "sm_80") const;

  private:
    friend class CudaKernel;
    struct State;
    explicit CudaPlan(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

/// CUDA C++ and what it takes to launch it. Callable from many threads; each signature is compiled
/// once, by device. Copies share that.
class CudaKernel {
  public:
    /// UserError for options that contradict each other. Nothing is compiled yet.
    CudaKernel(std::string source, std::string name, CudaKernelOptions options);

    /// Runs on inputs, on their device, and returns the outputs.
    std::vector<Tensor> run(const std::vector<Tensor>& inputs,
                            const KernelAttributes& attributes = {}) const;
    /// Runs into tensors of the caller, which have the outputs' dtypes and shapes.
    void into(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
              const KernelAttributes& attributes = {}) const;
    /// Runs and returns the only output.
    Tensor operator()(const std::vector<Tensor>& inputs,
                      const KernelAttributes& attributes = {}) const;

    /// The plan of a signature. UserError where inputs or attributes do not fit, or the functions
    /// of the options give what cannot be launched.
    CudaPlan plan(const std::vector<TensorType>& inputs,
                  const KernelAttributes& attributes = {}) const;

    const std::string& name() const;
    const CudaKernelOptions& options() const;

  private:
    struct State;
    std::shared_ptr<const State> state_;
};

/// CUDA C++ as an operation on tensors; `name` is that of messages and, unless the launches say
/// otherwise, of the `__global__` function.
CudaKernel cuda_kernel(std::string source, std::string name, CudaKernelOptions options);

}  // namespace tilewright
