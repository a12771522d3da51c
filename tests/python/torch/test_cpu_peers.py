"""bench/cpu_peers.py: what PyTorch runs for kernels of `tilewright bench cpu` is what they define."""

import pathlib
import sys

import numpy as np
import pytest

BENCH = pathlib.Path(__file__).resolve().parents[3] / "bench"
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-1, 1, (8, 64)).astype(np.float32)
IDS = RANDOM.integers(0, 8, 64).astype(np.int32)


@pytest.fixture(scope="module")
def peers():
    sys.path.insert(0, str(BENCH))
    try:
        import cpu_peers

        yield cpu_peers
    finally:
        sys.path.remove(str(BENCH))


def execute(peers, folder, library, kernel, inputs, output):
    """The output file after `prepare`, which executes the kernel once."""
    names = {"float32": "f32", "int32": "i32", "uint8": "u8", "int8": "i8"}

    def described(path, array):
        array.tofile(path)
        return [str(path), names[str(array.dtype)], list(array.shape)]

    job = {"library": library, "threads": 1, "kernel": kernel, "sizes": [0, 2]}
    job["inputs"] = [described(folder / str(i), array) for i, array in enumerate(inputs)]
    job["output"] = described(folder / "out", np.zeros_like(output))
    peers.prepare(job)
    return np.fromfile(folder / "out", output.dtype).reshape(output.shape)


def softmax(x):
    weights = np.exp(x - x.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def grouped(x):
    groups = x.reshape(2, 2, 2 * 16)
    means, variances = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
    return ((groups - means) / np.sqrt(variances + 1e-5)).reshape(2, 4, 16)


CASES = {
    "softmax": ([X], softmax(X)),
    "cumsum": ([X], np.cumsum(X, 1)),
    "group_norm": (
        [X.reshape(2, 4, -1)[:, :, :16].copy(), np.ones(4, "f"), np.zeros(4, "f")],
        grouped(X.reshape(2, 4, -1)[:, :, :16]),
    ),
    "sliding_sum": ([X], sum(X[:, k : k + 56] for k in range(9))),
    "histogram": ([IDS, np.zeros(8, "i4")], np.bincount(IDS, minlength=8).astype("i4")),
    "top_k": ([X], -np.sort(-X, 1)[:, :8]),
    "matmul": ([IDS.reshape(8, 8).astype("i1")] * 2, IDS.reshape(8, 8) @ IDS.reshape(8, 8)),
}


@pytest.mark.parametrize("kernel", CASES)
def test_kernels_give_what_they_define(peers, tmp_path, kernel):
    inputs, wanted = CASES[kernel]
    for library in ("torch", "onednn"):
        try:
            found = execute(peers, tmp_path, library, kernel, inputs, wanted)
        except NotImplementedError:
            assert library == "onednn" and kernel not in ("softmax", "matmul")
            continue
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_versions_and_unknown_kernels(peers, tmp_path):
    import torch

    path = tmp_path / "version"
    path.write_bytes(bytes(64))
    peers.prepare({"library": "torch", "threads": 1, "output": [str(path)]})
    assert torch.__version__.startswith(path.read_bytes().rstrip(b"\0").decode())
    for library in ("torch", "torch-compile", "onednn"):
        with pytest.raises(NotImplementedError):
            execute(peers, tmp_path, library, "nothing", [X], X)
