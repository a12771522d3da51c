// The driver's CUlaunchConfig and CUlaunchAttribute.
#pragma once

#include "cuda/runtime/driver.h"
#include "cuda/runtime/kernel.h"

namespace tilewright::cuda {

struct LaunchAttribute {
    int id;
    char pad[4];
    union {
        unsigned cluster[3];
        char bytes[64];
    } value;
};
static_assert(sizeof(LaunchAttribute) == 72);
inline constexpr int kLaunchAttributeCluster = 4;

struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    StreamHandle stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};

/// `cluster` must live as long as the result.
inline LaunchConfig config_of(const Kernel& kernel, const LaunchShape& shape,
                              LaunchAttribute& cluster) {
    LaunchConfig config{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
        config.grid[axis] = shape.grid[axis];
        config.block[axis] = shape.block[axis];
    }
    config.shared_bytes = static_cast<unsigned>(kernel.dynamic_shared_bytes);
    if (shape.cluster != std::array<unsigned, 3>{1, 1, 1}) {
        cluster.id = kLaunchAttributeCluster;
        for (std::size_t axis = 0; axis < 3; ++axis) {
            cluster.value.cluster[axis] = shape.cluster[axis];
        }
        config.attributes = &cluster;
        config.attribute_count = 1;
    }
    return config;
}

}  // namespace tilewright::cuda
