"""The attention implementation "tilewright" for Hugging Face Transformers."""

import torch

from . import _block_mask
from ._attention import flex_attention

NAME = "tilewright"
_hf = None  # transformers.masking_utils: Dynamo of torch 2.11 traces no import of Transformers


class DeferredMask(_block_mask.BlockMask):
    """A mask kept as a function, with the lengths it is for.

    Decoding passes the function to the kernel. For several queries the exact mask is built once and
    shared by the layers of a forward pass.
    """

    @classmethod
    def of(cls, mask_mod, shape, device):
        self = cls.__new__(cls)
        for name, value in dict(
            mask_mod=mask_mod, seq_lengths=shape[2:], BLOCK_SIZE=(128, 128), _function=mask_mod,
            _shape=tuple(shape), _device=torch.device(device), _made_for={},
            dq_write_order=None, dq_write_order_full=None, dq_kv_order=None, dq_kv_order_spt=None,
        ).items():  # fmt: skip
            # Not by __dict__.update, which Dynamo of torch 2.11 cannot trace.
            object.__setattr__(self, name, value)
        return self

    def made(self, keys):
        """The exact mask for a number of keys."""
        if keys not in self._made_for:
            b, h, queries, _ = self._shape
            self._made_for[keys] = _block_mask.create_block_mask(
                self._function, b, h, queries, keys, self._device
            )
        return self._made_for[keys]

    def __getattr__(self, name):
        if name.startswith("_") or name not in _block_mask._LISTS:
            raise AttributeError(f"BlockMask has no {name!r}")
        return getattr(self.made(self._shape[3]), name)

    @property
    def shape(self):
        return self._shape

    def to(self, device):
        return self

    def __getitem__(self, index):
        return self.made(self._shape[3])[index]


def mask(
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    mask_function=None,
    attention_mask=None,
    device="cpu",
    **_,
):
    """The mask of a forward pass, for Transformers' AttentionMaskInterface."""
    hf = _hf
    function = hf.causal_mask_function if mask_function is None else mask_function
    padding = hf.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        function = hf.and_masks(function, hf.padding_mask_function(padding))
    if _moves(q_offset) or _moves(kv_offset):
        function = hf.add_offsets_to_mask_function(function, q_offset, kv_offset)
    return DeferredMask.of(function, (batch_size, 1, q_length, kv_length), device)


def _moves(offset):
    return isinstance(offset, torch.Tensor) or offset != 0


def forward(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    softcap=None,
    s_aux=None,
    position_bias=None,
    is_causal=None,
    **kwargs,
):
    """Attention of one layer, for Transformers' AttentionInterface; returns ((B, L, H, D), None).

    query (B, Hq, L, D), key and value (B, Hkv, S, D), not repeated. attention_mask: a result of
    `mask`, PyTorch's BlockMask, or a tensor that broadcasts to (B, Hq, L, S), bool or added to
    scores. softcap bounds scores before position_bias, which may be learned, is added; s_aux (Hq,):
    sinks.
    """
    options = {}
    bias = None
    if isinstance(attention_mask, DeferredMask):
        if attention_mask.seq_lengths[0] == 1:
            options["mask_mod"] = attention_mask.mask_mod
        else:
            options["block_mask"] = attention_mask.made(key.shape[2])
    elif isinstance(attention_mask, torch.Tensor):
        given = attention_mask[..., : key.shape[2]]
        if given.dtype == torch.bool:
            options["mask_mod"] = _chosen(given)
        else:
            bias = given
    elif attention_mask is not None:
        options["block_mask"] = attention_mask
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options["causal"] = bool(causal) and query.shape[2] > 1
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]
    if dropout and module.training:
        seed = torch.empty((), dtype=torch.int64).random_()
        options.update(dropout=dropout, seed=int(seed))
    out = flex_attention(
        query,
        key,
        value,
        score_mod=_score_mod(softcap, position_bias, bias),
        scale=scaling,
        enable_gqa=True,
        sinks=s_aux,
        **options,
    )
    return out.transpose(1, 2).contiguous(), None


def _whole(tensor):
    """A tensor with leading dimensions of 1 up to rank 4, and which of batch and heads it has."""
    while tensor.dim() < 4:
        tensor = tensor[None]
    return tensor, tensor.shape[0] > 1, tensor.shape[1] > 1


def _chosen(table):
    table, batches, heads = _whole(table)

    def mask_mod(b, h, q_idx, kv_idx):
        return table[b if batches else 0, h if heads else 0, q_idx, kv_idx]

    return mask_mod


def _added(table):
    table, batches, heads = _whole(table)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[b if batches else 0, h if heads else 0, q_idx, kv_idx]

    return score_mod


def _capped(cap):
    def score_mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return score_mod


def _score_mod(softcap, *biases):
    mods = [] if softcap is None else [_capped(softcap)]
    mods += [_added(bias) for bias in biases if bias is not None]
    if len(mods) <= 1:
        return mods[0] if mods else None

    def score_mod(score, b, h, q_idx, kv_idx):
        for mod in mods:
            score = mod(score, b, h, q_idx, kv_idx)
        return score

    return score_mod


def register_transformers():
    """Registers the attention implementation "tilewright" with Transformers.

    Use it by ``model.set_attn_implementation("tilewright")``, or attn_implementation="tilewright"
    when a model is created. Raises ImportError without Transformers.
    """
    global _hf
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers import masking_utils as _hf

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, mask)
