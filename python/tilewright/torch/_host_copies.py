"""Copies of GPU tensors that the host reads, made once.

A copy is valid for as long as the tensor lives and its version, which torch increments at every
write, stays the same. Writes that torch does not see, such as those by replayed CUDA graphs or
other libraries' kernels, go unnoticed: the caller has to make such tensors anew.
"""

import weakref

import torch

_copies = {}  # id -> (weak reference, version, copy)
_is_output_of_a_graph = getattr(torch._C, "_is_cached_tensor", lambda _: False)


def is_capturing(device):
    """Whether work of a device, or of the current one, is being captured in a CUDA graph, when
    nothing can be copied between it and the host."""
    if device.type != "cuda":
        return False
    if torch.cuda.is_current_stream_capturing():
        return True
    if device.index is None or not torch.cuda.is_initialized():
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def may_keep(tensor):
    """Whether a copy of a tensor may be kept: torch must tell when the tensor is written to."""
    return not tensor.is_inference() and not _is_output_of_a_graph(tensor)


def host_copy(tensor):
    """The tensor on the CPU; itself if copies may not be kept or a CUDA graph is being captured."""
    if tensor.is_cpu or type(tensor) is not torch.Tensor or tensor.requires_grad:
        return tensor
    if not tensor.is_cuda or not may_keep(tensor) or is_capturing(tensor.device):
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
