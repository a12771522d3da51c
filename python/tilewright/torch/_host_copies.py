"""What the host reads of tensors on a GPU, copied once.

A copy holds for as long as the tensor lives and its version, which torch counts up at every write,
stays the same. Writes that torch does not see, as by replays of CUDA graphs or kernels of other
libraries, are not seen here: such tensors are for the caller to make anew.
"""

import weakref

import torch

_copies = {}  # id -> (weak reference, version, copy)
_is_output_of_a_graph = getattr(torch._C, "_is_cached_tensor", lambda _: False)


def may_keep(tensor):
    """Whether what was read of a tensor may be kept: torch must tell when it is written to."""
    return not tensor.is_inference() and not _is_output_of_a_graph(tensor)


def host_copy(tensor):
    """The tensor on the CPU; itself where it may not be kept, and while a CUDA graph is captured."""
    if tensor.is_cpu or type(tensor) is not torch.Tensor or tensor.requires_grad:
        return tensor
    if not tensor.is_cuda or not may_keep(tensor) or torch.cuda.is_current_stream_capturing():
        return tensor
    key, version = id(tensor), tensor._version
    known = _copies.get(key)
    if known is not None and known[0]() is tensor and known[1] == version:
        return known[2]
    copy = tensor.cpu()

    def forget(reference):
        if key in _copies and _copies[key][0] is reference:
            del _copies[key]

    _copies[key] = weakref.ref(tensor, forget), version, copy
    return copy
