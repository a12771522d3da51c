// Calls of one operation on PyTorch tensors.
#include "torch/calls.h"

#include <utility>

#include "nanobind/stl/vector.h"

namespace tilewright::torch {
namespace {

/// Whether torch.empty_like of an operand equals torch.empty_strided with these arguments.
bool is_like(nb::handle operand, const DLTensor& view, nb::handle arguments) {
    const auto given = nb::borrow<nb::tuple>(arguments);
    const auto equal = [&](const std::int64_t* numbers, nb::handle wanted) {
        const auto tuple = nb::borrow<nb::tuple>(wanted);
        if (static_cast<std::size_t>(view.ndim) != tuple.size()) return false;
        for (std::size_t i = 0; i < tuple.size(); ++i) {
            if (nb::cast<std::int64_t>(tuple[i]) != numbers[i]) return false;
        }
        return true;
    };
    return equal(view.shape, given[0][0]) && equal(view.strides, given[0][1]) &&
           operand.attr("dtype").equal(given[1]["dtype"]) &&
           operand.attr("device").equal(given[1]["device"]);
}

/// From the arguments of torch.empty_strided.
Calls::Wanted wanted_of(nb::handle arguments) {
    Calls::Wanted wanted;
    wanted.arguments = nb::borrow(arguments);
    wanted.shape = nb::cast<std::vector<std::int64_t>>(arguments[0][0]);
    wanted.strides = nb::cast<std::vector<std::int64_t>>(arguments[0][1]);
    const nb::tuple nothing = nb::make_tuple(nb::make_tuple(0), nb::make_tuple(1));
    const Result sample = make_result(nb::make_tuple(nothing, arguments[1]), nb::handle());
    wanted.dtype = sample.view.dtype;
    wanted.device = sample.view.device;
    return wanted;
}

}  // namespace

nb::object Calls::call(nb::handle site, nb::sequence operands, const CallDetails& details,
                       const Run& run) {
    Arguments arguments;
    for (const nb::handle operand : operands) {
        if (!arguments.add(operand)) return nb::none();
    }
    return call(site, arguments, details, run);
}

nb::object Calls::call(nb::handle site, Arguments& arguments, const CallDetails& details,
                       const Run& run) {
    arguments.add_type(reinterpret_cast<std::int64_t>(details.state.get()));
    std::shared_ptr<Shape> shape = find(arguments.types());
    if (!shape) shape = learn(site, arguments, details);

    std::vector<Result> results;
    results.reserve(shape->results.size());
    for (const Wanted& wanted : shape->results) {
        const nb::handle like = wanted.like < 0 ? nb::handle() : arguments.objects()[wanted.like];
        results.push_back(make_result(wanted.arguments, like));
    }

    std::vector<DLTensor> views;
    views.reserve(results.size());
    for (const Result& result : results) views.push_back(result.view);
    const DLDevice device = arguments.views().front().device;
    if (device.device_type == kDLCPU) {
        follow_threads(PyLong_AsLong(value_of(torch().num_threads).ptr()));
    }
    const TorchScope scope(device);
    run_released([&] { launch(*shape, arguments, views, details, run); });
    nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
    for (std::size_t i = 0; i < results.size(); ++i) {
        // The macro is not in the stable ABI; a new tuple accepts any item.
        PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), results[i].object.release().ptr());
    }
    return tuple;
}

void Calls::call_released(nb::handle site, Arguments& arguments, const CallDetails& details,
                          const Make& make, const Run& run) {
    arguments.add_type(reinterpret_cast<std::int64_t>(details.state.get()));
    std::shared_ptr<Shape> shape = find(arguments.types());
    if (!shape) {
        const nb::gil_scoped_acquire held;
        const std::vector<nb::object> objects = arguments.make_objects();
        shape = learn(site, arguments, details);
    }
    std::vector<DLTensor> results;
    results.reserve(shape->results.size());
    for (const Wanted& wanted : shape->results) results.push_back(make(wanted));
    const TorchScope scope(arguments.views().front().device);
    launch(*shape, arguments, results, details, run);
}

void Calls::launch(Shape& shape, const Arguments& arguments, std::span<const DLTensor> results,
                   const CallDetails& details, const Run& run) {
    const bool repeats = details.repeats && !checked();
    std::shared_ptr<const Recording> recording;
    bool records = false;
    if (repeats) {
        constexpr int kTries =
            3;  // the first call may make what later ones only look up, such as plans
        const std::scoped_lock lock(shape.mutex);
        recording = shape.recording;
        records = !recording && shape.tried < kTries;
        shape.tried += records ? 1 : 0;
    }
    if (recording) {
        std::vector<void*> addresses = arguments.addresses();
        for (const DLTensor& result : results) addresses.push_back(address_of(result));
        if (recording->repeat(addresses)) return;
        if (!recording->complete()) {  // its kernels have been unloaded
            const std::scoped_lock lock(shape.mutex);
            shape.recording.reset();
            shape.tried = 0;
        }
    }
    std::vector<Tensor> arrays = arguments.tensors();
    for (const DLTensor& result : results) arrays.push_back(tensor_of(result));
    if (!records) return run(arrays);
    Recording made = Recording::of(arrays, run);
    const std::scoped_lock lock(shape.mutex);
    if (made.is_early()) --shape.tried;
    if (!made.complete()) return;
    shape.recording = std::make_shared<const Recording>(std::move(made));
}

std::shared_ptr<Calls::Shape> Calls::find(const std::vector<std::int64_t>& types) const {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = shapes_.size(); i-- > 0;) {
        if (shapes_[i]->types == types) return shapes_[i];
    }
    return {};
}

std::shared_ptr<Calls::Shape> Calls::learn(nb::handle site, const Arguments& arguments,
                                           const CallDetails& details) {
    // Its objects are released under the GIL, whoever has it last.
    const std::shared_ptr<Shape> shape(new Shape, [](Shape* last) {
        const nb::gil_scoped_acquire held;
        delete last;
    });
    shape->types = arguments.types();
    shape->state = details.state;
    nb::list all;
    if (details.first_argument) all.append(details.first_argument);
    for (const nb::handle operand : arguments.objects()) all.append(operand);
    const nb::object results = site.attr("results")(*nb::tuple(all));
    for (const nb::handle of : results) {
        Wanted wanted = wanted_of(of);
        for (std::size_t i = 0; i < arguments.size() && wanted.like < 0; ++i) {
            if (is_like(arguments.objects()[i], arguments.views()[i], of)) {
                wanted.like = static_cast<int>(i);
            }
        }
        shape->results.push_back(std::move(wanted));
    }
    std::shared_ptr<Shape> dropped;  // released after the lock
    const std::scoped_lock lock(mutex_);
    if (shapes_.size() == kMostShapes) {
        dropped = std::move(shapes_.front());
        shapes_.erase(shapes_.begin());
    }
    shapes_.push_back(shape);
    return shape;
}

}  // namespace tilewright::torch
