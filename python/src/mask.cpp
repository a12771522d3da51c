// Bindings of block masks in tilewright._core.
#include "tilewright/mask.h"

#include "bindings.h"
#include "nanobind/operators.h"
#include "nanobind/stl/array.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"

namespace tilewright::python {

void bind_mask(nb::module_& module) {
    using Lengths = std::array<std::int64_t, 2>;
    using Released = nb::call_guard<nb::gil_scoped_release>;
    const auto block = [](Lengths size) { return BlockSize(size[0], size[1]); };
    nb::class_<BlockLists>(module, "BlockLists")
        .def_ro("num_blocks", &BlockLists::num_blocks)
        .def_ro("indices", &BlockLists::indices);
    nb::class_<BlockMask>(module, "BlockMask")
        .def_static(
            "from_dense",
            [=](const Tensor& dense, Lengths size) {
                return BlockMask::from_dense(dense, block(size));
            },
            nb::arg("dense"), nb::arg("block_size"), Released())
        .def_static(
            "from_kv_blocks",
            [=](const Tensor& kv_num_blocks, const Tensor& kv_indices,
                const Tensor& full_kv_num_blocks, const Tensor& full_kv_indices, Lengths size,
                const Mod* mask_mod, std::optional<Lengths> lengths) {
                return BlockMask::from_kv_blocks(kv_num_blocks, kv_indices, full_kv_num_blocks,
                                                 full_kv_indices, block(size),
                                                 mask_mod ? *mask_mod : Mod(), lengths);
            },
            nb::arg("kv_num_blocks"), nb::arg("kv_indices"), nb::arg("full_kv_num_blocks"),
            nb::arg("full_kv_indices"), nb::arg("block_size"), nb::arg("mask_mod").none(),
            nb::arg("lengths").none(), Released())
        .def_static("from_packed", &BlockMask::from_packed, nb::arg("words"), Released())
        .def("packed", &BlockMask::packed, Released())
        .def_prop_ro("shape", &BlockMask::shape)
        .def_prop_ro("block_size",
                     [](const BlockMask& mask) {
                         return Lengths{mask.block_size().q, mask.block_size().kv};
                     })
        .def("elements", &BlockMask::elements, Released())
        .def("sparsity", &BlockMask::sparsity, Released())
        .def("to_dense", &BlockMask::to_dense, Released())
        .def("kv_blocks", &BlockMask::kv_blocks, Released())
        .def("full_kv_blocks", &BlockMask::full_kv_blocks, Released())
        .def("q_blocks", &BlockMask::q_blocks, Released())
        .def("full_q_blocks", &BlockMask::full_q_blocks, Released())
        .def("select", &BlockMask::select, nb::arg("batches"), nb::arg("heads"), Released())
        .def("q_rows", &BlockMask::q_rows)
        .def("shifted", &BlockMask::shifted)
        .def(
            "equals", [](const BlockMask& a, const BlockMask& b) { return a == b; }, Released())
        .def(
            "both", [](const BlockMask& a, const BlockMask& b) { return a & b; }, Released())
        .def(
            "either", [](const BlockMask& a, const BlockMask& b) { return a | b; }, Released())
        .def(
            "complement", [](const BlockMask& a) { return ~a; }, Released())
        .def("to_string", &BlockMask::to_string, nb::arg("grid"), nb::arg("limit"))
        .def("svg", &BlockMask::svg)
        .def("save", &BlockMask::save, nb::arg("path"))
        .def_prop_ro("nbytes", &BlockMask::nbytes);
    module.def(
        "create_block_mask",
        [=](const Mod& mod, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
            std::int64_t kv_len, Lengths size) {
            return create_block_mask(mod, batch, heads, q_len, kv_len, block(size));
        },
        nb::arg("mod"), nb::arg("batch"), nb::arg("heads"), nb::arg("q_len"), nb::arg("kv_len"),
        nb::arg("block_size"), Released());
    module.def("create_scores", &create_scores, nb::arg("mod"), nb::arg("scores"), Released());
    module.def("create_mask", &create_mask, nb::arg("mod"), nb::arg("batch"), nb::arg("heads"),
               nb::arg("q_len"), nb::arg("kv_len"), Released());
}

}  // namespace tilewright::python
