// Records launches and repeats them.
#include "tilewright/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "cuda/runtime/launches.h"
#include "ir/parse.h"
#include "run/clear.h"
#include "run/cuda_memory.h"
#include "run/machine.h"
#include "run/recorder.h"
#include "run/scratch.h"
#include "support/check.h"
#include "support/integer.h"
#include "tilewright/run.h"

namespace tilewright {

namespace run {

Recorder::Recorder(std::span<const Tensor> arrays, By by)
    : arrays_(arrays), by_(by), on_gpu_(cuda::launched_by_thread()) {}

bool Recorder::complete() const {
    return complete_ && !launches_.empty() && on_gpu_ == cuda::launched_by_thread();
}

Recorder*& Recorder::current() {
    static thread_local Recorder* recorder = nullptr;
    return recorder;
}

void Recorder::allocated(const Tensor& memory) {
    if (complete_) memory_.insert_or_assign(memory.owner().get(), Memory{memory});
}

bool Recorder::is_of(const Tensor& tensor, const Tensor& whole) const {
    if (by_ == By::owner) return tensor.owner() == whole.owner();
    const auto at = reinterpret_cast<std::uintptr_t>(tensor.raw());
    const auto start = reinterpret_cast<std::uintptr_t>(whole.raw());
    return at >= start && at < start + static_cast<std::uintptr_t>(whole.nbytes());
}

Recorder::Memory* Recorder::memory_of(const Tensor& tensor) {
    const auto found = memory_.find(tensor.owner().get());
    if (found != memory_.end()) return &found->second;
    if (by_ == By::owner) return nullptr;
    for (auto& [owner, memory] : memory_)
        if (is_of(tensor, memory.tensor)) return &memory;
    return nullptr;
}

void Recorder::add_place(RecordedLaunch& launch, const Tensor& tensor, bool is_output) {
    if (!tensor.defined()) return;
    const auto after = [&](const Tensor& start) {
        return static_cast<const std::byte*>(tensor.raw()) -
               static_cast<const std::byte*>(start.raw());
    };
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
        if (!is_of(tensor, arrays_[i])) continue;
        launch.places.push_back({.array = i, .offset = after(arrays_[i])});
        return;
    }
    Memory* const memory = memory_of(tensor);
    if (memory == nullptr && tensor.owner() && !is_output) {
        launch.places.push_back(
            {.in = RecordedPlace::In::constant, .array = launch.constants.size()});
        launch.constants.push_back(tensor);
        return;
    }
    // Memory that no launch has written holds what the host wrote.
    if (memory == nullptr || (memory->offset < 0 && !is_output)) {
        complete_ = false;
        return;
    }
    if (memory->offset < 0) {
        constexpr std::int64_t kAlignment = 256;
        memory->offset = memory_bytes_;
        memory_bytes_ += ceil_div(memory->tensor.nbytes(), kAlignment) * kAlignment;
    }
    launch.places.push_back(
        {.in = RecordedPlace::In::memory, .offset = memory->offset + after(memory->tensor)});
}

void Recorder::adopt(const char* op, const std::string& name, const Tensor& result) {
    const Memory* const memory = result.defined() ? memory_of(result) : nullptr;
    if (memory == nullptr || memory->offset < 0 || !result.is_contiguous() ||
        result.raw() != memory->tensor.raw() || result.nbytes() != memory->tensor.nbytes())
        user_error(op,
                   "expected {} to be a new row-major array that kernels of the operation write, "
                   "but got one that was there before, a part of one, or one that the host wrote",
                   name);
    const std::int64_t end = memory->offset + memory->tensor.nbytes();
    for (RecordedLaunch& launch : launches_) {
        for (RecordedPlace& place : launch.places) {
            if (place.in != RecordedPlace::In::memory || place.offset < memory->offset ||
                place.offset >= end)
                continue;
            place = {.array = arrays_.size() + adopted_, .offset = place.offset - memory->offset};
        }
    }
    ++adopted_;
}

void Recorder::launched(const std::shared_ptr<const Executable>& executable,
                        const ir::Arguments& arguments, std::span<const Tensor> inputs,
                        std::span<const Tensor> outputs) {
    RecordedLaunch launch{.executable = executable, .arguments = arguments};
    for (const Tensor& tensor : inputs) add_place(launch, tensor, false);
    for (const Tensor& tensor : outputs) add_place(launch, tensor, true);
    launches_.push_back(std::move(launch));
}

void Recorder::launched(std::uint64_t count, RepeatedLaunch repeat,
                        std::vector<std::weak_ptr<const void>> kernels,
                        std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
    if (by_ == By::address) complete_ = false;  // artifacts hold executables only
    RecordedLaunch launch{.repeat = std::move(repeat), .kernels = std::move(kernels)};
    for (const Tensor& tensor : inputs) add_place(launch, tensor, false);
    for (const Tensor& tensor : outputs) add_place(launch, tensor, true);
    launches_.push_back(std::move(launch));
    count_on_gpu(count);
}

RecorderScope::RecorderScope(Recorder* recorder)
    : outer_(std::exchange(Recorder::current(), recorder)) {}

RecorderScope::~RecorderScope() {
    Recorder::current() = outer_;
}

void launch(const std::shared_ptr<const Executable>& executable, const ir::Arguments& arguments,
            std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
    Recorder* const recorder = Recorder::current();
    if (!recorder) return executable->run(arguments);
    const auto on_gpu = [](const Tensor& tensor) {
        return tensor.device().kind == Device::Kind::cuda;
    };
    if (std::any_of(outputs.begin(), outputs.end(), on_gpu))
        recorder->interrupt();  // a recording would keep the kernels loaded
    else
        recorder->launched(executable, arguments, inputs, outputs);
    const std::uint64_t before = cuda::launched_by_thread();
    {
        // While it waits, a thread may work on another call.
        const RecorderScope paused(nullptr);
        executable->run(arguments);
    }
    recorder->count_on_gpu(cuda::launched_by_thread() - before);  // work of the CPU, offloaded
}

namespace {

constexpr std::int64_t kBlock = 4096;  // elements per program

/// Launches a kernel on blocks of flat arrays, of which it writes the last.
void launch_flat(const std::string& ir, const std::vector<Tensor>& arrays) {
    const std::int64_t size = arrays.back().size();
    if (size == 0) return;
    ir::Arguments arguments;
    arguments.grid = {ceil_div(size, kBlock)};
    std::vector<Tensor> flat;
    for (const Tensor& array : arrays) {
        flat.push_back(array.reshape({size}));
        ir::RefArgument ref;
        ref.data = array.raw();
        ref.extents[0] = size;
        ref.strides[0] = 1;
        arguments.refs.push_back(ref);
    }
    const std::span<const Tensor> inputs(flat.data(), flat.size() - 1);
    launch(make_executable(ir::parse(ir), Machine::native, {}, Device{}), arguments, inputs,
           std::span<const Tensor>(flat).last(1));
}

}  // namespace

void clear(const Tensor& tensor) {
    TW_ASSERT(tensor.is_contiguous());
    if (tensor.device().kind == Device::Kind::cuda)
        return clear_on_gpu(tensor.raw(), tensor.nbytes(), tensor.device().index);
    if (Recorder::current() == nullptr) {
        std::memset(tensor.raw(), 0, tensor.nbytes());
        return;
    }
    const std::int64_t size = tensor.size();
    launch_flat(fmt::format("func @clear(%x: ref<{0}[{1}]>) grid [{2}] {{\n"
                            "  %i = program_id axis 0 : i64\n  %n = constant {3} : i64\n"
                            "  %start = mul %i, %n : i64\n  %zero = constant 0 : {0}\n"
                            "  %zeros = broadcast %zero : {0}[{3}]\n"
                            "  store %x[%start : {3}], %zeros\n  yield\n}}\n",
                            name(tensor.dtype()), size, ceil_div(size, kBlock), kBlock),
                {tensor});
}

Tensor cleared(DType dtype, const Tensor::Dims& shape, Device device) {
    const Tensor result = Tensor::empty(dtype, shape, device);
    clear(result);
    return result;
}

Tensor converted(const Tensor& tensor, DType dtype) {
    if (tensor.dtype() == dtype) return tensor;
    const Tensor result = Tensor::empty(dtype, tensor.shape(), tensor.device());
    convert(tensor, result);
    return result;
}

void convert(const Tensor& tensor, const Tensor& target) {
    if (Recorder::current() == nullptr || tensor.device().kind != Device::Kind::cpu ||
        !tensor.is_contiguous())
        return target.copy_from(tensor);
    launch_flat(fmt::format("func @convert(%x: ref<{0}[{2}]>, %y: ref<{1}[{2}]>) grid [{3}] {{\n"
                            "  %i = program_id axis 0 : i64\n  %n = constant {4} : i64\n"
                            "  %start = mul %i, %n : i64\n"
                            "  %a = load %x[%start : {4}] : {0}[{4}]\n"
                            "  %b = cast %a : {1}[{4}]\n"
                            "  store %y[%start : {4}], %b\n  yield\n}}\n",
                            name(tensor.dtype()), name(target.dtype()), tensor.size(),
                            ceil_div(tensor.size(), kBlock), kBlock),
                {tensor, target});
}

}  // namespace run

struct Recording::State {
    std::vector<run::RecordedLaunch> launches;
    std::int64_t memory_bytes = 0;
    bool complete = false;
    bool early = false;
    Device device;
};

namespace {

/// Intermediate memory of a call. On the CPU a thread keeps a little for its next call; one within
/// a call, on a thread that waits for others, has memory of its own.
class RepeatMemory {
  public:
    RepeatMemory(std::int64_t bytes, Device device)
        : keeps_(bytes > 0 && bytes <= kMostKept && device.kind == Device::Kind::cpu) {
        if (keeps_ && kept().defined() && kept().nbytes() >= bytes)
            memory_ = std::exchange(kept(), {});
        else
            memory_ = run::scratch(bytes, device);
    }
    ~RepeatMemory() {
        if (keeps_) kept() = std::move(memory_);
    }
    RepeatMemory(const RepeatMemory&) = delete;
    RepeatMemory& operator=(const RepeatMemory&) = delete;

    void* raw() const { return memory_.raw(); }

  private:
    static constexpr std::int64_t kMostKept = std::int64_t{1} << 16;
    static Tensor& kept() {
        static thread_local Tensor kept;
        return kept;
    }
    bool keeps_;
    Tensor memory_;
};

/// Kernels on a GPU are chosen by this alignment of arrays, and by no larger one.
bool is_aligned(const void* address) {
    constexpr std::uintptr_t kAlignment = 16;
    return reinterpret_cast<std::uintptr_t>(address) % kAlignment == 0;
}

}  // namespace

Recording Recording::of(const std::vector<Tensor>& arrays, const Operation& operation) {
    std::vector<Tensor> owned;
    owned.reserve(arrays.size());
    bool repeats = true;
    const Device device = arrays.empty() ? Device() : arrays.front().device();
    for (const Tensor& array : arrays) {
        // Arrays that share memory here may not do so in another run: separate owners tell which of
        // them a view belongs to.
        owned.push_back(Tensor::from_data(array.raw(), array.dtype(), array.shape(),
                                          array.strides(), std::make_shared<char>(),
                                          array.device()));
        repeats &= array.device() == device;
        repeats &= device.kind == Device::Kind::cpu || is_aligned(array.raw());
    }
    run::Recorder recorder(owned);
    {
        run::interrupt_recording();  // of an enclosing operation
        const run::RecorderScope scope(&recorder);
        operation(owned);
    }
    const bool complete = recorder.complete() && repeats;
    return Recording(std::make_shared<State>(
        State{complete ? recorder.take_launches() : std::vector<run::RecordedLaunch>(),
              recorder.memory_bytes(), complete, recorder.is_early(), device}));
}

bool Recording::is_early() const {
    return state_->early;
}

bool Recording::complete() const {
    const auto is_loaded = [](const run::RecordedLaunch& launch) {
        return std::none_of(launch.kernels.begin(), launch.kernels.end(),
                            [](const auto& kernel) { return kernel.expired(); });
    };
    return state_->complete &&
           std::all_of(state_->launches.begin(), state_->launches.end(), is_loaded);
}

bool Recording::repeat(std::span<void* const> arrays) const {
    TW_ASSERT(state_->complete, "a recording that is not complete");
    const Device device = state_->device;
    std::vector<std::shared_ptr<const void>> kernels;
    if (device.kind == Device::Kind::cuda) {
        // A graph has to keep what it launches.
        if (is_cuda_recording() || !std::all_of(arrays.begin(), arrays.end(), is_aligned))
            return false;
        for (const run::RecordedLaunch& launch : state_->launches) {
            for (const auto& kernel : launch.kernels) {
                kernels.push_back(kernel.lock());
                if (!kernels.back()) return false;
            }
        }
        run::check_stream("repeat", device.index);
    }
    const RepeatMemory memory(state_->memory_bytes, device);
    std::vector<void*> addresses;
    for (const run::RecordedLaunch& launch : state_->launches) {
        ir::Arguments arguments = launch.arguments;
        addresses.clear();
        for (std::size_t i = 0; i < launch.places.size(); ++i) {
            const run::RecordedPlace& place = launch.places[i];
            void* address = nullptr;
            if (place.in == run::RecordedPlace::In::constant) {
                address = launch.executable ? arguments.refs[i].data
                                            : launch.constants[place.array].raw();
            } else {
                const bool own = place.in == run::RecordedPlace::In::memory;
                void* const start = own ? memory.raw() : arrays[place.array];
                address = static_cast<std::byte*>(start) + place.offset;
            }
            if (launch.executable)
                arguments.refs[i].data = address;
            else
                addresses.push_back(address);
        }
        if (launch.executable)
            launch.executable->run(arguments);
        else
            launch.repeat(addresses);
    }
    return true;
}

}  // namespace tilewright
