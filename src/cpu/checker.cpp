// The checked mode of the reference machine.
#include "cpu/checker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ir/access.h"
#include "support/check.h"

namespace tilewright::cpu {
namespace {

constexpr std::size_t kPageCells = 256;

std::string at(const ir::Location& location) {
    return location.file.empty() ? "" : fmt::format(" at {}:{}", location.file, location.line);
}

std::string element_text(const Memory& memory, const Lanes::Lane& lane) {
    const std::span<const std::int64_t> index(lane.index.data(), memory.extents.size());
    return fmt::format("{}[{}]", memory.name, fmt::join(index, ", "));
}

/// Refs that the kernel may write, including those that it passes to a mod.
std::set<ir::Value> written_refs(const ir::Function& kernel) {
    std::set<ir::Value> refs;
    ir::walk(kernel.body, [&](const ir::Instruction& instruction) {
        if (instruction.op == ir::Op::call) {
            for (ir::Value operand : instruction.operands) {
                if (kernel.is_ref(operand)) refs.insert(operand);
            }
        } else if (ir::is_access(instruction.op) && instruction.op != ir::Op::load) {
            refs.insert(instruction.operands[0]);
        }
    });
    return refs;
}

}  // namespace

Checker::Checker(const ir::Function& kernel, const ir::Arguments& arguments,
                 std::span<const Memory* const> refs, const CheckOptions& options)
    : kernel_(kernel), grid_(arguments.grid), options_(options), refs_(refs.begin(), refs.end()) {
    if (!options_.outputs.empty() && options_.outputs.size() != refs_.size()) {
        user_error("interpret_checked", "expected `outputs` for {} Refs but got {}", refs_.size(),
                   options_.outputs.size());
    }
    make_regions();
}

void Checker::make_regions() {
    const std::set<ir::Value> written = written_refs(kernel_);
    std::vector<ir::Value> parameters;
    for (ir::Value parameter : kernel_.parameters()) {
        if (kernel_.is_ref(parameter) && kernel_.ref_type(parameter).space == ir::Space::global) {
            parameters.push_back(parameter);
        }
    }
    region_of_.assign(refs_.size(), 0);
    std::vector<std::pair<Region, std::size_t>> spans;
    for (std::size_t r = 0; r < refs_.size(); ++r) {
        const Memory& memory = *refs_[r];
        std::int64_t low = 0, high = 1;
        bool empty = false;
        for (std::size_t d = 0; d < memory.extents.size(); ++d) {
            const std::int64_t reach = (memory.extents[d] - 1) * memory.strides[d];
            (reach < 0 ? low : high) += reach;
            empty = empty || memory.extents[d] == 0;
        }
        if (empty) continue;
        Region region;
        region.begin = memory.element(low);
        region.end = memory.element(high);
        region.granule = size_of(memory.dtype);
        region.written = written.count(parameters[r]) != 0;
        spans.emplace_back(std::move(region), r);
    }
    std::sort(spans.begin(), spans.end(),
              [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    for (auto& [span, ref] : spans) {
        if (regions_.empty() || regions_.back().end <= span.begin) {
            regions_.push_back(std::move(span));
        } else {
            Region& region = regions_.back();
            region.end = std::max(region.end, span.end);
            region.granule = std::min(region.granule, span.granule);
            region.written = region.written || span.written;
        }
        region_of_[ref] = regions_.size() - 1;
    }
    for (Region& region : regions_) {
        const std::size_t bytes = region.end - region.begin;
        region.pages.resize(bytes / static_cast<std::size_t>(region.granule) / kPageCells + 1);
    }
}

bool Checker::is_output(const Memory& memory) const {
    return options_.poison && memory.argument >= 0 && !options_.outputs.empty() &&
           options_.outputs[memory.argument];
}

std::uint64_t Checker::undefined_bits(DType dtype) {
    switch (dtype) {
        case DType::boolean:
            return 1;
        case DType::f16:
            return 0x7e00;
        case DType::bf16:
            return 0x7fc0;
        case DType::f32:
            return 0x7fc00000;
        case DType::f64:
            return 0x7ff8000000000000;
        case DType::f8e4m3:
            return 0x7f;
        case DType::f8e5m2:
            return 0x7e;
        default: {
            std::byte raw[8];
            std::fill(std::begin(raw), std::end(raw), std::byte{0xaa});
            return read_bits(raw, dtype);
        }
    }
}

void Checker::poison_outputs() {
    for (const Memory* memory : refs_) {
        if (!is_output(*memory)) continue;
        std::vector<std::int64_t> index(memory->extents.size(), 0);
        if (std::find(memory->extents.begin(), memory->extents.end(), 0) != memory->extents.end()) {
            continue;
        }
        const std::uint64_t bits = undefined_bits(memory->dtype);
        for (std::size_t d = 1; d > 0;) {
            std::int64_t offset = 0;
            for (std::size_t k = 0; k < index.size(); ++k) offset += index[k] * memory->strides[k];
            write_bits(memory->element(offset), memory->dtype, bits);
            for (d = index.size(); d > 0 && ++index[d - 1] == memory->extents[d - 1]; --d) {
                index[d - 1] = 0;
            }
        }
    }
}

void Checker::begin_program(std::int64_t number, std::span<Memory* const> scratch) {
    program_ = number;
    sources_.clear();
    for (Memory* memory : scratch) {
        const std::size_t size = size_of(memory->dtype);
        const std::size_t elements = memory->storage.size() / size;
        memory->poison.assign(elements, options_.poison ? kUnwritten : 0);
        if (!options_.poison) continue;
        for (std::size_t i = 0; i < elements; ++i) {
            write_bits(memory->data + i * size, memory->dtype, undefined_bits(memory->dtype));
        }
    }
}

Checker::Access Checker::begin_access(const ir::Instruction& instruction, const Memory& memory,
                                      const Lanes& lanes) {
    const auto [found, added] = site_numbers_.try_emplace(
        {&instruction, &memory}, static_cast<std::uint32_t>(sites_.size()));
    if (added) sites_.emplace_back(&instruction, &memory);
    return {&instruction, &memory, &lanes, found->second};
}

// ---- Undefined values.

Poison Checker::poisoned(Access& access, std::int64_t lane) {
    if (access.source == 0) {
        sources_.push_back({access.instruction, access.memory, *access.lanes});
        access.source = static_cast<std::uint32_t>(sources_.size());
    }
    return (static_cast<Poison>(access.source) << 32) | static_cast<std::uint32_t>(lane);
}

Poison Checker::read_outside(Access& access, std::int64_t lane) {
    return options_.bounds ? poisoned(access, lane) : 0;
}

std::string Checker::source_text(Poison poison) const {
    const Source& source = sources_[(poison >> 32) - 1];
    const Lanes::Lane lane = source.lanes.lane(static_cast<std::uint32_t>(poison));
    const Memory& memory = *source.memory;
    const std::string location = at(source.instruction->location);
    if (!lane.inside) {
        return fmt::format("{} outside its extents [{}], read by the {}{} without `other`",
                           element_text(memory, lane), fmt::join(memory.extents, ", "),
                           ir::name(source.instruction->op), location);
    }
    return fmt::format("{} read before it was written, by the {}{}", element_text(memory, lane),
                       ir::name(source.instruction->op), location);
}

void Checker::fail_undefined(Poison poison, const std::string& use) const {
    fail(fmt::format("expected a defined value in {} but got one made from {}", use,
                     source_text(poison)));
}

void Checker::require_defined(Poison poison, const ir::Instruction& instruction,
                              std::string_view use) const {
    if (poison != 0) fail_undefined(poison, fmt::format("{}{}", use, at(instruction.location)));
}

void Checker::bad_step(const ir::Instruction& loop, std::int64_t step) const {
    fail(fmt::format("expected the for_loop{} to have step > 0 but got {}", at(loop.location),
                     step));
}

void Checker::debug_check(const ir::Instruction& instruction, const TileValue& condition) const {
    for (std::size_t i = 0; i < condition.bits.size(); ++i) {
        // Padding may be undefined: an undefined element is reported where it reaches a result.
        if (condition.bits[i] != 0 || condition.poison_at(i) != 0) continue;
        std::vector<std::int64_t> index;
        auto rest = static_cast<std::int64_t>(i);
        for (int axis = condition.type.shape.rank() - 1; axis >= 0; --axis) {
            index.insert(index.begin(), rest % condition.type.shape[axis]);
            rest /= condition.type.shape[axis];
        }
        fail(fmt::format("expected debug_check \"{}\" to hold but got false in element [{}]{}",
                         instruction.get<ir::TextAttributes>().text, fmt::join(index, ", "),
                         at(instruction.location)));
    }
}

void Checker::all_outside(const Access& access, const Lanes::Lane& lane) const {
    if (!options_.bounds) return;
    fail(fmt::format(
        "expected the {}{} to touch {} with extents [{}] but got only lanes outside, "
        "the first at {}",
        ir::name(access.instruction->op), at(access.instruction->location), access.memory->name,
        fmt::join(access.memory->extents, ", "), element_text(*access.memory, lane)));
}

void Checker::claimed_inside(const Access& access, const Lanes::Lane& lane) const {
    fail(fmt::format(
        "expected the {}{}, which is marked in_bounds, to stay inside {} with extents [{}] but got "
        "{}",
        ir::name(access.instruction->op), at(access.instruction->location), access.memory->name,
        fmt::join(access.memory->extents, ", "), element_text(*access.memory, lane)));
}

// ---- Elements of the caller's arrays.

template <typename Visitor>
void Checker::visit_cells(const Memory& memory, const Lanes::Lane& lane, Visitor&& visit) {
    Region& region = regions_[region_of_[memory.argument]];
    if (!region.written) return;
    const std::size_t granule = region.granule;
    const auto first =
        static_cast<std::size_t>(memory.element(lane.offset) - region.begin) / granule;
    const auto count = static_cast<std::size_t>(size_of(memory.dtype)) / granule;
    for (std::size_t c = first; c < first + count; ++c) {
        auto& page = region.pages[c / kPageCells];
        if (page == nullptr) page = std::make_unique<Cell[]>(kPageCells);
        visit(page[c % kPageCells]);
    }
}

bool Checker::by_other_program(const Touch& touch) const {
    return touch.program >= 0 && touch.program != program_;
}

void Checker::remember(Touch& first, std::uint32_t site) const {
    if (first.program < 0) first = {program_, site};
}

Poison Checker::read(Access& access, std::int64_t number, const Lanes::Lane& lane) {
    const Memory& memory = *access.memory;
    if (memory.argument < 0) {
        const Poison poison = memory.poison[lane.offset];
        return poison == kUnwritten ? poisoned(access, number) : poison;
    }
    Poison poison = 0;
    visit_cells(memory, lane, [&](Cell& cell) {
        if (options_.races) {
            if (by_other_program(cell.writer))
                fail_race(access, lane, "reads", cell.writer, "wrote");
            if (by_other_program(cell.atomic))
                fail_race(access, lane, "reads", cell.atomic, "updated");
        }
        remember(cell.reader, access.site);
        const bool defined = cell.writer.program >= 0 || cell.atomic.program >= 0;
        if (!defined && is_output(memory)) poison = poisoned(access, number);
    });
    return poison;
}

void Checker::write(const Access& access, Memory& memory, const Lanes::Lane& lane, Poison poison) {
    if (memory.argument < 0) {
        // Scratch is not a result: its elements stay undefined until one reaches a result.
        memory.poison[lane.offset] = poison;
        return;
    }
    if (poison != 0) {
        fail_undefined(poison, fmt::format("the store to {}{}", element_text(memory, lane),
                                           at(access.instruction->location)));
    }
    visit_cells(memory, lane, [&](Cell& cell) {
        if (options_.races) {
            if (by_other_program(cell.writer))
                fail_race(access, lane, "writes", cell.writer, "wrote");
            if (by_other_program(cell.reader))
                fail_race(access, lane, "writes", cell.reader, "read");
            if (by_other_program(cell.atomic))
                fail_race(access, lane, "writes", cell.atomic, "updated");
        }
        remember(cell.writer, access.site);
    });
}

void Checker::atomic(Access& access, Memory& memory, std::int64_t number, const Lanes::Lane& lane,
                     Poison poison) {
    const std::string_view op = ir::name(access.instruction->op);
    const auto use = [&] {
        return fmt::format("the {} on {}{}", op, element_text(memory, lane),
                           at(access.instruction->location));
    };
    if (poison != 0) fail_undefined(poison, use());
    if (memory.argument < 0) {
        const Poison old = read(access, number, lane);
        if (old != 0) fail_undefined(old, use());
        return;
    }
    visit_cells(memory, lane, [&](Cell& cell) {
        if (options_.races) {
            if (by_other_program(cell.writer))
                fail_race(access, lane, "updates", cell.writer, "wrote");
            if (by_other_program(cell.reader))
                fail_race(access, lane, "updates", cell.reader, "read");
        }
        const bool defined = cell.writer.program >= 0 || cell.atomic.program >= 0;
        if (!defined && is_output(memory) && access.instruction->op != ir::Op::atomic_xchg) {
            fail_undefined(poisoned(access, number), use());
        }
        remember(cell.atomic, access.site);
    });
}

// ---- Reports.

std::string Checker::program_text(std::int64_t number) const {
    std::vector<std::int64_t> program(grid_.size());
    for (std::size_t axis = grid_.size(); axis-- > 0; number /= grid_[axis]) {
        program[axis] = number % grid_[axis];
    }
    return fmt::format("program ({})", fmt::join(program, ", "));
}

void Checker::fail(const std::string& message) const {
    user_error("interpret_checked", "kernel {}, {}: {}", kernel_.name, program_text(program_),
               message);
}

void Checker::fail_race(const Access& access, const Lanes::Lane& lane, const char* now,
                        const Touch& before, const char* then) const {
    const auto& [instruction, memory] = sites_[before.site];
    const std::string alias =
        memory == access.memory ? "" : fmt::format(" through {}", memory->name);
    fail(fmt::format("expected no other program to touch {} but {} {} it{}{} and {} {} it{}",
                     element_text(*access.memory, lane), program_text(before.program), then, alias,
                     at(instruction->location), program_text(program_), now,
                     at(access.instruction->location)));
}

}  // namespace tilewright::cpu
