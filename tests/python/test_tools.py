"""Tools for kernel authors: profiles, findings, the page of all forms, notebooks."""

import json
import os
import pathlib
import runpy
import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw

ROOT = pathlib.Path(__file__, "../../..").resolve()
HERE = os.path.basename(__file__)


@tw.kernel
def scaled_exp(x, o, *, factor=2.0):
    o[...] = tw.exp(x[...] * factor)


def call(**options):
    block = tw.BlockSpec((8, 64), lambda i: (i, 0))
    return tw.call(
        scaled_exp,
        grid=4,
        in_specs=block,
        out_specs=block,
        out_shape=tw.ShapeDtype((32, 64), np.float32),
        **options,
    )


X = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)


def test_profile_counts_runs_lines_and_work(tmp_path):
    f = call(profile=True)
    with pytest.raises(ValueError, match="expected a run of kernel `scaled_exp` before"):
        f.profile()
    for _ in range(3):
        np.testing.assert_array_equal(f(X), call()(X))
    profile = f.profile()
    assert (profile.kernel, profile.runs, profile.programs) == ("scaled_exp", 3, 12)
    line = next(line for line in profile.lines if "exp" in line.text)
    assert line.executions == 12 and line.flops == 12 * 2 * 8 * 64
    assert line.bytes == 12 * 2 * 8 * 64 * 4 and line.ms > 0 and line.roof > 0
    assert line.gflops_per_second == pytest.approx(line.flops / line.ms / 1e6)
    assert HERE in line.source
    assert "scaled_exp: 3 runs" in str(profile) and HERE in str(profile)
    profile.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace == profile.chrome_trace()
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sum(event["name"] == "scaled_exp" for event in bars) == 12


def test_profile_with_jax_arrays():
    jax = pytest.importorskip("jax")
    pytest.importorskip("tilewright.jax")
    f = call(profile=True)
    x = jax.device_put(X, jax.devices("cpu")[0])
    for _ in range(2):
        np.testing.assert_array_equal(jax.block_until_ready(jax.jit(f)(x)), call()(X))
    jax.block_until_ready(f(x))
    profile = f.profile()
    assert (profile.kernel, profile.runs, profile.programs) == ("scaled_exp", 3, 12)
    assert HERE in profile.lines[0].source


def test_profile_of_programs_and_of_calls_without():
    program = tw.Program.from_text(call().ir(X), profile=True)
    program(X)
    assert program.profile().programs == 4
    f = call()
    f(X)
    with pytest.raises(ValueError, match="profile = true"):
        f.profile()


def test_profile_by_the_environment(tmp_path):
    code = (
        "import numpy as np, tilewright as tw; x = np.ones((64, 256), np.float32); "
        "tw.rms_norm(x); q = np.ones((1, 1, 64, 16), np.float32); tw.flex_attention(q, q, q)"
    )
    trace = tmp_path / "trace.json"
    for value in ("1", str(trace)):
        environment = {**os.environ, "TILEWRIGHT_PROFILE": value}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.count("GFLOP/s") >= 2, done.stderr
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert len(names) > 4


def test_explain_names_reasons_and_lines():
    @tw.kernel
    def turned(x, o):
        o[...] = tw.transpose(x[...]) + x[...]

    type_ = tw.ShapeDtype((64, 64), np.float32)
    text = tw.call(turned, out_shape=type_).explain("", type_)
    assert "turned on this CPU: 1 finding" in text
    assert "a copy of f32[64, 64]" in text and f"{HERE}:" in text and "  since " in text
    assert "nothing found" in call().explain("", X)

    @tw.kernel
    def product(x, y, o):
        o[...] = tw.dot(x[...], y[...])

    text = tw.call(product, out_shape=type_).explain("sm_90a", type_, type_)
    assert "not on wgmma and TMA" in text and "precision tf32" in text
    with pytest.raises(ValueError, match="expected an architecture of"):
        call().explain("sm_12", X)


def test_show_writes_one_page(tmp_path, monkeypatch):
    page = pathlib.Path(call().show(tmp_path / "page.html", "sm_80", X)).read_text()
    assert "tw.exp(x[...] * factor)" in page and "<title>scaled_exp</title>" in page
    assert "http" not in page
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    name = tw.Program.from_text(call().ir(X)).show()
    assert opened == [pathlib.Path(name).as_uri()]
    assert "names no lines of a source" in pathlib.Path(name).read_text()
    os.remove(name)


NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.py"))


@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_its_script_and_shows_what_it_gives(script):
    tool = runpy.run_path(str(ROOT / "tools/make_notebook.py"))
    made = tool["guide_of"](script.read_text())
    kept = script.with_suffix(".ipynb").read_text()
    same = tool["without_measured"]
    assert same(made) == same(kept), "run tools/make_notebook.py"
    cells = json.loads(kept)["cells"]
    assert all(cell["outputs"] for cell in cells if "measured" in cell["metadata"].get("tags", []))
    pictures = [
        o for c in cells for o in c.get("outputs", []) if "image/svg+xml" in o.get("data", {})
    ]
    assert len(pictures) == (3 if script.stem == "first_mod" else 0)
    try:
        import nbformat
    except ImportError:
        return
    nbformat.validate(nbformat.reads(kept, as_version=4))
