// Rebuilds values on demand: only the part of a tile that a sub-tile needs.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "ir/passes/retile.h"
#include "ir/passes/source_map.h"

namespace tilewright::ir {

/// Part of an axis: [offset, offset + size).
struct Range {
    Value offset;  ///< i64 scalar; none means 0
    std::int64_t size = 1;
    std::int64_t multiple = 0;  ///< the offset is a multiple of this (0: the offset is 0)
    bool operator==(const Range& other) const {
        return offset == other.offset && size == other.size;
    }
};

/// Part of a tile, one range per axis.
using Region = std::vector<Range>;

Region whole(const Shape& shape);
bool is_whole(const Region& region, const Shape& shape);
Shape shape_of(const Region& region);

/// Emits, through a builder, regions of values of a source function.
class Demand {
  public:
    Demand(const SourceMap& source, Builder& builder, const RetileOptions& options)
        : source_(source), b_(builder), options_(options) {}

    /// The region of a source value as a value of the target. If it cannot be separated, that is a
    /// refusal, and this a placeholder of the same type.
    Value get(Value value, const Region& region);
    Value get_whole(Value value);

    /// Why the first value that could not be separated could not; empty: all could. What was
    /// emitted since is of no use, and no more is separated before the refusal is forgotten.
    const std::string& refusal() const { return refusal_; }
    void refuse(std::string reason) {
        if (!stopped()) refusal_ = std::move(reason);
    }
    void forget_refusal() { refusal_.clear(); }

    /// Notes that a source value exists unchanged in the target, until the scope ends.
    void keep(Value value) { note({value, whole(source_.function().type(value).shape)}, value); }

    /// Sets the instructions for which values are rebuilt: loads must be able to move there, and
    /// loads of what they write must read the same elements.
    void set_roots(std::vector<const Instruction*> roots, Region region);

    /// Narrows an access's operands (after the Ref) and attributes to a region of its tile.
    void narrow_access(const Instruction& from, const Region& region, Instruction& to);

    /// Runs `body` over an axis in chunks: in a loop for the whole ones, once for the remainder.
    using ChunkBody =
        std::function<std::vector<Value>(Range chunk, std::span<const Value> carries)>;
    std::vector<Value> stream(std::int64_t extent, std::int64_t chunk, std::vector<Value> init,
                              const ChunkBody& body);

    /// Values emitted between construction and destruction are visible only there.
    class Scope {
      public:
        explicit Scope(Demand& demand) : demand_(demand), notes_(demand.notes_.size()) {
            ++demand_.depth_;
        }
        ~Scope();
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

      private:
        Demand& demand_;
        std::size_t notes_;
    };

    Value sum(Value a, Value b);
    Value times(Value a, std::int64_t factor);
    Value index(std::int64_t value) { return b_.constant_int({DType::i64, {}}, value); }

  private:
    struct Key {
        Value value;
        Region region;
        bool operator<(const Key& other) const;
    };
    /// A loop being rebuilt, with the regions of the carries found to be needed so far.
    struct Frame {
        const Instruction* loop;
        std::map<std::size_t, Region> carries;
        int depth;
    };
    /// A carry that the loop of a frame needs and lacks. Until the loop is rebuilt, the values that
    /// depend on it are placeholders.
    struct MissingCarry {
        const Frame* frame;
        std::size_t carry;
        Region region;
    };

    void note(Key key, Value value);
    Value build(Value value, const Region& region);
    /// Notes a refusal; the value that it returns stands for none.
    Value refuse(const Instruction& at, std::string_view reason);
    bool stopped() const { return !refusal_.empty() || missing_; }
    Value placeholder(Value value, const Region& region);

    Value carry(Value value, const Definition& from, const Region& region);
    Value for_loop(const Instruction& loop, std::size_t result, const Region& region);
    std::optional<Value> try_loop(const Instruction& loop, std::size_t result, Frame& frame);
    Value if_else(const Instruction& branch, std::size_t result, const Region& region);
    Value elementwise(const Instruction& from, const Region& region);
    Value iota(const Instruction& from, const Region& region);
    Value load(const Instruction& from, const Region& region);
    Value reshape(const Instruction& from, const Region& region);
    Value slice(const Instruction& from, const Region& region);
    Value shape_op(const Instruction& from, const Region& region);
    Value concatenate(const Instruction& from, const Region& region);
    Value reduce(const Instruction& from, const Region& region);
    bool has_whole_axis(const Instruction& scan, std::size_t axis, const Region& region);
    Value associative_scan(const Instruction& from, std::size_t result, const Region& region);
    Value sort(const Instruction& from, const Region& region);
    Value stream_reduce(const Instruction& from, const Region& region, std::int64_t chunk);
    Value stream_extreme(const Instruction& from, const Region& region, std::int64_t chunk);
    Value dot(const Instruction& from, const Region& region);
    Value copy(const Instruction& from, std::vector<Value> operands, const Shape& shape);
    Value constant(const Type& type, std::uint64_t bits);

    const Shape& source_shape(Value value) const { return source_.function().type(value).shape; }

    const SourceMap& source_;
    Builder& b_;
    const RetileOptions& options_;
    std::map<Key, Value> known_;
    std::vector<Key> notes_;  // keys of known_, innermost scope last
    std::vector<Frame*> frames_;
    std::string refusal_;
    std::optional<MissingCarry> missing_;  // with which a loop around is to be rebuilt
    std::vector<const Instruction*> roots_;
    Region root_region_;
    std::map<Value, int> offset_depths_;  // number of scopes around the definition of an offset
    int depth_ = 0;
    int dot_depth_ = 0;  // dots whose contracted axis is being streamed
};

}  // namespace tilewright::ir
