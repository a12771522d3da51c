"""The library's operators: what torch.compile, torch.export and dispatch modes see."""

import torch
from torch.autograd import forward_ad as _forward_ad

from .. import _core
from . import _mask_words, _sites

library = torch.library.Library("tilewright", "DEF")
TAGS = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)

# max_scores is of size 0 unless the site asks for them. `site` is the text of a Spec.
library.define(
    "forward(Tensor query, Tensor key, Tensor value, Tensor[] others, SymInt seed, str site)"
    " -> (Tensor out, Tensor lse, Tensor max_scores)",
    tags=TAGS,
)
# The same without lse and max_scores, if they are not needed: making a tensor costs a microsecond.
library.define(
    "forward.alone(Tensor query, Tensor key, Tensor value, Tensor[] others, SymInt seed, str site)"
    " -> Tensor",
    tags=TAGS,
)
# Gradients of query, key and value where needed, then of sinks and of each `dscore` operand.
library.define(
    "backward(Tensor query, Tensor key, Tensor value, Tensor[] others, SymInt seed, str site)"
    " -> Tensor[]",
    tags=TAGS,
)
# The same for operands on a GPU some of which the host reads: these must stay out of CUDA graphs,
# whose replay would not read them again.
_HOST_TAGS = (*TAGS, torch.Tag.cudagraph_unsafe)
library.define(
    "forward.host(Tensor query, Tensor key, Tensor value, Tensor[] others, SymInt seed, str site)"
    " -> (Tensor out, Tensor lse, Tensor max_scores)",
    tags=_HOST_TAGS,
)
library.define(
    "forward.alone_host(Tensor query, Tensor key, Tensor value, Tensor[] others, SymInt seed, "
    "str site) -> Tensor",
    tags=_HOST_TAGS,
)
library.define(
    "backward.host(Tensor query, Tensor key, Tensor value, Tensor[] others, SymInt seed, str site)"
    " -> Tensor[]",
    tags=_HOST_TAGS,
)


def _run(query, key, value, others, seed, text):
    site = _sites.parsed(text)
    operands, mask = (query, key, value, *others), None
    if site.words_at is not None:
        # A mask that is alive in this process is used directly, not read from its words.
        mask = _mask_words.mask_of(operands[site.words_at])
        if mask is not None:
            operands = (*operands[: site.words_at], *operands[site.words_at + 1 :])
            site = site.without_words
    results = site(operands, mask, seed % (1 << 64))
    if results is None:
        operands = [plain(x) for x in operands]
        results = site(operands, mask, seed % (1 << 64))
    if results is None:
        site.check(mask, operands)
        raise TypeError(f"[{site.op}] expected plain tensors but got {list(map(type, operands))}")
    return results


def plain(x):
    """The tensor with memory that can be read directly."""
    x = x.resolve_neg().resolve_conj()
    return x if type(x) in (torch.Tensor, torch.nn.Parameter) else x.as_subclass(torch.Tensor)


def _forward(*arguments):
    results = _run(*arguments)
    return results if len(results) == 3 else (*results, results[1].new_empty(0))


def _forward_alone(*arguments):
    return _run(*arguments)[0]


def _backward(*arguments):
    return list(_run(*arguments))


def _empty(site, operands):
    return [
        operands[0].new_empty_strided(*shape, **options)
        for shape, options in site.results(None, *operands)
    ]


def _fake_forward(query, key, value, others, seed, site):
    results = _empty(_sites.parsed(site), (query, key, value, *others))
    return (*results, results[1].new_empty(0)) if len(results) == 2 else tuple(results)


def _fake_forward_alone(query, key, value, others, seed, site):
    return _empty(_sites.parsed(site), (query, key, value, *others))[0]


def _fake_backward(query, key, value, others, seed, site):
    return _empty(_sites.parsed(site), (query, key, value, *others))


#: Whether the operators' kernels are C++; a torch without what these need gets those above.
IN_CPP = _core.implement_operators(_sites.parsed, _mask_words.mask_at)

for _name, _real, _fake in (
    ("forward", _forward, _fake_forward),
    ("forward.host", _forward, _fake_forward),
    ("forward.alone", _forward_alone, _fake_forward_alone),
    ("forward.alone_host", _forward_alone, _fake_forward_alone),
    ("backward", _backward, _fake_backward),
    ("backward.host", _backward, _fake_backward),
):
    for _key in () if IN_CPP else ("CPU", "CUDA"):
        library.impl(_name, _real, _key)
    torch.library.register_fake(f"tilewright::{_name}", _fake, lib=library)

#: torch's operator of attention by other libraries, whose derivative needs no Python, implemented by
#: the library's kernels; None if these are not C++.
fused = None
if IN_CPP:
    # Its derivative, and that where the gradients may be differentiated (in _function.py).
    for _name in ("fused_backward", "fused_backward_twice"):
        library.define(
            f"{_name}(Tensor dout, Tensor query, Tensor key, Tensor value, Tensor fourth, "
            "bool[4] needs_gradient, Tensor out, Tensor lse, Tensor unused0, Tensor unused1, "
            "SymInt operands, SymInt mask, float site, bool unused2, Tensor unused3, "
            "Tensor unused4, *, float? unused5=None) -> (Tensor, Tensor, Tensor, Tensor)",
            tags=TAGS,
        )
    _core.implement_fused()
    fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default._op

_forward_op, _backward_op = torch.ops.tilewright.forward, torch.ops.tilewright.backward
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack


def is_plain():
    """Whether no dispatch mode, torch.func transform or forward-mode autograd would see an
    operator's call."""
    return _modes() == 0 and _transforms() is None and _forward_ad._current_level < 0


def is_transformed():
    """Whether a transform of torch.func is active."""
    return _transforms() is not None


def run(site, operands, mask, seed):
    """The results of a site; calls the library directly if nothing in torch has to see the call."""
    if _modes() == 0 and _transforms() is None:
        return run_plain(site, operands, mask, seed)
    return _dispatch(site, operands, mask, seed)


def run_plain(site, operands, mask, seed, wants_lse=True):
    """The same where `is_plain()`."""
    results = (site if wants_lse else site.alone)(operands, mask, seed)
    if results is not None:
        return results
    site.check(mask, operands)
    return _dispatch(site, operands, mask, seed)


def _dispatch(site, operands, mask, seed):
    if mask is not None:
        site, operands = site.with_words, (*operands, mask.make_words())
    query, key, value, *others = operands
    if seed >= 1 << 63:
        seed -= 1 << 64  # operators take signed integers
    host = site.read_by_host and query.device.type == "cuda"
    if site.spec.backward:
        operator = _backward_op.host if host else _backward_op.default
    elif not site.spec.lse:
        operator = _forward_op.alone_host if host else _forward_op.alone
        return (operator(query, key, value, others, seed, site.text),)
    else:
        operator = _forward_op.host if host else _forward_op.default
    results = operator(query, key, value, others, seed, site.text)
    return results if site.spec.backward or site.spec.max_scores else results[:2]
