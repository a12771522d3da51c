"""Masks as data on PyTorch tensors."""

import functools
import inspect
import re
import weakref

import numpy as np
import torch
from torch.nn.attention import flex_attention as _flex

from .. import _block_mask as _numpy_block_mask
from .. import _core, _functions
from .._arrays import to_array, to_tensor
from . import _environment, _host_copies, _mask_words
from ._errors import BadInput

_TorchBlockMask = _flex.BlockMask
_torch_create_block_mask = _flex.create_block_mask
_torch_create_mask = _flex.create_mask
_HALVES = ("num_blocks", "indices")
_LISTS = {
    f"{full}{side}_{half}": (f"{full}{side}_blocks", half)
    for full in ("", "full_")
    for side in ("kv", "q")
    for half in _HALVES
}


class BlockMask(_TorchBlockMask):  # type: ignore[misc, valid-type]
    """Which queries attend to which keys. A subclass of PyTorch's, with its attributes and methods.

    A mask made by `create_block_mask` is exact: it holds every pair, and PyTorch's lists of blocks
    are made when they are read. A mask made from lists, or one whose mask_mod, seq_lengths or lists
    are assigned, behaves as in PyTorch: mask_mod decides within partial blocks. Combine masks with
    ``& | ~``, which make exact ones.
    """

    _core = None  #: tilewright._core.BlockMask of an exact mask
    words = None  #: the same as int32 (n) beside its lists, once something was compiled
    _numbered = None
    _separate = True
    _made = None  # the inputs of a conversion to the exact form, and its result
    _is_mod = False  # whether it was made in a capture, and mask_mod alone decides every pair

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        if name in _LISTS or name in ("mask_mod", "seq_lengths"):
            self.__dict__["_is_mod"] = False
            if self._core is not None:
                self._leave_exact(name)

    def __getattr__(self, name):
        if name not in _LISTS or self._core is None:
            raise AttributeError(f"BlockMask has no {name!r}")
        self._make_lists(_LISTS[name][0])
        return self.__dict__[name]

    @classmethod
    def from_core(cls, core, mask_mod, device, separate=True):
        """An exact mask."""
        self = cls.__new__(cls)
        put = self.__dict__
        shape = core.shape
        put.update(
            seq_lengths=(shape[2], shape[3]), BLOCK_SIZE=tuple(core.block_size), mask_mod=mask_mod,
            dq_write_order=None, dq_write_order_full=None, dq_kv_order=None, dq_kv_order_spt=None,
            _core=core, _separate=separate, _device=torch.device(device), _shape=tuple(shape),
        )  # fmt: skip
        if _has_words and not _host_copies.is_capturing(self._device):
            self.make_words()
        else:
            _without_words[id(self)] = self
        return self

    @property
    def numbered(self):
        """What keeps the number of an exact mask, under which C++ finds it."""
        if self._numbered is None:
            self.__dict__["_numbered"] = _core.NumberedMask(self._core)
        return self._numbered

    def make_words(self):
        """The exact mask as `words`."""
        if self.words is None:
            with torch.inference_mode(False):
                packed = torch.from_numpy(to_array(self._core.packed()).view(np.int32).copy())
                words = packed.to(self._device)
            self.__dict__["words"] = words
            if type(words) is torch.Tensor:  # not a fake one, which has no memory
                _mask_words.keep(self)
        return self.words

    @classmethod
    def from_torch(cls, mask):
        """PyTorch's mask as a mask of this class, on the same tensors."""
        if isinstance(mask, BlockMask):
            return mask
        self = cls.__new__(cls)
        if torch.compiler.is_dynamo_compiling():  # which cannot trace updates of a __dict__
            for name in (*cls._TENSOR_ATTRS, *cls._CONTEXT_ATTRS):
                object.__setattr__(self, name, getattr(mask, name))
        else:
            self.__dict__.update(mask.__dict__)
        return self

    @classmethod
    @functools.wraps(_TorchBlockMask.from_kv_blocks.__func__)
    def from_kv_blocks(cls, *arguments, **options):
        return cls.from_torch(super().from_kv_blocks(*arguments, **options))

    def _make_lists(self, kind):
        """The pair of lists of one kind, from the core."""
        if _host_copies.is_capturing(self._device):
            return self._make_lists_on_gpu()
        names = [f"{kind.removesuffix('_blocks')}_{half}" for half in _HALVES]
        if kind.startswith("full") and not self._separate:
            lists = (None, None)
        else:
            # In PyTorch's order: a row's blocks, then the other columns.
            lists = [x.to(self._device) for x in _flex._dense_to_ordered(self._blocks(kind))]
        self.__dict__.update(zip(names, lists, strict=True))

    def _make_lists_on_gpu(self):
        """All lists, while a CUDA graph is captured: nothing can be copied to the GPU, which makes
        them from mask_mod when the graph is replayed, as for PyTorch's masks."""
        if self.mask_mod is None or self.mask_mod is _flex._sliced_mask_mod_error:
            raise BadInput(
                "[BlockMask] expected the lists of a mask without mask_mod to be read before a CUDA "
                "graph is captured, which cannot copy them to the GPU"
            )
        options = _torchs_options(self._separate, False, True)
        made = _on_gpu(self.mask_mod, *self._shape, self._device, self.BLOCK_SIZE, **options)
        self.__dict__.update({name: getattr(made, name) for name in _LISTS})

    def _blocks(self, kind):
        """bool (B, H, rows, columns): the blocks of one kind."""
        if not self._separate:
            dense = torch.from_numpy(to_array(self._core.to_dense()) != 0)
            return dense if kind == "kv_blocks" else dense.transpose(2, 3)
        made = getattr(self._core, kind)()
        counts, indices = to_array(made.num_blocks), to_array(made.indices)
        dense = np.zeros(indices.shape, np.int8)
        row = np.arange(indices.shape[3]) < counts[..., None]
        np.put_along_axis(dense, np.where(row, indices, indices[..., :1]), 1, 3)
        dense[counts == 0] = 0
        return torch.from_numpy(dense)

    def _leave_exact(self, kept):
        for name in _LISTS:
            if name != kept:
                getattr(self, name)
        self.__dict__.update(_core=None, words=None, _numbered=None)

    # ---- PyTorch's methods.

    @property
    def shape(self):
        if self._core is not None:
            return self._shape
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    @property
    def ndim(self):
        return 4

    def contiguous(self):
        """Returns the mask itself, for callers that treat masks as tensors."""
        return self

    def sparsity(self):
        """Percentage of blocks without a pair that attends."""
        return self._core.sparsity() if self._core is not None else super().sparsity()

    def to_dense(self):
        """int32 (B, H, q blocks, kv blocks): 1 for full and partial blocks, else 0."""
        if self._core is None or _host_copies.is_capturing(self._device):
            return super().to_dense()
        return torch.from_numpy(to_array(self._core.to_dense()).copy()).to(self._device)

    def to(self, device):
        if self._core is None:
            return BlockMask.from_torch(super().to(device))
        moved = BlockMask.from_core(self._core, self.mask_mod, device, self._separate)
        for name in ("dq_write_order", "dq_write_order_full", "dq_kv_order"):
            value = getattr(self, name)
            moved.__dict__[name] = None if value is None else value.to(device)
        moved.__dict__["dq_kv_order_spt"] = self.dq_kv_order_spt
        return moved

    def _adjust(self, new_q_len, new_kv_len):
        return BlockMask.from_torch(super()._adjust(new_q_len, new_kv_len))

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        if len(index) == 4 and index[3] == slice(None):
            return self._token_rows(index)
        if len(index) > 3:
            raise IndexError("BlockMask indexing supports batch, head, and Q-block dimensions")
        plain = all(isinstance(i, int | slice) for i in index)
        if self._core is None or self.dq_write_order is not None or not plain:
            return BlockMask.from_torch(super().__getitem__(index))
        part = _numpy_block_mask.BlockMask(self._core)[index]
        return BlockMask.from_core(
            part._core, _flex._sliced_mask_mod_error, self._device, self._separate
        )

    def _token_rows(self, index):
        """mask[b, h, rows, :] with a slice of single queries, as for a dense mask."""
        b, h, rows, _ = index
        core = exact("BlockMask", self)._core
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise IndexError(f"[BlockMask] expected a slice of queries of step 1 but got {rows!r}")
        begin, end, _ = rows.indices(core.shape[2])
        core = _numpy_block_mask.BlockMask(core)[b, h]._core
        moved = core.shifted(begin, 0, max(end - begin, 0), core.shape[3])
        return BlockMask.from_core(moved, _flex._sliced_mask_mod_error, self._device)

    # ---- What the NumPy front end's masks have in addition.

    def _exact(self):
        return _numpy_block_mask.BlockMask(exact("BlockMask", self)._core, self._separate)

    @property
    def _place(self):
        return self._device if self._core is not None else self.kv_indices.device

    def __and__(self, other):
        return self._combined(other, lambda a, b: a.both(b))

    def __or__(self, other):
        return self._combined(other, lambda a, b: a.either(b))

    def _combined(self, other, combine):
        if not isinstance(other, _TorchBlockMask | _numpy_block_mask.BlockMask):
            raise TypeError(
                f"[BlockMask] expected a BlockMask to combine with but got {type(other).__name__}"
            )
        cores = exact("BlockMask", self)._core, exact("BlockMask", other)._core
        return BlockMask.from_core(combine(*cores), None, self._place, self._separate)

    def __invert__(self):
        core = exact("BlockMask", self)._core.complement()
        return BlockMask.from_core(core, None, self._place, self._separate)

    def __eq__(self, other):
        if not isinstance(other, _TorchBlockMask):
            return NotImplemented
        return exact("BlockMask", self)._core.equals(exact("BlockMask", other)._core)

    __hash__ = object.__hash__

    @property
    def nbytes(self):
        """Bytes that the exact mask occupies."""
        return self._exact().nbytes

    def elements(self):
        """bool (B, H, q_len, kv_len): which pairs attend."""
        return torch.from_numpy(self._exact().elements().copy()).to(self._place)

    def shifted(self, q_offset, kv_offset, q_len, kv_len):
        """The mask whose pair (q, kv) is this one's (q + q_offset, kv + kv_offset)."""
        core = exact("BlockMask", self)._core.shifted(q_offset, kv_offset, q_len, kv_len)
        return BlockMask.from_core(core, None, self._place, self._separate)

    def svg(self):
        """The picture as SVG text."""
        return self._exact().svg()

    def _repr_svg_(self):
        return self.svg()

    def _repr_html_(self):
        return self._exact()._repr_html_()

    def save(self, path):
        """Writes the picture to a file whose name ends in .svg or .png."""
        self._exact().save(path)

    def __reduce__(self):
        """Copies and pickles hold the pairs, not the mod."""
        mask = exact("BlockMask", self)
        return _unpacked, (to_array(mask._core.packed()).copy(), self._separate, str(self._place))


_has_words = False
_without_words = weakref.WeakValueDictionary()  # by id


def use_words():
    """Gives all exact masks words from now on: compiled functions read them as attributes."""
    global _has_words
    _has_words = True
    for mask in list(_without_words.values()):
        if mask._core is not None:
            mask.make_words()
    _without_words.clear()


def _unpacked(words, separate, device):
    core = _core.BlockMask.from_packed(to_tensor("BlockMask", "words", words))
    return BlockMask.from_core(core, None, device, separate)


# ---- Conversion to exact masks.


def exact(op, mask, batch=1, heads=1):
    """The mask in its exact form; None for PyTorch's empty mask, which lets all pairs attend.

    Takes masks of this module, of PyTorch and of NumPy. Lists for one batch or head apply to all
    batches and heads of the call, with mask_mod evaluated for each. A conversion is kept on the
    mask for as long as its lists and the tensors that its mask_mod reads are not written to.
    """
    if isinstance(mask, _numpy_block_mask.BlockMask):
        return BlockMask.from_core(mask._core, mask.mask_mod, "cpu", mask._separate)
    if not isinstance(mask, _TorchBlockMask):
        raise TypeError(
            f"[{op}] expected block_mask to be a BlockMask but got {type(mask).__name__}"
        )
    if isinstance(mask, BlockMask) and mask._core is not None:
        return mask
    if mask.BLOCK_SIZE[0] >= _flex._LARGE_SPARSE_BLOCK_SIZE <= mask.BLOCK_SIZE[1]:
        return None
    mod = _functions.NONE
    if mask.mask_mod is not None and mask.mask_mod is not _flex.noop_mask:
        mod = _environment.traced(op, "mask_mod", mask.mask_mod, True, None)
    lists = [getattr(mask, name) for name in ("kv_num_blocks", "kv_indices")]
    lists += [getattr(mask, name) for name in ("full_kv_num_blocks", "full_kv_indices")]
    read = [t for t in (*lists, *mod.arrays) if t is not None]
    spread = tuple(n if reads(mod.text, name) else 1 for name, n in (("b", batch), ("h", heads)))
    state = (
        spread, mod.text, tuple(mask.seq_lengths), tuple(mask.BLOCK_SIZE), [None if t.is_inference() else t._version for t in read],
    )  # fmt: skip
    made = mask.__dict__.get("_made")
    if (
        made is not None
        and made[0] == state
        and all(a is b for a, b in zip(made[1], read, strict=True))
    ):
        return made[2]
    result = BlockMask.from_core(
        _core_of_lists(op, mask, lists, mod, spread), mask.mask_mod, lists[1].device
    )
    if all(map(_host_copies.may_keep, read)):
        mask.__dict__["_made"] = state, read, result
    return result


def _core_of_lists(op, mask, lists, mod, spread):
    rows = -(-mask.seq_lengths[0] // mask.BLOCK_SIZE[0])  # torch reads none past the last query
    lists = [
        None if t is None else _four_dimensions(t, n)[:, :, :rows].contiguous()
        for t, n in zip(lists, (3, 4) * 2, strict=False)
    ]
    batch, heads = (max(t.shape[d] for t in lists if t is not None) for d in (0, 1))
    batch, heads = (s if n == 1 else n for n, s in zip((batch, heads), spread, strict=True))
    try:
        return _core.BlockMask.from_kv_blocks(
            *[
                _core.Tensor()
                if t is None
                else to_tensor(op, name, t.expand(batch, heads, *t.shape[2:]))
                for t, name in zip(lists, list(_LISTS)[:2] + list(_LISTS)[4:6], strict=True)
            ],
            block_size=list(mask.BLOCK_SIZE),
            mask_mod=at_hand(op, mod) if mod.text else None,
            lengths=list(mask.seq_lengths),
        )
    except ValueError as error:
        raise BadInput(f"[{op}] block_mask: {error}") from None


def _four_dimensions(lists, rank):
    lists = lists.detach().cpu()
    while lists.dim() < rank:
        lists = lists.unsqueeze(0)
    return lists


def at_hand(op, traced):
    """The core's mod on captures, which have to be real tensors."""
    arrays = [
        _core.capture(to_tensor(op, "captured tensors", x.detach().resolve_neg()), "", False)
        for x in traced.arrays
    ]
    return _core.Mod.from_ir(traced.text, arrays)


# ---- Creation.


def _default_device():
    # Without check_available, a CUDA build of PyTorch names "cuda" on machines without a GPU.
    return str(torch.accelerator.current_accelerator(True) or "cpu")


# What torch.compiler.assume_constant_result does, without importing Dynamo.
vars(_default_device)["_dynamo_marked_constant"] = True


def _device_of(device):
    """The device for lists that are made later, when another GPU may be the current one."""
    device = torch.device(device or _default_device())
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _sizes(op, B, H, Q_LEN, KV_LEN):
    try:
        return _numpy_block_mask.sizes(op, B, H, Q_LEN, KV_LEN)
    except TypeError:
        given = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
        if any(isinstance(n, torch.Tensor) and n.numel() == 1 for n in given):
            return [int(n) for n in given]
        raise


def create_block_mask(
    mask_mod,
    B,
    H,
    Q_LEN,
    KV_LEN,
    device=None,
    BLOCK_SIZE=_flex._DEFAULT_SPARSE_BLOCK_SIZE,
    _compile=False,
    separate_full_blocks=True,
    compute_dq_write_order=False,
    dq_kv_order=True,
):
    """The mask of mask_mod(b, h, q_idx, kv_idx) -> bool as data.

    B, H: batches and heads; None or 1 stands for any number, and None is for masks that do not
    depend on the batch or the head. BLOCK_SIZE, an integer or (q, kv), only affects PyTorch's lists
    of blocks. Time and memory grow with the mask's borders, not with its area. device: where lists
    are made; the mask moves with the tensors of the call that uses it. _compile is PyTorch's and
    ignored. Inside torch.compile, PyTorch's function makes the mask. Raises BadInput, TypeError or
    NotImplementedError, naming the argument, if something does not fit.
    """
    if torch.compiler.is_dynamo_compiling():
        device = _default_device() if device is None else device
        options = _torchs_options(separate_full_blocks, compute_dq_write_order, dq_kv_order)
        return BlockMask.from_torch(
            _torch_create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, **options)
        )
    op = "create_block_mask"
    if not isinstance(mask_mod, _core.Mod) and callable(mask_mod) and _is_score(mask_mod):
        raise AssertionError(f"create-block_mask requires a mask_mod function! Got {mask_mod}")
    if not isinstance(dq_kv_order, bool):
        raise ValueError("dq_kv_order must be a bool when using create_block_mask")
    size = _numpy_block_mask.pair(op, BLOCK_SIZE)
    shape = _sizes(op, B, H, Q_LEN, KV_LEN)
    traced = _environment.traced(op, "mask_mod", mask_mod, True, None)
    place, kind = _device_of(device), BlockMask
    on_gpu = any(_host_copies.is_capturing(x.device) for x in traced.arrays)
    if on_gpu or _host_copies.is_capturing(place):
        mask_mod, kind = _for_all(op, mask_mod, traced, B, H), _MadeInCapture
    if on_gpu:
        options = _torchs_options(separate_full_blocks, compute_dq_write_order, dq_kv_order)
        mask = kind.from_torch(_on_gpu(mask_mod, *shape, place, size, **options))
        mask.__dict__["_is_mod"] = True
        return mask
    try:
        mod = at_hand(op, traced)
        _numpy_block_mask.expect_sizes_read(op, mod, B, H)
        core = _core.create_block_mask(mod, *shape, size)
    except ValueError as error:
        raise BadInput(str(error)) from None
    mask = kind.from_core(core, mask_mod, place, separate_full_blocks)
    mask.__dict__["_is_mod"] = kind is not BlockMask
    if compute_dq_write_order:
        order = _flex._compute_dq_write_order_from_block_mask(mask, dq_kv_order=dq_kv_order)
        mask.__dict__.update(
            dq_write_order=order[0], dq_write_order_full=order[1], dq_kv_order_spt=dq_kv_order
        )
    return mask


def _torchs_options(separate_full_blocks, compute_dq_write_order, dq_kv_order):
    """The options that only new versions of PyTorch's function take, if they are given."""
    options = {} if separate_full_blocks is True else {"separate_full_blocks": False}
    if compute_dq_write_order:
        options.update(compute_dq_write_order=True, dq_kv_order=dq_kv_order)
    return options


class _MadeInCapture(BlockMask):
    """A mask made while a CUDA graph was captured: to calls in a capture it is its mask_mod, since
    the host cannot send it to the GPU. `KnownCalls` does not take it."""


def _for_all(op, mask_mod, traced, *given):
    """The mask mod for all batches and heads of a call, to whose mask the sizes were given."""
    depends = [reads(traced.text, name) for name in "bh"]
    try:
        _numpy_block_mask.expect_sizes(op, depends, *given)
    except ValueError as error:
        raise BadInput(str(error)) from None
    first = [d and size == 1 for d, size in zip(depends, given, strict=True)]
    return _of_first(mask_mod, *first) if any(first) else mask_mod


def _on_gpu(mask_mod, *arguments, **options):
    """PyTorch's mask, made without the host."""
    try:
        return _torch_create_block_mask(mask_mod, *arguments, **options)
    except RuntimeError:  # it calls a mod of the library, which PyTorch cannot evaluate
        pass
    # All blocks as partial ones, in which mask_mod decides.
    batch, heads, q_len, kv_len, device, size = arguments
    rows, columns = (-(-n // b) for n, b in zip((q_len, kv_len), size, strict=True))
    counts = torch.full((batch, heads, rows), columns, dtype=torch.int32, device=device)
    indices = torch.arange(columns, dtype=torch.int32, device=device)
    return _TorchBlockMask.from_kv_blocks(
        counts, indices.expand(batch, heads, rows, columns).contiguous(),
        BLOCK_SIZE=size, mask_mod=mask_mod, seq_lengths=(q_len, kv_len),
    )  # fmt: skip


def _of_first(mask_mod, batch, head):
    """The function for the first batch, the first head, or both, wherever it is evaluated: what a
    mask of one batch or head holds."""
    return lambda b, h, q, kv: mask_mod(b * 0 if batch else b, h * 0 if head else h, q, kv)


def reads(text, name):
    """Whether the text of a mod reads an argument."""
    return re.search(f"%{name}\\b", text.partition("\n")[2]) is not None


def as_mod(mask, mask_mod):
    """(mask, mask_mod) for a call: in a capture, a mask that was made in one becomes a mask mod."""
    is_mod = isinstance(mask, BlockMask) and mask._is_mod
    if not (is_mod and _host_copies.is_capturing(mask._place)):
        return mask, mask_mod
    always = torch.ones(1, dtype=torch.bool, device=mask._place)

    def on_gpu(b, h, q, kv):
        """Of a mask that reads an array of a GPU no list is made, which could not be sent there."""
        return always[b * 0]

    return None, _flex.and_masks(mask.mask_mod, *([mask_mod] if mask_mod else []), on_gpu)


def _is_score(function):
    """Whether the function takes five arguments without defaults, as score mods do."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.default is inspect.Parameter.empty for p in parameters) == 5


def create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device=None):
    """bool (B, H, Q_LEN, KV_LEN): where a mask mod is true, or a score mod keeps 0 above -inf."""
    if torch.compiler.is_dynamo_compiling():
        device = _default_device() if device is None else device
        return _torch_create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device)
    op = "create_mask"
    is_mask = mod_fn.is_mask if isinstance(mod_fn, _core.Mod) else not _is_score(mod_fn)
    shape = _sizes(op, B, H, Q_LEN, KV_LEN)
    place = _device_of(device)
    if _host_copies.is_capturing(place):
        return _torch_create_mask(mod_fn, *shape, place)
    traced = _environment.traced(op, "mod_fn", mod_fn, is_mask, None)
    try:
        mod = at_hand(op, traced)
        _numpy_block_mask.expect_sizes_read(op, mod, B, H)
        pairs = to_array(_core.create_mask(mod, *shape))
    except ValueError as error:
        raise BadInput(str(error)) from None
    return torch.from_numpy(pairs.copy()).to(place)


def create_scores(score_mod, B, H, Q_LEN, KV_LEN, scores=None, device=None):
    """`scores` after score_mod, pair by pair: (B, H, Q_LEN, KV_LEN), for debugging.

    scores: float32 or float64, of a shape that broadcasts to the result's; zeros by default. B, H:
    None is 1. Slow.
    """
    op = "create_scores"
    shape = _sizes(op, B, H, Q_LEN, KV_LEN)
    scores = torch.zeros(()) if scores is None else torch.as_tensor(scores)
    traced = _environment.traced(op, "score_mod", score_mod, False, None, scores.dtype)
    try:
        made = _numpy_block_mask.create_scores(
            at_hand(op, traced), *shape, scores.detach().cpu().numpy()
        )
    except ValueError as error:
        raise BadInput(str(error)) from None
    return torch.from_numpy(made.copy()).to(_device_of(device))
