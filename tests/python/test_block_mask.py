"""Masks as data against their definition, torch's block-level view, combinations, refusals."""

import copy
import pickle
import struct
import zlib

import numpy as np
import pytest

import tilewright as tw


def dense(mod, B, H, Q, KV):
    b, h, q, kv = np.ogrid[:B, :H, :Q, :KV]
    return np.broadcast_to(mod(b, h, q, kv), (B, H, Q, KV))


MODS = {
    "causal": lambda b, h, q, kv: q >= kv,
    "window": lambda b, h, q, kv: (q - kv <= 40) & (q >= kv),
    "heads": lambda b, h, q, kv: (q + 3 * b - kv) >= h * 7,
    "modulo": lambda b, h, q, kv: (q * 3 + kv) % 5 != 2,
    "none": lambda b, h, q, kv: (q < 0) & (kv >= 0),
    "all": lambda b, h, q, kv: (q >= 0) & (kv >= 0),
}


@pytest.mark.parametrize("sizes", [(2, 3, 150, 131), (1, 1, 64, 64), (1, 2, 1, 300), (1, 1, 0, 5)])
@pytest.mark.parametrize("name", MODS)
def test_elements_are_the_definition(name, sizes):
    want = dense(MODS[name], *sizes)
    mask = tw.create_block_mask(MODS[name], *sizes)
    assert mask.shape == sizes
    assert np.array_equal(mask.elements(), want)
    assert np.array_equal(tw.create_mask(MODS[name], *sizes), want)


@pytest.mark.parametrize("block", [128, (64, 32), (48, 100)])
def test_the_block_level_is_torch_s(block):
    sizes = (2, 2, 200, 260)
    mask = tw.create_block_mask(MODS["heads"], *sizes, BLOCK_SIZE=block)
    q, kv = (block, block) if isinstance(block, int) else block
    assert (q, kv) == mask.BLOCK_SIZE
    rows, columns = -(-200 // q), -(-260 // kv)
    padded = np.zeros((2, 2, rows * q, columns * kv), bool)
    padded[:, :, :200, :260] = dense(MODS["heads"], *sizes)
    counts = padded.reshape(2, 2, rows, q, columns, kv).sum((3, 5))
    full, some = counts == q * kv, counts > 0
    assert np.array_equal(mask.to_dense(), some)
    assert np.isclose(mask.sparsity(), 100 * (1 - some.mean()))
    for kind, wanted in (("", some & ~full), ("full_", full)):
        for axis, flags in (("kv", wanted), ("q", wanted.swapaxes(2, 3))):
            number = getattr(mask, f"{kind}{axis}_num_blocks")
            indices = getattr(mask, f"{kind}{axis}_indices")
            assert number.dtype == indices.dtype == np.int32
            assert np.array_equal(number, flags.sum(-1))
            for place in np.ndindex(number.shape):
                assert sorted(indices[place][: number[place]]) == list(np.flatnonzero(flags[place]))
    rebuilt = tw.BlockMask.from_kv_blocks(
        mask.kv_num_blocks,
        mask.kv_indices,
        mask.full_kv_num_blocks,
        mask.full_kv_indices,
        BLOCK_SIZE=block,
        mask_mod=MODS["heads"],
        seq_lengths=mask.seq_lengths,
    )
    assert rebuilt == mask


def test_lists_without_a_mod_attend_to_whole_blocks():
    number = np.array([[[1, 2]]], np.int64)
    indices = np.array([[[[1, 77], [1, 0]]]], np.int64)  # 77 is past the count
    mask = tw.BlockMask.from_kv_blocks(number, indices, BLOCK_SIZE=16, seq_lengths=(30, 32))
    want = np.zeros((1, 1, 30, 32), bool)
    want[..., :16, 16:] = want[..., 16:, :] = True
    assert np.array_equal(mask.elements(), want)
    assert mask.kv_num_blocks.tolist() == [[[1, 2]]] and mask.mask_mod is None
    full = tw.BlockMask.from_kv_blocks(np.zeros_like(number), indices, number, indices, 16)
    assert full.shape == (1, 1, 32, 32) and full.full_kv_num_blocks.tolist() == [[[1, 2]]]


def test_copies_and_pickles():
    mask = tw.create_block_mask(MODS["heads"], 2, 3, 150, 131, BLOCK_SIZE=(32, 16))
    for other in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert other == mask and other.BLOCK_SIZE == (32, 16)


def test_one_list_without_separate_full_blocks():
    mask = tw.create_block_mask(MODS["causal"], None, None, 300, 300, separate_full_blocks=False)
    assert mask.full_kv_num_blocks is None and mask.full_kv_indices is None
    assert mask.kv_num_blocks.tolist() == [[[1, 2, 3]]]
    assert mask.kv_indices[0, 0, 2].tolist() == [0, 1, 2]


def test_combinations_and_slices_are_exact():
    sizes = (2, 3, 150, 131)
    a, b = (tw.create_block_mask(MODS[name], *sizes) for name in ("heads", "modulo"))
    x, y = (dense(MODS[name], *sizes) for name in ("heads", "modulo"))
    assert np.array_equal((a & b).elements(), x & y)
    assert np.array_equal((a | b).elements(), x | y)
    assert np.array_equal((~a).elements(), ~x)
    assert np.array_equal(a[1, 2].elements(), x[1:2, 2:3])
    assert np.array_equal(a[-1].elements(), x[1:])
    assert np.array_equal(a[0, 1, 1].elements(), x[:1, 1:2, 128:])
    assert np.array_equal(a.shifted(10, 5, 20, 30).elements(), x[:, :, 10:30, 5:35])
    assert a != b and a == a[:]


@pytest.mark.parametrize(
    "index",
    [
        np.s_[:, 1],
        np.s_[1:, :2],
        np.s_[:, ::2],
        ([1, 0], [2, 0, 2]),
        np.s_[-1, np.array([0])],
        np.s_[:, :, 1:],
        np.s_[:, :, -1],
        np.s_[1, 0, :1],
        (slice(None), slice(None), [4, 0, 1]),
        (0, slice(None), slice(None, None, 2)),
    ],
)
def test_every_index_of_torch(index):
    mask = tw.create_block_mask(MODS["heads"], 2, 3, 150, 131, BLOCK_SIZE=(32, 48))
    want = dense(MODS["heads"], 2, 3, 150, 131)
    index = index if isinstance(index, tuple) else (index,)
    index = [[i] if isinstance(i, int) else i for i in index] + [slice(None)] * (3 - len(index))
    for axis, places in enumerate(index[:2]):
        want = np.take(want, np.arange(want.shape[axis])[places], axis)
    rows = [want[:, :, 32 * row : 32 * row + 32] for row in np.arange(5)[index[2]]]
    # A short last block that is not selected last is padded with queries that attend to nothing.
    rows = [np.pad(r, ((0, 0), (0, 0), (0, 32 - r.shape[2]), (0, 0))) for r in rows[:-1]] + rows[
        -1:
    ]
    assert np.array_equal(mask[tuple(index)].elements(), np.concatenate(rows, 2))


@pytest.mark.parametrize("index", [2, -3, 1.5, (0, "a"), (0, 0, 5), ([0, 7],), ([[0]],)])
def test_indices_outside_are_refused(index):
    mask = tw.create_block_mask(MODS["heads"], 2, 3, 150, 131, BLOCK_SIZE=32)
    with pytest.raises(IndexError, match="BlockMask"):
        mask[index]


def test_a_mask_keeps_its_mod():
    mask = tw.create_block_mask(MODS["causal"], None, None, 300, 300, device="cuda")
    assert mask.mask_mod is MODS["causal"] and mask[0, 0].mask_mod is MODS["causal"]
    assert (mask & mask).mask_mod is None
    assert mask.to("cpu") == mask


def test_masks_of_score_mods():
    mask = tw.create_block_mask(
        lambda s, b, h, q, kv: tw.where(q >= kv, s * 2, -np.inf), 1, 1, 70, 70
    )
    assert np.array_equal(mask.elements(), dense(MODS["causal"], 1, 1, 70, 70))


def test_captured_ids():
    ids = np.sort(np.random.default_rng(0).integers(0, 9, 500)).astype(np.int32)
    mask = tw.create_block_mask(tw.masks.document(ids), 1, 1, 500, 500)
    assert np.array_equal(mask.elements()[0, 0], ids[:, None] == ids[None, :])


def test_a_long_mask_is_small():
    mask = tw.create_block_mask(
        tw.masks.causal() & tw.masks.sliding_window(1024), None, None, 2**20, 2**20
    )
    assert mask.nbytes < 8 << 20
    assert mask.numel() == 2**40


def test_pictures(tmp_path):
    mask = tw.create_block_mask(MODS["causal"], 1, 1, 1024, 1024)
    assert "█" in mask.to_string() and str(mask) == mask.to_string()
    assert mask.to_string(-1) == mask.to_string((8, 8)) != mask.to_string(4)
    assert mask.svg().startswith("<svg")
    for name, head in (("m.svg", b"<svg"), ("m.png", b"\x89PNG")):
        mask.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(head)
    with pytest.raises(ValueError, match="svg"):
        mask.save(tmp_path / "m.gif")


def shades(png):
    """The pixels of a PNG whose lines are stored as differences from the line above."""
    chunks, at = {}, 8
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        chunks[kind] = png[at + 8 : at + 8 + size]
        (checksum,) = struct.unpack_from(">I", png, at + 8 + size)
        assert checksum == zlib.crc32(kind + chunks[kind])
        at += 12 + size
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert np.all(lines[:, 0] == 2)
    return np.cumsum(lines[:, 1:], axis=0, dtype=np.uint8)


# Pixel runs of every length up to the longest, alone and after others, and lines without any.
@pytest.mark.parametrize("length", [10, 300, 512])
@pytest.mark.parametrize("name", MODS)
def test_pngs_hold_the_elements(tmp_path, name, length):
    tw.create_block_mask(MODS[name], 1, 1, length, length).save(tmp_path / "m.png")
    png = (tmp_path / "m.png").read_bytes()
    want = dense(MODS[name], 1, 1, length, length)[0, 0].astype(np.uint8) * 15
    scale = 512 // length
    pixels = shades(png)
    # The panel is right of the query axis with its longest label, and below three lines of text.
    left, top, side = 40 + 12 * len(str(length)), 76, scale * length
    panel = pixels[top : top + side, left : left + side]
    assert np.array_equal(panel, want.repeat(scale, 0).repeat(scale, 1))
    frame = pixels[top - 1 : top + side + 1, left - 1 : left + side + 1]
    for edge in (frame[0], frame[-1], frame[:, 0], frame[:, -1]):
        assert np.all(edge == 18)
    ink = pixels == 17
    assert ink[:top].any() and ink[:, :left].any() and ink[top + side :].any()
    assert len(png) < 16_000 or name == "modulo"


def test_notebooks_show_the_picture():
    mask = tw.create_block_mask(lambda b, h, q, kv: q + h >= kv, 1, 2, 8, 8)
    assert mask._repr_svg_() == mask.svg()
    assert mask._repr_html_().startswith("<div>BlockMask(shape=(1, 2, 8, 8)")
    assert mask.svg() in mask._repr_html_()
    for text in ("head 0", "head 1", "keys", "queries", "attends", "masked"):
        assert f">{text}</text>" in mask.svg()


def test_masks_are_saved_and_loaded(tmp_path):
    mask = tw.create_block_mask(MODS["heads"], 2, 3, 150, 131)
    mask.save(tmp_path / "m.npy")
    assert tw.BlockMask.load(tmp_path / "m.npy") == mask
    assert [file.name for file in tmp_path.iterdir()] == ["m.npy"]
    np.save(tmp_path / "x.npy", np.arange(9, dtype=np.uint32))
    with pytest.raises(ValueError, match="words"):
        tw.BlockMask.load(tmp_path / "x.npy")
    with pytest.raises(OSError, match="no"):
        mask.save(tmp_path / "no" / "m.npy")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((MODS["causal"], 1, 1, -1, 5), {}, ValueError, "but got"),
        ((MODS["causal"], 1, 1, 5, None), {}, TypeError, "but got"),
        ((MODS["causal"], 0, 1, 5, 5), {}, ValueError, "at least 1 batch and 1 head"),
        ((MODS["causal"], 1, 1, 5, 5), {"BLOCK_SIZE": 0}, ValueError, "block sizes of at least 1"),
        (
            (MODS["causal"], 1, 1, 5, 5),
            {"BLOCK_SIZE": (1, 2, 3)},
            TypeError,
            "expected BLOCK_SIZE to be an integer",
        ),
        ((lambda b, h, q: q, 1, 1, 5, 5), {}, TypeError, "but got one of \\(b, h, q\\)"),
        ((lambda b, h, q, kv: q, 1, 1, 5, 5), {}, ValueError, "return a bool scalar"),
        ((MODS["causal"], 1, 1, 5, 5), {"device": "tpu"}, ValueError, "expected device"),
    ],
)
def test_bad_input_is_refused(arguments, options, error, text):
    with pytest.raises(error, match=rf"\[(create_block_mask|mask_mod)\] .*{text}"):
        tw.create_block_mask(*arguments, **options)


def test_combining_masks_of_other_lengths_is_refused():
    a = tw.create_block_mask(MODS["causal"], 1, 1, 5, 5)
    b = tw.create_block_mask(MODS["causal"], 1, 1, 6, 5)
    with pytest.raises(ValueError, match="equal lengths but got 5 x 5 and 6 x 5"):
        a & b
    with pytest.raises(TypeError, match="a BlockMask to combine with but got int"):
        a & 3
    with pytest.raises(IndexError, match="at most 3 indices .* but got 4"):
        a[0, 0, 0, 0]


def test_checked_mode_names_the_index_outside():
    ids = tw.capture(np.arange(50, dtype=np.int32), "ids")

    def mod(b, h, q_idx, kv_idx):
        return ids[q_idx] >= kv_idx

    tw.create_block_mask(mod, None, None, 60, 50)
    with tw.checked():
        tw.create_block_mask(mod, None, None, 50, 60)
        with pytest.raises(ValueError, match="capture `ids` is inside .* q 50, kv 0"):
            tw.create_block_mask(mod, None, None, 60, 50)
