// Lists of blocks that are built on the device before a kernel uses them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/sm90/mask_parameters.h"
#include "attention/sm90/problem.h"

namespace tilewright::attn::sm90 {

/// The lists' shape: tiles of 64 * strips rows, blocks of `block` columns.
struct ListShape {
    int strips = 3;
    int block = 64;
    bool rows_are_keys = false;  ///< true for the backward pass
    bool ordered = false;        ///< true for the backward pass with ordered sums
};

/// Byte offsets of the parts of the lists in their memory; the tiles come first.
struct ListLayout {
    std::size_t sequences = 0, first_q_blocks = 0, entries = 0, live = 0, bytes = 0;
    std::int64_t row_tiles = 0, blocks = 0, batches = 0;
};

/// For problems with segments or packed sequences.
ListLayout list_layout(const ProblemDesc& desc, const ListShape& shape);

/// The kernels that build lists; can be compiled without a GPU.
cuda::CompileRequest generate_lists();
/// Loads them; call it before a launch is captured in a graph.
void load_lists(int device);

/// Queues the kernel that writes the lists at `memory` (aligned to 16); returns where they are.
twd::attn::MaskLists build_lists(const ProblemInputs& inputs, const ProblemDesc& desc,
                                 const ListShape& shape, cuda::DeviceAddress memory, int device,
                                 cuda::StreamHandle stream);
/// Queues the kernel that writes the rows of `blocks` blocks of packed query rows.
void build_block_rows(const ProblemInputs& inputs, int block_rows, std::int64_t blocks,
                      cuda::DeviceAddress memory, int device, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
