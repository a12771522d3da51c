// The steps of code generation: prepare, choose warps, emit.
#include "cuda/codegen/generate.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "cuda/codegen/dot_plan.h"
#include "cuda/codegen/layout.h"
#include "cuda/codegen/lower_kernel.h"
#include "cuda/codegen/lower_scans.h"
#include "cuda/schedule/insert_barriers.h"
#include "cuda/schedule/place_shared.h"
#include "cuda/schedule/print_cuda.h"
#include "ir/passes/error_functions.h"
#include "ir/passes/expand_scans.h"
#include "ir/passes/pipeline.h"
#include "ir/passes/retile.h"
#include "ir/passes/stream_scans.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright::cuda {
namespace {

using ir::Op;

// What a block of threads can hold; `retile` cuts larger tiles.
constexpr std::int64_t kMaxTile = 65536;         // elements: 128 registers of 512 threads
constexpr std::int64_t kMaxAccumulator = 32768;  // f32 elements of a dot
constexpr std::int64_t kMaxOperandBytes = 65536;
constexpr int kMaxWarps = 16;
constexpr int kMostBlocks = 8;  // of a cluster; more would have to be allowed by the driver

struct Size {
    std::string_view arch;
    int shared_bytes;
};
constexpr std::array<Size, 17> kArchs{{{"sm_80", 163 * 1024},
                                       {"sm_86", 99 * 1024},
                                       {"sm_87", 163 * 1024},
                                       {"sm_88", 99 * 1024},
                                       {"sm_89", 99 * 1024},
                                       {"sm_90", 227 * 1024},
                                       {"sm_90a", 227 * 1024},
                                       {"sm_100", 227 * 1024},
                                       {"sm_100a", 227 * 1024},
                                       {"sm_103", 227 * 1024},
                                       {"sm_103a", 227 * 1024},
                                       {"sm_110", 227 * 1024},
                                       {"sm_110a", 227 * 1024},
                                       {"sm_120", 99 * 1024},
                                       {"sm_120a", 99 * 1024},
                                       {"sm_121", 99 * 1024},
                                       {"sm_121a", 99 * 1024}}};

/// 90 of "sm_90a".
int number_of(const std::string& arch) {
    return std::atoi(arch.c_str() + std::string_view("sm_").size());
}

/// True when a tile is larger than threads can hold.
bool is_too_large(const ir::Function& kernel) {
    bool large = false;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        for (ir::Value result : made.results) {
            large |= kernel.type(result).shape.size() > kMaxTile && made.op != Op::constant &&
                     made.op != Op::iota;
        }
        if (made.op != Op::dot) return;
        large |= kernel.type(made.result()).shape.size() > kMaxAccumulator;
        for (std::size_t side = 0; side < 2; ++side) {
            const ir::Type& operand = kernel.type(made.operands[side]);
            large |= operand.shape.size() * size_of(operand.dtype) > kMaxOperandBytes;
        }
    });
    return large;
}

/// Bytes of a tile as layouts hold it, each dimension padded to a power of two.
std::int64_t padded_bytes(const ir::Type& tile) {
    std::int64_t bytes = size_of(tile.dtype);
    for (int a = 0; a < tile.shape.rank(); ++a) bytes *= cover(tile.shape[a]).size();
    return bytes;
}

bool has_index_tiles(const ir::Instruction& made) {
    if (!ir::is_access(made.op)) return false;
    const auto& indices = made.get<ir::AccessAttributes>().indices;
    return std::any_of(indices.begin(), indices.end(),
                       [](const ir::Index& index) { return index.kind == ir::Index::Kind::tile; });
}

/// A store or an atomic through index tiles: threads compare the addresses of all elements.
bool is_scatter(const ir::Instruction& made) {
    return made.op != Op::load && has_index_tiles(made);
}

bool is_scan(const ir::Instruction& made) {
    return made.op == Op::scan || made.op == Op::associative_scan;
}

/// Bytes of the registers of a tile whose elements threads compute with.
std::int64_t register_bytes(const ir::Type& tile) {
    constexpr std::int64_t kWord = 4;
    return padded_bytes(tile) / size_of(tile.dtype) *
           std::max<std::int64_t>(kWord, size_of(tile.dtype));
}

bool is_sort(const ir::Instruction& made) {
    return made.op == Op::sort || made.op == Op::argsort;
}

bool has_sorts(const ir::Function& kernel) {
    bool sorts = false;
    ir::walk(kernel.body, [&](const ir::Instruction& made) { sorts |= is_sort(made); });
    return sorts;
}

/// Does every element of what an instruction reads or writes pass through shared memory, perhaps?
bool moves_elements(const ir::Instruction& made) {
    return made.op == Op::transpose || made.op == Op::reshape || made.op == Op::concatenate ||
           is_scan(made) || is_sort(made) || has_index_tiles(made);
}

/// True when a tile fits threads but would not fit shared memory where it must be there, or would
/// fill the registers: such a kernel is cut if it can be.
bool is_better_cut(const ir::Function& kernel) {
    constexpr std::int64_t kMaxTileBytes = 262144;  // registers of a multiprocessor
    constexpr std::int64_t kMaxMovedBytes = 65536;  // leaves room for other buffers on SM86
    constexpr std::int64_t kMaxWideSums = 8192;     // elements of 8 bytes in a dot's result
    constexpr std::int64_t kPlaceBytes = 8;         // an address
    constexpr std::int64_t kScannedBytes = 131072;  // half of the registers
    bool large = false;
    const auto look_at = [&](const ir::Instruction& made, ir::Value value) {
        const ir::Type& tile = kernel.type(value);
        if (made.op == Op::constant || made.op == Op::iota) return;
        std::int64_t bytes = padded_bytes(tile);
        if (is_scatter(made) || is_sort(made)) bytes = bytes / size_of(tile.dtype) * kPlaceBytes;
        if (is_scan(made)) bytes = register_bytes(tile);
        large |= bytes > (moves_elements(made) ? kMaxMovedBytes : kMaxTileBytes);
    };
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        for (ir::Value result : made.results) look_at(made, result);
        for (ir::Value operand : made.operands) {
            if (!kernel.is_ref(operand)) look_at(made, operand);
        }
        if (is_scan(made)) {  // a thread has its elements of all values of the tuple at once
            std::int64_t bytes = 0;
            for (ir::Value result : made.results) bytes += register_bytes(kernel.type(result));
            large |= bytes > kScannedBytes;
        }
        if (made.op != Op::dot) return;
        const ir::Type& sums = kernel.type(made.result());
        large |= size_of(sums.dtype) == 8 && sums.shape.size() > kMaxWideSums;
        for (std::size_t side = 0; side < 2; ++side) {
            large |= padded_bytes(kernel.type(made.operands[side])) > kMaxOperandBytes;
        }
    });
    return large;
}

/// Does the kernel have large tiles of 8 bytes per element, addresses of a scatter included?
bool has_wide_tiles(const ir::Function& kernel) {
    bool wide = false;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        wide |= is_scatter(made);
        for (ir::Value result : made.results) {
            const ir::Type& tile = kernel.type(result);
            wide |= size_of(tile.dtype) == 8 && tile.shape.size() >= 4096;
        }
    });
    return wide;
}

/// Elements of a piece of a long line: as many as threads can scan while they load the next piece,
/// with 16 words for what they scan, 32 where blocks share programs and meet for each piece.
std::int64_t scanned_at_once(const ir::Function& kernel, int blocks) {
    constexpr std::int64_t kFewest = 1024, kWordBytes = 4;
    const std::int64_t words_at_once = blocks > 1 ? 32 : 16, most = 512 * words_at_once;
    const int warps = kernel.hints.num_warps > 0 ? kernel.hints.num_warps : kMaxWarps;
    std::int64_t tiles = 0, words = 1;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        if (is_scan(made)) tiles += std::ssize(made.results);
        for (const ir::Value result : made.results) {
            if (kernel.type(result).is_scalar()) continue;
            words = std::max<std::int64_t>(words, size_of(kernel.type(result).dtype) / kWordBytes);
        }
    });
    std::int64_t elements = most;
    while (elements > kFewest && elements * tiles * words > words_at_once * 32 * warps)
        elements /= 2;
    return elements;
}

bool has_scans(const ir::Function& kernel) {
    bool found = false;
    ir::walk(kernel.body, [&](const ir::Instruction& made) { found |= is_scan(made); });
    return found;
}

/// Does a loop of the kernel load tiles, which take registers when prefetched?
bool loads_in_loops(const ir::Function& kernel) {
    bool found = false;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        if (made.op != Op::for_loop) return;
        ir::walk(made.blocks[0], [&](const ir::Instruction& inner) {
            found |= inner.op == Op::load && !kernel.type(inner.result()).is_scalar();
        });
    });
    return found;
}

/// Warps for a kernel without a hint: about 64 accumulators, or 32 elements a thread, 16 where
/// loops load tiles, 8 where lines are scanned or sorted.
int choose_warps(const ir::Function& kernel) {
    if (kernel.hints.num_warps > 0) {
        int warps = 1;
        while (warps * 2 <= std::min(kernel.hints.num_warps, kMaxWarps)) warps *= 2;
        return warps;
    }
    std::int64_t accumulator = 0, tile = 0;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        for (ir::Value result : made.results) {
            const std::int64_t size = kernel.type(result).shape.size();
            if (made.op == Op::dot)
                accumulator = std::max(accumulator, size);
            else if (made.op != Op::constant)
                tile = std::max(tile, size);
        }
    });
    int warps = 1;
    if (accumulator > 0) {
        while (warps < 8 && accumulator > std::int64_t{warps} * 32 * (warps < 4 ? 32 : 128)) {
            warps *= 2;
        }
        return warps;
    }
    const int elements = has_sorts(kernel) || has_scans(kernel) ? 8
                         : loads_in_loops(kernel)               ? 16
                                                                : 32;
    while (warps < kMaxWarps && tile > std::int64_t{warps} * 32 * elements) warps *= 2;
    return warps;
}

/// The largest buffer as text: its bytes and its use.
std::string largest_buffer(const schedule::Program& program) {
    const auto& buffers = program.buffers;
    const auto found = std::max_element(buffers.begin(), buffers.end(),
                                        [](const schedule::Buffer& a, const schedule::Buffer& b) {
                                            return a.slot_bytes() < b.slot_bytes();
                                        });
    return found == buffers.end() ? ""
                                  : fmt::format("{} for {}", found->slot_bytes(), found->purpose);
}

LoweredKernel lower(const ir::Function& kernel, const Target& target, int warps, int blocks,
                    int stages, bool workspace) {
    const KernelFacts facts(kernel, target, warps * blocks, stages);
    return lower_kernel(facts, Plan(facts), target, workspace, blocks);
}

/// Thread blocks of so many warps that may share each program: those of a cluster, where the grid
/// has so few programs that most of a GPU would have nothing to do. Two blocks of eight warps fit a
/// multiprocessor.
int most_blocks(const ir::Function& kernel, const Target& target, int warps) {
    constexpr int kFirstArch = 90, kLastArch = 109;  // other ones may have no clusters
    constexpr std::int64_t kMultiprocessors = 132;
    const int arch = number_of(target.arch);
    if (arch < kFirstArch || arch > kLastArch) return 1;
    const std::int64_t most = kMultiprocessors * (warps * 2 <= kMaxWarps ? 2 : 1);
    std::int64_t programs = 1;
    for (const std::int64_t extent : kernel.grid) {
        if (extent == ir::kDynamic || extent > most) return 1;
        programs *= extent;
    }
    int blocks = 1;
    while (blocks < kMostBlocks && programs * blocks * 2 <= most) blocks *= 2;
    return blocks;
}

/// Warps of a thread block that scans long lines piece by piece.
int warps_of_pieces(const ir::Function& kernel, const Target& target) {
    if (kernel.hints.num_warps > 0) return choose_warps(kernel);
    constexpr int kHalf = kMaxWarps / 2;
    return most_blocks(kernel, target, kHalf) == kMostBlocks ? kHalf : kMaxWarps;
}

/// Why blocks cannot share a program; empty: they can.
std::string why_not_shared(const ir::Function& kernel, const Target& target, int warps,
                           int blocks) {
    LoweredKernel lowered = lower(kernel, target, warps, blocks, kernel.hints.num_stages, false);
    schedule::place_shared(lowered.program);
    schedule::insert_barriers(lowered.program);
    return schedule::broken_sharing(lowered.program).value_or("");
}

/// How many thread blocks share a program: those of a cluster, which scan lines together.
int blocks_of(const ir::Function& kernel, const Target& target, int warps) {
    constexpr std::int64_t kFewest = 8;          // elements of a thread
    constexpr std::int64_t kFewestOfAll = 8192;  // a thread block has as many
    std::int64_t elements = 0;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        if (!is_scan(made)) return;
        elements = std::max(elements, kernel.type(made.result()).shape.size());
    });
    int blocks = most_blocks(kernel, target, warps);
    while (blocks > 1 && elements < kFewest * 32 * warps * blocks) blocks /= 2;
    if (elements < kFewestOfAll) blocks = 1;
    if (blocks == 1) return 1;
    const std::string reason = why_not_shared(kernel, target, warps, blocks);
    if (reason.empty()) return blocks;
    debug_log("cuda", "{}: thread blocks do not share programs: {}", kernel.name, reason);
    return 1;
}

/// The kernel with the most stages that fit, after the passes up to a level.
LoweredKernel lowered_to(schedule::Level up_to, const ir::Function& kernel, const Target& target) {
    const int warps = choose_warps(kernel), blocks = blocks_of(kernel, target, warps);
    if (kernel.hints.num_warps > 0 && kernel.hints.num_warps != warps) {
        debug_log("cuda", "{}: num_warps {} is rounded down to {}", kernel.name,
                  kernel.hints.num_warps, warps);
    }
    schedule::Program unplaced;
    const auto placed = [&](int stages, bool workspace) {
        LoweredKernel lowered = lower(kernel, target, warps, blocks, stages, workspace);
        if (up_to < schedule::Level::placed) unplaced = lowered.program;
        schedule::place_shared(lowered.program);
        return lowered;
    };
    const auto fits = [&](const LoweredKernel& lowered) {
        return lowered.program.shared_bytes <= target.shared_bytes;
    };
    const int asked = kernel.hints.num_stages;
    LoweredKernel lowered = placed(asked, false);
    // Two stages take the least memory that still overlaps; one is better than global scratch.
    int fewest = asked;
    for (int stages = 2; stages > 0 && asked == 0 && !fits(lowered); --stages) {
        fewest = stages;
        lowered = placed(stages, false);
    }
    if (!fits(lowered)) lowered = placed(fewest, true);
    if (!fits(lowered)) {
        const bool stages_help = asked > 1 && fits(placed(1, true));
        user_error(kernel.name,
                   "expected at most {} bytes of shared memory on {} but the kernel's tiles take "
                   "{}, the largest {}; {} would fit{}",
                   target.shared_bytes, target.arch, lowered.program.shared_bytes,
                   largest_buffer(lowered.program),
                   stages_help ? "fewer stages or smaller tiles" : "smaller tiles",
                   has_sorts(kernel)
                       ? "; what is sorted has to fit whole: sort longer lines by the "
                         "framework's sort before the kernel"
                       : "");
    }
    if (up_to < schedule::Level::placed) lowered.program = std::move(unplaced);
    schedule::check(lowered.program);
    if (up_to >= schedule::Level::synchronised) {
        schedule::insert_barriers(lowered.program);
        schedule::check(lowered.program);
    }
    return lowered;
}

}  // namespace

Target target_of(const std::string& arch) {
    for (const Size& known : kArchs) {
        if (known.arch == arch) return {arch, known.shared_bytes, {}};
    }
    std::string names;
    for (const Size& known : kArchs) {
        names += fmt::format("{}{}", names.empty() ? "" : ", ", known.arch);
    }
    user_error("cuda", "expected an architecture of {} but got `{}`", names, arch);
}

ir::Function prepare(ir::Function kernel, const std::string& arch) {
    ir::expand_scans(kernel, [&](const ir::Instruction& scan) {
        const std::string reason = no_combine_text(scan);
        if (!reason.empty()) {
            const ir::Location& at = scan.location;
            debug_log(kernel.name, "slow path: associative_scan in steps, since {}{}", reason,
                      at.file.empty() ? "" : fmt::format(" (at {}:{})", at.file, at.line));
        }
        return !reason.empty();
    });
    ir::optimise(kernel);
    ir::error_functions(kernel);
    const bool must = is_too_large(kernel);
    if (!must && !is_better_cut(kernel)) return kernel;
    ir::RetileOptions options;
    options.schedule = ir::RetileOptions::Schedule::grid;
    const bool wide = has_wide_tiles(kernel);
    options.rows = options.columns = wide ? 64 : 128;
    options.k_chunk = wide ? 16 : 32;
    options.max_tile_elements = wide ? 4096 : 16384;
    ir::Function cut = kernel;
    if (ir::try_retile(cut, options).refusal.empty()) {
        ir::optimise(cut);
        return cut;
    }
    ir::StreamScansReport streamed;
    const Target target = target_of(arch);
    const int shared_warps = warps_of_pieces(kernel, target);
    for (const int blocks : {most_blocks(kernel, target, shared_warps), 1}) {
        cut = kernel;
        // Few elements a thread, so that all loads can be an iteration ahead.
        if (cut.hints.num_warps == 0) cut.hints.num_warps = blocks > 1 ? shared_warps : kMaxWarps;
        streamed = ir::stream_scans(cut, scanned_at_once(cut, blocks) * blocks);
        if (!streamed.changed()) break;
        ir::optimise(cut);
        if (blocks == 1 || blocks_of(cut, target, choose_warps(cut)) > 1) return cut;
    }
    if (!streamed.refusal.empty()) {
        debug_log("cuda", "{}: scans are not done piece by piece: {}", kernel.name,
                  streamed.refusal);
    }
    if (must) ir::retile(cut, options);  // says why not
    return kernel;                       // it may fit uncut
}

Generated generate(const ir::Function& kernel, const Target& target) {
    LoweredKernel lowered = lowered_to(schedule::Level::synchronised, kernel, target);
    Generated& generated = lowered.generated;
    generated.shared_bytes = static_cast<int>(lowered.program.shared_bytes);
    generated.largest = largest_buffer(lowered.program);
    const schedule::ThreadText text = schedule::print_threads(lowered.program);
    const int blocks = lowered.program.blocks, warps = lowered.program.warps() / blocks;
    const bool shares = blocks > 1;
    generated.source = fmt::format(
        R"(// Generated from @{} for {}: {} warps{}, {} bytes of shared memory.
#include "cuda/device/ptx/matrix_move.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/tile/memory.cuh"
{}using namespace twd;
{}
extern "C" __global__ void __launch_bounds__({}{}) {}({}) {{
    extern __shared__ __align__(1024) u8 memory[];
    [[maybe_unused]] const u32 memory_address = shared_address(memory);
    [[maybe_unused]] const int lane = threadIdx.x & 31, warp = {}threadIdx.x >> 5{};
{}}}
)",
        kernel.name, target.arch, warps, shares ? fmt::format(" of {} blocks each", blocks) : "",
        generated.shared_bytes, text.includes, text.functions, generated.threads,
        lowered.launch_bounds, generated.name, lowered.parameters, shares ? "(" : "",
        shares ? fmt::format(") + {} * ptx::cluster_rank()", warps) : "", text.statements);
    return std::move(generated);
}

schedule::Program scheduled_without_roles(const ir::Function& kernel, const Target& target,
                                          schedule::Level up_to) {
    return lowered_to(up_to, kernel, target).program;
}

CompileRequest compile_request(const Generated& generated, const std::string& arch) {
    CompileRequest request;
    request.name = generated.name + ".cu";
    request.source = generated.source;
    request.headers = generated.headers;
    request.arch = arch;
    return request;
}

}  // namespace tilewright::cuda
