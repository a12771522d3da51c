"""Masks as data: BlockMask, create_block_mask, create_mask."""

import numpy as np

from . import _core
from ._arrays import to_array, to_tensor
from ._mods import Mod, as_mod, as_score_or_mask


def pair(op, size):
    """(queries, keys) of a block, from one integer or two."""
    try:
        q, kv = (size, size) if isinstance(size, int | np.integer) else size
        return [int(q), int(kv)]
    except (TypeError, ValueError):
        raise TypeError(
            f"[{op}] expected BLOCK_SIZE to be an integer or (q, kv) but got {size!r}"
        ) from None


class BlockMask:
    """Which queries attend to which keys, for kernels of any block size; immutable.

    The block-level view (`sparsity`, `to_dense`, `kv_num_blocks` and its like) is torch's, in blocks
    of BLOCK_SIZE. Combine with ``& | ~``; ``mask[b, h]`` is the part of one batch and head, which
    keeps its dimensions; ``mask[b, h, rows]`` takes rows of blocks.
    """

    def __init__(self, core, separate_full_blocks=True):
        self._core = core
        self._separate = separate_full_blocks

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks,
        kv_indices,
        full_kv_num_blocks=None,
        full_kv_indices=None,
        BLOCK_SIZE=128,
        mask_mod=None,
        seq_lengths=None,
        compute_q_blocks=True,
    ):
        """torch's index form: integers (B, H, q blocks) and (B, H, q blocks, kv blocks).

        Pairs of full blocks attend; those of partial blocks where mask_mod says so, without one all
        of them. seq_lengths (q_len, kv_len) defaults to blocks times BLOCK_SIZE. compute_q_blocks is
        torch's; the transposed lists are computed when asked for. ValueError for lists that do not
        fit together.
        """
        op = "from_kv_blocks"
        arrays = {
            "kv_num_blocks": kv_num_blocks,
            "kv_indices": kv_indices,
            "full_kv_num_blocks": full_kv_num_blocks,
            "full_kv_indices": full_kv_indices,
        }
        return cls(
            _core.BlockMask.from_kv_blocks(
                **{name: to_tensor(op, name, array) for name, array in arrays.items()},
                block_size=pair(op, BLOCK_SIZE),
                mask_mod=Mod() if mask_mod is None else as_mod(op, "mask_mod", mask_mod, True),
                lengths=None if seq_lengths is None else [int(n) for n in seq_lengths],
            )
        )

    @property
    def shape(self):
        """(B, H, q_len, kv_len); B or H of 1 stands for any number."""
        return tuple(self._core.shape)

    @property
    def seq_lengths(self):
        return self.shape[2:]

    @property
    def BLOCK_SIZE(self):
        """(queries, keys) of a block of the block-level view."""
        return tuple(self._core.block_size)

    @property
    def nbytes(self):
        """Bytes that the mask occupies."""
        return self._core.nbytes

    def numel(self):
        return int(np.prod(self.shape, dtype=object))

    def sparsity(self):
        """Percentage of blocks without a pair that attends."""
        return self._core.sparsity()

    def to_dense(self):
        """int32 (B, H, q blocks, kv blocks): 1 for full and partial blocks."""
        return to_array(self._core.to_dense())

    def elements(self):
        """Every pair: bool (B, H, q_len, kv_len)."""
        return to_array(self._core.elements())

    def _lists(self, kind):
        """(num_blocks, indices) of partial or full blocks by rows (kv) or columns (q)."""
        lists = getattr(self._core, kind)()
        return to_array(lists.num_blocks), to_array(lists.indices)

    def _merged(self, kind):
        """Lists of all blocks, in order, for masks made with separate_full_blocks=False."""
        dense = self.to_dense()
        dense = dense if kind == "kv_blocks" else dense.swapaxes(2, 3)
        order = np.argsort(dense == 0, axis=-1, kind="stable").astype(np.int32)
        return dense.sum(-1, dtype=np.int32), order

    def _partial(self, kind):
        return self._lists(kind) if self._separate else self._merged(kind)

    def _full(self, kind):
        return self._lists("full_" + kind) if self._separate else (None, None)

    kv_num_blocks = property(lambda self: self._partial("kv_blocks")[0])
    kv_indices = property(lambda self: self._partial("kv_blocks")[1])
    full_kv_num_blocks = property(lambda self: self._full("kv_blocks")[0])
    full_kv_indices = property(lambda self: self._full("kv_blocks")[1])
    q_num_blocks = property(lambda self: self._partial("q_blocks")[0])
    q_indices = property(lambda self: self._partial("q_blocks")[1])
    full_q_num_blocks = property(lambda self: self._full("q_blocks")[0])
    full_q_indices = property(lambda self: self._full("q_blocks")[1])

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > 3:
            raise IndexError(
                f"[BlockMask] expected at most 3 indices (batch, head, rows of blocks) but got "
                f"{len(index)}"
            )
        core = self._core
        b, h, rows = (*index, slice(None), slice(None))[:3] if len(index) < 3 else index
        core = _head(core, b, h)
        if rows != slice(None):
            count = -(-core.shape[2] // core.block_size[0])
            if not isinstance(rows, slice):
                rows = slice(rows, rows + 1 or None)
            first, stop, step = rows.indices(count)
            if step != 1:
                raise IndexError(f"[BlockMask] expected rows of step 1 but got {step}")
            core = core.q_rows(first, max(stop - first, 0))
        return BlockMask(core, self._separate)

    def shifted(self, q_offset, kv_offset, q_len, kv_len):
        """The mask whose pair (q, kv) is this one's (q + q_offset, kv + kv_offset)."""
        return BlockMask(self._core.shifted(q_offset, kv_offset, q_len, kv_len), self._separate)

    def _other(self, other):
        if not isinstance(other, BlockMask):
            raise TypeError(
                f"[BlockMask] expected a BlockMask to combine with but got {type(other).__name__}"
            )
        return other._core

    def __and__(self, other):
        return BlockMask(self._core.both(self._other(other)), self._separate)

    def __or__(self, other):
        return BlockMask(self._core.either(self._other(other)), self._separate)

    def __invert__(self):
        return BlockMask(self._core.complement(), self._separate)

    def __eq__(self, other):
        return isinstance(other, BlockMask) and self._core.equals(other._core)

    __hash__ = None

    def to_string(self, grid_size=(20, 20), limit=4):
        """A picture in characters: full, shaded for partial, blank for empty blocks."""
        return self._core.to_string([int(n) for n in grid_size], int(limit))

    def __str__(self):
        return self.to_string()

    def __repr__(self):
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"

    def svg(self):
        """The picture as SVG text."""
        return self._core.svg()

    def save(self, path):
        """Writes the picture; the name ends in .svg or .png."""
        self._core.save(str(path))


def _head(core, b, h):
    for name, index in (("batch", b), ("head", h)):
        if not isinstance(index, int | np.integer) and index != slice(None):
            raise IndexError(
                f"[BlockMask] expected an integer or `:` for the {name} but got {index!r}"
            )
    if b == slice(None) and h == slice(None):
        return core
    if h == slice(None):
        return core.at(int(b))
    if b == slice(None):
        if core.shape[0] != 1:
            raise IndexError("[BlockMask] expected an integer for the batch of a mask with several")
        b = 0
    return core.at(int(b), int(h))


def sizes(op, B, H, Q_LEN, KV_LEN):
    """The four as integers; TypeError unless they are."""
    given = {"B": B, "H": H, "Q_LEN": Q_LEN, "KV_LEN": KV_LEN}
    for name, size in given.items():
        if not isinstance(size, int | np.integer) and (
            size is not None or name in ("Q_LEN", "KV_LEN")
        ):
            raise TypeError(f"[{op}] expected {name} to be an integer but got {size!r}")
    return [1 if size is None else int(size) for size in given.values()]


def create_block_mask(
    mask_mod,
    B,
    H,
    Q_LEN,
    KV_LEN,
    device="cpu",
    BLOCK_SIZE=128,
    Q_BLOCK_SIZE=None,
    KV_BLOCK_SIZE=None,
    separate_full_blocks=True,
    _compile=False,
):
    """The mask of mask_mod(b, h, q_idx, kv_idx) -> bool as data.

    B, H: batches and heads; None or 1 stands for any number. BLOCK_SIZE an integer or (q, kv) only
    matters to the block-level view, as Q_BLOCK_SIZE and KV_BLOCK_SIZE, which go before it. Time and
    memory grow with the mask's borders, not with its area. _compile is torch's and ignored.
    """
    op = "create_block_mask"
    if device not in (None, "cpu"):
        raise ValueError(f'[{op}] expected device None or "cpu" but got {device!r}')
    q, kv = pair(op, BLOCK_SIZE)
    size = [
        q if Q_BLOCK_SIZE is None else Q_BLOCK_SIZE,
        kv if KV_BLOCK_SIZE is None else KV_BLOCK_SIZE,
    ]
    mod = as_score_or_mask(op, mask_mod)
    return BlockMask(
        _core.create_block_mask(mod, *sizes(op, B, H, Q_LEN, KV_LEN), size), separate_full_blocks
    )


def create_mask(mod, B, H, Q_LEN, KV_LEN, device="cpu"):
    """bool (B, H, Q_LEN, KV_LEN) of a mask mod; of a score mod: where it keeps 0 above -inf."""
    op = "create_mask"
    if device not in (None, "cpu"):
        raise ValueError(f'[{op}] expected device None or "cpu" but got {device!r}')
    return to_array(_core.create_mask(as_score_or_mask(op, mod), *sizes(op, B, H, Q_LEN, KV_LEN)))
