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
    """Counts the forward passes of attention while a function runs: those of operators, whose
    kernels are C++, and direct ones."""
    from tilewright import _core
    from tilewright.torch import _sites

    def count(function):
        direct, original = [], _sites.Site.__call__

        def counting(self, *arguments):
            results = original(self, *arguments)
            if results is not None and not self.spec.backward:
                direct.append(self)
            return results

        before = _core.forward_calls()
        _sites.Site.__call__ = counting
        try:
            function()
        finally:
            _sites.Site.__call__ = original
        return len(direct) + _core.forward_calls() - before

    return count
