"""The programs of examples/torch run to their end, their checks included."""

import pathlib
import runpy
import sys

import pytest

EXAMPLES = sorted(pathlib.Path(__file__, "../../../../examples/torch").resolve().glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
