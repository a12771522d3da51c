// The checked mode of the reference machine: bounds, undefined values, races between programs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu/interpreter.h"
#include "cpu/memory.h"

namespace tilewright::cpu {

/// Watches the accesses of one interpreted call and throws UserError at the first violation.
/// docs/reference/checked_mode.md defines violations.
class Checker {
  public:
    /// `refs`: the global Refs, in argument order. They and `kernel` must outlive the checker.
    Checker(const ir::Function& kernel, const ir::Arguments& arguments,
            std::span<const Memory* const> refs, const CheckOptions& options);

    /// Fills the arrays named in CheckOptions::outputs with NaN or 0xAA.
    void poison_outputs();
    /// `number`: position of the program in the grid, last axis fastest. Its scratch is undefined.
    void begin_program(std::int64_t number, std::span<Memory* const> scratch);

    /// One executed access. The pointers stay valid until the end of the call.
    struct Access {
        const ir::Instruction* instruction;
        const Memory* memory;
        const Lanes* lanes;
        std::uint32_t site;        ///< number of (instruction, memory)
        std::uint32_t source = 0;  ///< number of this access as a source of poison; 0: none yet
    };
    Access begin_access(const ir::Instruction& instruction, const Memory& memory,
                        const Lanes& lanes);

    /// A lane outside the array without `other`: poison, unless bounds are not checked.
    Poison read_outside(Access& access, std::int64_t lane);
    /// Poison of the element that a lane inside the array reads.
    Poison read(Access& access, std::int64_t number, const Lanes::Lane& lane);
    /// `poison`: of the value, the index or the mask of that lane.
    void write(const Access& access, Memory& memory, const Lanes::Lane& lane, Poison poison);
    void atomic(Access& access, Memory& memory, std::int64_t number, const Lanes::Lane& lane,
                Poison poison);
    /// A store or atomic that had active lanes, all of them outside; `lane` is the first.
    void all_outside(const Access& access, const Lanes::Lane& lane) const;
    /// A lane outside its array, in an access that claims to have none.
    [[noreturn]] void claimed_inside(const Access& access, const Lanes::Lane& lane) const;

    /// Throws when a value that decides control flow is undefined; `use` names it.
    void require_defined(Poison poison, const ir::Instruction& instruction,
                         std::string_view use) const;
    [[noreturn]] void bad_step(const ir::Instruction& loop, std::int64_t step) const;
    void debug_check(const ir::Instruction& instruction, const TileValue& condition) const;

    /// What an undefined element of this dtype holds: NaN, or bytes of 0xAA.
    static std::uint64_t undefined_bits(DType dtype);

  private:
    /// In Memory::poison: an element that no store of this program has reached.
    static constexpr Poison kUnwritten = ~Poison{0};

    struct Touch {
        std::int64_t program = -1;
        std::uint32_t site = 0;
    };
    /// The first accesses to one element. Programs run one after the other: if the running program
    /// made the first one, no other program can have accessed it.
    struct Cell {
        Touch writer, reader, atomic;
    };
    /// Overlapping arrays of the caller share one region, so that accesses by all names are
    /// compared.
    struct Region {
        const std::byte* begin = nullptr;
        const std::byte* end = nullptr;
        int granule = 0;       ///< bytes per cell
        bool written = false;  ///< some Ref in it is stored to: races are possible only then
        std::vector<std::unique_ptr<Cell[]>> pages;  ///< allocated on first use
    };
    /// An access that read undefined elements: outside the array, or not yet written.
    struct Source {
        const ir::Instruction* instruction;
        const Memory* memory;
        Lanes lanes;
    };

    void make_regions();
    template <typename Visitor>
    void visit_cells(const Memory& memory, const Lanes::Lane& lane, Visitor&& visit);
    void remember(Touch& first, std::uint32_t site) const;
    bool by_other_program(const Touch& touch) const;
    Poison poisoned(Access& access, std::int64_t lane);
    bool is_output(const Memory& memory) const;

    std::string program_text(std::int64_t number) const;
    std::string source_text(Poison poison) const;
    [[noreturn]] void fail(const std::string& message) const;
    [[noreturn]] void fail_race(const Access& access, const Lanes::Lane& lane, const char* now,
                                const Touch& before, const char* then) const;
    [[noreturn]] void fail_undefined(Poison poison, const std::string& use) const;

    const ir::Function& kernel_;
    std::vector<std::int64_t> grid_;
    CheckOptions options_;
    std::int64_t program_ = 0;
    std::vector<const Memory*> refs_;
    std::vector<Region> regions_;
    std::vector<std::size_t> region_of_;  ///< per global Ref
    std::map<std::pair<const ir::Instruction*, const Memory*>, std::uint32_t> site_numbers_;
    std::vector<std::pair<const ir::Instruction*, const Memory*>> sites_;
    std::vector<Source> sources_;  ///< of this program; number n is sources_[n - 1]
};

}  // namespace tilewright::cpu
