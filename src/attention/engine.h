// What runs attention: the interface of engines, their list, and the choice among them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/buffers.h"
#include "attention/spec.h"
#include "tilewright/run.h"

namespace tilewright::attn {

/// How an engine runs a call: blocks, stages and other choices, in a type of the engine's own.
class EngineConfig {
  public:
    EngineConfig() = default;
    EngineConfig(const EngineConfig&) = delete;
    EngineConfig& operator=(const EngineConfig&) = delete;
    virtual ~EngineConfig() = default;
    /// The numbers that tell the configurations of a call apart, for the autotuner.
    virtual Config numbers() const = 0;
};

using ConfigPtr = std::shared_ptr<const EngineConfig>;

/// One way to run attention. Forward and backward go through the same functions; the spec says
/// which pass it is.
class Engine {
  public:
    Engine() = default;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    virtual ~Engine() = default;

    virtual EngineId id() const = 0;
    /// For the debug log: "tile programs".
    virtual const char* description() const = 0;

    /// Why this engine cannot run the call, or nothing if it can.
    virtual std::optional<Refusal> supports(const AttentionSpec& spec) const = 0;
    /// The configuration for a supported call, with the caller's hints taken into account.
    virtual ConfigPtr choose(const AttentionSpec& spec) const = 0;
    /// Configurations worth measuring for the call; the first is taken where nothing can be
    /// measured.
    virtual std::vector<ConfigPtr> trials(const AttentionSpec& spec) const {
        return {choose(spec)};
    }
    /// Bytes of scratch that a launch needs in `AttentionBuffers::workspace`.
    virtual std::int64_t workspace(const AttentionSpec& spec, const EngineConfig& config) const = 0;
    /// Runs the call. On a GPU the work is queued on `stream`, this thread's stream, and the
    /// function does not wait for it.
    virtual void launch(const AttentionSpec& spec, const EngineConfig& config,
                        const AttentionBuffers& buffers, void* stream) const = 0;
    /// Are results unaffected by infinities and NaN in keys that no query of a tile attends to?
    virtual bool isolates_hidden_keys(const AttentionSpec&) const { return true; }
};

/// Every engine, in the order in which they are tried.
std::span<const Engine* const> engines();

/// The engine for a call: the one that the caller asked for, else the first that supports it.
/// UserError when there is none. The debug log says why the others do not support it.
const Engine& choose_engine(const AttentionSpec& spec,
                            std::span<const Engine* const> among = engines());

/// Configures a call that the engine supports, by measurement if the caller asks for it, and runs
/// it.
void run_on(const Engine& engine, const AttentionSpec& spec, AttentionBuffers buffers);

/// Instructions of the mod's function, and of those that it calls, apart from constants.
std::int64_t num_operations(const ModSpec& mod);

}  // namespace tilewright::attn
