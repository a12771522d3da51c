"""bench/compare_flash_attention.py: our calls agree with its reference."""

import importlib.util
import pathlib
import sys

import pytest
import torch

TOOL = pathlib.Path(__file__).parents[3] / "bench" / "compare_flash_attention.py"


@pytest.fixture(scope="module")
def tool():
    sys.path.append(str(TOOL.parent))  # of a module that it imports
    spec = importlib.util.spec_from_file_location("compare_flash_attention", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {},
        {"window": 9},
        {"softcap": 2.0},
        {"alibi": "computed"},
        {"alibi": "table"},
        {"documents": 4},
    ],
    ids=str,
)
def test_calls_are_those_of_the_reference(tool, options):
    case = tool.Case(1, 4, 2, 48, 16, **options)
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(1, heads, 48, 16) for heads in (4, 2, 2, 4))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = tool.tilewright_of(case, True, "cpu")(*inputs)
    gradients = torch.autograd.grad(out, inputs, grad)
    want = tool.reference(case, q[0, :2], k[0, 0], v[0, 0], grad[0, :2])
    got = out[0, :2], gradients[0][0, :2], gradients[1][0, 0], gradients[2][0, 0]
    tolerance = 5e-3 if "softcap" in options else 1e-5  # an approximate tanh is used
    for mine, theirs in zip(got, want, strict=True):
        assert tool.relative(mine, theirs) < tolerance


def test_cases_and_peers(tool, capsys):
    tool.main(["--list"])
    assert "documents" in capsys.readouterr().out
    assert tool.installed(["cudnn"]) == ["cudnn"]
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="expected an NVIDIA GPU"):
            tool.main(["--cases", "causal"])
