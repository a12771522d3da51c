// Fences and barriers of panels and of what warpgroups share.
#include "cuda/schedule/insert_barriers.h"

namespace tilewright::cuda::schedule {
namespace {

void order(Block& block) {
    std::vector<Instruction> body;
    bool written = false;
    for (Instruction& made : block.body) {
        for (Block& inner : made.blocks) order(inner);
        if (made.is(Op::store_shared)) written = true;
        if (made.is(Op::tma_store) && written) {
            body.push_back(make(Op::fence_async, {}));
            body.push_back(std::move(make(Op::wait_stores, {}).with("pending", 0)));
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

}  // namespace

void insert_barriers(Program& program) {
    order(program.body);
    program.level = Level::synchronised;
}

}  // namespace tilewright::cuda::schedule
