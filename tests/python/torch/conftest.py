"""Skips everything without PyTorch; resets Dynamo for every test."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for helpers shared by tests

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
