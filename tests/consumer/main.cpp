// Uses the installed headers and library as a user would: traces a kernel and runs it.
#include <tilewright/tilewright.h>
#include <tilewright/version.h>

#include <cstdio>
#include <string_view>

namespace tw = tilewright;

int main() {
    if (std::string_view(tw::version()) != TILEWRIGHT_VERSION) return 1;
    const auto twice =
        tw::kernel("twice", [](tw::Ref x, tw::Ref y) { y.store(x.load() + x.load()); });
    const auto call = tw::call(twice, {.out_type = {{tw::f32, {4}}}});
    const tw::Tensor y = call(tw::Tensor::arange(tw::f32, 4));
    for (std::int64_t i = 0; i < 4; ++i) {
        if (!(y.get({i}) == 2.0 * static_cast<double>(i))) return 1;
    }
    std::printf("tilewright %s\n", tw::version());
}
