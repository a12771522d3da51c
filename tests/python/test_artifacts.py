"""Artifacts: exported operations give the operations' results, and bad input is refused."""

import json
import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_norm_runs_on_other_arrays(tmp_path):
    def norm(x, weight):
        return tw.rms_norm(x, weight, residual=x)

    artifact = tw.export(norm, tmp_path, values(5, 300), values(300), names=["x", "w", "y", "sum"])
    assert artifact.name == "norm"
    assert artifact.parameters[0] == ("x", tw.ShapeDtype((5, 300), np.float32), False)
    assert [name for name, _, written in artifact.parameters if written] == ["y", "sum"]
    x, weight = values(5, 300, seed=1), values(300, seed=2)
    for got, want in zip(artifact(x, weight), norm(x, weight), strict=True):
        np.testing.assert_array_equal(got, want)
    y, total = np.zeros((2, 5, 300), np.float32)
    tw.load_artifact(str(tmp_path)).run(x, weight, y, total)
    np.testing.assert_array_equal(y, artifact(x, weight)[0])


def test_attention_keeps_its_mods(tmp_path):
    slopes = tw.capture(np.array([0.5, 0.25], np.float32), "slopes")

    def attention(q, k, v):
        return tw.flex_attention(
            q, k, v, lambda s, b, h, q, kv: s + slopes[h] * (kv - q), causal=True
        )

    arrays = values(3, 1, 2, 70, 32)
    artifact = tw.export(attention, tmp_path, *arrays)
    want = attention(*values(3, 1, 2, 70, 32, seed=1))
    slopes.array[:] = 0  # the artifact keeps the old values
    np.testing.assert_array_equal(artifact(*values(3, 1, 2, 70, 32, seed=1)), want)


def test_backward_of_attention(tmp_path):
    def gradients(q, k, v, dout):
        _, pullback = tw.flex_attention_vjp(q, k, v, causal=True)
        found = pullback(dout)
        return found.query, found.key, found.value

    artifact = tw.export(gradients, tmp_path, *values(4, 1, 2, 70, 32))
    arrays = values(4, 1, 2, 70, 32, seed=1)
    for got, want in zip(artifact(*arrays), gradients(*arrays), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_captures_and_sinks(tmp_path, dtype):
    slopes = tw.capture(np.array([0.5, 0.25], dtype), "slopes")
    sinks = np.array([0.5, -1], np.float32)

    def gradients(q, k, v, dout):
        def alibi(score, b, h, q, kv):
            return score + slopes[h] * (kv - q)

        _, pullback = tw.flex_attention_vjp(q, k, v, alibi, sinks=sinks)
        found = pullback(dout)
        return found.query, found.captured[0], found.sinks

    artifact = tw.export(gradients, tmp_path, *values(4, 1, 2, 70, 32))
    arrays = values(4, 1, 2, 70, 32, seed=1)
    for _ in range(2):  # buffers of sums start at zero again
        for got, want in zip(artifact(*arrays), gradients(*arrays), strict=True):
            np.testing.assert_array_equal(got, want)


def test_gradients_of_calls_in_parts(tmp_path):
    """A large array's gradient has too many copies for all batches at once."""
    batch, length = 18, 8
    bias = tw.capture(values(1024, 1024), "bias")
    sinks = np.array([0.5], np.float32)
    mask = tw.create_block_mask(
        lambda b, h, q, kv: (q + b) % 3 <= kv, batch, None, length, length, BLOCK_SIZE=8
    )

    def gradients(q, k, v, dout):
        def biased(score, b, h, q, kv):
            return score + bias[q, kv]

        _, pullback = tw.flex_attention_vjp(q, k, v, biased, block_mask=mask, sinks=sinks)
        found = pullback(dout)
        return found.query, found.captured[0], found.sinks

    artifact = tw.export(gradients, tmp_path, *values(4, batch, 1, length, 16))
    arrays = values(4, batch, 1, length, 16, seed=1)
    for got, want in zip(artifact(*arrays), gradients(*arrays), strict=True):
        np.testing.assert_array_equal(got, want)


def test_kernels_and_programs(tmp_path):
    @tw.kernel
    def scaled_add(x, y, o):
        o[...] = x[...] * 3 + y[...]

    call = tw.call(scaled_add, out_shape=tw.ShapeDtype((4, 8), np.float32))
    x, y = values(2, 4, 8)
    by_call = tw.export(call, tmp_path / "call", x, y)
    by_program = tw.Program.from_text(call.ir(x, y)).export(tmp_path / "program")
    assert by_program.name == "scaled_add"
    np.testing.assert_array_equal(by_call(y, x), call(y, x))
    np.testing.assert_array_equal(by_program(y, x), call(y, x))
    np.testing.assert_allclose(by_call(y, x), y * 3 + x, rtol=1e-5, atol=1e-6)


def test_bf16_and_torch_arrays(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = values(4, 64).astype(ml_dtypes.bfloat16)
    artifact = tw.export(lambda a: tw.rms_norm(a), tmp_path, x, name="norm")
    assert artifact(x).dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(artifact(x), tw.rms_norm(x))


def test_nothing_is_traced_when_it_is_loaded(tmp_path):
    tw.export(lambda x: tw.rms_norm(x), tmp_path, values(4, 64), name="norm")
    code = (
        "import sys, numpy as np, tilewright as tw; "
        "print(tw.load_artifact(sys.argv[1])(np.ones((4, 64), np.float32))[0, 0])"
    )
    environment = {"TILEWRIGHT_DEBUG_IR": "1", "PATH": "", "TILEWRIGHT_NVRTC": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) == pytest.approx(1, abs=1e-4)
    assert "func @" not in done.stderr


def test_what_the_host_computes_is_refused(tmp_path):
    x = values(4, 64)
    with pytest.raises(ValueError, match="the host computes other arrays from them"):
        tw.export(lambda a: tw.rms_norm(np.ascontiguousarray(a * 2)), tmp_path, x)
    with pytest.raises(ValueError, match="or it launches nothing"):
        tw.export(lambda a: a * 2, tmp_path, x)
    with pytest.raises(ValueError, match="expected result 0 to be a new row-major array"):
        tw.export(lambda a: tw.rms_norm(a) * 2, tmp_path, x)
    with pytest.raises(TypeError, match="expected a function or a Program"):
        tw.export(3, tmp_path)
    for archs in (["sm_12"], "sm_12"):
        with pytest.raises(ValueError, match="expected an architecture of .*`sm_12`"):
            tw.export(lambda a: tw.rms_norm(a), tmp_path, x, archs=archs)
    assert not list(tmp_path.iterdir())


def test_folders_and_arrays_that_do_not_fit(tmp_path):
    x = values(4, 64)
    with pytest.raises(ValueError, match="there is no folder"):
        tw.load_artifact(tmp_path / "none")
    artifact = tw.export(lambda a: tw.rms_norm(a), tmp_path, x, name="norm")
    with pytest.raises(ValueError, match="expected `x0` to be f32"):
        artifact(values(4, 63))
    with pytest.raises(ValueError, match="expected 1 inputs but got 2"):
        artifact(x, x)
    with pytest.raises(ValueError, match="row-major"):
        artifact(values(4, 128)[:, ::2])
    frozen = np.zeros((4, 64), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        artifact.run(x, frozen)
    with pytest.raises(ValueError, match='expected device to be "cpu"'):
        tw.load_artifact(tmp_path, "tpu")
    with pytest.raises(ValueError, match=r"\[(artifact|cuda)\]"):  # no driver, or no cubins
        tw.load_artifact(tmp_path, "cuda")
    manifest = tmp_path / "manifest.json"
    parsed = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**parsed, "version": 7}))
    with pytest.raises(ValueError, match="expected version 1 of the format"):
        tw.load_artifact(tmp_path)
    manifest.write_text(json.dumps({**parsed, "name": "other"}))
    with pytest.raises(ValueError, match="its checksum is another one"):
        tw.load_artifact(tmp_path)
