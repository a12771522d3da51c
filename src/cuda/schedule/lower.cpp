// Translates the operations that the form has.
#include "cuda/schedule/lower.h"

#include <fmt/format.h>

#include <map>

#include "ir/access.h"
#include "ir/print.h"

namespace tilewright::cuda::schedule {
namespace {

class Lowering {
  public:
    Lowering(const ir::Function& kernel, const Target& target) : f_(kernel) {
        p_.name = kernel.name;
        p_.arch = target.arch;
        p_.mark_lines = target.mark_lines;
        p_.grid = kernel.grid;
        p_.stages = kernel.hints.num_stages;
        std::size_t next = 0;
        for (ir::Value parameter : kernel.parameters()) {
            Parameter one;
            one.name = parameter_name(parameter);
            one.is_ref = kernel.is_ref(parameter);
            if (one.is_ref) {
                const ir::RefType& ref = kernel.ref_type(parameter);
                if (ref.space == ir::Space::scratch) throw Refused("it has scratch");
                if (ref.alias_group >= 0) throw Refused("its arrays may overlap");
                one.dtype = ref.dtype;
                one.extents = ref.extents;
                const RefFacts facts = next < target.facts.size() ? target.facts[next] : RefFacts();
                ++next;
                one.vectors = facts.vectors;
                one.tensor = facts.tensor;
                one.copy_bytes = facts.copy_bytes;
            } else {
                one.dtype = kernel.type(parameter).dtype;
                one.value = define(parameter);
            }
            p_.parameters.push_back(std::move(one));
        }
    }

    Program run() {
        ir::walk(f_.body, [&](const ir::Instruction& made) {
            used_.insert(made.operands.begin(), made.operands.end());
        });
        block(f_.body, p_.body);
        std::set<std::string> read, written;
        each_instruction(p_.body, [&](const Instruction& made) {
            if (made.is(ir::Op::load)) read.insert(made.symbol("of"));
            if (made.is(ir::Op::store) || made.is(ir::Op::atomic_add))
                written.insert(made.symbol("of"));
        });
        for (const std::string& ref : written) {
            if (read.contains(ref)) throw Refused(fmt::format("it reads and writes `{}`", ref));
        }
        return std::move(p_);
    }

  private:
    std::string parameter_name(ir::Value parameter) {
        std::string name = f_.value_name(parameter);
        if (name.empty() || !refs_.insert(name).second) {
            name = fmt::format("p{}", parameter.id);
            refs_.insert(name);
        }
        ref_names_[parameter] = name;
        return name;
    }
    Value define(ir::Value value) {
        return values_[value] = p_.add({false, f_.type(value), {}}, f_.value_name(value));
    }
    std::vector<Value> operands(const ir::Instruction& made) const {
        std::vector<Value> result;
        for (ir::Value operand : made.operands) result.push_back(values_.at(operand));
        return result;
    }

    void block(const ir::Block& from, Block& to) {
        for (const ir::Instruction& made : from.body) instruction(made, to);
    }

    void instruction(const ir::Instruction& made, Block& to) {
        if (ir::is_access(made.op)) return access(made, to);
        Instruction same = tile_instruction(f_, made);
        if (made.op == ir::Op::extent) {
            same.with_symbol("of", ref_names_.at(made.operands[0]));
        } else {
            same.operands = operands(made);
        }
        if (made.op == ir::Op::reshape) {
            reshape(made, same);
        } else if (!is_known(made.op)) {
            throw Refused(fmt::format("it has the operation `{}`", ir::name(made.op)));
        }
        for (const ir::Block& inner : made.blocks) {
            same.blocks.emplace_back();
            for (ir::Value argument : inner.arguments) {
                same.blocks.back().arguments.push_back(define(argument));
            }
            block(inner, same.blocks.back());
        }
        for (ir::Value result : made.results) same.results.push_back(define(result));
        to.body.push_back(std::move(same));
    }

    static bool is_known(ir::Op op) {
        switch (op) {
            case ir::Op::constant:
            case ir::Op::iota:
            case ir::Op::reduce:
            case ir::Op::program_id:
            case ir::Op::num_programs:
            case ir::Op::extent:
            case ir::Op::expand_dims:
            case ir::Op::transpose:
            case ir::Op::dot:
            case ir::Op::broadcast:
            case ir::Op::for_loop:
            case ir::Op::yield:
                return true;
            default:
                return is_pointwise(op);
        }
    }

    /// A reshape that inserts an axis of extent 1.
    void reshape(const ir::Instruction& made, Instruction& same) const {
        const ir::Shape& from = f_.type(made.operands[0]).shape;
        const ir::Shape& to = f_.type(made.result()).shape;
        for (int axis = 0; to.rank() == from.rank() + 1 && axis < to.rank(); ++axis) {
            if (from.with_inserted(axis, 1) != to) continue;
            same.tile = ir::Op::expand_dims;
            same.with("axis", axis);
            return;
        }
        throw Refused("it has the operation `reshape`");
    }

    void access(const ir::Instruction& made, Block& to) {
        const auto& attributes = made.get<ir::AccessAttributes>();
        const ir::Access parts = ir::access(made);
        const bool adds = made.op == ir::Op::atomic_add;
        if (made.op != ir::Op::load && made.op != ir::Op::store && !adds) {
            throw Refused(fmt::format("it has the operation `{}`", ir::name(made.op)));
        }
        if (parts.mask && made.op != ir::Op::store) {
            throw Refused(adds ? "an addition to memory has a mask" : "a load has a mask");
        }
        if (adds && used_.contains(made.result())) {
            throw Refused("what an addition to memory finds there is used");
        }
        if (parts.other && !is_zero(parts.other)) throw Refused("a load has `other`");
        Instruction same;
        same.tile = made.op;
        same.line = made.location.line;
        std::vector<std::int64_t> sizes;
        bool gathers = false, slices = false;
        for (const ir::Index& index : attributes.indices) {
            gathers |= index.kind == ir::Index::Kind::tile;
            slices |= index.kind == ir::Index::Kind::slice;
            if (index.stride != 1) throw Refused("a slice has a stride");
            sizes.push_back(index.kind == ir::Index::Kind::scalar ? 0
                            : index.kind == ir::Index::Kind::tile ? kGathered
                                                                  : index.size);
        }
        if (gathers && (made.op != ir::Op::load || slices)) {
            throw Refused(slices ? "an access has slices and index tiles"
                                 : "it stores by an index tile");
        }
        for (ir::Value index : parts.indices) {
            const Value value = values_.at(index);
            same.operands.push_back(gathers ? stretched(value, f_.type(made.result()).shape, to)
                                            : value);
        }
        if (parts.mask) {
            same.operands.push_back(values_.at(parts.mask));
            same.flag("masked");
        }
        for (ir::Value value : parts.values) same.operands.push_back(values_.at(value));
        same.with_symbol("of", ref_names_.at(parts.ref)).with("index", sizes);
        if (attributes.in_bounds) same.flag("in_bounds");
        for (ir::Value result : made.results) {
            if (!adds) same.results.push_back(define(result));
        }
        to.body.push_back(std::move(same));
    }

    /// An index tile in the shape of what it gathers.
    Value stretched(Value index, const ir::Shape& shape, Block& to) {
        const ir::Type type = p_.type(index).type;
        if (type.shape.rank() == 0 || type.shape == shape) return index;
        const Value result = p_.add({false, {type.dtype, shape}, {}});
        to.body.push_back(make(ir::Op::broadcast, {index}, {result}));
        return result;
    }

    bool is_zero(ir::Value value) const {
        for (const Instruction* at = find(p_.body, values_.at(value)); at != nullptr;
             at = find(p_.body, at->operands[0])) {
            if (at->is(ir::Op::constant)) return at->attributes[0].numbers[0] == 0;
            if (!at->is(ir::Op::broadcast)) return false;
        }
        return false;
    }
    static const Instruction* find(const Block& in, Value value) {
        const Instruction* found = nullptr;
        each_instruction(in, [&](const Instruction& made) {
            for (Value result : made.results) found = result == value ? &made : found;
        });
        return found;
    }

    const ir::Function& f_;
    Program p_;
    std::map<ir::Value, Value> values_;
    std::map<ir::Value, std::string> ref_names_;
    std::set<std::string> refs_;
    std::set<ir::Value> used_;
};

}  // namespace

Program lower(const ir::Function& kernel, const Target& target) {
    return Lowering(kernel, target).run();
}

}  // namespace tilewright::cuda::schedule
