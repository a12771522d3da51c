#!/usr/bin/env python3
"""Times other libraries on the kernels of `tilewright bench cpu`: oneDNN (through PyTorch), PyTorch,
torch.compile, Numba and Halide.

Standard input and output as in torch_baseline.py. A job names the kernel, the library, the number
of threads and files: [path, dtype, shape] of each input and of the output. The inputs are those of
the tile program, and the output gets the results of the first execution, to be compared. A library
that is not installed is a ModuleNotFoundError, one without the kernel a NotImplementedError. A job
without a kernel asks for the library's version, as text in the output.
"""

import ctypes
import importlib
import importlib.metadata
import os
import re

from torch_baseline import serve

DTYPES = {"f32": "float32", "i32": "int32", "i8": "int8", "u8": "uint8", "f8e4m3": "uint8"}


def read(path, dtype, shape):
    import numpy as np

    return np.fromfile(path, DTYPES[dtype]).reshape(shape)


def write(path, data):
    with open(path, "r+b") as file:
        file.write(data)


# ---- PyTorch: a function of the inputs for each kernel, as its users write it.


def torch_functions(job):
    """{kernel: function of tensors}"""
    import torch
    import torch.nn.functional as F

    shape = job["output"][2]
    count = shape[-1] if shape else 1

    def rotary(x, cosines, sines):
        a, b = x.chunk(2, 1)
        return torch.cat([a * cosines - b * sines, b * cosines + a * sines], 1)

    def around(x):
        return x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]

    def blur(x):
        rows = x[:-4] + x[4:] + 4 * (x[1:-3] + x[3:-1]) + 6 * x[2:-2]
        columns = rows[:, :-4] + rows[:, 4:] + 4 * (rows[:, 1:-3] + rows[:, 3:-1])
        return (columns + 6 * rows[:, 2:-2]) * (1 / 256)

    def sliding_sum(x):
        return sum(x[:, k : k + count] for k in range(9))

    def prefix_mask(scores, prefixes):
        q, kv = torch.arange(scores.shape[1])[:, None], torch.arange(scores.shape[2])
        return torch.where((kv <= q) | (kv < prefixes[:, None, None]), scores, -1e30)

    def int4_matmul(x, packed, scales):
        half = packed.shape[0]
        low, high = (packed & 15).float() - 8, (packed >> 4).float() - 8
        return (x[:, :half] @ low + x[:, half:] @ high) * scales

    def kmeans(x, centres):
        distances = (centres * centres).sum(1) - 2 * (x @ centres.T)
        return distances.argmin(1).to(torch.int32)

    def group_norm(x, weight, bias):
        return F.group_norm(x, shape[1] // job["sizes"][1], weight, bias, 1e-5)

    return {
        "add": lambda x, r, bias: x + r,
        "scale_shift_relu": lambda x, r, bias: torch.relu(x * 1.5 + bias) + r,
        "bias_gelu_residual": lambda x, r, bias: F.gelu(x + bias, approximate="tanh") + r,
        "softmax": lambda x: torch.softmax(x, 1),
        "layer_norm": lambda x, weight, bias: F.layer_norm(x, (count,), weight, bias, 1e-5),
        "group_norm": group_norm,
        "rotary": rotary,
        "transpose": lambda x: x.T.contiguous(),
        "prefix_mask": prefix_mask,
        "cumsum": lambda x: torch.cumsum(x, 1, dtype=x.dtype),
        "cumsum_rows": lambda x: torch.cumsum(x, 0),
        "cummax": lambda x: torch.cummax(x, 1).values,
        "cumlogsumexp": lambda x: torch.logcumsumexp(x, 1),
        "top_k": lambda x: torch.topk(x, count, 1).values,
        "sort": lambda x: torch.sort(x, 1).values,
        "sliding_sum": sliding_sum,
        "depthwise": lambda x, w: F.conv2d(x[None], w[:, None], groups=shape[0])[0],
        "stencil": lambda x: x[1:-1, 1:-1] * 0.5 + around(x) * 0.125,
        "jacobi": lambda x, f: (around(x) - f) * 0.25,
        "blur": blur,
        "segment_sum": lambda x, ids, sums: sums.index_add(0, ids, x),
        "histogram": lambda x, counts: torch.bincount(x, minlength=count).to(torch.int32),
        "embedding": lambda table, ids: F.embedding(ids, table),
        "embedding_gradient": lambda dy, ids, sums: sums.index_add(0, ids, dy),
        "sparse_rows": lambda x, columns, vector: (x * vector[columns]).sum(1),
        "cholesky": torch.linalg.cholesky,
        "int4_matmul": int4_matmul,
        "kmeans": kmeans,
        "matmul_f32": torch.matmul,
        "matmul_i8": torch._int_mm,
        "matmul_i32": torch.matmul,
        "matmul_f8e4m3": lambda x, y: x.float() @ y.float(),
    }


# What torch.compile leaves to the same functions that PyTorch calls by itself.
NOT_FUSED = {"cummax", "top_k", "sort", "cholesky", "matmul_f32", "matmul_i8", "matmul_i32"}


def onednn_functions(job):
    """{kernel: (function, arguments of the tensors)}: arguments are in oneDNN's own layouts."""
    import torch
    import torch.nn.functional as F

    planes = job["output"][2][0]

    def to_mkldnn(*tensors):
        return [tensor.to_mkldnn() for tensor in tensors]

    def linear(x, y):
        return torch.ops.mkldnn._linear_pointwise(x, y, None, "none", [], "")

    return {
        "add": (torch.add, lambda x, r, bias: to_mkldnn(x, r)),
        "softmax": (lambda x: torch.softmax(x, 1), to_mkldnn),
        "transpose": (lambda x: x.transpose(0, 1), to_mkldnn),
        "depthwise": (
            lambda x, w: F.conv2d(x, w, groups=planes),
            lambda x, w: [x[None].to_mkldnn(), w[:, None]],
        ),
        "matmul_f32": (linear, lambda x, y: [x, y.T.contiguous()]),
        "matmul_i8": (torch._int_mm, lambda x, y: [x, y]),
    }


def keep_memory():
    """Lets the C library keep freed memory: results would otherwise be new pages in each call."""
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_max = -1, -4  # of malloc.h
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)


def prepare_torch(job, arrays):
    """(function that executes the kernel once, function of its result that gives an array)"""
    import torch

    keep_memory()
    torch.set_num_threads(job["threads"])
    kernel, library = job["kernel"], job["library"]
    tensors = [torch.from_numpy(array) for array in arrays]
    if kernel == "matmul_f8e4m3":
        tensors = [tensor.view(torch.float8_e4m3fn) for tensor in tensors]
    if library == "onednn":
        functions = onednn_functions(job)
        if kernel not in functions:
            raise NotImplementedError(kernel)
        function, arguments = functions[kernel]
        tensors = arguments(*tensors)
    else:
        functions = torch_functions(job)
        if kernel not in functions or (library == "torch-compile" and kernel in NOT_FUSED):
            raise NotImplementedError(kernel)
        function = functions[kernel]
        if library == "torch-compile":
            function = torch.compile(function, dynamic=False)

    def run():
        with torch.no_grad():
            return function(*tensors)

    def array(result):
        return (result.to_dense() if result.is_mkldnn else result).contiguous().numpy()

    return run, array


def version_of(library):
    module = {"numba": "numba", "halide": "halide"}.get(library, "torch")
    imported = importlib.import_module(module)
    if library == "onednn":
        found = re.search(r"(?:MKL-DNN|oneDNN) v([\d.]+)", imported.__config__.show())
        if not found:
            raise ModuleNotFoundError("this PyTorch has no oneDNN")
        return found[1]
    return importlib.metadata.version(module)


def prepare(job):
    """Returns a function that executes the kernel once, after the first execution."""
    library = job["library"]
    # Read when they are imported, for a version too.
    os.environ["NUMBA_NUM_THREADS"] = os.environ["HL_NUM_THREADS"] = str(job["threads"])
    if "kernel" not in job:
        write(job["output"][0], version_of(library).encode())
        return lambda: None
    if job["kernel"] == "matmul":
        job["kernel"] += "_" + job["inputs"][0][1]
    arrays = [read(*file) for file in job["inputs"]]
    if library == "numba":
        import cpu_peers_numba

        run, array = cpu_peers_numba.prepare(job, arrays)
    elif library == "halide":
        import cpu_peers_halide

        run, array = cpu_peers_halide.prepare(job, arrays)
    else:
        run, array = prepare_torch(job, arrays)
    write(job["output"][0], array(run()).tobytes())
    return run


def forget():
    """The next job replaces what this one kept."""


if __name__ == "__main__":
    serve(prepare, lambda job: lambda: None, forget)
