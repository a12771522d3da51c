"""Version, devices, threads, the doctor and the checked mode."""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw


def test_version_is_the_library_s():
    assert tw.version == tw.__version__
    assert len(tw.version.split(".")) == 3


def test_devices_begin_with_the_cpu():
    assert tw.devices()[0] == "cpu"


def test_doctor_prints_the_machine(capsys):
    tw.doctor()
    out = capsys.readouterr().out
    assert out.startswith(f"tilewright {tw.version}")
    assert "CUDA" in out


def test_doctor_lists_the_caches_in_use(capsys):
    from tilewright import _memo

    x = np.zeros((1, 1, 4, 4), np.float32)
    for _ in range(2):
        tw.flex_attention(x, x, x, lambda s, b, h, q, kv: s + q)
    memo = _memo.Memo("a test's", 2)
    for key in (1, 2, 1, 3, 2):
        if memo.find(key) is None:
            memo.put(key, str(key))
    assert memo.values() == ["3", "2"]
    tw.doctor()
    out = capsys.readouterr().out
    assert re.search(r"calls of tile programs: \d+ of \d+ entries; [1-9]\d* hits, ", out)
    assert "a test's: 2 of 2 entries; 1 hits, 4 misses, 2 evictions\n" in out


def test_threads_change_no_result():
    x = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    want = tw.rms_norm(x)
    try:
        for threads in (1, 2):
            tw.set_num_threads(threads)
            np.testing.assert_array_equal(tw.rms_norm(x), want)
    finally:
        tw.set_num_threads(0)
    with pytest.raises(ValueError, match="expected at least 0 threads but got -1"):
        tw.set_num_threads(-1)
    with pytest.raises(TypeError, match="expected an integer number of threads but got 1.5"):
        tw.set_num_threads(1.5)


def test_checked_mode_agrees_and_ends_with_its_context():
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    with tw.checked():
        want = tw.rms_norm(x)
    np.testing.assert_allclose(tw.rms_norm(x), want, rtol=1e-6)


@pytest.mark.parametrize("module", [tw, tw.masks, tw.scores])
def test_type_checkers_see_every_public_name(module):
    made = {name for name in module.__all__ if name in _made_at_import(module)}
    assert made
    assert made <= set(module.__annotations__)


def test_type_checkers_see_every_argument_of_a_call():
    calls = [tw.flex_attention, tw.flex_attention_vjp, tw.rms_norm]
    calls += [tw.layer_norm, tw.rms_norm_vjp, tw.layer_norm_vjp, tw.create_block_mask]
    calls += [tw.create_mask, tw.parse_mod, tw.capture, tw.set_num_threads]
    for call in calls:
        parameters = inspect.signature(call).parameters
        assert set(call.__annotations__) == {*parameters, "return"}, call


def test_advice_names_packages_that_exist():
    # The package is not on an index, so texts must not advise installing its extras by name.
    for path in Path(tw.__file__).parent.rglob("*.py"):
        assert "tilewright[" not in path.read_text(), path


def _made_at_import(module):
    """Public names that are not bound by a statement of the module."""
    bound = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.ImportFrom | ast.Import):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Assign):
            bound |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set(module.__all__) - bound


def test_public_members_have_docstrings():
    for owner in (tw.BlockMask, tw.Mod, tw.Capture, tw.Scalar):
        members = {n: m for n, m in vars(owner).items() if not n.startswith("_")}
        assert not [name for name, member in members.items() if not member.__doc__], owner
