// One buffer after the other, then the barriers; in programs without roles by lifetimes.
#include "cuda/schedule/place_shared.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/schedule/lifetimes.h"
#include "support/integer.h"

namespace tilewright::cuda::schedule {
namespace {

/// First fit by decreasing size.
void place_by_lifetimes(Program& program) {
    const std::map<std::string, Lifetime> lives = lifetimes(program);
    std::vector<Buffer*> order;
    for (Buffer& one : program.buffers) order.push_back(&one);
    std::stable_sort(order.begin(), order.end(), [](const Buffer* a, const Buffer* b) {
        return a->slot_bytes() > b->slot_bytes();
    });
    program.shared_bytes = 0;
    std::vector<const Buffer*> placed;
    for (Buffer* const buffer : order) {
        buffer->offset = 0;
        if (!lives.contains(buffer->name)) continue;  // nothing accesses it
        std::vector<const Buffer*> alive;
        for (const Buffer* other : placed) {
            if (lives.at(other->name).meets(lives.at(buffer->name))) alive.push_back(other);
        }
        std::sort(alive.begin(), alive.end(),
                  [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; });
        std::int64_t offset = 0;
        for (const Buffer* other : alive) {
            if (offset + buffer->slot_bytes() <= other->offset) break;
            offset = std::max(offset, other->offset + other->slot_bytes());
        }
        buffer->offset = offset;
        program.shared_bytes = std::max(program.shared_bytes, offset + buffer->slot_bytes());
        placed.push_back(buffer);
    }
    program.level = Level::placed;
}

}  // namespace

void place_shared(Program& program) {
    if (!has_roles(program)) return place_by_lifetimes(program);
    constexpr std::int64_t kMost = 227 * 1024, kAlignment = 1024, kBarrier = 8;
    std::int64_t at = 0;
    for (Buffer& buffer : program.buffers) {
        buffer.offset = at;
        const int copies = buffer.per_group ? program.all_consumer_groups() : 1;
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
