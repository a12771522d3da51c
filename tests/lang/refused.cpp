// Must not compile: mistakes that C++ itself finds. Each test selects one and looks for the advice.
#include "tilewright/lang.h"

namespace tw = tilewright;

#if defined(TRUTH_VALUE)
void branch_on(tw::Tile x) {
    if (x > 0) tw::debug_print("never");
}
#elif defined(KERNEL_RESULT)
const auto k = tw::kernel("k", [](tw::Ref x) { return x.load(); });
#elif defined(INDEX_MAP_RESULT)
const tw::BlockSpec spec{{4}, [](auto i) { return i; }};
#elif defined(BODY_RESULT)
void lost_sum(tw::Tile sum) {
    tw::for_loop(0, 4, [&](tw::Tile i) { return sum + i; });
}
#elif defined(NO_CARRY)
tw::Tile forgotten(tw::Tile sum) {
    return tw::for_loop(0, 4, sum, [&](tw::Tile i, tw::Tile carry) { sum = carry + i; });
}
#elif defined(CARRY_OF_NUMBERS)
struct State {
    tw::Tile sum;
    double count;
};
void carries(State state) {
    tw::for_loop(0, 4, state, [](tw::Tile, State s) { return s; });
}
#endif
