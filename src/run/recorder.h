// What a Recording takes down while an operation runs.
#pragma once

#include <cstdint>
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
        array,     ///< one of the caller's
        memory,    ///< of a run, new each time
        constant,  ///< was there before: at the same address again
    };
    In in = In::array;
    std::size_t array = 0;
    std::int64_t offset = 0;
};

struct RecordedLaunch {
    std::shared_ptr<const Executable> executable;
    ir::Arguments arguments;
    std::vector<RecordedPlace> places;
    std::vector<Tensor> constants;  ///< held, so that they stay
};

/// Takes down the launches of one thread.
class Recorder {
  public:
    /// How tensors are known: views of other front ends have owners of their own.
    enum class By : std::uint8_t { owner, address };

    explicit Recorder(std::span<const Tensor> arrays, By by = By::owner)
        : arrays_(arrays), by_(by) {}

    /// The one that takes down this thread's launches; null where none does.
    static Recorder*& current();

    /// New memory, before anything is written to it.
    void allocated(const Tensor& memory);
    /// See launch.
    void launched(const std::shared_ptr<const Executable>& executable,
                  const ir::Arguments& arguments, std::span<const Tensor> inputs,
                  std::span<const Tensor> outputs);
    void interrupt() { complete_ = false; }
    /// Makes new memory that launches wrote an array after the others: its tensor. UserError of
    /// `op`, which calls it `name`, for any other one.
    void adopt(const char* op, const std::string& name, const Tensor& result);

    bool complete() const { return complete_ && !launches_.empty(); }
    std::int64_t memory_bytes() const { return memory_bytes_; }
    std::vector<RecordedLaunch> take_launches() { return std::move(launches_); }

  private:
    struct Memory {
        Tensor tensor;             ///< held, so that no other gets its address meanwhile
        std::int64_t offset = -1;  ///< in the memory of a run, once a launch has written to it
    };
    void add_place(RecordedLaunch& launch, const Tensor& tensor, bool is_output);
    /// The new memory that a tensor lies in, or null.
    Memory* memory_of(const Tensor& tensor);
    bool is_of(const Tensor& tensor, const Tensor& whole) const;

    std::span<const Tensor> arrays_;
    By by_;
    std::size_t adopted_ = 0;
    std::map<const void*, Memory> memory_;  ///< by owner
    std::vector<RecordedLaunch> launches_;
    std::int64_t memory_bytes_ = 0;
    bool complete_ = true;
};

/// Makes a recorder, or none, this thread's while it lives.
class RecorderScope {
  public:
    explicit RecorderScope(Recorder* recorder);
    ~RecorderScope();
    RecorderScope(const RecorderScope&) = delete;
    RecorderScope& operator=(const RecorderScope&) = delete;

  private:
    Recorder* outer_;
};

/// Runs a kernel, and takes that down where this thread records: the tensors are those of its Refs,
/// in order, outputs last.
void launch(const std::shared_ptr<const Executable>& executable, const ir::Arguments& arguments,
            std::span<const Tensor> inputs, std::span<const Tensor> outputs);

/// Zeros in new memory. Unlike Tensor::zeros they can be recorded on a CPU: then a kernel writes
/// them, which a run of the recording launches again.
Tensor cleared(DType dtype, const Tensor::Dims& shape, Device device);

/// The tensor in another dtype, row-major; on a CPU that records, by a kernel too.
Tensor converted(const Tensor& tensor, DType dtype);

/// For what a recording cannot hold: the host reads or writes elements, or decides by them.
inline void interrupt_recording() {
    if (Recorder* const recorder = Recorder::current()) recorder->interrupt();
}

}  // namespace tilewright::run
