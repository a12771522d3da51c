"""The programs of examples/jax on attention and norms run to the end, with their own checks."""

import pathlib
import runpy
import sys

import pytest

EXAMPLES = [
    pathlib.Path(__file__, "../../../../examples/jax", f"{name}.py").resolve()
    for name in ("flex_attention", "masks", "sharded_norm", "transformer")
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
