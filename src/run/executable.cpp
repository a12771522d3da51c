// Traced kernels prepared for a device.
#include "run/executable.h"

#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cpu/interpreter.h"
#include "cpu/machine.h"
#include "ir/passes/pipeline.h"
#include "run/cuda_executable.h"
#include "run/offload.h"
#include "run/profile.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright::run {

namespace {

/// Runs a kernel and reports it if there is not enough memory for its scratch and tiles.
template <typename Run>
void run_in_memory(const std::string& kernel, Run&& run) {
    try {
        run();
    } catch (const std::bad_alloc&) {
        out_of_memory(kernel,
                      "expected memory for the kernel's scratch and tiles but there is none");
    }
}

/// The CPU tile machine.
class Native : public Executable {
  public:
    explicit Native(ir::Function kernel) : name_(kernel.name), traced_(kernel) {
        for (const ir::Value parameter : kernel.parameters()) {
            if (kernel.is_ref(parameter) && kernel.ref_type(parameter).space == ir::Space::global)
                ranks_.push_back(kernel.ref_type(parameter).rank());
        }
        ir::optimise(kernel);
        program_ = cpu::compile(kernel);
    }
    void run(const ir::Arguments& arguments) const override {
        if (!seen_.test_and_set(std::memory_order_relaxed)) log_strides(arguments);
        run_in_memory(name_, [&] { cpu::run(*program_, arguments); });
    }

    const ir::Function* traced() const override { return &traced_; }

  protected:
    const std::string& name() const { return name_; }
    const std::shared_ptr<const cpu::Program>& program() const { return program_; }

  private:
    /// Logs at the first call which arrays the kernel has to copy because they are strided.
    void log_strides(const ir::Arguments& arguments) const {
        if (!debug_log_on()) return;
        for (std::size_t i = 0; i < arguments.refs.size(); ++i) {
            if (ranks_.at(i) == 0) continue;
            const ir::RefArgument& ref = arguments.refs[i];
            const std::size_t last = ranks_[i] - 1;
            if (ref.extents[last] <= 1 || ref.strides[last] == 1) continue;
            debug_log(name_,
                      "slow path: tiles of array {} are copied element by element, since its last "
                      "stride is {}",
                      i, ref.strides[last]);
        }
    }

    mutable std::atomic_flag seen_;
    std::vector<int> ranks_;  ///< of the arrays
    std::string name_;
    ir::Function traced_;
    std::shared_ptr<const cpu::Program> program_;
};

/// The CPU tile machine for the library's own work.
class Host : public Executable {
  public:
    explicit Host(const ir::Function& kernel) : program_(cpu::compile(kernel)) {}
    void run(const ir::Arguments& arguments) const override { cpu::run(*program_, arguments); }

  private:
    std::shared_ptr<const cpu::Program> program_;
};

/// The tile machine with timings.
class Profiled : public Native {
  public:
    explicit Profiled(ir::Function kernel)
        : Native(std::move(kernel)), taken_(std::make_shared<TakenProfile>(program())) {
        if (profiles_all()) print_at_exit(taken_);
    }
    void run(const ir::Arguments& arguments) const override {
        const auto start = std::chrono::steady_clock::now();
        run_in_memory(name(), [&] { cpu::run(*program(), arguments, taken_->profile); });
        taken_->nanoseconds +=
            (std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1);
        ++taken_->runs;
    }
    std::optional<Profile> profile() const override {
        if (taken_->runs == 0) return std::nullopt;
        return profile_of(*taken_);
    }

  private:
    std::shared_ptr<TakenProfile> taken_;
};

/// The reference interpreter, which checks every access.
class Checked : public Executable {
  public:
    Checked(ir::Function kernel, std::vector<bool> outputs) : kernel_(std::move(kernel)) {
        options_.outputs = std::move(outputs);
        debug_log(kernel_.name,
                  "slow path: interpreted element by element, since the checked mode is on");
    }
    void run(const ir::Arguments& arguments) const override {
        run_in_memory(kernel_.name, [&] { cpu::interpret_checked(kernel_, arguments, options_); });
    }

  private:
    ir::Function kernel_;  ///< as traced, so that messages name what the user wrote
    cpu::CheckOptions options_;
};

}  // namespace

std::unique_ptr<Executable> make_host_executable(const ir::Function& kernel) {
    return std::make_unique<Host>(kernel);
}

std::unique_ptr<Executable> make_executable(ir::Function kernel, Machine machine,
                                            std::vector<bool> outputs, Device device) {
    if (machine == Machine::checked) {
        return std::make_unique<Checked>(std::move(kernel), std::move(outputs));
    }
    if (machine == Machine::profiled && device.kind != Device::Kind::cpu) {
        user_error("profile",
                   "expected arrays in CPU memory but got {}; on a GPU Nsight Systems shows the "
                   "kernels, with a range for each call",
                   to_string(device));
    }
    if (device.kind == Device::Kind::cuda) {
        return make_cuda_executable(std::move(kernel), device.index);
    }
    if (const std::optional<int> gpu = offload_device()) {
        return make_offloaded_executable(std::move(kernel), *gpu);
    }
    if (machine == Machine::profiled || profiles_all())
        return std::make_unique<Profiled>(std::move(kernel));
    return std::make_unique<Native>(std::move(kernel));
}

}  // namespace tilewright::run
