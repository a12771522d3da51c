// Emulation of one thread block on the host: generated CUDA C++ compiles against this in place of
// the real PTX headers, so that its results are tested on machines without a GPU. Threads are
// fibers; barriers, shuffles and warp instructions switch between them.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <source_location>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n)
#define TW_DEVICE inline

// Aligned as on GPUs; emulated kernels are compiled so that they trap where an address is not.
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};
inline Dim3 threadIdx, blockIdx, gridDim, blockDim;

/// The blocks of a cluster have their shared memory one after the other.
inline constexpr std::size_t kSharedBytes = 256 * 1024, kMostBlocks = 16;
alignas(1024) inline unsigned char memory[kMostBlocks * kSharedBytes];

namespace emulator {

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;  // pages that are not used take no memory
    std::function<bool()> ready;    // what it waits for
    bool done = false;
};
struct Warp {
    std::uint64_t slots[32][8];
    int arrived = 0;
    unsigned generation = 0;
};
inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline ucontext_t scheduler;
inline int current = 0, block_threads = 1;
inline int barrier_arrived[kMostBlocks] = {};
inline std::uint64_t barrier_place[kMostBlocks] = {};
inline unsigned barrier_generation[kMostBlocks] = {};
/// The block of the cluster that the running thread belongs to.
inline unsigned rank() {
    return static_cast<unsigned>(current / block_threads);
}
inline const std::function<void()>* body;
inline std::size_t shared_bytes = kSharedBytes;  ///< that a block asked for
inline long switches = 0;
inline constexpr long kMostSwitches = 200000000;  // more means that a block does not end

inline void (*report)() = nullptr;  // prints the state of a block that does not end
[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "thread %d: %s\n", current, what);
    if (report != nullptr) report();
    std::abort();
}

// Work of TMA and tensor cores takes effect some scheduling rounds after it was issued.
struct Delayed {
    int rounds;
    std::function<void()> run;
};
inline std::vector<Delayed> delayed;
inline std::uint64_t random_state = 1;
inline void later(std::function<void()> run) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    constexpr int kRounds[] = {0, 1, 8, 60};
    const int rounds = kRounds[random_state >> 33 & 3];
    if (rounds == 0) return run();
    delayed.push_back({rounds, std::move(run)});
}
inline void pass_round() {
    for (std::size_t i = 0; i < delayed.size();) {
        if (--delayed[i].rounds > 0) {
            ++i;
            continue;
        }
        const auto run = std::move(delayed[i].run);
        delayed.erase(delayed.begin() + static_cast<long>(i));
        run();
    }
}

// Rows of 128 bytes that threads wrote and have not fenced for TMA, with the writers.
inline std::map<unsigned, std::set<int>> unfenced_writers;
inline std::map<int, std::vector<unsigned>> rows_written;  // by each thread
struct Unfenced {
    bool empty() const { return unfenced_writers.empty(); }
    std::size_t count(unsigned row) const { return unfenced_writers.count(row); }
};
inline Unfenced unfenced;
inline void write_shared(unsigned address, int thread) {
    if (unfenced_writers[address / 128].insert(thread).second) {
        rows_written[thread].push_back(address / 128);
    }
}
inline void fence_writes() {
    for (const unsigned row : rows_written[current]) {
        const auto at = unfenced_writers.find(row);
        if (at == unfenced_writers.end()) continue;
        at->second.erase(current);
        if (at->second.empty()) unfenced_writers.erase(at);
    }
    rows_written[current].clear();
}

/// Lets other threads run until `ready` is true. The scheduler evaluates it, so that a waiting
/// thread costs no switches, and a block in which every thread waits is detected at once.
template <class Ready>
inline void wait_until(const Ready& ready) {
    if (ready()) return;
    if (++switches > kMostSwitches) fail("the block does not end");
    Fiber& me = fibers[current];
    me.ready = [&] { return ready(); };
    swapcontext(&me.context, &scheduler);
}
using Here = std::source_location;
/// Where a statement is in the text of its kernel.
inline std::uint64_t place_of(const Here& here) {
    return std::uint64_t{here.line()} << 32 | here.column();
}
inline void barrier(std::uint64_t place) {
    int& arrived = barrier_arrived[rank()];
    unsigned& generation = barrier_generation[rank()];
    const unsigned mine = generation;
    if (arrived == 0) barrier_place[rank()] = place;
    if (barrier_place[rank()] != place) fail("threads meet at different __syncthreads");
    if (++arrived == block_threads) {
        arrived = 0;
        ++generation;
        return;
    }
    wait_until([&] { return generation != mine; });
}
inline void meet(Warp& warp) {
    const unsigned mine = warp.generation;
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        ++warp.generation;
        return;
    }
    wait_until([&] { return warp.generation != mine; });
}
/// Every lane passes `count` words; `read` sees those of all lanes.
template <class Read>
inline void collective(const std::uint64_t* words, int count, Read&& read) {
    Warp& warp = warps[current / 32];
    for (int i = 0; i < count; ++i) warp.slots[current % 32][i] = words[i];
    meet(warp);
    read(warp);
    meet(warp);
}
inline void entry() {
    (*body)();
    fibers[current].done = true;
    swapcontext(&fibers[current].context, &scheduler);
}
inline unsigned long blocks_begun = 0;

/// Now and then one warp does not run for some rounds, while the others go on as far as they can
/// without it: a missing barrier would not show while all advance alike.
class HeldWarp {
  public:
    explicit HeldWarp(unsigned seed) : random_(seed * 2246822519u + 3) {}
    void pass_round(int count) {
        if (--rounds_ > 0) return;
        random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
        constexpr int kRounds[2][4] = {{1, 2, 4, 30}, {4, 30, 200, 1000}};
        const bool holds = (random_ >> 50 & 1) != 0;
        rounds_ = kRounds[holds][random_ >> 40 & 3];
        warp_ = holds ? static_cast<int>((random_ >> 33 & 127) % count) : -1;
    }
    bool contains(int thread) const { return thread / 32 == warp_; }
    /// False if none was held.
    bool let_go() {
        rounds_ = 0;
        return std::exchange(warp_, -1) >= 0;
    }

  private:
    std::uint64_t random_;
    int warp_ = -1, rounds_ = 0;
};

/// Runs the block `blockIdx`, or it and those after it in its cluster.
inline void run_block(int threads_of_block, unsigned seed, const std::function<void()>& kernel,
                      int cluster = 1) {
    body = &kernel;
    ++blocks_begun;
    block_threads = threads_of_block;
    const int threads = threads_of_block * cluster;
    const unsigned first_block = blockIdx.x;
    fibers.resize(threads);
    warps.assign(threads / 32, Warp());
    for (int& one : barrier_arrived) one = 0;
    switches = 0;
    random_state = seed + 77;
    delayed.clear();
    unfenced_writers.clear();
    rows_written.clear();
    std::memset(memory, 0xff, cluster * kSharedBytes);  // NaNs
    for (Fiber& fiber : fibers) {
        fiber.done = false;
        fiber.ready = nullptr;
        constexpr std::size_t kStackBytes = 256 * 1024;
        if (fiber.stack == nullptr) fiber.stack.reset(new char[kStackBytes]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, entry, 0);
    }
    // Threads run in an order that changes every round, to expose missing barriers.
    std::uint64_t random = seed * 2654435761u + 1;
    HeldWarp held(seed);
    for (bool left = true; left;) {
        left = false;
        bool runs = !delayed.empty();
        pass_round();
        held.pass_round((threads + 31) / 32);
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        const int first = static_cast<int>((random >> 33) % threads),
                  step = (random >> 60 & 1) ? 1 : -1;
        for (int i = 0; i < threads; ++i) {
            const int t = ((first + step * i) % threads + threads) % threads;
            if (fibers[t].done) continue;
            left = true;
            if (held.contains(t)) continue;
            current = t;
            if (fibers[t].ready && !fibers[t].ready()) continue;
            fibers[t].ready = nullptr;
            runs = true;
            // Users' kernels may have blocks with several axes; others do not set blockDim.
            const unsigned x =
                blockDim.x * blockDim.y * blockDim.z > 1 ? blockDim.x : block_threads;
            const unsigned in_block = t % block_threads;
            threadIdx = {in_block % x, in_block / x % blockDim.y, in_block / x / blockDim.y};
            blockIdx.x = first_block + rank();
            swapcontext(&scheduler, &fibers[t].context);
        }
        if (left && !runs && !held.let_go()) fail("every thread waits: the block does not end");
    }
    if (!delayed.empty()) fail("the block ended before its copies");
    for (int i = 0; i < cluster; ++i) {
        const unsigned char* const rest = memory + i * kSharedBytes + shared_bytes;
        const std::size_t size = kSharedBytes - shared_bytes;
        if (size > 1 && (*rest != 0xff || std::memcmp(rest, rest + 1, size - 1) != 0)) {
            fail("the block wrote past the shared memory that it asked for");
        }
    }
}

}  // namespace emulator

/// Of all lanes of a warp, which have to be at the same statement.
template <class T>
inline T shuffle_from(T value, unsigned lane, const emulator::Here& here) {
    std::uint64_t words[2] = {0, emulator::place_of(here)}, result = 0;
    std::memcpy(words, &value, sizeof(T));
    emulator::collective(words, 2, [&](emulator::Warp& warp) {
        result = warp.slots[lane & 31][0];
        if (warp.slots[lane & 31][1] != words[1]) emulator::fail("a shuffle in divergent code");
    });
    T out;
    std::memcpy(&out, &result, sizeof(T));
    return out;
}
template <class T>
inline T __shfl_sync(unsigned, T value, int lane,
                     const emulator::Here& here = emulator::Here::current()) {
    return shuffle_from(value, static_cast<unsigned>(lane), here);
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int mask,
                         const emulator::Here& here = emulator::Here::current()) {
    return shuffle_from(value, static_cast<unsigned>(emulator::current % 32 ^ mask), here);
}
inline int __all_sync(unsigned mask, int holds,
                      const emulator::Here& here = emulator::Here::current()) {
    for (int by = 1; by < 32; by *= 2) holds = __shfl_xor_sync(mask, holds, by, here) & holds;
    return holds;
}
inline void __syncwarp() {}
inline void __syncthreads(const emulator::Here& here = emulator::Here::current()) {
    emulator::barrier(emulator::place_of(here));
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}
inline long long __double_as_longlong(double x) {
    return bits_as<long long>(x);
}
inline float __uint_as_float(unsigned x) {
    return bits_as<float>(x);
}
inline float __int_as_float(unsigned x) {
    return bits_as<float>(x);
}
inline unsigned __float_as_uint(float x) {
    return bits_as<unsigned>(x);
}
inline double __longlong_as_double(unsigned long long x) {
    return bits_as<double>(x);
}
inline float toward_zero(float nearest, long double exact) {
    if (std::fabs(static_cast<long double>(nearest)) > std::fabs(exact)) {
        return std::nextafter(nearest, 0.0f);
    }
    return nearest;
}
inline float __double2float_rz(double x) {
    return std::isfinite(x) ? toward_zero(static_cast<float>(x), x) : static_cast<float>(x);
}
inline float __ll2float_rz(long long x) {
    return toward_zero(static_cast<float>(x), static_cast<long double>(x));
}
inline float __ull2float_rz(unsigned long long x) {
    return toward_zero(static_cast<float>(x), static_cast<long double>(x));
}
inline float __sinf(float x) {
    return std::sin(x);
}
inline float __cosf(float x) {
    return std::cos(x);
}
template <class T>
inline T atomicCAS(T* at, T expected, T desired) {
    const T old = *at;
    if (old == expected) *at = desired;
    return old;
}
template <class T>
inline T atomicAdd(T* at, T value) {
    const T old = *at;
    *at = old + value;
    return old;
}
template <class T>
inline T atomicMax(T* at, T value) {
    const T old = *at;
    if (old < value) *at = value;
    return old;
}
template <class T>
inline T atomicMin(T* at, T value) {
    const T old = *at;
    if (value < old) *at = value;
    return old;
}
template <class T>
inline T atomicExch(T* at, T value) {
    const T old = *at;
    *at = value;
    return old;
}

namespace twd {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct F16 {};
struct Bf16 {};
struct E4m3 {};
struct E5m2 {};
struct S8 {};
struct U8 {};
struct Tf32 {};

inline u32 shared_address(const void* pointer) {
    return static_cast<u32>((static_cast<const unsigned char*>(pointer) - memory) % kSharedBytes +
                            emulator::rank() * kSharedBytes);
}

}  // namespace twd
