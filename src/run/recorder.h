// Records what an operation launches, for Recording and artifacts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ir/launch.h"
#include "run/executable.h"
#include "tilewright/tensor.h"

namespace tilewright::run {

/// Where a Ref of a recorded launch starts.
struct RecordedPlace {
    enum class In : std::uint8_t {
        array,     ///< an array of the caller
        memory,    ///< memory of a run, new each time
        constant,  ///< existed before, at the same address in every run
    };
    In in = In::array;
    std::size_t array = 0;
    std::int64_t offset = 0;
};

/// Launches kernels of an engine of its own again, with its arrays at other addresses.
using RepeatedLaunch = std::function<void(std::span<void* const> addresses)>;

struct RecordedLaunch {
    std::shared_ptr<const Executable> executable = {};  ///< null: `repeat` launches
    ir::Arguments arguments = {};
    RepeatedLaunch repeat = {};
    std::vector<std::weak_ptr<const void>> kernels = {};  ///< that `repeat` needs
    std::vector<RecordedPlace> places = {};
    std::vector<Tensor> constants = {};  ///< keeps their memory alive
};

/// Records the launches of one thread.
class Recorder {
  public:
    /// How tensors are identified: each view by another front end has a different owner.
    enum class By : std::uint8_t { owner, address };

    explicit Recorder(std::span<const Tensor> arrays, By by = By::owner);

    /// The recorder of this thread's launches; null if there is none.
    static Recorder*& current();

    /// Reports new memory, before anything is written to it.
    void allocated(const Tensor& memory);
    /// Reports a launch; see `launch`.
    void launched(const std::shared_ptr<const Executable>& executable,
                  const ir::Arguments& arguments, std::span<const Tensor> inputs,
                  std::span<const Tensor> outputs);
    /// Reports the last `count` launches on a GPU, of kernels that are no executable: `repeat` gets
    /// the addresses of inputs, then of outputs. Repeats end once one of `kernels` is unloaded.
    void launched(std::uint64_t count, RepeatedLaunch repeat,
                  std::vector<std::weak_ptr<const void>> kernels, std::span<const Tensor> inputs,
                  std::span<const Tensor> outputs);
    /// Counts launches on a GPU that a repeat makes again.
    void count_on_gpu(std::uint64_t count) { on_gpu_ += count; }
    void interrupt() { complete_ = false; }
    /// A recording of a later run may be complete.
    void postpone() {
        early_ = true;
        interrupt();
    }
    bool is_early() const { return early_; }
    /// Appends a tensor of new memory, which launches wrote, to the arrays. UserError of `op`,
    /// which calls it `name`, for any other tensor.
    void adopt(const char* op, const std::string& name, const Tensor& result);

    /// Asked on the thread that launched.
    bool complete() const;
    std::int64_t memory_bytes() const { return memory_bytes_; }
    std::vector<RecordedLaunch> take_launches() { return std::move(launches_); }

  private:
    struct Memory {
        Tensor tensor;             ///< kept alive, so that no other tensor gets its address
        std::int64_t offset = -1;  ///< in the memory of a run; -1 until a launch writes to it
    };
    void add_place(RecordedLaunch& launch, const Tensor& tensor, bool is_output);
    /// The new memory that a tensor is in, or null.
    Memory* memory_of(const Tensor& tensor);
    bool is_of(const Tensor& tensor, const Tensor& whole) const;

    std::span<const Tensor> arrays_;
    By by_;
    std::size_t adopted_ = 0;
    std::map<const void*, Memory> memory_;  ///< by owner
    std::vector<RecordedLaunch> launches_;
    std::int64_t memory_bytes_ = 0;
    std::uint64_t on_gpu_;  ///< launches of this thread that are recorded, and earlier ones
    bool complete_ = true;
    bool early_ = false;
};

/// Sets this thread's recorder, which may be null, while it lives.
class RecorderScope {
  public:
    explicit RecorderScope(Recorder* recorder);
    ~RecorderScope();
    RecorderScope(const RecorderScope&) = delete;
    RecorderScope& operator=(const RecorderScope&) = delete;

  private:
    Recorder* outer_;
};

/// Runs a kernel and, if this thread records, records the launch. The tensors are those of its Refs
/// in order, outputs last.
void launch(const std::shared_ptr<const Executable>& executable, const ir::Arguments& arguments,
            std::span<const Tensor> inputs, std::span<const Tensor> outputs);

/// Zeros in new memory. Unlike Tensor::zeros, this can be recorded on a CPU: then a kernel writes
/// them, which repeats of the recording launch again.
Tensor cleared(DType dtype, const Tensor::Dims& shape, Device device);

/// The tensor in another dtype, row-major; while recording on a CPU, converted by a kernel too.
Tensor converted(const Tensor& tensor, DType dtype);
/// The same into a row-major tensor of the same shape.
void convert(const Tensor& tensor, const Tensor& target);

/// Called where a recording cannot be complete: the host reads, writes or depends on elements.
inline void interrupt_recording() {
    if (Recorder* const recorder = Recorder::current()) recorder->interrupt();
}

/// Called where kernels run that later runs will not: their recordings may be complete.
inline void postpone_recording() {
    if (Recorder* const recorder = Recorder::current()) recorder->postpone();
}

}  // namespace tilewright::run
