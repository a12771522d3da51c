// Compiles kernels to bytecode and runs their programs on all cores.
#include "cpu/machine.h"

#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "cpu/arguments.h"
#include "cpu/assign_memory.h"
#include "cpu/bytecode.h"
#include "cpu/combine_rows.h"
#include "cpu/divided_atomics.h"
#include "cpu/execute.h"
#include "cpu/kept_blocks.h"
#include "cpu/lower.h"
#include "cpu/neighbours.h"
#include "cpu/private_arrays.h"
#include "cpu/slow_paths.h"
#include "cpu/small_tiles.h"
#include "cpu/unread.h"
#include "ir/passes/contract.h"
#include "ir/passes/expand_scans.h"
#include "ir/passes/pipeline.h"
#include "support/check.h"
#include "support/debug_log.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace tilewright::cpu {

std::shared_ptr<const Program> compile(const ir::Function& kernel) {
    ir::Function function = kernel;
    ir::optimise(function);
    const auto has_no_rows = [](const ir::Instruction& scan) { return !combine_rows(scan); };
    if (ir::expand_scans(function, has_no_rows).changed()) ir::optimise(function);
    ir::contract(function);
    static std::atomic<std::uint64_t> last_id{0};
    auto program = std::make_shared<Program>();
    program->id = ++last_id;
    program->kernel = kernel;
    Lowering(function, *program).run();
    keep_blocks(*program);
    find_unread(*program);
    assign_memory(*program);
    compile_small_tiles(*program);
    if (debug_log_on()) {
        debug_log(kernel.name, "compiled for `{}`, {} instructions, {} bytes for each thread",
                  program->kernels->name, program->code.size(), program->arena_bytes);
        for (const SlowPath& path : slow_paths(*program))
            debug_log(kernel.name, "slow path: {}", to_string(path));
    }
    return program;
}

namespace {

constexpr std::size_t kAlignment = 64;

/// Memory of one thread, kept between calls.
class Arena {
  public:
    ~Arena() { release(); }

    std::byte* reserve(std::int64_t bytes) {
        if (bytes > capacity_) {
            release();
            data_ = static_cast<std::byte*>(::operator new (
                static_cast<std::size_t>(bytes), std::align_val_t{kAlignment}, std::nothrow));
            // Not the form that throws, in which sanitizers end the process.
            if (data_ == nullptr) throw std::bad_alloc();
            capacity_ = bytes;
        }
        return data_;
    }

  private:
    void release() {
        if (data_) ::operator delete (data_, std::align_val_t{kAlignment});
        data_ = nullptr;
        capacity_ = 0;
    }
    std::byte* data_ = nullptr;
    std::int64_t capacity_ = 0;
};

class Call;

/// What a thread needs to run programs: registers and memory.
struct Worker {
    /// What the thread knows of the neighbours of programs, kept for the next call of the kernel: a
    /// small call takes less time than finding it.
    Neighbours& neighbours(const Program& program) {
        if (!known_ || known_id_ != program.id) {
            known_.emplace(program);
            known_id_ = program.id;
        }
        return *known_;
    }

    Arena arena;
    std::vector<std::uint64_t> slots;
    std::vector<View> views;
    std::vector<ir::RefArgument> refs;
    std::vector<std::byte> private_memory;
    std::vector<PrivateArray> private_arrays;
    std::vector<KeptBlocks> kept;
    bool keeps = false;             ///< in this call
    std::uint64_t kept_id = 0;      ///< the program that they are of
    std::int64_t kept_row = -1;     ///< of the grid, whose programs the kept blocks are for
    const Call* call = nullptr;     ///< that the views and refs are of
    const Call* grouped = nullptr;  ///< that the neighbours know

  private:
    std::optional<Neighbours> known_;
    std::uint64_t known_id_ = 0;
};

/// A thread may run a kernel inside another one (in a pool with work stealing): each nesting depth
/// has its own worker.
class WorkerLease {
  public:
    WorkerLease() {
        auto& stack = free_workers();
        if (stack.empty()) {
            worker_ = std::make_unique<Worker>();
        } else {
            worker_ = std::move(stack.back());
            stack.pop_back();
        }
    }
    ~WorkerLease() {
        worker_->call = worker_->grouped = nullptr;
        worker_->private_arrays.clear();
        worker_->views.clear();  // those of one call have the same strides in all programs
        free_workers().push_back(std::move(worker_));
    }
    WorkerLease(const WorkerLease&) = delete;
    WorkerLease& operator=(const WorkerLease&) = delete;
    Worker& operator*() const { return *worker_; }

  private:
    static std::vector<std::unique_ptr<Worker>>& free_workers() {
        static thread_local std::vector<std::unique_ptr<Worker>> workers;
        return workers;
    }
    std::unique_ptr<Worker> worker_;
};

/// One call: the arguments in the form that programs of the grid use.
class Call {
  public:
    Call(const Program& program, const ir::Arguments& arguments)
        : program_(program), arguments_(arguments) {
        check_arguments(program, arguments);
        if (!program.scalars.empty()) {
            own_slots_ = program.initial_slots;
            for (std::size_t i = 0; i < program.scalars.size(); ++i) {
                const ScalarParameter& scalar = program.scalars[i];
                own_slots_[scalar.slot] = element_bits(scalar.dtype, arguments.scalars[i]);
            }
            initial_slots_ = own_slots_;
        }
        num_programs_ = std::accumulate(arguments.grid.begin(), arguments.grid.end(),
                                        std::int64_t{1}, std::multiplies<>());
        const auto inner = std::find_if(arguments.grid.rbegin(), arguments.grid.rend(),
                                        [](std::int64_t extent) { return extent > 1; });
        if (inner != arguments.grid.rend()) inner_extent_ = *inner;
    }

    std::int64_t num_programs() const { return num_programs_; }
    /// Programs along the last axis of the grid that has several.
    std::int64_t inner_extent() const { return inner_extent_; }

    /// `alone`: no other program runs at the same time.
    template <typename Execute>
    void run_program(Worker& worker, std::int64_t index, bool alone, Execute& execute_frame,
                     const Ownership& owned = {}) const {
        Frame frame = prepare(worker, index);
        frame.alone = alone;
        frame.owned = owned;
        execute_frame(frame);
    }

    /// Programs [first, end), those side by side as one.
    template <typename Execute>
    void run_programs(Worker& worker, std::int64_t first, std::int64_t end, bool alone,
                      Execute& execute_frame) const {
        Neighbours& neighbours = worker.neighbours(program_);
        if (std::exchange(worker.grouped, this) != this) neighbours.begin_call(arguments_);
        while (first < end) {
            const std::int64_t most = end - first;
            std::int64_t n = 1;
            if (most > 1) {
                Frame frame = prepare(worker, first);
                if (const std::int64_t known = neighbours.known(frame, first, most); known > 0) {
                    n = known;
                } else if (neighbours.begin(frame)) {
                    for (; first + n < end; ++n) {
                        place(frame, first + n);
                        if (!neighbours.follows(frame, n)) break;
                        if (n > 1 || !neighbours.is_linear()) continue;
                        // The last one along an axis of the grid stands for all before it.
                        const std::int64_t last =
                            std::min(most, inner_extent_ - first % inner_extent_) - 1;
                        if (last <= n) continue;
                        place(frame, first + last);
                        if (neighbours.follows(frame, last)) n = last;
                    }
                    neighbours.keep(frame, first, most, n);
                }
                if (n > 1) neighbours.run(frame, n);
            }
            if (n == 1) run_program(worker, first, alone, execute_frame);
            first += n;
        }
    }

    /// True where threads had better not divide the elements of its atomics.
    bool is_scattered(Worker& worker) const {
        Frame frame = prepare(worker, num_programs_ / 2);
        return cpu::is_scattered(frame);
    }

    std::int64_t cost(Worker& worker, std::int64_t index) const {
        Frame frame = prepare(worker, index);
        return estimate_cost(frame);
    }

  private:
    Frame prepare(Worker& worker, std::int64_t index) const {
        Frame frame;
        frame.program = &program_;
        frame.arena = worker.arena.reserve(program_.arena_bytes);
        worker.slots.assign(initial_slots_.begin(), initial_slots_.end());
        if (worker.call != this) {
            worker.call = this;
            set_arrays(worker, frame.arena);
        }
        frame.slots = worker.slots.data();
        frame.views = worker.views.data();
        frame.refs = worker.refs.data();
        frame.grid = arguments_.grid.data();
        if (worker.keeps) {
            if (const std::int64_t row = index / arguments_.grid.back(); row != worker.kept_row) {
                for (KeptBlocks& kept : worker.kept) kept.clear();
                worker.kept_row = row;
            }
            frame.kept = worker.kept.data();
        }
        place(frame, index);
        return frame;
    }

    /// What is the same for all programs of the call.
    void set_arrays(Worker& worker, std::byte* arena) const {
        worker.views.resize(program_.num_views);
        worker.refs.resize(program_.refs.size());
        for (std::size_t i = 0; i < program_.refs.size(); ++i) {
            worker.refs[i] = ref(program_.refs[i], arena);
        }
        for (const PrivateArray& own : worker.private_arrays) worker.refs[own.ref] = own.argument;
        keep_blocks(worker);
    }

    /// Kept memory stays with the thread if the next call is one of the same kernel.
    void keep_blocks(Worker& worker) const {
        const bool shared = !arguments_.grid.empty() && arguments_.grid.back() > 1;
        worker.keeps = shared && !program_.kept.empty();
        worker.kept_row = -1;
        if (!worker.keeps || worker.kept_id == program_.id) return;
        worker.kept.clear();
        for (const std::int64_t bytes : program_.kept) worker.kept.emplace_back(bytes);
        worker.kept_id = program_.id;
    }

    /// Where in the grid program `index` is.
    void place(Frame& frame, std::int64_t index) const {
        for (std::size_t axis = arguments_.grid.size(); axis-- > 0;) {
            frame.id[axis] = index % arguments_.grid[axis];
            index /= arguments_.grid[axis];
        }
    }

    ir::RefArgument ref(const RefSlot& slot, std::byte* arena) const {
        if (slot.argument >= 0) return arguments_.refs[slot.argument];
        ir::RefArgument scratch;
        scratch.data = arena + slot.offset;
        std::int64_t stride = 1;
        for (std::size_t dim = slot.type.extents.size(); dim-- > 0;) {
            scratch.extents[dim] = slot.type.extents[dim];
            scratch.strides[dim] = stride;
            stride *= slot.type.extents[dim];
        }
        return scratch;
    }

    const Program& program_;
    const ir::Arguments& arguments_;
    std::vector<std::uint64_t> own_slots_;  ///< with scalars, which differ from call to call
    std::span<const std::uint64_t> initial_slots_ = program_.initial_slots;
    std::int64_t num_programs_ = 1;
    std::int64_t inner_extent_ = 1;  ///< of the last axis along which there are several programs
};

std::atomic<int> g_threads{0};

/// One arena per number of threads, kept until the process ends: creating one takes longer than a
/// small call, and a stream of short-lived arenas piles up faster than their workers leave them.
oneapi::tbb::task_arena& arena(int threads) {
    static std::mutex mutex;
    static std::map<int, std::unique_ptr<oneapi::tbb::task_arena>> arenas;
    const std::scoped_lock lock(mutex);
    auto& entry = arenas[threads];
    if (!entry) entry = std::make_unique<oneapi::tbb::task_arena>(threads);
    return *entry;
}

/// The order that a parallel loop imposes: what comes before it, its bodies, what comes after it.
/// oneTBB is built without ThreadSanitizer, which must therefore be told; bodies stay unordered
/// relative to each other.
#ifdef __SANITIZE_THREAD__
char g_loops_begin, g_loops_end;
void before_loop() {
    __tsan_release(&g_loops_begin);
}
void before_body() {
    __tsan_acquire(&g_loops_begin);
}
void after_body() {
    __tsan_release(&g_loops_end);
}
void after_loop() {
    __tsan_acquire(&g_loops_end);
}
#else
void before_loop() {}
void before_body() {}
void after_body() {}
void after_loop() {}
#endif

/// body(i) for i in [0, n), on `threads` threads.
template <class Body>
void on_threads(int threads, std::int64_t n, const Body& body) {
    const auto in_arena = [&] {
        before_body();  // a full arena passes this to one of its threads
        const auto one = [&body](std::int64_t i) {
            before_body();
            body(i);
            after_body();
        };
        before_loop();
        oneapi::tbb::parallel_for(std::int64_t{0}, n, one, oneapi::tbb::simple_partitioner());
        after_loop();
        after_body();
    };
    before_loop();
    arena(threads).execute(in_arena);
    after_loop();
}

/// TILEWRIGHT_THREADS; 0 without it.
int default_threads() {
    const char* const text = std::getenv("TILEWRIGHT_THREADS");
    if (text == nullptr || *text == '\0') return 0;
    int threads = 0;
    const char* const end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, threads);
    if (error != std::errc() || rest != end || threads < 1)
        user_error("TILEWRIGHT_THREADS", "expected a number of threads, at least 1, but got \"{}\"",
                   text);
    return threads;
}

/// TILEWRIGHT_THREADS as it was at the first use of the machine; 0 without it.
int usual_threads() {
    static const int usual = default_threads();
    return usual;
}

/// True while this thread runs one of several bodies of a parallel loop, whose calls may access the
/// same arrays.
thread_local bool g_beside_others = false;

class BesideOthers {
  public:
    BesideOthers() : before_(g_beside_others) { g_beside_others = true; }
    ~BesideOthers() { g_beside_others = before_; }
    BesideOthers(const BesideOthers&) = delete;
    BesideOthers& operator=(const BesideOthers&) = delete;

  private:
    bool before_;
};

/// Hands out [0, count) to threads that ask, as ranges: neighbours read and write next to each
/// other, and asking costs as much as a small program. Ranges become shorter towards the end, where
/// a few are handed out one by one, so that no thread has much to do when the others are done.
class Ranges {
  public:
    Ranges(std::int64_t count, std::int64_t longest, int threads)
        : count_(count),
          longest_(std::max<std::int64_t>(longest, 1)),
          share_(kRangesOfThread * threads),
          single_(kSingleOfThread * threads) {}

    /// The next range; empty when none is left.
    std::pair<std::int64_t, std::int64_t> next() {
        std::int64_t first = next_.load(), end = 0;
        do {
            if (first >= count_) return {count_, count_};
            const std::int64_t left = count_ - single_ - first;
            end = first + std::clamp<std::int64_t>(left / share_, 1, longest_);
        } while (!next_.compare_exchange_weak(first, end));
        return {first, end};
    }

  private:
    static constexpr std::int64_t kRangesOfThread = 4, kSingleOfThread = 16;
    const std::int64_t count_, longest_, share_, single_;
    std::atomic<std::int64_t> next_{0};
};

/// Executes the frames of one thread.
struct Plainly {
    void operator()(Frame& frame) const { execute(frame); }
};

/// The same, timed.
struct Timed {
    explicit Timed(Profile& profile) : stopwatch(profile) {}
    void operator()(Frame& frame) { execute(frame, stopwatch); }
    Stopwatch stopwatch;
};

/// `make()` makes the object that executes frames, one for each thread.
template <typename Make>
void run_programs(const Program& program, const ir::Arguments& arguments, const Make& make) {
    usual_threads();  // so that a wrong number fails with the first call, which may need one thread
    const Call call(program, arguments);
    const std::int64_t count = call.num_programs();
    if (count == 0) return;
    if (count == 1) {
        const WorkerLease worker;
        auto execute_frame = make();
        return call.run_program(*worker, 0, !g_beside_others, execute_frame);
    }
    const int threads = num_threads();
    // Times are those of single programs.
    constexpr bool kTimed = std::is_same_v<decltype(make()), Timed>;
    const Division division =
        kTimed || g_beside_others ? Division() : divide(program, arguments, count, threads);
    if (division.threads > 1 && !call.is_scattered(*WorkerLease())) {
        on_threads(division.threads, division.threads, [&](std::int64_t i) {
            const WorkerLease worker;
            auto execute_frame = make();
            const Ownership owned = division.of(static_cast<int>(i));
            for (std::int64_t p = 0; p < count; ++p)
                call.run_program(*worker, p, true, execute_frame, owned);
        });
        return;
    }
    int worth = program.in_order ? 1 : threads;
    std::int64_t each = 1;
    if (!kTimed) {
        const WorkerLease worker;
        const Neighbours& neighbours = (*worker).neighbours(program);
        worth = neighbours.threads(count, worth);
        each = neighbours.most(count, worth);
    }
    if (worth == 1) {
        const WorkerLease worker;
        auto execute_frame = make();
        for (std::int64_t i = 0; i < count; i += each)
            call.run_programs(*worker, i, std::min(i + each, count), !g_beside_others,
                              execute_frame);
        return;
    }
    std::vector<std::int64_t> order;
    if (program.uneven) {
        const WorkerLease worker;
        std::vector<std::int64_t> costs(count);
        for (std::int64_t i = 0; i < count; ++i) {
            costs[i] = call.cost(*worker, i);
        }
        order = uneven_order(costs, threads);
    }
    // Group i of programs: one of those that are ordered by their cost, or neighbours.
    const std::int64_t groups = ceil_div(count, each);
    const auto run_group = [&](Worker& worker, std::int64_t i, auto& execute_frame) {
        const bool alone = !worker.private_arrays.empty();
        const std::int64_t first = order.empty() ? i * each : order[i];
        call.run_programs(worker, first, std::min(first + each, count), alone, execute_frame);
    };
    // One task per thread, which takes groups until none is left. In a grid of several axes,
    // threads stay in one row of it: what they write in several rows may be side by side.
    const std::int64_t inner = call.inner_extent();
    const bool singly = program.has_while || !order.empty();
    const std::int64_t longest = singly           ? 1
                                 : inner == count ? groups
                                                  : inner / (2 * std::int64_t{threads} * each);
    Ranges ranges(groups, longest, threads);
    PrivateArrays shared(program, arguments);
    const bool copies = !shared.empty() && !g_beside_others;
    on_threads(threads, std::min<std::int64_t>(worth, groups), [&](std::int64_t) {
        const WorkerLease worker;
        auto execute_frame = make();
        if (copies) shared.begin((*worker).private_memory, (*worker).private_arrays);
        for (auto [i, end] = ranges.next(); i < end; std::tie(i, end) = ranges.next()) {
            for (; i < end; ++i) run_group(*worker, i, execute_frame);
        }
        if (copies) shared.end((*worker).private_arrays);
    });
}

}  // namespace

void set_num_threads(int threads) {
    if (threads < 0)
        user_error("set_num_threads", "expected at least 0 threads but got {}", threads);
    g_threads = threads;
}

int num_threads() {
    const int usual = usual_threads();
    const int set = g_threads;
    const int threads = set > 0 ? set : usual;
    const int cores = oneapi::tbb::info::default_concurrency();
    return threads > 0 ? std::min(threads, cores) : cores;
}

void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body) {
    const int threads = num_threads();
    if (n <= 1 || threads == 1) {
        for (std::int64_t i = 0; i < n; ++i) body(i);
        return;
    }
    on_threads(threads, n, [&](std::int64_t i) {
        // A body that waits for loops of its own must not begin another body meanwhile: they would
        // pile up on its stack.
        oneapi::tbb::this_task_arena::isolate([&] {
            const BesideOthers mark;
            body(i);
        });
    });
}

std::vector<std::int64_t> uneven_order(const std::vector<std::int64_t>& costs, int threads) {
    constexpr double kLast = 2;  // times the longest program, for each thread
    const auto cost = [&](std::int64_t i) { return costs[i]; };
    const auto longest = static_cast<double>(*std::max_element(costs.begin(), costs.end()));
    std::vector<std::int64_t> order(costs.size());
    std::iota(order.begin(), order.end(), 0);
    auto last = order.end();
    double left = 0;
    while (last != order.begin() && left < kLast * threads * longest) {
        left += static_cast<double>(cost(*--last));
    }
    std::stable_sort(last, order.end(),
                     [&](std::int64_t a, std::int64_t b) { return cost(a) > cost(b); });
    return order;
}

void run(const Program& program, const ir::Arguments& arguments) {
    run_programs(program, arguments, [] { return Plainly(); });
}

void run(const Program& program, const ir::Arguments& arguments, Profile& profile) {
    run_programs(program, arguments, [&] { return Timed(profile); });
}

}  // namespace tilewright::cpu
