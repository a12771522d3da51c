// A grid: each of eight programs writes its own index. No inputs, scalar stores.
#include "check.h"

namespace tw = tilewright;

int main() {
    auto iota = tw::kernel("iota", [](tw::Ref z) {
        const tw::Tile i = tw::program_id(0);
        z.at(i).store(i.to(tw::i32));
    });
    auto call = tw::call(iota, {.grid = {8}, .out_type = {{tw::i32, {8}}}});

    const tw::Tensor z = call();

    return examples::check("iota", z, 0, [](std::int64_t i) { return i; });
}
