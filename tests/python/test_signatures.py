"""Functions with one name have the same arguments in all front ends."""

import importlib.util
import inspect

import numpy as np
import pytest

import tilewright as tw
from tilewright import _arguments


def front_ends():
    yield tw
    for name in ("jax", "torch"):
        # If a framework is not installed, the tests' folder with its name looks like a package.
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        yield __import__(f"tilewright.{name}", fromlist=[name])


#: The function or dataclass that defines each function's arguments.
FUNCTIONS = {
    "flex_attention": _arguments.AttentionArguments,
    "flex_attention_vjp": _arguments.AttentionArguments,
    "rms_norm": tw.rms_norm,
    "rms_norm_vjp": tw.rms_norm,
    "layer_norm": tw.layer_norm,
    "layer_norm_vjp": tw.layer_norm,
}


@pytest.mark.parametrize("front_end", front_ends(), ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_those_of_all_front_ends(front_end, name):
    function = getattr(front_end, name, None)
    if function is None:
        assert name.endswith("_vjp") and front_end is not tw
        return
    ours = inspect.signature(function).parameters
    shared = inspect.signature(FUNCTIONS[name]).parameters
    assert list(ours) == list(shared)
    for argument, parameter in shared.items():
        assert ours[argument].default == parameter.default, argument
        assert ours[argument].kind == parameter.kind, argument
    if front_end is tw:
        annotations = {n: p.annotation for n, p in ours.items() if n != "block_mask"}
        assert annotations == {n: shared[n].annotation for n in annotations}


@pytest.mark.parametrize("name", ["flex_attention", "flex_attention_vjp"])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layout": "bhds"}, ValueError, 'expected layout "bhsd" or "bshd" but got'),
        ({"return_aux": tw.AuxRequest(), "return_lse": True}, ValueError, "but got both"),
        ({"return_aux": True}, TypeError, "expected return_aux to be an AuxRequest but got bool"),
        ({"kernel_options": [1]}, TypeError, "expected kernel_options to be a dict but got list"),
        ({"window": 3}, TypeError, r"expected window to be two integers \(left, right\) but got 3"),
        ({"key": None}, TypeError, "expected key to be an array but got None"),
    ],
)
def test_what_no_front_end_takes(name, options, error, message):
    x = np.zeros((1, 1, 4, 8), np.float32)
    functions = [getattr(module, name) for module in front_ends() if hasattr(module, name)]
    for function in functions:
        if function.__module__.startswith("tilewright.torch"):
            continue  # whose errors are torch's
        with pytest.raises(error, match=message):
            function(**{"query": x, "key": x, "value": x, **options})


@pytest.mark.parametrize("front_end", front_ends(), ids=lambda module: module.__name__)
def test_libraries_hold_their_functions_alone(front_end):
    for library in (front_end.masks, front_end.scores):
        public = sorted(name for name in vars(library) if not name.startswith("_"))
        assert public == library.__all__
        for name in public:
            inspect.signature(getattr(library, name))
