"""The programs of examples/torch run to the end, with their own checks."""

import json
import pathlib
import runpy
import sys

import pytest

ROOT = pathlib.Path(__file__, "../../../..").resolve()
EXAMPLES = sorted((ROOT / "examples/torch").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_notebook_is_its_script_and_prints_what_it_shows(capsys):
    tool = runpy.run_path(str(ROOT / "tools/make_notebook.py"))
    made = tool["notebook_of"]((ROOT / "examples/torch/flex_attention.py").read_text())
    assert (
        made == (ROOT / "examples/torch/flex_attention.ipynb").read_text()
    ), "run tools/make_notebook.py"
    shown = "".join(
        "".join(o["text"]) for c in json.loads(made)["cells"] for o in c.get("outputs", [])
    )
    assert shown.count("BlockMask(shape=") == 9
    assert "Correctness check passed" in shown
    try:
        import nbformat
    except ImportError:
        return
    nbformat.validate(nbformat.reads(made, as_version=4))
