// tilewright._core.Tensor: memory of NumPy or any DLPack array as a tensor, and back.
#include "tilewright/tensor.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "operand.h"
#include "tensor.h"
#include "tilewright/dlpack.h"
#include "tilewright/run.h"

namespace tilewright::python {
namespace {

/// Keeps a Python object alive for as long as tensors use its memory. The last of them may be
/// destroyed on a thread without the GIL, or after the interpreter is gone.
std::shared_ptr<void> owner_of(nb::object object) {
    return {object.release().ptr(), [](void* p) {
                if (!Py_IsInitialized()) return;
                const nb::gil_scoped_acquire gil;
                Py_DECREF(static_cast<PyObject*>(p));
            }};
}

Tensor from_memory(std::uintptr_t address, const std::string& dtype, Tensor::Dims shape,
                   Tensor::Dims strides, nb::object owner) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): NumPy passes the address as an integer
    return Tensor::from_data(reinterpret_cast<void*>(address), expect_dtype(dtype),
                             std::move(shape), std::move(strides), owner_of(std::move(owner)));
}

Tensor from_dlpack(const nb::capsule& capsule) {
    const auto take = [&](const char* name, auto* managed) {
        using Managed = std::remove_pointer_t<decltype(managed)>;
        managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
        if (!managed) nb::raise_python_error();
        // A consumer renames the capsule, so that its destructor leaves the memory to us.
        PyCapsule_SetName(capsule.ptr(), (std::string("used_") + name) == "used_dltensor"
                                             ? "used_dltensor"
                                             : "used_dltensor_versioned");
        return Tensor::from_dlpack(managed);
    };
    const char* name = capsule.name();
    if (name && std::string(name) == "dltensor_versioned")
        return take("dltensor_versioned", static_cast<DLManagedTensorVersioned*>(nullptr));
    return take("dltensor", static_cast<DLManagedTensor*>(nullptr));
}

/// Streams are numbered as in DLPack: 1 is the legacy default stream, -1 means do not wait.
nb::capsule to_dlpack(const Tensor& tensor, std::optional<std::int64_t> stream) {
    if (tensor.device().kind == Device::Kind::cuda && stream && *stream != -1) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): a stream of the consumer, as an integer
        void* const consumer = *stream <= 1 ? nullptr : reinterpret_cast<void*>(*stream);
        wait_for_cuda_stream(consumer, tensor.device());
    }
    DLManagedTensor* managed = tensor.to_dlpack();
    return nb::steal<nb::capsule>(PyCapsule_New(managed, "dltensor", [](PyObject* capsule) {
        if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // it was consumed
        auto* unused = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
        unused->deleter(unused);
    }));
}

/// NumPy's typestr; dtypes that NumPy lacks are passed as unsigned integers of their width.
std::string typestr(DType dtype) {
    const std::string size = std::to_string(size_of(dtype));
    if (dtype == DType::boolean) return "|b1";
    if (dtype == DType::f16 || dtype == DType::f32 || dtype == DType::f64) return "<f" + size;
    return (is_integer(dtype) && is_signed(dtype) ? "<i" : "<u") + size;
}

nb::dict array_interface(const Tensor& tensor) {
    if (tensor.device().kind != Device::Kind::cpu)
        throw nb::attribute_error("a tensor on a CUDA device has no __array_interface__");
    nb::list shape;
    nb::list strides;
    for (const std::int64_t extent : tensor.shape()) shape.append(extent);
    for (const std::int64_t stride : tensor.strides())
        strides.append(stride * size_of(tensor.dtype()));
    nb::dict interface;
    interface["version"] = 3;
    interface["typestr"] = typestr(tensor.dtype());
    interface["data"] = nb::make_tuple(reinterpret_cast<std::uintptr_t>(tensor.raw()), false);
    interface["shape"] = nb::tuple(shape);
    interface["strides"] = nb::tuple(strides);
    return interface;
}

/// The dtype for a buffer's format and item size; none if there is no match.
std::optional<DType> dtype_of_format(const char* format, Py_ssize_t size) {
    if (!format) return {};
    const char code = *format == '<' || *format == '=' || *format == '@' ? format[1] : format[0];
    const char* const end = format + (code == format[0] ? 1 : 2);
    if (*end != '\0') return {};
    const auto of_size = [&](DType one, DType two, DType four, DType eight) {
        return size == 1 ? one : size == 2 ? two : size == 4 ? four : eight;
    };
    switch (code) {
        case '?':
            return DType::boolean;
        case 'b':
        case 'h':
        case 'i':
        case 'l':
        case 'q':
            return of_size(DType::i8, DType::i16, DType::i32, DType::i64);
        case 'B':
        case 'H':
        case 'I':
        case 'L':
        case 'Q':
            return of_size(DType::u8, DType::u16, DType::u32, DType::u64);
        case 'e':
            return DType::f16;
        case 'f':
            return DType::f32;
        case 'd':
            return DType::f64;
        default:
            return {};
    }
}

}  // namespace

std::optional<Tensor> tensor_of_numpy(nb::handle array, bool& writable) {
    // NumPy stays loaded, so the type is looked up only once.
    static PyObject* const kArray = nb::module_::import_("numpy").attr("ndarray").ptr();
    if (!PyObject_TypeCheck(array.ptr(), reinterpret_cast<PyTypeObject*>(kArray))) return {};
    Py_buffer buffer;
    if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_RECORDS_RO) != 0) {
        PyErr_Clear();
        return {};
    }
    // The memory lives as long as the array, which the tensor keeps.
    const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> release(&buffer, &PyBuffer_Release);
    const std::optional<DType> dtype = dtype_of_format(buffer.format, buffer.itemsize);
    if (!dtype || reinterpret_cast<std::uintptr_t>(buffer.buf) %
                          static_cast<std::uintptr_t>(buffer.itemsize) !=
                      0) {
        return {};
    }
    Tensor::Dims shape(buffer.shape, buffer.shape + buffer.ndim);
    Tensor::Dims strides(buffer.strides, buffer.strides + buffer.ndim);
    for (std::int64_t& stride : strides) {
        if (stride % buffer.itemsize != 0) return {};
        stride /= buffer.itemsize;
    }
    writable = buffer.readonly == 0;
    return Tensor::from_data(buffer.buf, *dtype, std::move(shape), std::move(strides),
                             owner_of(nb::borrow(array)));
}

nb::object numpy_of_tensor(const Tensor& tensor) {
    using Code = nb::dlpack::dtype_code;
    const DType type = tensor.dtype();
    const bool is_plain = type != DType::bf16 && type != DType::f8e4m3 && type != DType::f8e5m2;
    if (tensor.device().kind != Device::Kind::cpu || !is_plain) return {};
    const Code code = type == DType::boolean ? Code::Bool
                      : is_float(type)       ? Code::Float
                      : is_signed(type)      ? Code::Int
                                             : Code::UInt;
    const nb::dlpack::dtype dtype{static_cast<std::uint8_t>(code),
                                  static_cast<std::uint8_t>(8 * size_of(type)), 1};
    std::vector<std::size_t> shape(tensor.shape().begin(), tensor.shape().end());
    auto* const kept = new Tensor(tensor);
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Tensor*>(p); });
    return nb::cast(nb::ndarray<nb::numpy>(tensor.raw(), shape.size(), shape.data(), owner,
                                           tensor.strides().data(), dtype));
}

void bind_tensor(nb::module_& module) {
    nb::class_<Tensor>(module, "Tensor",
                       "A strided view of typed memory. A tensor made without arguments stands for "
                       "an argument left out.")
        .def(nb::init<>())
        .def_static("from_memory", &from_memory, nb::arg("address"), nb::arg("dtype"),
                    nb::arg("shape"), nb::arg("strides"), nb::arg("owner"),
                    "Elements at an address, which `owner` keeps alive; strides in elements.")
        .def_static(
            "of_type",
            [](const std::string& dtype, const Tensor::Dims& shape) {
                static const double kElement = 0;  // as wide as any dtype
                return Tensor::from_data(const_cast<double*>(&kElement), expect_dtype(dtype), shape,
                                         Tensor::Dims(shape.size(), 0));
            },
            nb::arg("dtype"), nb::arg("shape"), "For traces: every element is at one place.")
        .def_static("from_dlpack", &from_dlpack, nb::arg("capsule"))
        .def("__dlpack__",
             [](const Tensor& t, const nb::args& positional, const nb::kwargs& named) {
                 nb::object stream = nb::none();
                 if (positional.size() > 0) stream = positional[0];
                 if (named.contains("stream")) stream = named["stream"];
                 return to_dlpack(t, nb::cast<std::optional<std::int64_t>>(stream));
             })
        .def(
            "to",
            [](const Tensor& t, bool cuda, int index) {
                return t.to(cuda ? Device::cuda(index) : Device{});
            },
            nb::arg("cuda"), nb::arg("index"), nb::call_guard<nb::gil_scoped_release>(),
            "A copy on another device; itself when it is there already.")
        .def_prop_ro("device", [](const Tensor& t) { return to_string(t.device()); })
        .def("__dlpack_device__",
             [](const Tensor& t) {
                 return nb::make_tuple(t.device().kind == Device::Kind::cpu ? 1 : 2,
                                       t.device().index);
             })
        .def_prop_ro("__array_interface__", &array_interface)
        .def_prop_ro("dtype", [](const Tensor& t) { return std::string(name(t.dtype())); })
        .def_prop_ro("shape", [](const Tensor& t) { return nb::tuple(nb::cast(t.shape())); })
        .def_static(
            "empty",
            [](const std::string& dtype, Tensor::Dims shape, const std::string& device) {
                return Tensor::empty(expect_dtype(dtype), std::move(shape), expect_device(device));
            },
            nb::arg("dtype"), nb::arg("shape"), nb::arg("device"))
        .def_static(
            "zeros",
            [](const std::string& dtype, Tensor::Dims shape, const std::string& device) {
                return Tensor::zeros(expect_dtype(dtype), std::move(shape), expect_device(device));
            },
            nb::arg("dtype"), nb::arg("shape"), nb::arg("device"))
        .def_prop_ro("address",
                     [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.raw()); })
        .def_prop_ro("ndim", &Tensor::rank)
        .def_prop_ro("defined", &Tensor::defined)
        .def("fingerprint", &Tensor::fingerprint, nb::call_guard<nb::gil_scoped_release>())
        .def("__repr__", &Tensor::type_name);
}

}  // namespace tilewright::python
