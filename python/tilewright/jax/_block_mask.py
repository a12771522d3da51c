"""Masks as data on JAX arrays."""

import jax
import jax.numpy as jnp
import numpy as np

from .. import _block_mask, _core, _functions
from .._arrays import is_on_gpu, to_array, to_tensor
from . import _mods


class BlockMask:
    """Which queries attend to which keys, as an argument of `flex_attention`.

    A pytree: it may be closed over, passed to and returned from functions under jit. Its data is
    one array of words, the same for every kernel; `create_block_mask` under jit with traced arrays
    keeps the mask as a function of positions, which attention evaluates. Everything but ``&`` needs
    the data: outside of jit it has the members of `tilewright.BlockMask`, which documents them, and
    is hashable by content, so that it may be a static argument of jit.
    """

    def __init__(
        self,
        shape,
        block_size,
        words=(),
        kept=(),
        separate_full_blocks=True,
        reads=(False, False),
    ):
        self.shape, self.BLOCK_SIZE = tuple(shape), tuple(block_size)
        self.words, self.kept = tuple(words), tuple(kept)  #: arrays u32 (n); _functions.TracedMod
        self._separate = separate_full_blocks
        #: Whether a mod depends on the batch, and on the head: then one's mask is not another's.
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
        """From torch's index form, as arrays that are not traced; see
        `tilewright.BlockMask.from_kv_blocks`."""
        op = "from_kv_blocks"
        lists = {
            "kv_num_blocks": kv_num_blocks,
            "kv_indices": kv_indices,
            "full_kv_num_blocks": full_kv_num_blocks,
            "full_kv_indices": full_kv_indices,
        }
        for name, array in lists.items():
            lists[name] = None if array is None else _concrete(op, name, array)
        mod = None
        if mask_mod is not None:
            sizes = _functions.Sizes(1 << 31, 1 << 31, 1 << 31, 1 << 31)
            mod = _at_hand(op, _mods.trace(op, "mask_mod", mask_mod, True, sizes))
        return wrap(
            _block_mask.BlockMask.from_kv_blocks(
                **lists, BLOCK_SIZE=BLOCK_SIZE, mask_mod=mod, seq_lengths=seq_lengths
            )
        )

    @property
    def seq_lengths(self):
        return self.shape[2:]

    def _data(self, op):
        """The NumPy front end's mask."""
        if self.kept:
            raise TypeError(
                f"[BlockMask] expected {op} of a mask at hand but it was built under jit from traced "
                "arrays; build it outside"
            )
        cores = [
            _core.BlockMask.from_packed(to_tensor(op, "words", _concrete(op, "the mask", w)))
            for w in self.words
        ]
        core = cores[0]
        for other in cores[1:]:
            core = core.both(other)
        return _block_mask.BlockMask(core, self._separate, reads=self._reads)

    check_fits = _block_mask.BlockMask.check_fits

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        """Iterates over the batches' masks."""
        return (self[b] for b in range(len(self)))

    def __getattr__(self, name):
        if name.startswith("_") or not hasattr(_block_mask.BlockMask, name):
            raise AttributeError(f"BlockMask has no {name!r}")
        return getattr(self._data(name), name)

    # Notebooks look these methods up by name.

    def _repr_svg_(self):
        return self._data("a picture").svg()

    def _repr_html_(self):
        return self._data("a picture")._repr_html_()

    def __getitem__(self, index):
        return wrap(self._data("a part")[index])

    def to(self, device):
        """Returns the mask itself: it moves with the arrays of the call that uses it."""
        return self

    def shifted(self, q_offset, kv_offset, q_len, kv_len):
        """The mask whose pair (q, kv) is this one's (q + q_offset, kv + kv_offset)."""
        return wrap(self._data("shifted").shifted(q_offset, kv_offset, q_len, kv_len))

    def __and__(self, other):
        if not isinstance(other, BlockMask):
            raise TypeError(
                f"[BlockMask] expected a BlockMask to combine with but got {type(other).__name__}"
            )
        if self._is_concrete() and other._is_concrete():
            return wrap(self._data("&") & other._data("&"))
        if self.seq_lengths != other.seq_lengths:
            raise ValueError(
                f"[&] expected masks of equal lengths but got {self.shape} and {other.shape}"
            )
        for a, b in zip(self.shape, other.shape, strict=True):
            if 1 not in (a, b) and a != b:
                raise ValueError(
                    f"[&] expected masks that broadcast but got {self.shape} and {other.shape}"
                )
        shape = tuple(map(max, self.shape, other.shape))
        reads = [
            any(mask._reads[axis] and mask.shape[axis] == shape[axis] for mask in (self, other))
            for axis in (0, 1)
        ]
        return BlockMask(
            shape,
            self.BLOCK_SIZE,
            self.words + other.words,
            self.kept + other.kept,
            self._separate,
            reads,
        )

    def __or__(self, other):
        if not isinstance(other, BlockMask):
            raise TypeError(
                f"[BlockMask] expected a BlockMask to combine with but got {type(other).__name__}"
            )
        return wrap(self._data("|") | other._data("|"))

    def __invert__(self):
        return wrap(~self._data("~"))

    def __eq__(self, other):
        if self is other:
            return True
        return isinstance(other, BlockMask) and self._data("==") == other._data("==")

    def __hash__(self):
        return hash(self._data("a hash"))

    def _is_concrete(self):
        return not self.kept and not any(isinstance(w, jax.core.Tracer) for w in self.words)

    def __str__(self):
        return self.to_string() if self._is_concrete() else repr(self)

    def __repr__(self):
        return f"BlockMask(shape={self.shape})"


def _flatten(mask):
    texts = tuple(kept.text for kept in mask.kept)
    arrays = tuple(kept.arrays for kept in mask.kept)
    aux = mask.shape, mask.BLOCK_SIZE, texts, mask._separate, mask._reads
    return (mask.words, arrays), aux


def _unflatten(aux, children):
    shape, block_size, texts, separate, reads = aux
    words, arrays = children
    kept = [_functions.TracedMod(t, a) for t, a in zip(texts, arrays, strict=True)]
    return BlockMask(shape, block_size, words, kept, separate, reads)


jax.tree_util.register_pytree_node(BlockMask, _flatten, _unflatten)


def wrap(mask):
    """The mask as an argument of compiled functions."""
    words = to_array(mask._core.packed())
    with jax.ensure_compile_time_eval():
        words = jnp.asarray(words)
    return BlockMask(mask.shape, mask.BLOCK_SIZE, (words,), (), mask._separate, mask._reads)


def _concrete(op, name, array):
    if isinstance(array, jax.core.Tracer):
        raise TypeError(f"[{op}] expected {name} at hand but it is traced; build it outside of jit")
    return np.asarray(array)


def _at_hand(op, traced):
    def readable(x):
        # An array on one GPU stays there, where the mask is built.
        return x if len(x.devices()) == 1 and is_on_gpu(x) else np.asarray(x)

    arrays = [_core.capture(to_tensor(op, "arrays", readable(x)), "", False) for x in traced.arrays]
    return _mods.core_mod(traced, arrays)


def create_block_mask(
    mask_mod,
    B,
    H,
    Q_LEN,
    KV_LEN,
    device=None,
    BLOCK_SIZE=128,
    Q_BLOCK_SIZE=None,
    KV_BLOCK_SIZE=None,
    separate_full_blocks=True,
    _compile=False,
):
    """The mask of mask_mod(b, h, q_idx, kv_idx) -> bool as data.

    B, H: batches and heads; None or 1 stands for any number, and None is for masks that do not
    depend on it. device is torch's: "cuda" needs a GPU; the mask moves with the arrays of the call
    that uses it. Under jit a mask whose arrays are not traced is built during tracing; otherwise it
    is kept as a function and evaluated by the calls that use it, with the same results. BLOCK_SIZE,
    an integer or (q, kv), only affects the block-level view. _compile is torch's and ignored.
    """
    op = "create_block_mask"
    _check_device(op, device)
    q, kv = _block_mask.pair(op, BLOCK_SIZE)
    size = (
        q if Q_BLOCK_SIZE is None else int(Q_BLOCK_SIZE),
        kv if KV_BLOCK_SIZE is None else int(KV_BLOCK_SIZE),
    )
    shape = _block_mask.sizes(op, B, H, Q_LEN, KV_LEN)
    bounds = [1 << 31 if n == 1 else n for n in shape[:2]]
    traced = _mods.trace(op, "mask_mod", mask_mod, True, _functions.Sizes(*bounds, *shape[2:]))
    reads = _block_mask.expect_sizes_read(op, _mods.stand_in_mod(traced), B, H)
    if any(isinstance(x, jax.core.Tracer) for x in traced.arrays):
        if min(shape) < 0 or min(size) < 1:
            raise ValueError(f"[{op}] expected lengths of at least 0 and blocks of at least 1")
        return BlockMask(shape, size, (), (traced,), separate_full_blocks, reads)
    core = _core.create_block_mask(_at_hand(op, traced), *shape, list(size))
    return wrap(_block_mask.BlockMask(core, separate_full_blocks, reads=reads))


def create_mask(mod, B, H, Q_LEN, KV_LEN, device=None):
    """bool (B, H, Q_LEN, KV_LEN): where a mask mod, whose arrays are not traced, is true; on the
    device (None, "cpu" or "cuda"). B, H: None is 1, for masks that do not depend on them."""
    op = "create_mask"
    device = _check_device(op, device)
    shape = _block_mask.sizes(op, B, H, Q_LEN, KV_LEN)
    traced = _traced_at_hand(op, "mod", mod, True, shape, B, H)
    with jax.ensure_compile_time_eval():
        mask = to_array(_core.create_mask(_at_hand(op, traced), *shape))
        return jax.device_put(mask, device) if device else jnp.asarray(mask)


def create_scores(score_mod, B, H, Q_LEN, KV_LEN, scores=None):
    """`scores` after score_mod, pair by pair: (B, H, Q_LEN, KV_LEN), for debugging.

    scores: float32 or float64, of a shape that broadcasts to the result's; zeros by default. B, H:
    None is 1, for mods that do not depend on the batch or the head. Slow.
    """
    op = "create_scores"
    shape = _block_mask.sizes(op, B, H, Q_LEN, KV_LEN)
    scores = np.zeros((), np.float32) if scores is None else _concrete(op, "scores", scores)
    traced = _traced_at_hand(op, "score_mod", score_mod, False, shape, B, H, scores.dtype)
    with jax.ensure_compile_time_eval():
        return jnp.asarray(_block_mask.create_scores(_at_hand(op, traced), *shape, scores))


def _traced_at_hand(op, argument, mod, is_mask, shape, B, H, dtype=jnp.float32):
    """Traces a mod, whose arrays must not be traced."""
    bounds = [1 << 31 if n is None else n for n in (B, H)]  # not 1: shows what is read
    sizes = _functions.Sizes(*bounds, *shape[2:])
    traced = _mods.trace(op, argument, mod, is_mask, sizes, jnp.dtype(dtype))
    for array in traced.arrays:
        _concrete(op, "arrays of the mod", array)
    _block_mask.expect_sizes_read(op, _mods.stand_in_mod(traced), B, H)
    return traced


def _check_device(op, device):
    """JAX's device by name; None for None. ValueError if there is none."""
    kind, _, index = str(device).partition(":")
    if kind not in ("None", "cpu", "cuda") or not (index or "0").isdigit():
        raise ValueError(f'[{op}] expected device None, "cpu" or "cuda" but got {device!r}')
    if device is None:
        return None
    try:
        return jax.devices(kind)[int(index or 0)]
    except (RuntimeError, IndexError):
        there = ", ".join(sorted({d.platform for d in jax.devices()}))
        raise ValueError(
            f"[{op}] expected a device that JAX has ({there}) but got {device!r}: "
            "tilewright.doctor() says what a GPU lacks"
        ) from None
