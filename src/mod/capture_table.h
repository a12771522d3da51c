// The captures of the mod that is being traced, and the Refs that represent them.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "ir/passes/intervals.h"
#include "lang/tracer.h"
#include "tilewright/mod.h"

namespace tilewright::mod {

/// Lives as long as the trace of one mod; captures that are indexed in this time become parameters.
class CaptureTable {
  public:
    explicit CaptureTable(lang::Tracer& tracer);
    ~CaptureTable();
    CaptureTable(const CaptureTable&) = delete;
    CaptureTable& operator=(const CaptureTable&) = delete;

    /// The table of the trace in progress. UserError when no mod is being traced.
    static CaptureTable& current();

    lang::Tracer& tracer() { return tracer_; }
    /// The Ref of this capture, which becomes a new parameter at its first use.
    ir::Value ref(const Capture& capture);
    const std::vector<Capture>& captures() const { return captures_; }

    /// Checked mode: the parameter that says whether the pair attends.
    void set_attends(ir::Value attends) { attends_ = attends; }
    ir::Value attends() const { return attends_; }

    /// Registers one of b, h, q, kv of the traced mod, which are not negative.
    void set_position(ir::Value position);
    /// Is the integer scalar known not to be negative?
    bool is_natural(ir::Value value);

  private:
    std::string parameter_name(const Capture& capture) const;

    lang::Tracer& tracer_;
    CaptureTable* outer_;
    ir::Value attends_;
    std::vector<Capture> captures_;
    std::vector<ir::Value> refs_;
    std::map<ir::Value, ir::Interval> ranges_;  ///< ranges of integers in the function's body
    std::size_t scanned_ = 0;                   ///< instructions of the body that were analysed
};

}  // namespace tilewright::mod
