// Launches of the kernel that widens rows.
#include "attention/sm90/wide_rows.h"

#include <algorithm>

#include "attention/sm90/wide_rows_parameters.h"
#include "cuda/runtime/kernel.h"
#include "support/memo.h"

namespace tilewright::attn::sm90 {
namespace {

constexpr std::int64_t kLine = 64;  // elements

/// Rows shorter than half a line share one.
std::int64_t pitch_of(std::int64_t columns) {
    if (columns <= 16) return 16;
    return columns <= 32 ? 32 : ceil_div(columns, kLine) * kLine;
}

bool is_slow(const DeviceTensor& tensor) {
    if (is_odd(static_cast<int>(tensor.shape[3])) || tensor.address % (2 * kLine) != 0) return true;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (tensor.shape[axis] > 1 && tensor.strides[axis] % kLine != 0) return true;
    }
    return false;
}

cuda::Kernel wide_rows_kernel(int device) {
    constexpr std::size_t kMost = 64;  // devices
    static auto* const kKernels = new Memo<int, cuda::Kernel>("kernels that widen rows", kMost);
    return kKernels->get(device, [&] {
        return cuda::load_kernel(generate_wide_rows(), "attention_wide_rows", 0, device);
    });
}

}  // namespace

std::size_t wide_bytes(std::int64_t batch, std::int64_t heads, std::int64_t rows,
                       std::int64_t columns) {
    return static_cast<std::size_t>(2 * batch * heads * rows * pitch_of(columns));
}

cuda::CompileRequest generate_wide_rows() {
    cuda::CompileRequest request;
    request.name = "attention_wide_rows.cu";
    request.arch = "sm_90a";
    request.spill_limit_bytes = 0;
    request.headers = device_headers();
    request.source = "#include \"attention/sm90/wide_rows.cuh\"\n";
    return request;
}

void load_wide_rows(int device) {
    wide_rows_kernel(device);
}

void widen_rows(std::initializer_list<DeviceTensor*> arrays, cuda::DeviceAddress memory, int device,
                cuda::StreamHandle stream) {
    twd::attn::WideRowsParameters p{};
    unsigned count = 0;
    std::int64_t ctas = 0;
    for (DeviceTensor* const array : arrays) {
        if (!is_slow(*array)) continue;
        const auto [batch, heads, rows, columns] = array->shape;
        const std::int64_t pitch = pitch_of(columns), copied = ceil_div(columns, 16) * 16;
        p.arrays[count++] = {.source = reinterpret_cast<const void*>(array->address),
                             .target = reinterpret_cast<void*>(memory),
                             .batch_stride = array->strides[0],
                             .head_stride = array->strides[1],
                             .row_stride = array->strides[2],
                             .batch_heads = static_cast<int>(batch * heads),
                             .heads = static_cast<int>(heads),
                             .rows = static_cast<int>(rows),
                             .vectors = static_cast<int>(columns / 8),
                             .copied = static_cast<int>(copied / 8),
                             .pitch = static_cast<int>(pitch)};
        ctas = std::max(ctas, batch * heads * ceil_div(rows, std::int64_t{twd::attn::kWideRows}));
        array->address = memory;
        array->strides = {heads * rows * pitch, rows * pitch, pitch, 1};
        array->shape[3] = copied;
        memory += wide_bytes(batch, heads, rows, columns);
    }
    if (ctas == 0) return;
    cuda::LaunchShape shape;
    shape.grid[0] = static_cast<unsigned>(ctas);
    shape.grid[1] = count;
    shape.block[0] = twd::attn::kWideThreads;
    void* const parameters[] = {&p};
    cuda::launch(wide_rows_kernel(device), shape, parameters, stream);
}

}  // namespace tilewright::attn::sm90
