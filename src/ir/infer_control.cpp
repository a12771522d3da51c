// Typing of structured control flow and calls.
#include <span>
#include <string>

#include "ir/builder.h"
#include "ir/infer_checks.h"

namespace tilewright::ir {
namespace {

class ControlInference : private InferChecks {
  public:
    using InferChecks::InferChecks;

    std::vector<Type> run() const {
        switch (instruction_.op) {
            case Op::for_loop:
                return for_loop();
            case Op::while_loop:
                return while_loop();
            case Op::if_else:
                return if_else();
            case Op::call:
                return call();
            default:
                for (std::size_t i = 0; i < count(); ++i) operand(i, "operand");
                return {};
        }
    }

  private:
    std::vector<Type> types(std::span<const Value> values, std::string_view role) const {
        std::vector<Type> result;
        for (Value value : values) result.push_back(type(value, role));
        return result;
    }

    std::vector<Type> yielded(const Block& block) const {
        if (block.body.empty() || block.terminator().op != Op::yield) {
            fail("expected every block to end in yield");
        }
        return types(block.terminator().operands, "yielded value");
    }

    void want_types(const std::vector<Type>& got, const std::vector<Type>& expected,
                    std::string_view role) const {
        if (got.size() != expected.size()) {
            fail("expected {} {} but got {}", expected.size(), role, got.size());
        }
        for (std::size_t i = 0; i < got.size(); ++i) {
            if (got[i] != expected[i]) {
                fail("expected {} of types [{}] but number {} is {}", role, texts(expected), i,
                     to_string(got[i]));
            }
        }
    }

    static std::string texts(const std::vector<Type>& types) {
        std::vector<std::string> result;
        for (const Type& each : types) result.push_back(to_string(each));
        return fmt::format("{}", fmt::join(result, ", "));
    }

    std::vector<Type> for_loop() const {
        if (count() < 3) fail("expected operands lo, hi, step, carries... but got {}", count());
        constexpr std::string_view kRoles[] = {"lo", "hi", "step"};
        const Type index{DType::i64, {}};
        for (std::size_t i = 0; i < 3; ++i) want_type(operand(i, kRoles[i]), index, kRoles[i]);
        const auto carries = types(std::span(instruction_.operands).subspan(3), "carry");
        const Block& block = instruction_.blocks[0];
        std::vector<Type> expected = carries;
        expected.insert(expected.begin(), index);
        want_types(types(block.arguments, "block argument"), expected, "block arguments");
        want_types(yielded(block), carries, "yielded values");
        return carries;
    }

    std::vector<Type> while_loop() const {
        const auto carries = types(instruction_.operands, "carry");
        const Block& condition = instruction_.blocks[0];
        const Block& block = instruction_.blocks[1];
        want_types(types(condition.arguments, "block argument"), carries, "block arguments");
        want_types(types(block.arguments, "block argument"), carries, "block arguments");
        want_types(yielded(condition), {{DType::boolean, {}}}, "conditions");
        want_types(yielded(block), carries, "yielded values");
        return carries;
    }

    std::vector<Type> if_else() const {
        want_count(1);
        want_type(operand(0, "condition"), {DType::boolean, {}}, "condition");
        for (const Block& block : instruction_.blocks) {
            want_types(types(block.arguments, "block argument"), {}, "block arguments");
        }
        const auto results = yielded(instruction_.blocks[0]);
        want_types(yielded(instruction_.blocks[1]), results, "values of the else branch");
        return results;
    }

    std::vector<Type> call() const {
        const auto& callee = attributes<CallAttributes>().callee;
        if (callee == nullptr) fail("expected a function to call");
        const auto& parameters = callee->parameters();
        if (parameters.size() != count()) {
            fail("expected {} arguments for @{} but got {}", parameters.size(), callee->name,
                 count());
        }
        Shape shape;
        for (std::size_t i = 0; i < count(); ++i) {
            const Value argument = instruction_.operands[i];
            if (callee->is_ref(parameters[i])) {
                check_ref_argument(*callee, parameters[i], argument);
                continue;
            }
            const Type& expected = callee->type(parameters[i]);
            const Type& got = operand(i, "argument");
            if (!expected.is_scalar()) {
                fail("expected @{} to have rank-0 parameters but got {}", callee->name,
                     to_string(expected));
            }
            if (got.dtype != expected.dtype) {
                fail("expected argument {} of @{} of dtype {} but got {}", i, callee->name,
                     name(expected.dtype), to_string(got));
            }
            const auto joint = joint_shape(shape, got.shape);
            if (!joint) {
                fail("expected arguments of @{} that broadcast together but got {} and {}",
                     callee->name, to_string(shape), to_string(got));
            }
            shape = *joint;
        }
        if (callee->body.body.empty() || callee->body.terminator().op != Op::yield) {
            fail("expected @{} to end in yield", callee->name);
        }
        std::vector<Type> results;
        for (Value value : callee->body.terminator().operands) {
            const Type& result = callee->type(value);
            if (!result.is_scalar()) {
                fail("expected @{} to yield scalars but got {}", callee->name, to_string(result));
            }
            results.push_back({result.dtype, shape});
        }
        return results;
    }

    void check_ref_argument(const Function& callee, Value parameter, Value argument) const {
        const RefType& expected = callee.ref_type(parameter);
        const RefType& got = ref(argument);
        bool fits = got.dtype == expected.dtype && got.rank() == expected.rank();
        for (std::size_t i = 0; fits && i < got.extents.size(); ++i) {
            fits = expected.extents[i] == kDynamic || got.extents[i] == expected.extents[i];
        }
        if (!fits) {
            fail("expected a {} for parameter {} of @{} but got {}", to_string(expected),
                 callee.value_name(parameter), callee.name, to_string(got));
        }
    }
};

}  // namespace

std::vector<Type> infer_control(const Function& function, const Instruction& instruction) {
    return ControlInference(function, instruction, nullptr).run();
}

}  // namespace tilewright::ir
