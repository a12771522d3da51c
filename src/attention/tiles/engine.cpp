// Tile programs as an engine.
#include "attention/tiles/engine.h"

#include "attention/tiles/launch.h"

namespace tilewright::attn::tiles {
namespace {

const TilesConfig& own(const EngineConfig& config) {
    return static_cast<const TilesConfig&>(config);
}

/// Packed sequences run one by one: each chooses its blocks and has its own scratch.
void launch_sequences(const AttentionSpec& spec, const TilesConfig& whole,
                      const AttentionBuffers& buffers) {
    for_each_sequence(spec, [&](std::size_t n) {
        Work work = sequence(spec, buffers, n);
        work.spec.forward_blocks = *whole.each_sequence;
        const auto config = choose(work.spec, whole.features);
        const std::int64_t bytes = forward_workspace(work.spec, *config);
        if (bytes > 0) work.buffers.workspace = Tensor::empty(u8, {bytes}, spec.device);
        launch_forward(work.spec, *config, work.buffers);
    });
}

class TilesEngine : public Engine {
  public:
    EngineId id() const override { return EngineId::tiles; }
    const char* description() const override { return "tile programs"; }

    std::optional<Refusal> supports(const AttentionSpec&) const override { return std::nullopt; }

    ConfigPtr choose(const AttentionSpec& spec) const override {
        return tiles::choose(spec, features_of(spec));
    }

    std::vector<ConfigPtr> trials(const AttentionSpec& spec) const override {
        return tiles::trials(spec);
    }

    std::int64_t workspace(const AttentionSpec& spec, const EngineConfig& config) const override {
        if (spec.packed()) return 0;
        return spec.pass == Pass::forward ? forward_workspace(spec, own(config))
                                          : backward_workspace(spec, own(config));
    }

    void launch(const AttentionSpec& spec, const EngineConfig& config,
                const AttentionBuffers& buffers, void*) const override {
        if (spec.pass == Pass::backward) return launch_backward(spec, own(config), buffers);
        if (spec.packed()) return launch_sequences(spec, own(config), buffers);
        launch_forward(spec, own(config), buffers);
    }
};

}  // namespace

const Engine& engine() {
    static const TilesEngine kEngine;
    return kEngine;
}

}  // namespace tilewright::attn::tiles
