// Launches of the mask interpreter.
#include "mask/gpu.h"

#include <bit>
#include <cstring>
#include <utility>

#include "cuda/runtime/kernel.h"
#include "cuda/runtime/stream.h"
#include "support/memo.h"

namespace tilewright::mask {

const std::vector<cuda::Header>& device_headers();

cuda::CompileRequest kernel_request(MaskKernel kernel, const std::string& arch) {
    cuda::CompileRequest request;
    request.arch = arch;
    request.headers = device_headers();
    request.source = "#include \"mask/device/interpreter.cuh\"\n\n";
    if (kernel == MaskKernel::pieces) {
        request.name = "mask_pieces.cu";
        request.source +=
            "extern \"C\" __global__ void __launch_bounds__(32) mask_pieces(const "
            "__grid_constant__ twd::mask::PieceParameters p) {\n    "
            "twd::mask::evaluate_piece(p);\n}\n";
    } else {
        request.name = "mask_ranges.cu";
        request.source +=
            "extern \"C\" __global__ void __launch_bounds__(32) mask_ranges(const "
            "__grid_constant__ twd::mask::RangeParameters p) {\n    "
            "twd::mask::evaluate_ranges(p);\n}\n";
    }
    return request;
}

namespace {

cuda::Kernel kernel_of(MaskKernel kernel, int device) {
    constexpr std::size_t kMost = 128;  // two per device
    static auto* const kKernels =
        new Memo<std::pair<MaskKernel, int>, cuda::Kernel>("kernels that build masks", kMost);
    return kKernels->get({kernel, device}, [&] {
        const std::string arch = cuda::device_info(device).arch();
        // Pieces are evaluated after ranges are known, and their kernel takes longest to compile.
        if (kernel == MaskKernel::ranges)
            cuda::compile_in_background(kernel_request(MaskKernel::pieces, arch));
        const char* const name = kernel == MaskKernel::pieces ? "mask_pieces" : "mask_ranges";
        return cuda::load_kernel(kernel_request(kernel, arch), name, 0, device);
    });
}

/// Launches `blocks` warps with one parameter.
template <typename Parameters>
void launch(MaskKernel kernel, int device, std::int64_t blocks, Parameters& parameters) {
    cuda::LaunchShape shape;
    shape.grid[0] = static_cast<unsigned>(blocks);
    shape.block[0] = twd::mask::kLanes;
    void* const pointers[] = {&parameters};
    cuda::check_stream("create_block_mask", device);
    cuda::launch(kernel_of(kernel, device), shape, pointers, cuda::current_stream());
}

twd::mask::Array array_of(const Tensor& tensor) {
    twd::mask::Array array{};
    array.data = tensor.raw();
    std::copy(tensor.shape().begin(), tensor.shape().end(), array.extents);
    std::copy(tensor.strides().begin(), tensor.strides().end(), array.strides);
    return array;
}

/// The bytes of a list, copied to a GPU.
template <typename T>
Tensor copied(std::span<const T> values, Device device) {
    auto* const bytes = const_cast<T*>(values.data());  // the copy only reads
    return Tensor::from_data(bytes, u8, {static_cast<std::int64_t>(values.size_bytes())})
        .to(device);
}

}  // namespace

GpuPieces::GpuPieces(const Bytecode& code, std::span<const Tensor> arrays) : code_(code) {
    const Device device = arrays[0].device();
    std::vector<twd::mask::Array> places;
    for (const Tensor& array : arrays) places.push_back(array_of(array));
    arrays_ = copied(std::span<const twd::mask::Array>(places), device);
    steps_ = copied(std::span<const twd::mask::Step>(code_.steps), device);
    constants_ = copied(std::span<const unsigned long long>(code_.constants), device);
}

std::vector<Atom> GpuPieces::evaluate(std::span<const twd::mask::Place> places) const {
    const Device device = arrays_.device();
    const auto count = std::ssize(places);
    const Tensor origins = copied(places, device);
    const Tensor bits = Tensor::empty(u64, {count, kAtom}, device);
    twd::mask::PieceParameters p{};
    p.steps = static_cast<const twd::mask::Step*>(steps_.raw());
    p.constants = static_cast<const unsigned long long*>(constants_.raw());
    p.arrays = static_cast<const twd::mask::Array*>(arrays_.raw());
    p.places = static_cast<const twd::mask::Place*>(origins.raw());
    p.bits = static_cast<unsigned char*>(bits.raw());
    p.num_steps = static_cast<int>(code_.steps.size());
    std::copy(code_.scalars.begin(), code_.scalars.end(), p.scalars);
    p.result = code_.result;
    launch(MaskKernel::pieces, device.index, count, p);
    std::vector<Atom> atoms(places.size());
    static_assert(sizeof(Atom) == kAtom * sizeof(std::uint64_t));
    const Tensor on_host = bits.to(Device{});
    std::memcpy(atoms.data(), on_host.raw(), atoms.size() * sizeof(Atom));
    return atoms;
}

std::shared_ptr<const ir::RangeTree> gpu_range_tree(const Tensor& array) {
    const DType dtype = array.dtype();
    const std::vector<std::int64_t> extents(array.shape().begin(), array.shape().end());
    static_assert(twd::mask::kRangeBlock == ir::RangeTree::kBlock);
    const std::int64_t blocks = (array.size() + ir::RangeTree::kBlock - 1) / ir::RangeTree::kBlock;
    std::vector<ir::Interval> ranges;
    if (blocks > 0) {
        const Tensor ends = Tensor::empty(u64, {blocks, 3}, array.device());
        twd::mask::RangeParameters p{};
        p.array = array_of(array);
        p.type = static_cast<twd::mask::Type>(dtype);
        p.rank = array.rank();
        p.size = array.size();
        p.ranges = static_cast<unsigned long long*>(ends.raw());
        launch(MaskKernel::ranges, array.device().index,
               (blocks + twd::mask::kLanes - 1) / twd::mask::kLanes, p);
        const Tensor on_host = ends.to(Device{});
        const auto* words = static_cast<const std::uint64_t*>(on_host.raw());
        for (std::int64_t i = 0; i < blocks; ++i, words += 3) {
            const auto low = std::bit_cast<double>(words[0]),
                       high = std::bit_cast<double>(words[1]);
            if (is_float(dtype))
                ranges.push_back(low > high ? ir::Interval::all(dtype)
                                            : ir::Interval::floats(low, high, words[2] != 0));
            else if (dtype == DType::u64 && words[1] >> 63 != 0)
                ranges.push_back(ir::Interval::all(dtype));
            else
                ranges.push_back(ir::Interval::integers(static_cast<std::int64_t>(words[0]),
                                                        static_cast<std::int64_t>(words[1])));
        }
    }
    return std::make_shared<ir::RangeTree>(dtype, extents, std::move(ranges));
}

}  // namespace tilewright::mask
