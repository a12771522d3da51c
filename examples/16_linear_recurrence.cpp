// The recurrence of state-space models, h[t] = a[t] h[t - 1] + b[t], as a scan of affine maps:
// their composition is associative, so all steps of a sequence are computed in parallel.
#include "check.h"

namespace tw = tilewright;

int main() {
    constexpr std::int64_t kChannels = 24, kLength = 300, kBlock = 8;
    const tw::BlockSpec channels{{kBlock, tw::all}, [](auto i) { return tw::block(i, 0); }};

    // One map after another: x -> g(f(x)).
    const auto then = [](auto f, auto g) {
        return std::pair(f.first * g.first, f.second * g.first + g.second);
    };
    auto recurrence = tw::call(tw::kernel("recurrence",
                                          [then](tw::Ref a, tw::Ref b, tw::Ref h) {
                                              const auto maps = std::pair(a.load(), b.load());
                                              h.store(tw::associative_scan(then, maps, 1).second);
                                          }),
                               {.grid = {kChannels / kBlock},
                                .in = {channels, channels},
                                .out = {channels},
                                .out_type = {{tw::f32, {kChannels, kLength}}}});

    const tw::Tensor a = examples::random_tensor({kChannels, kLength}, 1);
    const tw::Tensor b = examples::random_tensor({kChannels, kLength}, 2);
    const tw::Tensor h = recurrence(a, b);

    const auto decay = a.to_vector<double>(), input = b.to_vector<double>();
    std::vector<double> expected;
    for (std::size_t i = 0; i < decay.size(); ++i) {
        const double before = i % kLength == 0 ? 0 : expected.back();
        expected.push_back(decay[i] * before + input[i]);
    }
    return examples::check("linear recurrence", h, 1e-5,
                           [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; });
}
