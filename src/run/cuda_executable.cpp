// Kernels on a GPU: generated, compiled and loaded at the first run, and launched.
#include "run/cuda_executable.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "cuda/codegen/generate.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/kernel.h"
#include "cuda/runtime/occupancy.h"
#include "cuda/runtime/stream.h"
#include "cuda/runtime/tensor_map.h"
#include "cuda/schedule/schedule.h"
#include "cuda/schedule/split_product.h"
#include "run/cuda_memory.h"
#include "run/tune_kernel.h"
#include "support/check.h"
#include "support/debug_log.h"
#include "support/integer.h"
#include "tilewright/run.h"

namespace tilewright::run {
namespace {

class Gpu : public Executable {
  public:
    /// `choice`: how to generate it; none: as estimated to be best, or, if `tunes`, as measured.
    Gpu(ir::Function kernel, int device, std::optional<KernelChoice> choice = std::nullopt,
        bool tunes = false)
        : traced_(choice ? with_hints(std::move(kernel), *choice) : std::move(kernel)),
          kernel_(cuda::prepare(traced_, cuda::device_info(device).arch())),
          device_(device),
          copies_(cuda::schedule::may_copy(traced_, cuda::device_info(device).arch())),
          choice_(choice),
          tunes_(tunes && is_tunable(traced_)) {
        const std::int64_t parts =
            !choice_ ? cuda::schedule::parts_of_product(traced_, cuda::device_info(device).arch())
            : choice_->product ? choice_->product->parts
                               : 1;
        if (parts < 2) return;
        auto split = cuda::schedule::split_product(traced_, parts);
        if (!split) return;
        sums_ = split->sums;
        std::optional<KernelChoice> of_parts = choice_;
        if (of_parts) of_parts->product->parts = 1;
        parts_ = std::make_unique<Gpu>(std::move(split->parts), device, of_parts);
        finish_ = std::make_unique<Gpu>(std::move(split->finish), device);
    }
    Gpu(ir::Function prepared, std::vector<CudaVariant> variants, int device)
        : kernel_(std::move(prepared)), device_(device), is_prebuilt_(true) {
        for (CudaVariant& variant : variants) {
            count_clusters(variant);
            variants_.push_back(std::make_unique<CudaVariant>(std::move(variant)));
        }
    }

    void run(const ir::Arguments& arguments) const override {
        check_addresses(arguments);
        cuda::check_stream(kernel_.name, device_);
        if (std::count(arguments.grid.begin(), arguments.grid.end(), 0) > 0) return;
        std::vector<cuda::RefFacts> facts = cuda::facts_of(kernel_, arguments, copies_);
        if (tunes_) {
            if (const Gpu* const best = tuned(arguments, facts)) return best->run(arguments);
        }
        if (parts_ != nullptr && are_tensors(facts)) return run_parts(arguments);
        const CudaVariant& variant = this->variant(std::move(facts));
        cuda::LaunchArguments launch(kernel_, arguments, &variant.generated);
        if (launch.programs() == 0) return;
        if (launch.programs() > std::numeric_limits<std::int32_t>::max()) {
            user_error(kernel_.name, "expected fewer than 2^31 programs on a GPU but got {}",
                       launch.programs());
        }
        cuda::LaunchShape shape;
        shape.block[0] = static_cast<unsigned>(variant.generated.threads);
        if (!variant.generated.maps.empty() || variant.generated.is_persistent) {
            return run_scheduled(variant, launch, shape);
        }
        // A single launch, or several one after another that fit in a workspace of this size.
        constexpr std::int64_t kMostWorkspace = std::int64_t{1} << 30;
        const std::int64_t each = variant.generated.workspace_bytes;
        const std::int64_t together =
            each == 0 ? launch.programs()
                      : std::clamp<std::int64_t>(kMostWorkspace / each, 1, launch.programs());
        const Tensor workspace =
            each == 0 ? Tensor() : Tensor::empty(u8, {together * each}, Device::cuda(device_));
        void* address = each == 0 ? nullptr : workspace.raw();
        std::uint32_t first = 0;
        if (each > 0) launch.parameters().insert(launch.parameters().end(), {&address, &first});
        for (; first < launch.programs(); first += static_cast<std::uint32_t>(together)) {
            const auto cluster = static_cast<unsigned>(variant.generated.cluster);
            shape.cluster[0] = cluster;
            shape.grid[0] =
                static_cast<unsigned>(std::min(together, launch.programs() - first)) * cluster;
            cuda::launch(variant.kernel, shape, launch.parameters(), cuda::current_stream());
        }
    }

    void compile_ahead(const ir::Arguments& arguments) const override {
        if (tunes_) return;  // only the first run knows which kernel it needs
        std::vector<cuda::RefFacts> facts = cuda::facts_of(kernel_, arguments, copies_);
        if (parts_ != nullptr && are_tensors(facts)) {
            const ir::Arguments all = with_sums(arguments, nullptr);
            parts_->compile_ahead(all);
            finish_->compile_ahead(all);
            return;
        }
        const std::scoped_lock lock(mutex_);
        const auto of_them = [&](const auto& known) { return known->facts == facts; };
        if (std::any_of(variants_.begin(), variants_.end(), of_them) ||
            std::any_of(ahead_.begin(), ahead_.end(), of_them)) {
            return;
        }
        const cuda::Target target = target_with(facts);
        cuda::Generated generated = generate(target);
        cuda::compile_in_background(compile_request(generated, target.arch));
        ahead_.push_back(std::make_unique<Text>(Text{std::move(facts), std::move(generated)}));
    }

  private:
    /// The generated code of a variant that is not loaded yet.
    struct Text {
        std::vector<cuda::RefFacts> facts;
        cuda::Generated generated;
    };

    static ir::Function with_hints(ir::Function kernel, const KernelChoice& choice) {
        if (choice.num_warps != 0) kernel.hints.num_warps = choice.num_warps;
        if (choice.num_stages != 0) kernel.hints.num_stages = choice.num_stages;
        return kernel;
    }

    /// The executable that is fastest for such arrays, measured if neither this object nor the disk
    /// cache knows; null where that is impossible.
    const Gpu* tuned(const ir::Arguments& arguments,
                     const std::vector<cuda::RefFacts>& facts) const {
        const std::vector<std::int64_t> key = timing_key(traced_, arguments);
        const std::scoped_lock lock(tuning_mutex_);
        for (const Tuned& known : tuned_) {
            if (known.key == key && known.facts == facts) return known.best;
        }
        std::string reason = why_not_measurable(traced_);
        if (cuda::is_capturing()) reason = "a graph is captured";
        if (!reason.empty()) {
            debug_log(kernel_.name, "no autotuning: {}", reason);
            return nullptr;
        }
        std::optional<TrialArguments> trial;
        std::optional<TrialTimes> times;
        const auto prepare = [&](const std::vector<KernelChoice>& choices) {
            trial.emplace(traced_, arguments, device_);
            times.emplace(Device::cuda(device_));
            for (const KernelChoice& choice : choices) {
                if (choice.product) chosen(choice).compile_ahead(trial->arguments());
            }
        };
        const auto seconds = [&](const KernelChoice& choice) {
            const Gpu& gpu = chosen(choice);
            try {
                return times->seconds([&] { gpu.run(trial->arguments()); });
            } catch (const InternalError& error) {
                // Others may compile.
                user_error(kernel_.name, "expected a kernel that compiles but got {}",
                           error.what());
            }
        };
        std::optional<KernelChoice> best;
        try {
            best = fastest_choice(traced_, target_with(facts), key, Device::cuda(device_), prepare,
                                  seconds);
        } catch (const OutOfMemory& error) {
            debug_log(kernel_.name, "no autotuning: {}", error.what());
            drop_unused();
            return nullptr;
        }
        tuned_.push_back({key, facts, &chosen(*best)});
        drop_unused();
        return tuned_.back().best;
    }

    /// Forgets kernels that were measured and not chosen.
    void drop_unused() const {
        std::erase_if(by_choice_, [&](const auto& one) {
            return std::none_of(tuned_.begin(), tuned_.end(),
                                [&](const Tuned& used) { return used.best == one.second.get(); });
        });
    }

    const Gpu& chosen(const KernelChoice& choice) const {
        for (const auto& [known, gpu] : by_choice_) {
            if (known == choice) return *gpu;
        }
        by_choice_.emplace_back(choice, std::make_unique<Gpu>(traced_, device_, choice));
        return *by_choice_.back().second;
    }

    static bool are_tensors(const std::vector<cuda::RefFacts>& facts) {
        return std::all_of(facts.begin(), facts.end(),
                           [](const cuda::RefFacts& one) { return one.tensor; });
    }

    /// The arguments of the two kernels of a split product: the sums of the parts come last.
    ir::Arguments with_sums(const ir::Arguments& arguments, void* sums) const {
        ir::Arguments result = arguments;
        ir::RefArgument ref;
        ref.data = sums;
        std::int64_t stride = 1;
        for (std::size_t d = sums_.extents.size(); d-- > 0;) {
            ref.extents[d] = sums_.extents[d];
            ref.strides[d] = stride;
            stride *= sums_.extents[d];
        }
        result.refs.push_back(ref);
        result.grid.clear();
        return result;
    }

    void run_parts(const ir::Arguments& arguments) const {
        const Tensor sums = Tensor::empty(sums_.dtype, sums_.extents, Device::cuda(device_));
        const ir::Arguments all = with_sums(arguments, sums.raw());
        parts_->run(all);
        finish_->run(all);
    }

    /// Launches a block for each multiprocessor, which iterates over programs, or for each program.
    void run_scheduled(const CudaVariant& variant, cuda::LaunchArguments& launch,
                       cuda::LaunchShape shape) const {
        const cuda::ContextScope scope(device_);  // needed to encode tensor maps
        std::vector<cuda::TensorMap> maps;
        for (const cuda::TensorMapRequest& request : launch.maps()) {
            maps.push_back(cuda::encode_tensor_map(request, kernel_.name.c_str()));
        }
        for (cuda::TensorMap& map : maps) launch.parameters().push_back(&map);
        const std::int64_t blocks =
            std::min<std::int64_t>(cuda::device_info(device_).multiprocessors, launch.programs());
        shape.grid[0] =
            static_cast<unsigned>(variant.generated.is_persistent ? blocks : launch.programs());
        if (variant.generated.cluster > 1) {
            // A program's cluster may have a block without one.
            const std::int64_t cluster = variant.generated.cluster;
            shape.cluster[0] = static_cast<unsigned>(cluster);
            shape.grid[0] = static_cast<unsigned>(
                std::min<std::int64_t>(launch.programs(), variant.clusters) * cluster);
        }
        if (variant.generated.has_rows) {
            // The first blocks differ by up to the length of the longest programs, on average two.
            // Beyond that, a block of its own costs a program its start and the end of the one
            // before.
            constexpr std::int64_t kAlone = 4;
            const std::int64_t waves = ceil_div(launch.programs(), blocks);
            shape.grid[0] = static_cast<unsigned>(blocks);
            shape.grid[1] = static_cast<unsigned>(std::min(waves, 1 + kAlone));
        }
        cuda::launch(variant.kernel, shape, launch.parameters(), cuda::current_stream());
    }

    static void count_clusters(CudaVariant& variant) {
        if (variant.generated.cluster == 1) return;
        cuda::LaunchShape shape;
        shape.block[0] = static_cast<unsigned>(variant.generated.threads);
        shape.cluster[0] = shape.grid[0] = static_cast<unsigned>(variant.generated.cluster);
        const int all =
            cuda::device_info(variant.kernel.device).multiprocessors / variant.generated.cluster;
        variant.clusters = cuda::most_clusters(variant.kernel, shape).value_or(all);
    }

    /// The scheduled form if it supports the kernel, else the plain one.
    cuda::Generated generate(const cuda::Target& target) const {
        if (auto scheduled = cuda::schedule::generate_scheduled(traced_, target)) {
            return *std::move(scheduled);
        }
        TW_ASSERT(!choice_ || !choice_->product, "{}: a choice is not supported", kernel_.name);
        return cuda::generate(kernel_, target);
    }

    /// A pointer to the host or another GPU would fault and make the CUDA context unusable.
    void check_addresses(const ir::Arguments& arguments) const {
        if (run::is_told_addresses()) return;
        std::size_t next = 0;
        for (ir::Value parameter : kernel_.parameters()) {
            if (!kernel_.is_ref(parameter) ||
                kernel_.ref_type(parameter).space != ir::Space::global) {
                continue;
            }
            const ir::RefArgument& ref = arguments.refs.at(next++);
            bool empty = false;
            for (int d = 0; d < kernel_.ref_type(parameter).rank(); ++d) {
                empty |= ref.extents[d] == 0;
            }
            if (empty) continue;
            const std::string& name = kernel_.value_name(parameter);
            const int owner =
                cuda::device_of(reinterpret_cast<std::uintptr_t>(ref.data), name.c_str());
            if (owner != device_) {
                user_error(kernel_.name,
                           "expected `{}` in the memory of cuda:{} but it is in cuda:{}'s", name,
                           device_, owner);
            }
        }
    }

    const CudaVariant& variant(std::vector<cuda::RefFacts> facts) const {
        if (is_prebuilt_) return prebuilt(facts);
        const std::scoped_lock lock(mutex_);
        for (const auto& known : variants_) {
            if (known->facts == facts) return *known;
        }
        const cuda::Target target = target_with(facts);
        const auto ahead = std::find_if(ahead_.begin(), ahead_.end(),
                                        [&](const auto& text) { return text->facts == facts; });
        cuda::Generated generated =
            ahead == ahead_.end() ? generate(target) : std::move((*ahead)->generated);
        if (ahead != ahead_.end()) ahead_.erase(ahead);
        log_variant(facts, generated);
        auto made = std::make_unique<CudaVariant>();
        made->facts = std::move(facts);
        made->kernel = cuda::load_kernel(compile_request(generated, target.arch),
                                         generated.name.c_str(), generated.shared_bytes, device_);
        generated.source.clear();
        generated.headers.clear();
        made->generated = std::move(generated);
        count_clusters(*made);
        variants_.push_back(std::move(made));
        return *variants_.back();
    }

    const CudaVariant& prebuilt(const std::vector<cuda::RefFacts>& facts) const {
        const auto suffices = [](const cuda::RefFacts& wanted, const cuda::RefFacts& fact) {
            return (!wanted.vectors || fact.vectors) && (!wanted.dense || fact.dense) &&
                   (!wanted.tensor || fact.tensor);
        };
        for (const auto& variant : variants_) {
            if (!std::equal(variant->facts.begin(), variant->facts.end(), facts.begin(),
                            facts.end(), suffices))
                continue;
            if (variant != variants_.front())
                debug_log(kernel_.name,
                          "slow path: arrays are accessed element by element, since one does not "
                          "begin at a multiple of 16 bytes");
            return *variant;
        }
        user_error(kernel_.name, "expected arrays that begin at multiples of 16 bytes");
    }

    cuda::Target target_with(const std::vector<cuda::RefFacts>& facts) const {
        const cuda::DeviceInfo& info = cuda::device_info(device_);
        cuda::Target target{info.arch(), info.shared_bytes_per_block, facts};
        if (choice_) target.choice = choice_->product;
        return target;
    }

    void log_variant(const std::vector<cuda::RefFacts>& facts,
                     const cuda::Generated& generated) const {
        if (!debug_log_on()) return;
        debug_log(kernel_.name, "generated for cuda:{}, {} threads, {} bytes of shared memory",
                  device_, generated.threads, generated.shared_bytes);
        if (generated.workspace_bytes > 0) {
            debug_log(kernel_.name,
                      "slow path: scratch of {} bytes a program lies in global memory, since "
                      "shared memory cannot hold it",
                      generated.workspace_bytes);
        }
        std::size_t next = 0;
        for (ir::Value parameter : kernel_.parameters()) {
            if (!kernel_.is_ref(parameter) ||
                kernel_.ref_type(parameter).space != ir::Space::global) {
                continue;
            }
            const cuda::RefFacts& fact = facts[next++];
            if (fact.copy_bytes > 0 && generated.is_persistent) {
                debug_log(kernel_.name,
                          "slow path: TMA cannot address `{}`; threads access at most {} bytes of "
                          "it at once, since its address or a stride is no multiple of 16 bytes",
                          kernel_.value_name(parameter), fact.copy_bytes);
            } else if (!fact.vectors && kernel_.ref_type(parameter).rank() > 0) {
                debug_log(kernel_.name,
                          "slow path: `{}` is accessed element by element; its last stride is not "
                          "1, or its address or another stride no multiple of 16 bytes",
                          kernel_.value_name(parameter));
            }
        }
    }

    ir::Function traced_;
    ir::Function kernel_;  ///< prepared for any GPU
    int device_;
    /// Where the inner dimension of its product is shared out (cuda::schedule::split_product).
    std::unique_ptr<Gpu> parts_, finish_;
    ir::RefType sums_;
    bool copies_ = false;  ///< as cuda::schedule::may_copy says
    std::optional<KernelChoice> choice_;
    bool tunes_ = false;
    bool is_prebuilt_ = false;
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<CudaVariant>> variants_;
    mutable std::vector<std::unique_ptr<Text>> ahead_;

    /// What autotuning found for arrays like some.
    struct Tuned {
        std::vector<std::int64_t> key;
        std::vector<cuda::RefFacts> facts;
        const Gpu* best;
    };
    mutable std::mutex tuning_mutex_;
    mutable std::vector<Tuned> tuned_;
    mutable std::vector<std::pair<KernelChoice, std::unique_ptr<Gpu>>> by_choice_;
};

}  // namespace

std::unique_ptr<Executable> make_cuda_executable(ir::Function kernel, int device) {
    cuda::device_info(device);  // UserError if there is no such GPU
    return std::make_unique<Gpu>(std::move(kernel), device, std::nullopt, tunes_kernels());
}

std::unique_ptr<Executable> make_prebuilt_cuda_executable(ir::Function prepared,
                                                          std::vector<CudaVariant> variants,
                                                          int device) {
    return std::make_unique<Gpu>(std::move(prepared), std::move(variants), device);
}

}  // namespace tilewright::run
