// Calls of one operation on tensors of PyTorch.
#include "torch/calls.h"

#include <utility>

namespace tilewright::torch {

nb::object Calls::call(nb::handle site, nb::sequence operands, const CallDetails& details,
                       const Run& run) {
    Arguments arguments;
    for (const nb::handle operand : operands) {
        if (!arguments.add(operand)) return nb::none();
    }
    arguments.add_type(reinterpret_cast<std::int64_t>(details.state.get()));
    std::shared_ptr<Shape> shape = find(arguments.types());
    if (!shape) shape = learn(site, operands, arguments.types(), details);

    std::vector<Result> results;
    results.reserve(shape->results.size());
    for (const nb::object& of : shape->results) results.push_back(make_result(of));

    const DLDevice device = arguments.views().front().device;
    const bool repeats = details.repeats && device.device_type == kDLCPU && !checked();
    const TorchScope scope(device);
    run_released([&] {
        std::shared_ptr<const Recording> recording;
        bool records = false;
        if (repeats) {
            constexpr int kTries = 3;  // the first call may make what later ones find, as plans
            const std::scoped_lock lock(shape->mutex);
            recording = shape->recording;
            records = !recording && shape->tried < kTries;
            shape->tried += records ? 1 : 0;
        }
        if (recording) {
            std::vector<void*> addresses = arguments.addresses();
            for (const Result& result : results) addresses.push_back(address_of(result.view));
            return recording->repeat(addresses);
        }
        std::vector<Tensor> arrays = arguments.tensors();
        for (const Result& result : results) arrays.push_back(tensor_of(result.view));
        if (!records) return run(arrays);
        Recording made = Recording::of(arrays, run);
        if (!made.complete()) return;
        const std::scoped_lock lock(shape->mutex);
        shape->recording = std::make_shared<const Recording>(std::move(made));
    });
    nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
    for (std::size_t i = 0; i < results.size(); ++i) {
        // The macro is none of the stable ABI. A new tuple takes any item.
        PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), results[i].object.release().ptr());
    }
    return tuple;
}

std::shared_ptr<Calls::Shape> Calls::find(const std::vector<std::int64_t>& types) const {
    for (std::size_t i = shapes_.size(); i-- > 0;) {
        if (shapes_[i]->types == types) return shapes_[i];
    }
    return {};
}

std::shared_ptr<Calls::Shape> Calls::learn(nb::handle site, nb::handle operands,
                                           const std::vector<std::int64_t>& types,
                                           const CallDetails& details) {
    auto shape = std::make_shared<Shape>();
    shape->types = types;
    shape->state = details.state;
    const auto all = nb::borrow<nb::args>(nb::steal<nb::object>(PySequence_Tuple(operands.ptr())));
    const nb::object results = details.first_argument
                                   ? site.attr("results")(details.first_argument, *all)
                                   : site.attr("results")(*all);
    for (const nb::handle of : results) shape->results.push_back(nb::borrow(of));
    if (shapes_.size() == kMostShapes) shapes_.erase(shapes_.begin());
    shapes_.push_back(shape);
    return shape;
}

}  // namespace tilewright::torch
