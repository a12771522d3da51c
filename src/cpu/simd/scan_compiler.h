// Compiles scans with the user's function to machine code, which keeps vectors in registers.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ir/op.h"
#include "tilewright/dtype.h"

namespace tilewright::cpu {

/// The function of a scan of `values` operands of f32 or i32. Its values are numbered: what comes
/// before, what comes after, elements that are the same for all lanes, and the results of ops.
struct ScanShape {
    struct Op {
        ir::Op op = ir::Op::add;
        DType dtype = DType::f32;  ///< of its operands and its result
        std::array<int, 3> in{};
        int num_inputs = 0;
        bool operator==(const Op&) const = default;
    };
    static constexpr int kMostValues = 4;

    int values = 0, splats = 0;
    std::vector<Op> ops;
    std::vector<int> results;
    std::vector<bool> kept;     ///< the results that are stored
    std::vector<bool> carried;  ///< these, and those that the next element needs for them
    bool reverse = false;
};

/// What the code takes: it combines `vectors` vectors of 16 lanes, with all earlier ones unless
/// they are the first.
struct ScanArguments {
    static constexpr int kMostSplats = 8;

    /// The first vector of each operand and result: in reverse, the one with the highest address.
    std::array<const std::byte*, ScanShape::kMostValues> in;
    std::array<std::byte*, ScanShape::kMostValues> out;
    std::int64_t vectors;
    std::int64_t lanes;  ///< a bit for each lane of these vectors that is in the row
    std::int64_t is_first;
    std::int64_t streams;  ///< not 0: non-temporal stores, to aligned vectors with all lanes
    std::array<const std::byte*, kMostSplats> splats;
    /// What the scan has combined so far, in all lanes.
    std::array<std::array<std::uint32_t, 16>, ScanShape::kMostValues> carries;
};

/// What the code of a scan down rows takes: `rows` rows, of which the first one follows the
/// carries.
struct ScanDownArguments {
    static constexpr std::int64_t kVector = 16;  ///< lanes
    /// Bytes from the carries of one value to those of the next.
    static constexpr std::int64_t kCarryBytes = 4 * 4096;

    std::array<const std::byte*, ScanShape::kMostValues> in;
    std::array<std::byte*, ScanShape::kMostValues> out;
    std::array<std::int64_t, ScanShape::kMostValues> in_step, out_step;  ///< bytes to the next row
    std::int64_t rows;
    std::int64_t vectors;  ///< of each row: not of columns
    std::int64_t first;    ///< the lane of the vector that comes first: in reverse, of the last one
    std::int64_t ahead;    ///< words to the row that columns prefetch
    std::int64_t lanes, streams;  ///< as in ScanArguments
    std::array<const std::byte*, ScanArguments::kMostSplats> splats;
    std::byte* carries;
};

/// Code for vectors of 64 bytes (AVX-512), which is kept until the process ends; nullptr for
/// functions with ops or values that it does not know, and where nothing is compiled
/// (wants_machine_code). In a vector, each lane is combined with the one 1, 2, 4 and 8 lanes before
/// it; then all with the carry.
void (*compile_scan(const ScanShape& shape))(void* arguments);

/// Code for scans down rows: along the rows, with carries in memory; and for columns of some
/// vectors down all rows, with carries in registers.
struct ScanDown {
    void (*rows)(void* arguments) = nullptr;
    void (*columns)(void* arguments) = nullptr;
    std::int64_t column_lanes = 0;
};
ScanDown compile_scan_down(const ScanShape& shape);

}  // namespace tilewright::cpu
