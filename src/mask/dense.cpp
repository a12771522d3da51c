// Masks to and from one bool per pair.
#include "mask/dense.h"

#include <algorithm>

#include "support/check.h"

namespace tilewright::mask {

MaskData from_dense(const Tensor& tensor) {
    if (!tensor.defined() || tensor.rank() != 4 || tensor.dtype() != boolean)
        user_error("mask", "expected a dense mask bool (B, H, Q, KV) but got {}",
                   tensor.defined() ? tensor.type_name() : "nothing");
    const Tensor dense = tensor.contiguous();
    MaskData data;
    data.batch = dense.dim(0);
    data.heads = dense.dim(1);
    data.q_len = dense.dim(2);
    data.kv_len = dense.dim(3);
    RowWriter writer(data);
    const auto* bytes = static_cast<const unsigned char*>(dense.raw());
    for (std::int64_t head = 0; head < data.batch * data.heads; ++head) {
        for (std::int64_t row = 0; row < data.rows(); ++row) {
            const auto* from = bytes + (head * data.q_len + row * kAtom) * data.kv_len;
            for (std::int64_t column = 0; column < data.columns(); ++column) {
                Atom atom{};
                for (std::int64_t i = 0; i < data.row_size(row); ++i) {
                    const auto* line = from + i * data.kv_len + column * kAtom;
                    std::uint64_t word = 0;
                    for (std::int64_t j = 0; j < data.column_size(column); ++j)
                        word |= std::uint64_t{line[j] != 0} << j;
                    atom[i] = word;
                }
                writer.atom(column, data.atoms.intern(atom));
            }
            writer.end_row();
        }
    }
    return data;
}

Tensor to_dense(const MaskData& data, std::int64_t batch, std::int64_t heads) {
    Tensor dense = Tensor::zeros(boolean, {batch, heads, data.q_len, data.kv_len});
    auto* bytes = static_cast<unsigned char*>(dense.raw());
    for (std::int64_t head = 0; head < batch * heads; ++head) {
        const std::int64_t stored = (data.batch == 1 ? 0 : head / heads) * data.heads +
                                    (data.heads == 1 ? 0 : head % heads);
        for (std::int64_t q = 0; q < data.q_len; ++q, bytes += data.kv_len) {
            for (const Run& run : data.row(stored * data.rows() + q / kAtom)) {
                if (run.full()) {
                    std::fill_n(bytes + run.first * kAtom, run.count * kAtom, 1);
                    continue;
                }
                for (std::int32_t i = 0; i < run.count; ++i) {
                    const AtomId id = data.ids[run.atoms + i];
                    const std::uint64_t word = data.atoms[id][q % kAtom];
                    const std::int64_t column = run.first + i;
                    for (std::int64_t j = 0; j < data.column_size(column); ++j)
                        bytes[column * kAtom + j] = word >> j & 1;
                }
            }
        }
    }
    return dense;
}

}  // namespace tilewright::mask
