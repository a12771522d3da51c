// Copies the arrays of a call to a GPU and back.
#include "run/offload.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "cuda/runtime/memory.h"
#include "ir/access.h"
#include "run/cuda_executable.h"
#include "support/check.h"
#include "support/debug_log.h"
#include "tilewright/run.h"

namespace tilewright::run {
namespace {

constexpr std::uintptr_t kAlignment = 256;

/// A range of host memory that contains one or more arrays.
struct Range {
    std::uintptr_t low = 0, high = 0;
    bool written = false;
    cuda::Buffer copy = {};

    /// Copies keep this offset from an aligned address, which decides how a kernel may read.
    std::size_t offset() const { return low % kAlignment; }
};

class Offloaded : public Executable {
  public:
    Offloaded(ir::Function kernel, int device) : device_(device) {
        std::set<ir::Value> written;
        ir::walk(kernel.body, [&](const ir::Instruction& made) {
            if (ir::is_access(made.op) && made.op != ir::Op::load) written.insert(made.operands[0]);
        });
        for (ir::Value parameter : kernel.parameters()) {
            if (!kernel.is_ref(parameter)) continue;
            const ir::RefType& type = kernel.ref_type(parameter);
            if (type.space != ir::Space::global) continue;
            arrays_.push_back({size_of(type.dtype), type.rank(), written.count(parameter) != 0});
        }
        kernel_ = make_cuda_executable(std::move(kernel), device);
    }

    void run(const ir::Arguments& arguments) const override {
        // One at a time: a range also holds what lies between an array's rows, which may be
        // another thread's result.
        static std::mutex mutex;
        const std::scoped_lock lock(mutex);
        std::vector<Range> ranges = ranges_of(arguments);
        for (Range& range : ranges) {
            const std::size_t bytes = range.high - range.low;
            range.copy = cuda::Buffer(device_, bytes + range.offset());
            range.copy.upload(reinterpret_cast<const void*>(range.low), bytes, range.offset());
        }
        ir::Arguments there = arguments;
        for (ir::RefArgument& ref : there.refs) {
            const auto address = reinterpret_cast<std::uintptr_t>(ref.data);
            for (const Range& range : ranges) {
                if (address < range.low || address >= range.high) continue;
                ref.data = reinterpret_cast<void*>(range.copy.address() + range.offset() +
                                                   (address - range.low));
                break;
            }
        }
        kernel_->run(there);
        synchronize(Device::cuda(device_));
        for (const Range& range : ranges) {
            if (!range.written) continue;
            range.copy.download(reinterpret_cast<void*>(range.low), range.high - range.low,
                                range.offset());
        }
    }

  private:
    struct Array {
        int element_bytes;
        int rank;
        bool written;
    };

    /// The ranges of the arrays; arrays that share bytes share a range.
    std::vector<Range> ranges_of(const ir::Arguments& arguments) const {
        std::vector<Range> all;
        for (std::size_t i = 0; i < arrays_.size(); ++i) {
            const ir::RefArgument& ref = arguments.refs.at(i);
            std::int64_t low = 0, high = 0;
            bool empty = false;
            for (int d = 0; d < arrays_[i].rank; ++d) {
                const std::size_t dim = d;
                empty |= ref.extents[dim] == 0;
                const std::int64_t reach = (ref.extents[dim] - 1) * ref.strides[dim];
                (reach < 0 ? low : high) += reach;
            }
            if (empty) continue;
            const auto base = reinterpret_cast<std::intptr_t>(ref.data);
            all.push_back(
                {static_cast<std::uintptr_t>(base + low * arrays_[i].element_bytes),
                 static_cast<std::uintptr_t>(base + (high + 1) * arrays_[i].element_bytes),
                 arrays_[i].written});
        }
        std::sort(all.begin(), all.end(),
                  [](const Range& a, const Range& b) { return a.low < b.low; });
        std::vector<Range> merged;
        for (Range& range : all) {
            if (!merged.empty() && range.low < merged.back().high) {
                merged.back().high = std::max(merged.back().high, range.high);
                merged.back().written |= range.written;
            } else {
                merged.push_back(std::move(range));
            }
        }
        return merged;
    }

    int device_;
    std::vector<Array> arrays_;
    std::unique_ptr<Executable> kernel_;
};

}  // namespace

std::optional<int> offload_device() {
    const char* const text = std::getenv("TILEWRIGHT_DEVICE");
    const std::string name = text == nullptr ? "" : text;
    if (name.empty() || name == "cpu") return {};
    if (name == "cuda") return 0;
    if (name.rfind("cuda:", 0) == 0 && name.size() > 5 && name.size() < 9 &&
        name.find_first_not_of("0123456789", 5) == std::string::npos) {
        return std::stoi(name.substr(5));
    }
    user_error("call", "expected TILEWRIGHT_DEVICE to be cpu, cuda or cuda:N but got \"{}\"", name);
}

std::unique_ptr<Executable> make_offloaded_executable(ir::Function kernel, int device) {
    debug_log(
        kernel.name,
        "slow path: arrays are copied to cuda:{} and back, since TILEWRIGHT_DEVICE asks for it",
        device);
    return std::make_unique<Offloaded>(std::move(kernel), device);
}

}  // namespace tilewright::run
