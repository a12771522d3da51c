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


@pytest.fixture
def forward_calls():
    """Counts the forward passes of attention while a function runs."""
    from tilewright import _core

    def count(function):
        before = _core.forward_calls()
        function()
        return _core.forward_calls() - before

    return count
