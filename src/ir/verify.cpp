// The rules of well-formed IR.
#include "ir/verify.h"

#include <fmt/format.h>

#include <array>
#include <unordered_set>
#include <vector>

#include "ir/access.h"
#include "ir/builder.h"
#include "ir/evaluate.h"
#include "ir/print.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

int depth_of(const Block& block, int limit) {
    if (limit == 0) return 1;
    int deepest = 0;
    for (const Instruction& instruction : block.body) {
        for (const Block& inner : instruction.blocks) {
            deepest = std::max(deepest, depth_of(inner, limit - 1));
        }
    }
    return 1 + deepest;
}

void check_nesting(const Function& function, const Report& report) {
    if (depth_of(function.body, kMaxBlockDepth) > kMaxBlockDepth) {
        report(nullptr, "blocks nest deeper");
    }
}

void check_handles(const Function& function, const Report& report) {
    const auto known = [&](Value value) { return value.id < function.num_values(); };
    for (Value value : function.parameters()) {
        if (!known(value)) report(nullptr, "a parameter is no value");
    }
    walk(function.body, [&](const Instruction& instruction) {
        for (Value value : instruction.operands) {
            if (!known(value)) report(&instruction, "an operand is no value");
        }
        for (Value value : instruction.results) {
            if (!known(value)) report(&instruction, "a result is no value");
        }
        for (const Block& block : instruction.blocks) {
            for (Value value : block.arguments) {
                if (!known(value)) report(&instruction, "a block argument is no value");
            }
        }
    });
}

void check_single_definition(const Function& function, const Report& report) {
    std::vector<bool> defined(function.num_values());
    const auto define = [&](const Instruction* instruction, Value value) {
        if (defined[value.id]) report(instruction, fmt::format("value {} has two", value.id));
        defined[value.id] = true;
    };
    for (Value value : function.parameters()) define(nullptr, value);
    walk(function.body, [&](const Instruction& instruction) {
        for (Value value : instruction.results) define(&instruction, value);
        for (const Block& block : instruction.blocks) {
            for (Value value : block.arguments) define(&instruction, value);
        }
    });
}

void check_dominance(const Block& block, std::vector<bool>& visible, const Report& report) {
    std::vector<Value> defined = block.arguments;
    for (Value value : block.arguments) visible[value.id] = true;
    for (const Instruction& instruction : block.body) {
        for (Value value : instruction.operands) {
            if (!visible[value.id]) {
                report(&instruction, fmt::format("value {} is not visible here", value.id));
            }
        }
        for (const Block& inner : instruction.blocks) check_dominance(inner, visible, report);
        for (Value value : instruction.results) {
            visible[value.id] = true;
            defined.push_back(value);
        }
    }
    for (Value value : defined) visible[value.id] = false;
}

void check_dominance(const Function& function, const Report& report) {
    std::vector<bool> visible(function.num_values());
    check_dominance(function.body, visible, report);
}

void check_terminators(const Block& block, const Instruction* owner, const Report& report) {
    if (block.body.empty() || block.terminator().op != Op::yield) {
        report(owner, "a block does not end in yield");
        return;
    }
    for (std::size_t i = 0; i < block.body.size(); ++i) {
        const Instruction& instruction = block.body[i];
        if (instruction.op == Op::yield && i + 1 < block.body.size()) {
            report(&instruction, "yield stands before the end");
        }
        for (const Block& inner : instruction.blocks) {
            check_terminators(inner, &instruction, report);
        }
    }
}

void check_terminators(const Function& function, const Report& report) {
    check_terminators(function.body, nullptr, report);
}

void check_parameters(const Function& function, const Report& report) {
    for (Value value : function.parameters()) {
        if (!function.is_ref(value) && !function.type(value).is_scalar()) {
            report(nullptr, fmt::format("parameter {} is a {}", function.value_name(value),
                                        to_string(function.type(value))));
        }
    }
}

void check_refs(const Function& function, const Report& report) {
    for (Value value : function.parameters()) {
        if (!function.is_ref(value)) continue;
        const RefType& type = function.ref_type(value);
        for (std::int64_t extent : type.extents) {
            const bool is_dynamic = extent == kDynamic && type.space == Space::global;
            if (extent < 0 && !is_dynamic) {
                report(nullptr, fmt::format("parameter {} is a {}", function.value_name(value),
                                            to_string(type)));
            }
        }
        if (type.space == Space::scratch && type.alias_group >= 0) {
            report(nullptr, fmt::format("scratch {} aliases", function.value_name(value)));
        }
    }
}

void check_ref_use(const Function& function, const Report& report) {
    const auto is_ref = [&](Value value) { return function.is_ref(value); };
    walk(function.body, [&](const Instruction& instruction) {
        const Op op = instruction.op;
        for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
            const bool allowed = op == Op::call || ((is_access(op) || op == Op::extent) && i == 0);
            if (is_ref(instruction.operands[i]) && !allowed) {
                report(&instruction, fmt::format("operand {} is a Ref", i));
            }
        }
        for (Value value : instruction.results) {
            if (is_ref(value)) report(&instruction, "a result is a Ref");
        }
        for (const Block& block : instruction.blocks) {
            for (Value value : block.arguments) {
                if (is_ref(value)) report(&instruction, "a block argument is a Ref");
            }
        }
    });
}

void check_types(const Function& function, const Report& report) {
    walk(function.body, [&](const Instruction& instruction) {
        Type requested;
        if (instruction.results.size() == 1) requested = function.type(instruction.results[0]);
        std::vector<Type> types;
        try {
            types = infer_types(function, instruction,
                                instruction.results.size() == 1 ? &requested : nullptr);
        } catch (const UserError& error) {
            report(&instruction, error.what());
            return;
        }
        if (types.size() != instruction.results.size()) {
            report(&instruction, fmt::format("expected {} results but got {}", types.size(),
                                             instruction.results.size()));
            return;
        }
        for (std::size_t i = 0; i < types.size(); ++i) {
            const Type& got = function.type(instruction.results[i]);
            if (got != types[i]) {
                report(&instruction, fmt::format("expected result {} of type {} but got {}", i,
                                                 to_string(types[i]), to_string(got)));
            }
        }
    });
}

void check_constants(const Function& function, const Report& report) {
    walk(function.body, [&](const Instruction& instruction) {
        if (instruction.op != Op::constant) return;
        const DType dtype = function.type(instruction.result()).dtype;
        const std::uint64_t bits = instruction.get<ConstantAttributes>().bits;
        const bool canonical = is_float(dtype) ? print_element(dtype, bits) == "nan" ||
                                                     encode(dtype, decode(dtype, bits)) == bits
                                               : wrap_to(dtype, bits) == bits;
        if (!canonical) report(&instruction, fmt::format("bits {:#x} are none", bits));
    });
}

void check_approx(const Function& function, const Report& report) {
    walk(function.body, [&](const Instruction& instruction) {
        const auto* math = std::get_if<MathAttributes>(&instruction.attributes);
        if (math != nullptr && math->approx && !info(instruction.op).approx) {
            report(&instruction, "the op has none");
        }
    });
}

bool is_mod(const Function& function) {
    return !function.body.terminator().operands.empty();
}

void check_grid(const Function& function, const Report& report) {
    for (std::int64_t extent : function.grid) {
        if (extent < 0 && extent != kDynamic) report(nullptr, fmt::format("extent {}", extent));
    }
    if (is_mod(function) && !function.grid.empty()) report(nullptr, "the mod has a grid");
    for (int hint : {function.hints.num_warps, function.hints.num_stages}) {
        if (hint < 0 || hint > CompileHints::kMax) report(nullptr, fmt::format("hint {}", hint));
    }
}

void check_mod(const Function& function, const Report& report) {
    if (!is_mod(function)) return;
    for (Value value : function.body.terminator().operands) {
        if (!function.type(value).is_scalar()) {
            report(&function.body.terminator(), "a result is no scalar");
        }
    }
    for (Value value : function.parameters()) {
        if (function.is_ref(value) && function.ref_type(value).space == Space::scratch) {
            report(nullptr, "a parameter is scratch");
        }
    }
    walk(function.body, [&](const Instruction& instruction) {
        if (is_access(instruction.op) && instruction.op != Op::load) {
            report(&instruction, "it writes");
        }
    });
}

void check_callees(const Function& function, const Report& report) {
    walk(function.body, [&](const Instruction& instruction) {
        const Function* const callee = callee_of(instruction);
        if (callee != nullptr && !is_mod(*callee)) {
            report(&instruction, "the callee yields nothing");
        }
    });
}

constexpr std::array kRules = {
    Rule{"nesting", "blocks nest at most 64 deep", check_nesting},
    Rule{"handles", "every operand, result and argument is a value of the function", check_handles},
    Rule{"single_definition", "every value has one definition", check_single_definition},
    Rule{"dominance", "a value is used after its definition, in its block or inside it",
         check_dominance},
    Rule{"terminators", "every block ends in its only yield", check_terminators},
    Rule{"parameters", "parameters are Refs and scalars", check_parameters},
    Rule{"refs", "extents are static and >= 0, in global Refs also dynamic; scratch has no alias",
         check_refs},
    Rule{"ref_use", "Refs are used by accesses, extent and call only", check_ref_use},
    Rule{"types", "operands and results have the types that infer_types gives", check_types},
    Rule{"constants", "a constant's bits are an element of its dtype", check_constants},
    Rule{"approx", "only ops with an approximate form are approx", check_approx},
    Rule{"grid", "grid extents are >= 0 or dynamic, hints 0 to 1024, and mods have no grid",
         check_grid},
    Rule{"mods", "a function that yields values yields scalars, reads global Refs, writes none",
         check_mod},
    Rule{"callees", "only mods are called", check_callees},
};

void verify(const Function& function, std::unordered_set<const Function*>& verified) {
    if (!verified.insert(&function).second) return;
    for (const Rule& rule : kRules) {
        rule.check(function, [&](const Instruction* instruction, const std::string& what) {
            if (instruction == nullptr) {
                user_error("verify", "expected in @{}: {} ({}) but {}", function.name,
                           rule.statement, rule.name, what);
            }
            user_error("verify", "expected in @{}: {} ({}) but {}, in `{}`", function.name,
                       rule.statement, rule.name, what, describe(function, *instruction));
        });
    }
    walk(function.body, [&](const Instruction& instruction) {
        if (const Function* const callee = callee_of(instruction)) verify(*callee, verified);
    });
}

}  // namespace

std::span<const Rule> rules() {
    return kRules;
}

void verify(const Function& function) {
    std::unordered_set<const Function*> verified;
    verify(function, verified);
}

}  // namespace tilewright::ir
