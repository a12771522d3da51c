// The value table of a function.
#include "ir/function.h"

#include "support/check.h"

namespace tilewright::ir {

const Function* callee_of(const Instruction& instruction) {
    if (const auto* call = std::get_if<CallAttributes>(&instruction.attributes))
        return call->callee.get();
    if (const auto* scan = std::get_if<CombineAttributes>(&instruction.attributes))
        return scan->combine.get();
    return nullptr;
}

Value Function::add_value(Type type) {
    values_.push_back({type, {}});
    return {static_cast<std::uint32_t>(values_.size() - 1)};
}

Value Function::add_ref(RefType type) {
    if (type.rank() > kMaxRefRank) {
        user_error("ref", "expected rank at most {} but got {}", kMaxRefRank, to_string(type));
    }
    values_.push_back({std::move(type), {}});
    return {static_cast<std::uint32_t>(values_.size() - 1)};
}

Value Function::add_parameter(Type type, std::string parameter_name) {
    const Value value = add_value(type);
    set_value_name(value, std::move(parameter_name));
    body.arguments.push_back(value);
    return value;
}

Value Function::add_parameter(RefType type, std::string parameter_name) {
    const Value value = add_ref(std::move(type));
    set_value_name(value, std::move(parameter_name));
    body.arguments.push_back(value);
    return value;
}

bool Function::is_ref(Value value) const {
    TW_ASSERT(value.id < values_.size(), "value {} of {}", value.id, name);
    return std::holds_alternative<RefType>(values_[value.id].type);
}

const Type& Function::type(Value value) const {
    TW_ASSERT(!is_ref(value), "value {} of {} is a Ref", value.id, name);
    return std::get<Type>(values_[value.id].type);
}

const RefType& Function::ref_type(Value value) const {
    TW_ASSERT(is_ref(value), "value {} of {} is a tile", value.id, name);
    return std::get<RefType>(values_[value.id].type);
}

void Function::set_type(Value value, Type type) {
    TW_ASSERT(!is_ref(value), "value {} of {} is a Ref", value.id, name);
    values_[value.id].type = type;
}

const std::string& Function::value_name(Value value) const {
    TW_ASSERT(value.id < values_.size());
    return values_[value.id].name;
}

void Function::set_value_name(Value value, std::string hint) {
    TW_ASSERT(value.id < values_.size());
    values_[value.id].name = std::move(hint);
}

}  // namespace tilewright::ir
