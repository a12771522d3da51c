// Hello: adds two vectors in one program that sees the whole arrays.
#include "check.h"

namespace tw = tilewright;

int main() {
    auto add_vectors = tw::kernel(
        "add_vectors", [](tw::Ref x, tw::Ref y, tw::Ref z) { z.store(x.load() + y.load()); });
    auto call = tw::call(add_vectors, {.out_type = {{tw::f32, {8}}}});

    const tw::Tensor x = tw::Tensor::arange(tw::f32, 8);
    const tw::Tensor z = call(x, x);

    for (float value : z.to_vector<float>()) std::printf("%g ", value);
    std::printf("\n");
    return examples::check("add_vectors", z, 0, [](std::int64_t i) { return 2.0 * i; });
}
