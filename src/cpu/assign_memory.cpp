// Places tile buffers, scratch and strip temporaries in the arena of a thread.
#include "cpu/assign_memory.h"

#include <algorithm>

namespace tilewright::cpu {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) {
    return ceil_div(bytes, kAlignment) * kAlignment;
}

}  // namespace

void assign_memory(Program& program) {
    std::int64_t end = 0;
    for (Buffer& buffer : program.buffers) {
        buffer.offset = end;
        end += aligned(buffer.bytes);
    }
    for (RefSlot& ref : program.refs) {
        if (ref.argument >= 0) continue;
        std::int64_t elements = 1;
        for (const std::int64_t extent : ref.type.extents) elements *= extent;
        ref.offset = end;
        end += aligned(elements * size_of(ref.type.dtype));
    }
    program.strip_offset = end;
    std::int64_t temporaries = 0;
    for (const Instruction& instruction : program.code) {
        if (const auto* chain = std::get_if<Chain>(&instruction)) {
            temporaries = std::max<std::int64_t>(temporaries, chain->num_temporaries);
        }
    }
    program.arena_bytes = end + temporaries * program.strip_bytes + kAlignment;
}

}  // namespace tilewright::cpu
