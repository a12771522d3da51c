// Fences and barriers of panels and of what warpgroups share; barriers of programs without roles.
#include "cuda/schedule/insert_barriers.h"

#include "cuda/schedule/memory_order.h"

namespace tilewright::cuda::schedule {
namespace {

void order(Block& block) {
    std::vector<Instruction> body;
    bool written = false;
    for (Instruction& made : block.body) {
        for (Block& inner : made.blocks) order(inner);
        if (made.is(Op::store_shared) && !written) {
            // The panel before may still be read, from the other slot.
            body.push_back(std::move(make(Op::wait_stores, {}).with("pending", 1)));
            body.push_back(make(Op::group_sync, {}));
            written = true;
        }
        if (made.is(Op::tma_store) && written) {
            body.push_back(make(Op::fence_async, {}));
            body.push_back(make(Op::group_sync, {}));
            written = false;
        }
        // All warpgroups have read what was shared before, and have written when it is read.
        const bool shares = made.is(Op::share);
        if (shares) body.push_back(make(Op::all_sync, {}));
        body.push_back(std::move(made));
        if (shares) {
            body.push_back(make(Op::fence_async, {}));
            body.push_back(make(Op::all_sync, {}));
        }
    }
    block.body = std::move(body);
}

/// Barriers where an access needs one, after copies that it needs, too.
void order_threads(Block& block, MemoryOrder& order, Op barrier) {
    std::vector<Instruction> body;
    body.reserve(block.body.size());
    const auto follow = [&](Instruction&& made) {
        order.follow(made, [&](Block& inner) { order_threads(inner, order, barrier); });
        body.push_back(std::move(made));
    };
    const auto wait = [&](std::int64_t pending) {
        Instruction made = make(Op::wait_copies, {});
        follow(std::move(made.with("pending", pending)));
    };
    for (Instruction& made : block.body) {
        if (made.is(Op::settle_copies)) {
            if (order.has_copies()) wait(made.number("pending"));
            continue;
        }
        if (is_access(made)) {
            if (order.needs_copies(made)) wait(0);
            if (order.needs_barrier(made)) follow(make(barrier, {}));
        }
        follow(std::move(made));
    }
    block.body = std::move(body);
}

}  // namespace

void insert_barriers(Program& program) {
    if (!has_roles(program)) {
        MemoryOrder order(program);
        order_threads(program.body, order, program.blocks > 1 ? Op::meet : Op::barrier);
    } else {
        order(program.body);
    }
    program.level = Level::synchronised;
}

}  // namespace tilewright::cuda::schedule
