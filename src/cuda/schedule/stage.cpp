// Loads of the loop become copies by TMA, or by the producer's threads, into a ring of slots.
#include "cuda/schedule/stage.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/schedule/stage_chain.h"
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::int64_t kSharedBytes = 227 * 1024;  // of a block, on SM90
constexpr std::int64_t kBarrierBytes = 1024;       // reserved
constexpr std::int64_t kMostBox = 256;             // elements of a box along one axis
constexpr std::size_t kMostRank = 5;               // of a tensor map
constexpr int kMostSlots = 8;
constexpr int kHeldSlots = 2;  // read by products in flight, while copies fill the others
constexpr std::int64_t kPanelBytes = 64 * 128;         // of a warpgroup
constexpr std::int64_t kStoreBytes = 2 * kPanelBytes;  // of its stores

/// The box of an access; Refused where no map can have it.
std::vector<std::int64_t> box_of(const Parameter& ref, const Instruction& access,
                                 const char* what) {
    if (!ref.tensor) {
        throw Refused(
            fmt::format("TMA cannot {} `{}`: it is empty or too large, its "
                        "last stride is not 1, or its address or another stride no "
                        "multiple of 16 bytes",
                        what, ref.name));
    }
    const std::vector<std::int64_t>& sizes = access.list("index");
    if (sizes.size() > kMostRank) {
        throw Refused(fmt::format("`{}` has more than 5 dimensions", ref.name));
    }
    if (sizes.empty() || sizes.back() == 0) {
        throw Refused(fmt::format("`{}` is not accessed along its last dimension", ref.name));
    }
    std::vector<std::int64_t> box;
    for (std::int64_t size : sizes) box.push_back(std::max<std::int64_t>(size, 1));
    return box;
}

/// A tile of the shape of the sums, with which they are combined, that TMA can load.
bool can_load_ahead(const Program& program, const Instruction& load) {
    if (!load.is(ir::Op::load) || load.has("masked") || load.has("other")) return false;
    if (sums_of(program) != Sums::plain || program.groups[1] != 1) return false;
    if (program.wanted_pairs != Pairs::none) return false;  // clusters have one channel
    const Parameter& ref = program.ref(load.symbol("of"));
    const std::vector<std::int64_t>& sizes = load.list("index");
    const ir::Shape& shape = program.type(load.result()).type.shape;
    return ref.tensor && (ref.dtype == DType::bf16 || ref.dtype == DType::f16) &&
           sizes.size() <= kMostRank && !sizes.empty() && sizes.back() > 0 &&
           std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size >= 0; }) &&
           shape.rank() == 2 && shape[0] % (kRows * program.groups[0]) == 0 &&
           shape[1] % kPanel == 0;
}

/// Marks the first load that TMA does ahead of the epilogue: no store comes before it, which might
/// change what it reads.
void mark_loads_ahead(Program& program) {
    // Threads publish their last copies with those of the next program, so the producer must not
    // wait for this one's epilogue.
    for (const Parameter& one : program.parameters) {
        if (one.copy_bytes > 0) return;
    }
    for (Instruction& made : program.body.body) {
        if (made.op == Op::tile && !made.is(ir::Op::for_loop) && !ir::is_pure(made.tile) &&
            !made.is(ir::Op::load)) {
            return;
        }
        if (!can_load_ahead(program, made)) continue;
        made.flag("ahead");
        return;
    }
}

class Staging {
  public:
    explicit Staging(Program& program) : p_(program), uses_(program) {}

    void run() {
        const auto is_loop = [](const Instruction& made) { return made.is(ir::Op::for_loop); };
        const auto at = std::find_if(p_.body.body.begin(), p_.body.body.end(), is_loop);
        if (at != p_.body.body.end()) loop(*at);  // which moves the loop
    }

  private:
    void loop(Instruction& loop) {
        Block& body = loop.blocks[0];
        for (const Instruction& made : body.body) {
            if (made.is(ir::Op::load)) pieces_[made.result()] = piece_bytes(made, loop);
        }
        Channel channel;
        channel.name = "operands";
        channel.empty_arrivals = 4 * p_.consumer_groups();
        const Value count = p_.add({true, {}, {}}, "n");
        Block iteration;
        iteration.arguments = body.arguments;
        iteration.arguments.push_back(count);
        std::vector<Instruction> copies, reads, products, sums;
        std::map<Value, std::string> buffers;
        for (Instruction& made : body.body) {
            if (made.is(ir::Op::load)) {
                buffers[made.result()] = copy(made, channel, count, copies);
            } else if (made.is(Op::read_fragments)) {
                reads.push_back(std::move(made));
            } else if (made.is(Op::wgmma)) {
                products.push_back(std::move(made));
            } else if (made.is(ir::Op::add) && p_.is_tile(made.result())) {
                sums.push_back(std::move(made));
            } else if (!made.is(ir::Op::yield)) {
                iteration.body.push_back(std::move(made));
            }
        }
        const auto add = [&](Instruction made) { iteration.body.push_back(std::move(made)); };
        slots(channel);
        add(std::move(make(Op::acquire, {count}).with_symbol("channel", channel.name)));
        if (channel.bytes > channel.copied) {
            add(std::move(make(Op::publish, {count}).with_symbol("channel", channel.name)));
        }
        for (Instruction& made : copies) add(std::move(made));
        if (channel.copied > 0) {
            Instruction full = make(Op::publish_copies, {count});
            add(std::move(
                full.with_symbol("channel", channel.name).with("lag", channel.slots - kHeldSlots)));
        }
        add(std::move(make(Op::await, {count}).with_symbol("channel", channel.name)));
        for (Instruction& made : reads) {
            made.with_symbol("reads", buffers.at(made.operands[0]));
            made.with_symbol("channel", channel.name);
            made.operands = {count};
            add(std::move(made));
        }
        for (Instruction& made : products) {
            const std::size_t n = made.operands.size(), tiles = made.has("registers") ? 1 : 2;
            if (tiles == 2) made.with_symbol("a", buffers.at(made.operands[n - 2]));
            made.with_symbol("b", buffers.at(made.operands[n - 1]));
            made.with_symbol("channel", channel.name);
            made.operands.resize(n - tiles);
            made.operands.push_back(count);
            add(std::move(made));
        }
        add(std::move(make(Op::release, {count}).with_symbol("channel", channel.name)));
        for (Instruction& made : sums) add(std::move(made));
        const Value next = p_.add({true, {}, {}});
        add(std::move(make(Op::next, {count}, {next}).with_symbol("channel", channel.name)));
        Instruction yield = std::move(body.body.back());
        yield.operands.push_back(next);
        add(std::move(yield));
        body = std::move(iteration);

        const Value first = p_.add({true, {}, {}});
        loop.operands.push_back(first);
        loop.results.push_back(p_.add({true, {}, {}}));
        before_ = make(Op::count, {}, {first});
        before_.with_symbol("channel", channel.name);
        p_.channels.push_back(std::move(channel));
        const auto at = p_.body.body.begin() + (&loop - p_.body.body.data());
        p_.body.body.insert(at, std::move(before_));
    }

    std::string copy(const Instruction& load, Channel& channel, Value count,
                     std::vector<Instruction>& copies) {
        for (const Instruction* user : uses_.users(load.result())) {
            if (!user->is(Op::wgmma) && !user->is(Op::read_fragments)) {
                throw Refused("an operand of a dot is used otherwise, too");
            }
        }
        const Parameter& ref = p_.ref(load.symbol("of"));
        Buffer buffer =
            staged_buffer(p_, load, fmt::format("{}_tile{}", ref.name, p_.buffers.size()));
        const int piece = pieces_.at(load.result());
        Instruction made = make(piece > 0 ? Op::thread_load : Op::tma_load, load.operands);
        made.line = load.line;
        made.operands.push_back(count);
        if (piece > 0) {
            made.with_symbol("of", ref.name).with("index", load.list("index"));
            made.with("bytes", piece);
            channel.copied += buffer.slot_bytes();
        } else {
            Map map = staged_map(p_, load, buffer);
            made.with_symbol("map", map.name);
            const bool known = std::any_of(p_.maps.begin(), p_.maps.end(),
                                           [&](const Map& one) { return one.name == map.name; });
            if (!known) p_.maps.push_back(std::move(map));
        }
        made.with_symbol("to", buffer.name).with_symbol("channel", channel.name);
        copies.push_back(std::move(made));
        channel.buffers.push_back(buffer.name);
        channel.bytes += buffer.slot_bytes();
        p_.buffers.push_back(buffer);
        return buffer.name;
    }

    /// Bytes per copy where threads copy a load; 0: TMA copies it.
    int piece_bytes(const Instruction& load, const Instruction& loop) const {
        const Parameter& ref = p_.ref(load.symbol("of"));
        const auto& sizes = load.list("index");
        // TMA rounds to tf32 as it copies, and threads would not.
        if (ref.copy_bytes == 0 || ref.dtype == DType::f32 || sizes.back() == 0) return 0;
        const std::int64_t piece = ref.copy_bytes / size_of(ref.dtype);
        const Value column = load.operands[ref.extents.size() - 1];
        if (!is_multiple(column, std::max<std::int64_t>(piece, 1), loop)) return 0;
        return ref.copy_bytes;
    }

    bool is_multiple(Value value, std::int64_t of, const Instruction& loop) const {
        const auto all = [&](const std::vector<Value>& values) {
            return std::all_of(values.begin(), values.end(),
                               [&](Value one) { return is_multiple(one, of, loop); });
        };
        if (of == 1) return true;
        if (value == loop.blocks[0].arguments[0]) return all({loop.operands[0], loop.operands[2]});
        const Instruction* const made = uses_.definition(value);
        if (made == nullptr) return false;
        if (made->is(ir::Op::constant)) return made->attributes[0].numbers[0] % of == 0;
        if (made->is(ir::Op::add) || made->is(ir::Op::sub)) return all(made->operands);
        return made->is(ir::Op::mul) && (is_multiple(made->operands[0], of, loop) ||
                                         is_multiple(made->operands[1], of, loop));
    }

    std::int64_t most_slots(const Channel& channel) const {
        return slots_of_ring(p_, room_for_slots(p_) / channel.bytes, kMostSlots);
    }

    /// As many as fit, up to eight. A load ahead of the epilogue must not take those that keep
    /// products in flight.
    void slots(Channel& channel) {
        std::int64_t slots = most_slots(channel);
        if (slots < kSlotsInFlight) {
            load_in_epilogue();
            slots = most_slots(channel);
        }
        if (slots < 2) {
            throw Refused(
                fmt::format("shared memory has no room for two slots of {} bytes", channel.bytes));
        }
        channel.slots = static_cast<int>(slots);
        for (Buffer& buffer : p_.buffers) buffer.slots = channel.slots;
    }

    void load_in_epilogue() {
        for (Instruction& made : p_.body.body) {
            std::erase_if(made.attributes, [](const Attribute& of) { return of.name == "ahead"; });
        }
    }

    Program& p_;
    Uses uses_;
    std::map<Value, int> pieces_;  ///< of loads
    Instruction before_;
};

}  // namespace

bool is_bulk_store(const Program& program, const Instruction& store) {
    if (!store.is(ir::Op::store) || store.has("masked")) return false;
    if (sums_of(program) != Sums::plain) return false;  // stmatrix stores rows in order
    const Parameter& ref = program.ref(store.symbol("of"));
    const std::vector<std::int64_t>& sizes = store.list("index");
    const ir::Shape& shape = program.type(store.operands.back()).type.shape;
    return ref.tensor && (ref.dtype == DType::bf16 || ref.dtype == DType::f16) &&
           sizes.size() <= kMostRank && !sizes.empty() && sizes.back() != 0 && shape.rank() == 2;
}

Buffer staged_buffer(const Program& program, const Instruction& load, std::string name) {
    const ir::Type& tile = program.type(load.result()).type;
    Buffer buffer;
    buffer.name = std::move(name);
    buffer.dtype = program.ref(load.symbol("of")).dtype;
    buffer.rows = tile.shape[0];
    buffer.columns = tile.shape[1];
    return buffer;
}

Map staged_map(const Program& program, const Instruction& load, const Buffer& buffer) {
    const Parameter& ref = program.ref(load.symbol("of"));
    Map map;
    map.name = fmt::format("{}_map{}", ref.name, program.maps.size());
    map.ref = ref.name;
    map.box = box_of(ref, load, "load");
    map.box.back() = buffer.panel();
    if (buffer.rows > kMostBox) {
        throw Refused(fmt::format("a tile of `{}` has more than 256 rows", ref.name));
    }
    for (const Map& known : program.maps) {
        if (known.ref == map.ref && known.box == map.box) map.name = known.name;
    }
    return map;
}

std::int64_t room_for_slots(const Program& program) {
    std::int64_t stores = 0, ahead = 0;
    for (const Instruction& made : program.body.body) {
        if (is_bulk_store(program, made)) stores += kStoreBytes * program.all_consumer_groups();
        if (made.has("ahead")) ahead += kAheadSlots * kPanelBytes * program.consumer_groups();
    }
    return kSharedBytes - kBarrierBytes - stores - ahead;
}

void stage(Program& program) {
    if (is_chained(program)) return stage_chain(program);
    mark_loads_ahead(program);
    Staging(program).run();
    remove_unused(program);
    program.level = Level::staged;
}

}  // namespace tilewright::cuda::schedule
