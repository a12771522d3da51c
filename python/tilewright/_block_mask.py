"""Masks as data: BlockMask, create_block_mask, create_mask."""

import contextlib
import html
import operator
import os

import numpy as np

from . import _core
from ._arrays import Array, to_array, to_tensor
from ._mods import ModLike, as_mod, as_score_or_mask


def pair(op, size, argument="BLOCK_SIZE"):
    """(queries, keys) of a block, from one integer or two."""
    try:
        q, kv = (size, size) if isinstance(size, int | np.integer) else size
        return [operator.index(q), operator.index(kv)]
    except (TypeError, ValueError):
        raise TypeError(
            f"[{op}] expected {argument} to be an integer or (q, kv) but got {size!r}"
        ) from None


def _torch_list(side, line, *, full, indices):
    """One of torch's lists of blocks: of keys ("kv") by rows of blocks, of queries by columns."""
    which = "full" if full else "partial"
    doc = (
        f"int32 (B, H, block {line}s, most): {side} blocks of a {line}, {which} ones first."
        if indices
        else f"int32 (B, H, block {line}s): how many {which} blocks a {line} has."
    )
    return property(
        lambda self: (self._full if full else self._partial)(f"{side}_blocks")[indices],
        doc=doc + " None where full blocks are not kept apart." * full,
    )


class BlockMask:
    """Which queries attend to which keys, for kernels of any block size; immutable.

    The block-level view (`sparsity`, `to_dense`, `kv_num_blocks` and so on) is torch's, in blocks
    of BLOCK_SIZE. Combine masks with ``& | ~``; ``mask[b, h]`` is the part for one batch and head,
    with both dimensions kept; ``mask[b, h, rows]`` selects rows of blocks. Each of the three may be
    an integer, a slice, or a list of integers. `mask_mod` is what the mask was made from; None for
    combined and shifted masks.
    """

    def __init__(self, core, separate_full_blocks=True, mask_mod=None, reads=(False, False)):
        self._core = core
        self._separate = separate_full_blocks
        self.mask_mod = mask_mod
        #: Whether the mod depends on the batch, and on the head: then one's mask is not another's.
        self._reads = tuple(reads)

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

        All pairs of full blocks attend; those of partial blocks attend where mask_mod says so, or
        all of them without a mask_mod. seq_lengths (q_len, kv_len) defaults to blocks times
        BLOCK_SIZE. compute_q_blocks is torch's; the transposed lists are computed on demand. Raises
        ValueError for lists that do not fit together.
        """
        op = "from_kv_blocks"
        mod = None if mask_mod is None else as_mod(op, "mask_mod", mask_mod, True)
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
                mask_mod=mod,
                lengths=None if seq_lengths is None else pair(op, seq_lengths, "seq_lengths"),
            ),
            mask_mod=mask_mod,
            reads=mod._reads() if mod else (False, False),
        )

    def __reduce__(self):
        """Copies and pickles hold the pairs, not the mod."""
        return _unpacked, (to_array(self._core.packed()), self._separate, self._reads)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, q_len, kv_len); B or H of 1 stands for any number."""
        return tuple(self._core.shape)

    @property
    def seq_lengths(self) -> tuple[int, int]:
        """(q_len, kv_len)."""
        return self.shape[2:]

    @property
    def BLOCK_SIZE(self) -> tuple[int, int]:
        """(queries, keys) of a block of the block-level view."""
        return tuple(self._core.block_size)

    @property
    def nbytes(self) -> int:
        """Bytes that the mask occupies."""
        return self._core.nbytes

    def numel(self) -> int:
        """The number of pairs of queries and keys, over all batches and heads."""
        return int(np.prod(self.shape, dtype=object))

    def sparsity(self) -> float:
        """Percentage of blocks without a pair that attends."""
        return self._core.sparsity()

    def to_dense(self) -> np.ndarray:
        """int32 (B, H, q blocks, kv blocks): 1 for full and partial blocks, else 0."""
        return to_array(self._core.to_dense())

    def elements(self):
        """bool (B, H, q_len, kv_len): which pairs attend."""
        return to_array(self._core.elements())

    def _lists(self, kind):
        """(num_blocks, indices) of the partial or full blocks by rows (kv) or columns (q)."""
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

    kv_num_blocks = _torch_list("kv", "row", full=False, indices=False)
    kv_indices = _torch_list("kv", "row", full=False, indices=True)
    full_kv_num_blocks = _torch_list("kv", "row", full=True, indices=False)
    full_kv_indices = _torch_list("kv", "row", full=True, indices=True)
    q_num_blocks = _torch_list("q", "column", full=False, indices=False)
    q_indices = _torch_list("q", "column", full=False, indices=True)
    full_q_num_blocks = _torch_list("q", "column", full=True, indices=False)
    full_q_indices = _torch_list("q", "column", full=True, indices=True)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self):
        """Iterates over the batches' masks."""
        return (self[b] for b in range(len(self)))

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > 3:
            raise IndexError(
                f"[BlockMask] expected at most 3 indices (batch, head, rows of blocks) but got "
                f"{len(index)}"
            )
        core = self._core
        b, h, rows = (*index, slice(None), slice(None))[:3]
        if not (_is_all(b) and _is_all(h)):
            core = core.select(
                _places("batch", b, core.shape[0]), _places("head", h, core.shape[1])
            )
        if not _is_all(rows):
            count = -(-core.shape[2] // core.block_size[0])
            core = _rows(core, _places("row of blocks", rows, count))
        reads = self._reads[0] and _is_all(b), self._reads[1] and _is_all(h)
        return BlockMask(core, self._separate, self.mask_mod, reads)

    def to(self, device):
        """Returns the mask itself: it moves with the arrays of the call that uses it."""
        return self

    def shifted(self, q_offset, kv_offset, q_len, kv_len):
        """The mask whose pair (q, kv) is this one's (q + q_offset, kv + kv_offset)."""
        core = self._core.shifted(q_offset, kv_offset, q_len, kv_len)
        return BlockMask(core, self._separate, reads=self._reads)

    def _other(self, other):
        if not isinstance(other, BlockMask):
            raise TypeError(
                f"[BlockMask] expected a BlockMask to combine with but got {type(other).__name__}"
            )
        return other._core

    def _combined(self, core, other):
        reads = [
            any(
                mask._reads[axis] and mask.shape[axis] == core.shape[axis] for mask in (self, other)
            )
            for axis in (0, 1)
        ]
        return BlockMask(core, self._separate, reads=reads)

    def __and__(self, other):
        return self._combined(self._core.both(self._other(other)), other)

    def __or__(self, other):
        return self._combined(self._core.either(self._other(other)), other)

    def __invert__(self):
        return self._combined(self._core.complement(), self)

    def __eq__(self, other):
        return isinstance(other, BlockMask) and self._core.equals(other._core)

    def __hash__(self):
        return hash(to_array(self._core.packed()).tobytes())

    def check_fits(self, op, batch, heads):
        """Raises ValueError if a mask for one batch or head cannot stand for all of a call's."""
        for what, reads, own, count in zip(
            ("batch", "head"), self._reads, self.shape[:2], (batch, heads), strict=True
        ):
            if reads and own == 1 and isinstance(count, int) and count > 1:
                raise ValueError(
                    f"[{op}] expected a block mask of {count} {what}{'es' if what == 'batch' else 's'}"
                    f", since its mask_mod depends on the {what}, but got one of {what} 0 alone"
                )

    def to_string(self, grid_size=(20, 20), limit=4) -> str:
        """A picture in characters: solid for full, shaded for partial, blank for empty blocks.

        grid_size: rows and columns of the picture, a column being two characters; one number for
        both, -1 for all blocks. limit: the most pictures, over batches and heads.
        """
        op = "BlockMask.to_string"
        blocks = [
            max(-(-n // size), 1) for n, size in zip(self.shape[2:], self.BLOCK_SIZE, strict=True)
        ]
        grid = [
            all_ if n == -1 else n
            for n, all_ in zip(pair(op, grid_size, "grid_size"), blocks, strict=True)
        ]
        return self._core.to_string(grid, operator.index(limit))

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"

    def svg(self) -> str:
        """The picture as SVG text: axes with positions, a legend, up to twelve heads."""
        return self._core.svg()

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return f"<div>{html.escape(repr(self))}</div>{self.svg()}"

    def save(self, path) -> None:
        """Writes a picture if the name ends in .svg or .png, the mask itself if it ends in .npy.

        `load` and ``tilewright attention --block-mask`` read .npy files: uint32 words, as
        ``tilewright mask --out`` writes them.
        """
        path = str(path)
        if not path.endswith(".npy"):
            self._core.save(path)
            return
        # Written under another name first, so that nobody sees half a file.
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as file:
                np.save(file, to_array(self._core.packed()))
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)

    @classmethod
    def load(cls, path) -> "BlockMask":
        """The mask that `save` or ``tilewright mask --out`` wrote to a .npy file."""
        words = np.load(path, allow_pickle=False)
        return cls(_core.BlockMask.from_packed(to_tensor("BlockMask.load", "words", words)))


def _unpacked(words, separate, reads=(False, False)):
    core = _core.BlockMask.from_packed(to_tensor("BlockMask", "words", words))
    return BlockMask(core, separate, reads=reads)


def _is_all(index):
    return isinstance(index, slice) and index == slice(None)


def _places(what, index, extent):
    """The positions that an integer, a slice or a list of integers selects."""
    if isinstance(index, slice):
        return list(range(extent))[index]
    places = np.asarray(index)
    if places.ndim > 1 or (places.size > 0 and places.dtype.kind not in "iu"):
        raise IndexError(
            f"[BlockMask] expected an integer, a slice or a list of integers for the {what} but "
            f"got {index!r}"
        )
    places = places.reshape(-1).tolist()
    for place in places:
        if not -extent <= place < extent:
            raise IndexError(
                f"[BlockMask] expected a {what} of {-extent} to {extent - 1} but got {place}"
            )
    return [int(place) % extent for place in places]


def _rows(core, rows):
    """The mask of these rows of blocks, one after the other."""
    size, kv_len = core.block_size[0], core.shape[3]
    runs = []  # first row and count of neighbours
    for row in rows:
        if runs and sum(runs[-1]) == row:
            runs[-1][1] += 1
        else:
            runs.append([row, 1])
    parts = [core.q_rows(*run) for run in runs]
    if len(parts) < 2:
        return parts[0] if parts else core.q_rows(0, 0)
    # Where others follow a last block that is cut short, its missing queries attend to nothing.
    q_len = size * (len(rows) - runs[-1][1]) + parts[-1].shape[2]
    whole, begin = None, 0
    for part, run in zip(parts, runs, strict=True):
        moved = part.shifted(-begin, 0, q_len, kv_len)
        whole = moved if whole is None else whole.either(moved)
        begin += size * run[1]
    return whole


def sizes(op, B, H, Q_LEN, KV_LEN):
    """The four as integers; TypeError unless they are."""
    given = {"B": B, "H": H, "Q_LEN": Q_LEN, "KV_LEN": KV_LEN}
    for name, size in given.items():
        if not isinstance(size, int | np.integer) and (
            size is not None or name in ("Q_LEN", "KV_LEN")
        ):
            raise TypeError(f"[{op}] expected {name} to be an integer but got {size!r}")
    return [1 if size is None else int(size) for size in given.values()]


def expect_sizes_read(op, mod, B, H):
    """Returns which of B and H the mod depends on; ValueError for one that is missing."""
    reads = mod._reads()
    expect_sizes(op, reads, B, H)
    return reads


def expect_sizes(op, reads, B, H):
    """ValueError for one of B and H that is missing, although the mod reads it."""
    missing = [
        (name, what)
        for name, what, read, size in zip(
            ("B", "H"), ("batch (b)", "head (h)"), reads, (B, H), strict=True
        )
        if read and size is None
    ]
    if missing:
        names, whats = (" and ".join(words) for words in zip(*missing, strict=True))
        raise ValueError(
            f"[{op}] expected {names}, since the mod depends on the {whats}, but got None: give "
            "what the call has that will use the mask"
        )


def create_block_mask(
    mask_mod: ModLike,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: str | None = "cpu",
    BLOCK_SIZE: int | tuple[int, int] = 128,
    Q_BLOCK_SIZE: int | None = None,
    KV_BLOCK_SIZE: int | None = None,
    separate_full_blocks: bool = True,
    _compile: bool = False,
) -> BlockMask:
    """The mask of mask_mod(b, h, q_idx, kv_idx) -> bool as data.

    B, H: batches and heads; None or 1 stands for any number. BLOCK_SIZE, an integer or (q, kv),
    only affects the block-level view, as do Q_BLOCK_SIZE and KV_BLOCK_SIZE, which override it. Time
    and memory grow with the mask's borders, not with its area. device is torch's and ignored: masks
    whose arrays are on a GPU are built there, others on the CPU, and they move with the arrays of
    the call that uses them. _compile is torch's and ignored.
    """
    op = "create_block_mask"
    if str(device).partition(":")[0] not in ("None", "cpu", "cuda"):
        raise ValueError(f'[{op}] expected device None, "cpu" or "cuda" but got {device!r}')
    q, kv = pair(op, BLOCK_SIZE)
    size = pair(
        op,
        (
            q if Q_BLOCK_SIZE is None else Q_BLOCK_SIZE,
            kv if KV_BLOCK_SIZE is None else KV_BLOCK_SIZE,
        ),
        "Q_BLOCK_SIZE and KV_BLOCK_SIZE",
    )
    mod = as_score_or_mask(op, mask_mod)
    shape = sizes(op, B, H, Q_LEN, KV_LEN)
    reads = expect_sizes_read(op, mod, B, H)
    core = _core.create_block_mask(mod, *shape, size)  # type: ignore[call-arg]
    return BlockMask(core, separate_full_blocks, mask_mod, reads)


def create_mask(
    mod: ModLike,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: str | None = "cpu",
) -> np.ndarray:
    """bool (B, H, Q_LEN, KV_LEN): where a mask mod is true, or a score mod keeps 0 above -inf.

    B, H: None is 1, for mods that do not depend on the batch or the head. device: "cuda" needs a
    GPU; the result is a NumPy array wherever the mask was made.
    """
    op = "create_mask"
    check_device(op, device)
    core = as_score_or_mask(op, mod)
    shape = sizes(op, B, H, Q_LEN, KV_LEN)
    expect_sizes_read(op, core, B, H)
    return to_array(_core.create_mask(core, *shape))


def create_scores(
    score_mod: ModLike,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    scores: Array | None = None,
) -> np.ndarray:
    """`scores` after score_mod, pair by pair: (B, H, Q_LEN, KV_LEN), for debugging.

    scores: f32 or f64, of a shape that broadcasts to the result's; zeros by default. B, H: None is
    1, for mods that do not depend on the batch or the head. Slow.
    """
    op = "create_scores"
    mod = as_mod(op, "score_mod", score_mod, False)
    shape = sizes(op, B, H, Q_LEN, KV_LEN)
    expect_sizes_read(op, mod, B, H)
    if min(shape) < 0:
        raise ValueError(f"[{op}] expected sizes of at least 0 but got {shape}")
    scores = np.zeros((), np.float32) if scores is None else np.asarray(scores)
    try:
        scores = np.broadcast_to(scores, shape)
    except ValueError:
        raise ValueError(
            f"[{op}] expected scores that broadcast to {tuple(shape)} but got {scores.shape}"
        ) from None
    return to_array(_core.create_scores(mod, to_tensor(op, "scores", scores)))


def check_device(op, device):
    """Raises ValueError for a device that does not exist."""
    kind, _, index = str(device).partition(":")
    if kind not in ("None", "cpu", "cuda") or not (index or "0").isdigit():
        raise ValueError(f'[{op}] expected device None, "cpu" or "cuda" but got {device!r}')
    if kind == "cuda" and f"cuda:{index or 0}" not in _core.devices():
        raise ValueError(
            f"[{op}] expected a device of this machine, {', '.join(_core.devices())}, but got "
            f"{device!r}; tilewright.doctor() says what a GPU lacks"
        )
