"""Eight host devices for the tests of sharding; skips everything without JAX.

JAX_PLATFORMS=cuda runs them on the available GPUs.
"""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for helpers shared by tests

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

jax = pytest.importorskip("jax")
jax.config.update("jax_default_matmul_precision", "highest")  # references, on GPUs


@pytest.fixture
def eight_devices():
    if jax.device_count() < 8:
        pytest.skip("NOT RUN: needs eight devices")


@pytest.fixture
def on_cpu():
    if jax.default_backend() != "cpu":
        pytest.skip("NOT RUN: a test of the CPU")


@pytest.fixture
def x64():
    """Enables 64-bit types for one test."""
    with jax.enable_x64(True):
        yield
