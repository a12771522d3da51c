// Shared memory of the Hopper kernels: the host reserves as many bytes as the kernels lay out, or
// they do not compile.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "tests/attention/sm90_backward_support.h"

namespace tilewright::attn::sm90 {
namespace {

constexpr int kAlignment = 1024;  // of the base, which the host adds

/// What the compiler says where the host would reserve 16 bytes more than it does.
std::string log_of_another_size(cuda::CompileRequest request, int reserved) {
    const std::string was = fmt::format("kReservedBytes = {};", reserved);
    int changed = 0;
    for (cuda::Header& header : request.headers) {
        const std::size_t at = header.text.find(was);
        if (at == std::string::npos) continue;
        ++changed;
        header.text.replace(at, was.size(), fmt::format("kReservedBytes = {};", reserved + 16));
    }
    EXPECT_EQ(changed, 1) << request.name;
    try {
        cuda::compile(request);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "compiled";
}

TEST(Sm90Memory, KernelsDoNotCompileForAnotherNumberOfBytes) {
    TW_REQUIRE_NVRTC();
    const Problem problem{.q_len = 1024, .kv_len = 1024, .dim = 64, .value_dim = 64};
    const auto matches = testing::HasSubstr("the host reserves another number of bytes");
    const ForwardDesc forward = check_forward(inputs_of(problem));
    const ForwardConfig config = choose_forward(forward, 132);
    EXPECT_THAT(log_of_another_size(generate_forward(forward, config),
                                    forward_shared_bytes(forward, config) - kAlignment),
                matches);
    const BackwardDesc backward = check_backward(backward_inputs_of(problem));
    const BackwardConfig tiles = choose_backward(backward);
    EXPECT_THAT(log_of_another_size(generate_backward(backward, tiles).front(),
                                    backward_shared_bytes(backward, tiles) - kAlignment),
                matches);
}

}  // namespace
}  // namespace tilewright::attn::sm90
