"""tw.autotune, and the schedule hints of calls for CPUs."""

import numpy as np
import pytest

import tilewright as tw

SHAPE = tw.ShapeDtype((64, 512), np.float32)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))


def add_one(rows=None, lanes=None, **options):
    def add(x, o):
        o[...] = x[...] + 1

    return tw.call(add, out_shape=SHAPE, tile_rows=rows, tile_lanes=lanes, **options)


def ramp():
    return np.arange(64 * 512, dtype=np.float32).reshape(64, 512)


def tuned(key="add", made=None):
    @tw.autotune([{"rows": 0, "lanes": 0}, {"rows": 8, "lanes": 128}], key)
    def add(rows, lanes):
        if made is not None:
            made.append((rows, lanes))
        return add_one(rows, lanes)

    return add


def test_hints_cut_blocks_and_change_no_result():
    whole, tiles = add_one(), add_one(8, 128)
    assert np.array_equal(tiles(ramp()), ramp() + 1)
    assert "for" not in whole.ir(SHAPE)
    assert "f32[8, 128]" in tiles.ir(SHAPE) and "for" in tiles.ir(SHAPE)


@pytest.mark.parametrize(
    ("rows", "lanes", "text"),
    [
        (8, None, "tile_rows and tile_lanes .* but got 8 and 0"),
        (None, 64, "tile_rows and tile_lanes .* but got 0 and 64"),
        (-1, 64, "tile_rows and tile_lanes .* but got -1 and 64"),
        (8, 2**17, "tile_rows and tile_lanes .* but got 8 and 131072"),
    ],
)
def test_bad_hints_are_named(rows, lanes, text):
    with pytest.raises(ValueError, match=text):
        add_one(rows, lanes)(ramp())


def test_hints_that_are_no_integers_are_named():
    with pytest.raises(TypeError, match="tile_rows to be an integer"):
        add_one(8.0, 64)
    with pytest.raises(TypeError, match="tile_lanes to be an integer"):
        add_one(8, "64")


def test_measures_once_and_remembers():
    add = tuned()
    assert np.array_equal(add(ramp()), ramp() + 1)
    assert add.num_measured == 2
    add(ramp())
    assert add.num_measured == 2
    config = add.best_config(ramp())
    assert config in ({"rows": 0, "lanes": 0}, {"rows": 8, "lanes": 128})
    assert isinstance(add.best(ramp()), tw.Call)

    made = []
    again = tuned(made=made)
    assert np.array_equal(again(ramp()), ramp() + 1)
    assert again.num_measured == 0  # from the disk
    assert made == [(config["rows"], config["lanes"])]
    other = tuned(key="other")
    other(ramp())
    assert other.num_measured == 2


def test_results_go_into_out_and_aliases_are_updated_once():
    add = tuned()
    out = np.zeros((64, 512), np.float32)
    assert add(ramp(), out=out) is out
    assert np.array_equal(out, ramp() + 1)

    @tw.autotune([{"num_warps": 4}, {"num_warps": 8}], "in place")
    def in_place(num_warps):
        return add_one(num_warps=num_warps, aliases={0: 0})

    x = np.zeros((64, 512), np.float32)
    in_place(x)
    assert in_place.num_measured == 2
    assert np.all(x == 1)


def test_configs_that_raise_a_value_error_are_left_out():
    @tw.autotune([{"size": 7}, {"size": 3}, {"size": 512}], "some")
    def some(size):
        if size == 7:
            raise ValueError("[test] 7 does not fit")

        def kernel(x, o):
            if size == 3:
                raise ValueError("[test] 3 does not fit")  # while it is traced
            o[...] = x[...] * 2

        return tw.call(kernel, out_shape=SHAPE)

    assert np.array_equal(some(ramp()), ramp() * 2)
    assert some.best_config(ramp()) == {"size": 512}
    assert some.num_measured == 1

    @tw.autotune([{"size": 7}], "none")
    def none(size):
        raise ValueError(f"[test] {size} does not fit")

    with pytest.raises(ValueError, match="expected one of 1 configs to run.*7 does not fit"):
        none(ramp())


def test_a_function_that_makes_calls_may_use_another_autotuner():
    inner = tuned("inner")

    @tw.autotune([{"rows": 0}, {"rows": 1}], "outer")
    def outer(rows):
        inner(ramp())

        def add(x, y, o):
            o[...] = x[...] + y[...]

        return tw.call(add, out_shape=SHAPE)

    assert np.array_equal(outer(ramp(), ramp()), 2 * ramp())
    assert outer.num_measured == 2


def test_other_errors_are_raised():
    @tw.autotune([{"size": 1}], "bug")
    def bug(size):
        return tw.call(lambda x, o: size.missing, out_shape=SHAPE)

    with pytest.raises(AttributeError, match="missing"):
        bug(ramp())

    @tw.autotune([{"size": 1}], "nothing")
    def nothing(size):
        return size

    with pytest.raises(TypeError, match="`nothing` to return what tw.call made but got int"):
        nothing(ramp())


@pytest.mark.parametrize(
    ("configs", "key", "text"),
    [
        ([], "k", "configs to be a list of at least one dict"),
        ({"rows": 1}, "k", "configs to be a list of at least one dict"),
        ([{"rows": 1}, 3], "k", r"configs\[1\] to be a dict"),
        ([{}], "k", r"configs\[0\] to be a dict of 1 to 8"),
        ([{f"n{i}": i for i in range(9)}], "k", r"configs\[0\] to be a dict of 1 to 8"),
        ([{"a b": 1}], "k", "names in configs"),
        ([{"rows": 1.5}], "k", r"`rows` of configs\[0\] to be an integer"),
        ([{"rows": 2**63}], "k", r"`rows` of configs\[0\] to fit 64 bits"),
        ([{"rows": 1}], "", "key to be a text"),
        ([{"rows": 1}], None, "key to be a text"),
    ],
)
def test_bad_arguments_are_named(configs, key, text):
    with pytest.raises((TypeError, ValueError), match=text):
        tw.autotune(configs, key)


def test_bad_inputs_are_named():
    with pytest.raises(TypeError, match="argument 0 to be an array or a tw.ShapeDtype but got int"):
        tuned()(3)
    with pytest.raises(TypeError, match="a function that makes calls"):
        tw.autotune([{"rows": 1}], "k")(3)


def test_types_are_measured_as_zeros():
    add = tuned()
    assert "f32[64, 512]" in add.ir(SHAPE)
    assert add.num_measured == 2
    add(ramp())
    assert add.num_measured == 2


def test_calls_inside_of_kernels_are_refused():
    add = tuned()

    def kernel(x, o):
        o[...] = add(x[...])

    with pytest.raises(ValueError, match="expected to be called outside of kernels"):
        tw.call(kernel, out_shape=SHAPE)(ramp())


def test_on_torch_tensors():
    torch = pytest.importorskip("torch")
    add = tuned()
    x = torch.from_numpy(ramp())
    out = add(x)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, x + 1)
    with pytest.raises(ValueError, match="without gradients"):
        add(x.requires_grad_())
