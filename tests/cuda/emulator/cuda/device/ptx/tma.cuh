// TMA on the host: boxes with bounds and the 128-byte swizzle, completed after a random delay.
#pragma once

#include "cuda/device/ptx/mbarrier.cuh"

namespace twd {

/// What tests/cuda/emulate.cpp makes from a TensorMapRequest; strides are in bytes.
struct TensorMap {
    unsigned char* data;
    long extent[5], stride[5];
    int box[5], rank, bytes;
};

}  // namespace twd

namespace twd::ptx {

inline u32 swizzle128(u32 address) {
    return address ^ ((address >> 7 & 7) << 4);
}

/// Calls f(offset in the box, whether it is inside, offset in the array) for every element.
template <class F>
inline void each_element(const TensorMap& map, const std::vector<long>& at, F&& f) {
    long total = 1;
    for (int d = 0; d < map.rank; ++d) total *= map.box[d];
    for (long i = 0; i < total; ++i) {
        long rest = i, offset = 0;
        bool inside = true;
        for (int d = 0; d < map.rank; ++d) {
            const long position = at[d] + rest % map.box[d];
            rest /= map.box[d];
            inside = inside && position >= 0 && position < map.extent[d];
            offset += position * map.stride[d];
        }
        f(static_cast<u32>(i * map.bytes), inside, offset);
    }
}

template <class... C>
inline void tensor_load(u32 target, const TensorMap* map, u32 barrier, C... coordinates) {
    const TensorMap of = *map;
    const std::vector<long> at{static_cast<long>(coordinates)...};
    if (target % 1024 != 0) emulator::fail("a box does not begin on 1,024 bytes");
    emulator::later([=] {
        expect_running(target);
        long bytes = 0;
        each_element(of, at, [&](u32 offset, bool inside, long from) {
            unsigned char* const to = memory + swizzle128(target + offset);
            if (inside) std::memcpy(to, of.data + from, of.bytes);
            if (!inside) std::memset(to, 0, of.bytes);
            bytes += of.bytes;
        });
        emulator::Mbarrier& one = emulator::mbarrier(barrier);
        one.bytes -= bytes;
        emulator::settle(one);
    });
}

template <class... C>
inline void tensor_load_multicast(u32 target, const TensorMap* map, u32 barrier, u16 blocks,
                                  C... coordinates) {
    for (u32 rank = 0; rank < kMostBlocks; ++rank) {
        if ((blocks >> rank & 1) == 0) continue;
        const u32 from = rank * kSharedBytes;
        tensor_load(target % kSharedBytes + from, map, barrier % kSharedBytes + from,
                    coordinates...);
    }
}

/// Each thread's uncommitted stores, and groups of committed ones that may still read shared
/// memory.
using Stores = std::vector<std::shared_ptr<bool>>;
inline std::map<int, Stores> open_stores;
inline std::map<int, std::vector<Stores>> committed_stores;

template <class... C>
inline void tensor_store(const TensorMap* map, u32 source, C... coordinates) {
    const TensorMap of = *map;
    const std::vector<long> at{static_cast<long>(coordinates)...};
    const auto done = std::make_shared<bool>(false);
    open_stores[emulator::current].push_back(done);
    if (!emulator::unfenced.empty()) {
        each_element(of, at, [&](u32 offset, bool, long) {
            if (emulator::unfenced.count((source + offset) / 128) != 0) {
                emulator::fail("a copy reads what was written without a fence");
            }
        });
    }
    emulator::later([=] {
        each_element(of, at, [&](u32 offset, bool inside, long to) {
            if (inside) std::memcpy(of.data + to, memory + swizzle128(source + offset), of.bytes);
        });
        *done = true;
    });
}

inline void bulk_commit() {
    committed_stores[emulator::current].push_back(std::move(open_stores[emulator::current]));
    open_stores[emulator::current].clear();
}
template <int kPending>
inline void bulk_wait() {
    auto& groups = committed_stores[emulator::current];
    while (groups.size() > kPending) {
        for (const auto& one : groups.front()) {
            emulator::wait_until([&] { return *one; });
        }
        groups.erase(groups.begin());
    }
}
template <int kPending>
inline void bulk_wait_read() {
    bulk_wait<kPending>();
}

}  // namespace twd::ptx
