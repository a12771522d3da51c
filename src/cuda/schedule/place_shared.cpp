// One buffer after the other, then the barriers.
#include "cuda/schedule/place_shared.h"

#include <fmt/format.h>

#include "support/integer.h"

namespace tilewright::cuda::schedule {

void place_shared(Program& program) {
    constexpr std::int64_t kMost = 227 * 1024, kAlignment = 1024, kBarrier = 8;
    std::int64_t at = 0;
    for (Buffer& buffer : program.buffers) {
        buffer.offset = at;
        const int copies = buffer.per_group ? program.consumer_groups() : 1;
        at += buffer.slot_bytes() * buffer.slots * copies;
        at = ceil_div(at, kAlignment) * kAlignment;
    }
    for (Channel& channel : program.channels) {
        channel.full = at;
        channel.empty = at + kBarrier * channel.slots;
        at = channel.empty + kBarrier * channel.slots;
    }
    if (at > kMost) throw Refused(fmt::format("its buffers take {} bytes of shared memory", at));
    program.shared_bytes = at;
    program.level = Level::placed;
}

}  // namespace tilewright::cuda::schedule
