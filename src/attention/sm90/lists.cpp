// Launches of the kernels that build lists.
#include "attention/sm90/lists.h"

#include "support/memo.h"

namespace tilewright::attn::sm90 {
namespace {

struct ListKernels {
    cuda::Kernel lists, block_rows;
};

ListKernels list_kernels(int device) {
    constexpr std::size_t kMost = 64;  // devices
    static auto* const kKernels = new Memo<int, ListKernels>("kernels that build lists", kMost);
    return kKernels->get(device, [&] {
        const cuda::CompileRequest request = generate_lists();
        return ListKernels{cuda::load_kernel(request, "attention_lists", 0, device),
                           cuda::load_kernel(request, "attention_block_rows", 0, device)};
    });
}

}  // namespace

ListLayout list_layout(const ProblemDesc& desc, const ListShape& shape) {
    ListLayout layout;
    const std::int64_t rows = shape.rows_are_keys ? desc.kv_len : desc.q_len;
    const std::int64_t columns = shape.rows_are_keys ? desc.q_len : desc.kv_len;
    layout.row_tiles = ceil_div(rows, std::int64_t{64} * shape.strips) + desc.sequences;
    layout.blocks = ceil_div(columns, shape.block);
    layout.batches = desc.batch;
    const std::size_t tiles = layout.batches * layout.row_tiles;
    layout.sequences = tiles * sizeof(twd::attn::MaskTile);
    const std::size_t packed_tiles = desc.sequences > 0 ? (tiles + 3) / 4 * 4 : 0;
    layout.first_q_blocks = layout.sequences + packed_tiles * sizeof(twd::attn::SequenceRows);
    layout.entries = layout.first_q_blocks + packed_tiles * sizeof(int);
    const std::size_t entries = tiles * static_cast<std::size_t>(layout.blocks) + 1;  // and a spare
    layout.live = layout.entries + entries * sizeof(twd::attn::MaskEntry);
    const std::size_t words = !desc.segments ? 0 : shape.rows_are_keys ? 2 * tiles : entries;
    layout.bytes = layout.live + (words + 1) / 2 * 16;
    return layout;
}

cuda::CompileRequest generate_lists() {
    cuda::CompileRequest request;
    request.name = "attention_lists.cu";
    request.arch = "sm_90a";
    request.spill_limit_bytes = 0;
    request.headers = device_headers();
    request.source = "#include \"attention/sm90/list_builder.cuh\"\n";
    return request;
}

void load_lists(int device) {
    list_kernels(device);
}

twd::attn::MaskLists build_lists(const ProblemInputs& inputs, const ProblemDesc& desc,
                                 const ListShape& shape, cuda::DeviceAddress memory, int device,
                                 cuda::StreamHandle stream) {
    constexpr int kOutOfReach = 1 << 30;
    const ListLayout layout = list_layout(desc, shape);
    const twd::attn::ListAxis queries{reinterpret_cast<const int*>(inputs.q_segments),
                                      reinterpret_cast<const int*>(inputs.q_starts),
                                      static_cast<int>(desc.q_len)};
    const twd::attn::ListAxis keys{reinterpret_cast<const int*>(inputs.kv_segments),
                                   reinterpret_cast<const int*>(inputs.kv_starts),
                                   static_cast<int>(desc.kv_len)};
    const int upper = desc.upper_bound ? static_cast<int>(desc.upper_diagonal) : kOutOfReach;
    const int lower = desc.lower_bound ? static_cast<int>(desc.lower_diagonal) : -kOutOfReach;

    twd::attn::ListParameters p{};
    p.tiles = reinterpret_cast<twd::attn::MaskTile*>(memory);
    p.sequences = reinterpret_cast<twd::attn::SequenceRows*>(memory + layout.sequences);
    p.first_q_blocks = reinterpret_cast<int*>(memory + layout.first_q_blocks);
    p.entries = reinterpret_cast<twd::attn::MaskEntry*>(memory + layout.entries);
    if (desc.segments) p.live = reinterpret_cast<unsigned long long*>(memory + layout.live);
    if (desc.length_bytes > 0) {
        p.lengths = {reinterpret_cast<const void*>(inputs.kv_lengths), desc.length_bytes};
    }
    p.rows = shape.rows_are_keys ? keys : queries;
    p.columns = shape.rows_are_keys ? queries : keys;
    p.packed = static_cast<int>(desc.sequences);
    p.row_tiles = static_cast<int>(layout.row_tiles);
    p.blocks = static_cast<int>(layout.blocks);
    p.strips = shape.strips;
    p.block_columns = shape.block;
    // Diagonals bound key - query.
    p.upper_diagonal = shape.rows_are_keys ? -lower : upper;
    p.lower_diagonal = shape.rows_are_keys ? -upper : lower;
    p.rows_are_keys = shape.rows_are_keys;
    p.ordered = shape.ordered;
    cuda::LaunchShape launch;
    launch.grid[0] = static_cast<unsigned>(layout.row_tiles);
    launch.grid[1] = static_cast<unsigned>(layout.batches);
    launch.block[0] = 32;
    void* const parameters[] = {&p};
    cuda::launch(list_kernels(device).lists, launch, parameters, stream);
    return {p.tiles, p.entries, nullptr,     static_cast<int>(layout.batches),
            1,       p.live,    p.sequences, p.first_q_blocks};
}

void build_block_rows(const ProblemInputs& inputs, int block_rows, std::int64_t blocks,
                      cuda::DeviceAddress memory, int device, cuda::StreamHandle stream) {
    constexpr unsigned kThreads = 128;
    cuda::LaunchShape launch;
    launch.grid[0] = static_cast<unsigned>(ceil_div(blocks, kThreads));
    launch.block[0] = kThreads;
    cuda::DeviceAddress starts = inputs.q_starts;
    int packed = static_cast<int>(inputs.sequences), count = static_cast<int>(blocks);
    void* const parameters[] = {&memory, &starts, &packed, &block_rows, &count};
    cuda::launch(list_kernels(device).block_rows, launch, parameters, stream);
}

}  // namespace tilewright::attn::sm90
