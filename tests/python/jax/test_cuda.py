"""Calls on a GPU (JAX_PLATFORMS=cuda) or, without one, on the stand-in of tests/cuda/fake."""

import os
import pathlib
import subprocess
import sys

import cuda_calls
import fake_gpu
import jax
import pytest

ON_GPU = jax.default_backend() != "cpu"


@pytest.mark.skipif(not ON_GPU, reason="NOT RUN: no GPU on this machine")
@pytest.mark.parametrize("name", cuda_calls.CHECKS)
def test_on_a_gpu(name):
    cuda_calls.CHECKS[name]()


@pytest.mark.skipif(ON_GPU, reason="NOT RUN: this machine has a GPU")
@pytest.mark.skipif(
    not (fake_gpu.FOLDER / "libcuda.so.1").exists(), reason="NOT RUN: no stand-in GPU was built"
)
def test_on_the_stand_in():
    folder = str(fake_gpu.FOLDER)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": folder + ":" + os.environ.get("LD_LIBRARY_PATH", ""),
        "TILEWRIGHT_NVRTC": folder,
        "TILEWRIGHT_CACHE_DIR": folder + "/cache",
        "TW_FAKE_GPU": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    program = pathlib.Path(__file__).with_name("fake_gpu.py")
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[-2] == "known arrays"
