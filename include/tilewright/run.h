// Calls of kernels: grids, block specs, aliases, vmap and the autotuner.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/lang/kernel.h"
#include "tilewright/profile.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

/// Extents of the grid, last axis fastest; {} is a single program. May be a function of the inputs.
class Grid {
  public:
    Grid() = default;
    Grid(std::initializer_list<std::int64_t> extents) : extents_(extents) {}
    Grid(std::vector<std::int64_t> extents) : extents_(std::move(extents)) {}
    template <typename F>
    requires std::is_invocable_r_v<std::vector<std::int64_t>, F, std::span<const Tensor>> Grid(
        F function)
        : function_(std::move(function)) {}

    std::vector<std::int64_t> extents(std::span<const Tensor> inputs) const {
        return function_ ? function_(inputs) : extents_;
    }
    bool is_function() const { return static_cast<bool>(function_); }

  private:
    std::vector<std::int64_t> extents_;
    std::function<std::vector<std::int64_t>(std::span<const Tensor>)> function_;
};

/// Dtypes and shapes of the outputs. May be a function of the inputs.
class OutTypes {
  public:
    OutTypes() = default;
    OutTypes(std::initializer_list<TensorType> types) : types_(types) {}
    OutTypes(std::vector<TensorType> types) : types_(std::move(types)) {}
    template <typename F>
    requires std::is_invocable_r_v<std::vector<TensorType>, F, std::span<const Tensor>> OutTypes(
        F function)
        : function_(std::move(function)) {}

    std::vector<TensorType> types(std::span<const Tensor> inputs) const {
        return function_ ? function_(inputs) : types_;
    }

  private:
    std::vector<TensorType> types_;
    std::function<std::vector<TensorType>(std::span<const Tensor>)> function_;
};

/// Output `output` shares the memory of input `input`: the input is updated in place.
struct Alias {
    int input = 0;
    int output = 0;
};

/// What one run of a call costs, for schedulers and reports; it changes no result.
struct CostEstimate {
    double flops = 0;
    double bytes_accessed = 0;
    double transcendentals = 0;
};

/// Options of `call`. Missing specs at the end of `in` and `out` are whole arrays.
struct CallOptions {
    Grid grid = {};
    std::vector<BlockSpec> in = {};
    std::vector<BlockSpec> out = {};
    OutTypes out_type = {};
    /// Memory private to a program, kept between the steps of sequential axes; uninitialised.
    std::vector<TensorType> scratch = {};
    std::vector<Alias> aliases = {};
    /// Grid axes whose steps run in order inside one program.
    std::vector<int> sequential = {};
    /// Dimensions, by argument (inputs, then outputs), whose extent may change without a new trace:
    /// {{0, {1}}, {2, {1}}} makes dimension 1 dynamic in the first of two inputs and in the output
    /// that follows it. Such a dimension needs a whole-array spec or a smaller block.
    std::map<int, std::vector<int>> dynamic = {};
    std::string name = {};  ///< in place of the kernel's name
    /// Hints for GPUs, 0 to 1024; 0: chosen by the compiler. The number of warps is a power of two;
    /// a program uses at most 16, and the debug log says where it uses fewer.
    int num_warps = 0;
    int num_stages = 0;
    /// Hints for CPUs, both or neither: a program works on tiles of so many rows and lanes
    /// (elements of the last axis; all of a row that is reduced, and fewer rows), into which
    /// `retile` cuts larger blocks, in loops inside the program. 0: blocks as they are. UserError
    /// from the first call where a block cannot be cut.
    std::int64_t tile_rows = 0;
    std::int64_t tile_lanes = 0;
    bool debug = false;      ///< print the IR when it is traced
    bool profile = false;    ///< time each line on CPUs, for Call::profile
    bool interpret = false;  ///< checked mode: bounds, NaN poison, races between programs. Slow
    CostEstimate cost = {};
};

namespace detail {
class CallState;
}

/// A kernel bound to its grid and block specs. May be called from many threads; each signature of
/// inputs is traced and compiled once. Copies share the compiled programs. UserError when the
/// inputs do not match the specs.
class Call {
  public:
    Call(Kernel kernel, CallOptions options);

    /// Runs and returns the single output. An undefined Tensor stands for an absent input.
    template <typename... Inputs>
    requires(std::is_convertible_v<const Inputs&, Tensor>&&...) Tensor operator()(
        const Inputs&... inputs) const {
        return single(run({Tensor(inputs)...}));
    }
    /// Runs and returns N outputs: `auto [out, lse] = call.outputs<2>(q, k, v)`.
    template <std::size_t N, typename... Inputs>
    std::array<Tensor, N> outputs(const Inputs&... inputs) const {
        std::vector<Tensor> results = run({Tensor(inputs)...});
        check_output_count(results.size(), N);
        std::array<Tensor, N> array;
        for (std::size_t i = 0; i < N; ++i) array[i] = std::move(results[i]);
        return array;
    }
    /// Runs and returns all outputs.
    std::vector<Tensor> run(const std::vector<Tensor>& inputs) const;
    /// Runs into the caller's tensors, which have the outputs' dtypes and shapes.
    void into(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) const;
    /// Starts compiling, in the background, what `into` runs for such tensors; a later run waits
    /// for it if need be. Nothing is read or written. On a CPU it only traces.
    void compile_ahead(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) const;

    /// The tile IR, as text, that runs for inputs of these types; `lines` adds source lines.
    std::string ir(const std::vector<Tensor>& inputs, bool lines = false) const;
    /// The listing of the bytecode that runs for them on a CPU (docs/explanation/cpu.md).
    std::string bytecode(const std::vector<Tensor>& inputs) const;
    /// The CUDA C++ that runs for them on a GPU of `arch` (as NVRTC names it) when every array is
    /// aligned and row-major; `ptx` is what NVRTC compiles it to, UserError without NVRTC. Neither
    /// needs a GPU. UserError for an architecture that is unknown or older than sm_80.
    std::string cuda(const std::vector<Tensor>& inputs, const std::string& arch = "sm_80") const;
    std::string ptx(const std::vector<Tensor>& inputs, const std::string& arch = "sm_80") const;
    /// What keeps it from running faster, as text; see explain_program.
    std::string explain(const std::vector<Tensor>& inputs, const std::string& arch = {}) const;
    /// All of this on one HTML page; see program_page.
    std::string page(const std::vector<Tensor>& inputs, const std::string& arch = "sm_80") const;
    /// Times of each line of the program that ran last, over all of its runs, on CPUs with
    /// CallOptions::profile or TILEWRIGHT_PROFILE. UserError where there are none.
    Profile profile() const;
    /// Number of signatures traced so far.
    int num_traces() const;
    const CostEstimate& cost() const;
    const Kernel& kernel() const;
    const CallOptions& options() const;

  private:
    friend Call vmap(const Call&, std::vector<int>, std::vector<int>);
    Tensor single(std::vector<Tensor> results) const;
    void check_output_count(std::size_t have, std::size_t want) const;

    std::shared_ptr<detail::CallState> state_;
};

/// Turns the checked mode on or off for every call; TILEWRIGHT_CHECKED=1 turns it on from outside.
void set_checked(bool on);
bool checked();

/// Sets the CUDA stream (a CUstream or cudaStream_t; nullptr: the legacy default stream) on which
/// this thread's calls, copies and allocations of GPU tensors run from now on. Memory of a freed
/// tensor is reused only on the stream it was allocated for.
void set_cuda_stream(void* stream);
void* cuda_stream();

/// Returns at least `bytes` bytes on the current GPU, aligned to 256, owned by the pointer.
using CudaAllocator = std::function<std::shared_ptr<void>(std::int64_t bytes)>;

/// Until the scope ends, this thread's GPU work runs on `stream`, and memory that calls need
/// besides the caller's arrays comes from `allocate` (when given) instead of Tilewright's own
/// cache. With the `_into` forms of operations nothing else is allocated.
class CudaScope {
  public:
    explicit CudaScope(void* stream, CudaAllocator allocate = {});
    ~CudaScope();
    CudaScope(const CudaScope&) = delete;
    CudaScope& operator=(const CudaScope&) = delete;

  private:
    CudaAllocator allocate_;
    void* stream_;          ///< the previous one
    CudaAllocator* outer_;  ///< the previous one
};

/// True while this thread's stream is being captured into a CUDA graph.
bool is_cuda_recording();

/// GPU memory of Tilewright's own, regardless of any CudaScope. While this thread's stream is being
/// captured, it lives as long as the graph and what is instantiated from it; otherwise, once the
/// pointer is gone, work on this thread's stream may reuse it.
std::shared_ptr<void> cached_cuda_memory(std::int64_t bytes, int device);

/// Makes work submitted to stream `consumer` from now on wait for the work that this thread's
/// stream has been given so far. The host does not wait.
void wait_for_cuda_stream(void* consumer, Device device);
/// Waits until the work on this thread's stream of a GPU is done. CudaError if it failed.
void synchronize(Device device);

/// Binds a kernel to a grid and block specs.
Call call(Kernel kernel, CallOptions options);

/// Marks an input that vmap does not map over.
inline constexpr int kNotMapped = -1;

/// A call over a batch: axis in_axes[i] of input i (kNotMapped: the same for the whole batch)
/// becomes a leading grid axis, and results are stacked along out_axes (0 by default). Runs throw a
/// UserError unless in_axes has an entry for every input.
Call vmap(const Call& call, std::vector<int> in_axes, std::vector<int> out_axes = {});

/// One candidate of the autotuner: named integers.
class Config {
  public:
    Config(std::initializer_list<std::pair<const std::string, std::int64_t>> values)
        : values_(values) {}

    /// UserError for an unknown name.
    std::int64_t operator[](const std::string& name) const;
    const std::map<std::string, std::int64_t>& values() const { return values_; }
    /// "block_m=64, block_n=128".
    std::string to_string() const;

  private:
    std::map<std::string, std::int64_t> values_;
};

/// A call whose Config is chosen by measurement, once for each device, key and input signature.
class Tuned {
  public:
    Tuned(std::vector<Config> configs, std::string key, std::function<Call(const Config&)> make);

    template <typename... Inputs>
    Tensor operator()(const Inputs&... inputs) const {
        return best({Tensor(inputs)...})(inputs...);
    }
    std::vector<Tensor> run(const std::vector<Tensor>& inputs) const {
        return best(inputs).run(inputs);
    }
    /// The call chosen for such inputs; measures when neither memory nor the disk cache has a
    /// choice. Memory keeps the calls of 256 signatures.
    Call best(const std::vector<Tensor>& inputs) const;
    const Config& best_config(const std::vector<Tensor>& inputs) const;
    /// Candidates measured so far by this object; 0 when the choice came from the disk cache.
    int num_measured() const;

  private:
    struct State;
    std::shared_ptr<State> state_;
};

/// What `autotune` returns: apply it to a function that makes the call for one Config.
class Autotuner {
  public:
    Autotuner(std::vector<Config> configs, std::string key)
        : configs_(std::move(configs)), key_(std::move(key)) {}
    template <typename F>
    Tuned operator()(F make) const {
        return Tuned(configs_, key_, std::move(make));
    }

  private:
    std::vector<Config> configs_;
    std::string key_;
};

/// An autotuner over these candidates: `auto matmul = tw::autotune(configs, "matmul")([](const
/// tw::Config& c) { return tw::call(...); })`. The choice is kept on disk per device, under `key`
/// and the dtypes and shapes of the inputs; change the key when the kernel changes. A candidate
/// that throws a UserError is left out.
Autotuner autotune(std::vector<Config> configs, std::string key);

}  // namespace tilewright
