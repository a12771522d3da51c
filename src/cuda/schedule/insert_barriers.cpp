// Fences and barriers of panels.
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
        body.push_back(std::move(made));
    }
    block.body = std::move(body);
}

}  // namespace

void insert_barriers(Program& program) {
    order(program.body);
    program.level = Level::synchronised;
}

}  // namespace tilewright::cuda::schedule
