"""examples/custom_op: from a file of CUDA C++ to an operation, on the CPU or a GPU."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "custom_op"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="NOT RUN: no C++ compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("custom_op") / "librms_norm_cpu.so"
    command = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", "-I", str(ROOT / "include")]
    subprocess.run([*command, str(FOLDER / "rms_norm_cpu.cpp"), "-o", str(path)], check=True)
    return str(path)


def run(*command):
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_numpy(library):
    assert run(str(FOLDER / "rms_norm.py"), library).count("relative error") == 3


def test_jax(library):
    pytest.importorskip("jax")
    pytest.importorskip("tilewright.jax")
    out = run(str(FOLDER / "rms_norm_jax.py"), library)
    assert " 0 all-gather" in out and "shard_map: agrees" in out


def test_torch(library):
    pytest.importorskip("torch")
    out = run(str(FOLDER / "rms_norm_torch.py"), library)
    assert out.count("compiled: relative error") == 4 and "vmap: agrees" in out


def test_torch_shards(library):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() and torch.cuda.device_count() < 2:
        pytest.skip("NOT RUN: needs two GPUs, or none")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = run(*launcher, str(FOLDER / "rms_norm_torch.py"), library)
    assert out.count("2 ranks: agree") == 2
