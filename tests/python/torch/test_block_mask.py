"""BlockMask against PyTorch's, attribute by attribute."""

import copy
import inspect
import pickle

import dense_torch as dense
import pytest
import torch
from torch.nn.attention import flex_attention as flex

import tilewright as tw
import tilewright.torch as twt
from tilewright.torch import _block_mask

IDS = torch.arange(300) // 70
NEW = hasattr(flex, "_compute_dq_write_order_from_block_mask")
LISTS = list(_block_mask._LISTS)


def causal(b, h, q, kv):
    return q >= kv


def document(b, h, q, kv):
    return IDS[q] == IDS[kv]


def banded(b, h, q, kv):
    return (q - kv + 40 * h + b).abs() < 60


MODS = {"causal": causal, "document": document, "banded": banded, "noop": twt.noop_mask}


def pair(mod=banded, queries=129, keys=257, size=(32, 64), **options):
    arguments = mod, 2, 3, queries, keys
    return (
        flex.create_block_mask(*arguments, device="cpu", BLOCK_SIZE=size, **options),
        twt.create_block_mask(*arguments, device="cpu", BLOCK_SIZE=size, **options),
    )


def same(theirs, ours):
    assert isinstance(ours, twt.BlockMask)
    assert isinstance(ours, flex.BlockMask)
    assert theirs.shape == ours.shape
    assert theirs.seq_lengths == ours.seq_lengths
    assert theirs.BLOCK_SIZE == ours.BLOCK_SIZE
    assert theirs.numel() == ours.numel()
    for name in LISTS:
        a, b = getattr(theirs, name), getattr(ours, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b), name
    assert torch.equal(theirs.to_dense(), ours.to_dense())
    if NEW:  # older versions count sparsity in pairs, and may return negative values
        assert theirs.sparsity() == pytest.approx(ours.sparsity())
        assert str(theirs) == str(ours)
        assert repr(theirs) == repr(ours)
    assert theirs.to_string(grid_size=(4, 3), limit=2) == ours.to_string(grid_size=(4, 3), limit=2)


@pytest.mark.parametrize("size", [128, (32, 64)])
@pytest.mark.parametrize("lengths", [(300, 300), (64, 300), (129, 257)])
@pytest.mark.parametrize("name", MODS)
def test_created_masks(name, lengths, size):
    theirs, ours = pair(MODS[name], *lengths, size)
    same(theirs, ours)
    assert ours.mask_mod is MODS[name]
    have, want = ours.as_tuple(), theirs.as_tuple()
    assert len(have) == len(want)
    assert [type(x) for x in have] == [type(x) for x in want]
    dense_mask = flex.create_mask(MODS[name], 2, 3, *lengths, device="cpu")
    assert torch.equal(ours.elements(), dense_mask)
    assert torch.equal(twt.create_mask(MODS[name], 2, 3, *lengths, device="cpu"), dense_mask)


@pytest.mark.skipif(not NEW, reason="an argument of newer versions of torch")
def test_full_blocks_need_not_be_separate():
    same(*pair(separate_full_blocks=False))
    theirs, ours = pair(compute_dq_write_order=True, dq_kv_order=False)
    same(theirs, ours)
    for name in ("dq_write_order", "dq_write_order_full"):
        assert torch.equal(getattr(theirs, name), getattr(ours, name))
    same(theirs[1, :, 0], ours[1, :, 0])
    with pytest.raises(ValueError, match="dq_kv_order must be a bool"):
        twt.create_block_mask(causal, 1, 1, 8, 8, device="cpu", dq_kv_order=3)


EVERYTHING = slice(None)
INDICES = {
    "batch": 0,
    "head": (EVERYTHING, 1),
    "row": (1, 2, 0),
    "from the end": (-1, -1),
    "rows": (EVERYTHING, EVERYTHING, slice(1, 3)),
    "steps": (EVERYTHING, slice(0, 3, 2)),
    "tensor of batches": (torch.tensor([1, 0, 1]),),
    "tensor of rows": (EVERYTHING, EVERYTHING, torch.tensor([3, 0])),
    "pairs": (torch.tensor([1, 0]), torch.tensor([2, 0])),
}


@pytest.mark.parametrize("name", INDICES)
def test_sliced_masks_agree_with_torch(name):
    theirs, ours = (mask[INDICES[name]] for mask in pair())
    if NEW or "row" not in name:  # older versions keep the length of all rows
        same(theirs, ours)
    for mask in (theirs, ours):
        with pytest.raises(RuntimeError, match="Cannot use mask_mod from a sliced BlockMask"):
            mask.mask_mod(*[torch.tensor(0)] * 4)


def test_too_many_indices():
    _, ours = pair()
    with pytest.raises(IndexError, match="supports batch, head, and Q-block dimensions"):
        ours[0, 0, 0, 0, 0]
    rows = ours[:, :, -40:, :]  # single queries, as for a dense mask
    assert rows.shape == (2, 3, 40, 257)
    assert torch.equal(rows.elements(), ours.elements()[:, :, -40:])
    with pytest.raises(IndexError, match="step 1"):
        ours[:, :, ::2, :]


def test_assigned_mods_decide_in_partial_blocks():
    theirs, ours = (mask[:, :, 1] for mask in pair(causal, 256, 256, 128))
    query, key, value = (dense.normal(2, 3, n, 8) for n in (1, 256, 256))

    def moved(b, h, q, kv):
        return q + 130 >= kv

    want, _, _ = dense.attention(query, key, value, mask=moved)
    for mask in (theirs, ours):
        mask.mask_mod = moved
        mask.seq_lengths = (1, 256)
        assert mask.shape == (2, 3, 1, 256)
        dense.close(twt.flex_attention(query, key, value, block_mask=mask), want)
    assert ours.words is None


def test_adjust_to_and_copies():
    theirs, ours = pair()
    for lengths in ((200, 100), (64, 300)):
        a, b = theirs._adjust(*lengths), ours._adjust(*lengths)
        assert a.shape == b.shape
        assert torch.equal(a.to_dense(), b.to_dense())
    same(theirs.to("cpu"), ours.to("cpu"))
    assert ours.contiguous() is ours
    assert ours.ndim == 4
    for twin in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert twin == ours
        assert twin.BLOCK_SIZE == ours.BLOCK_SIZE


@pytest.mark.skipif(not NEW, reason="pytree methods differ before torch 2.12")
def test_pytree_methods():
    theirs, ours = pair()
    assert len(theirs._flatten()[0]) == len(ours._flatten()[0])
    assert len(theirs._flatten_with_keys()[0]) == len(ours._flatten_with_keys()[0])
    twin = twt.BlockMask._unflatten(*ours._flatten())
    assert isinstance(twin, twt.BlockMask)
    assert twin.words is None
    same(theirs, twin)
    assert twin == ours


def test_masks_combine():
    a = twt.create_block_mask(causal, 2, 1, 129, 257, device="cpu", BLOCK_SIZE=32)
    b = twt.create_block_mask(banded, 1, 3, 129, 257, device="cpu", BLOCK_SIZE=32)
    theirs = flex.create_block_mask(banded, 1, 3, 129, 257, device="cpu", BLOCK_SIZE=32)
    x, y = a.elements(), b.elements()
    assert torch.equal((a & b).elements(), x & y)
    assert torch.equal((a | theirs).elements(), x | y)
    assert torch.equal((~a).elements(), ~x)
    assert (a & b) == (a & theirs)
    assert a != b
    assert torch.equal(a.shifted(3, -2, 100, 90).elements()[..., 2:], x[..., 3:103, :88])
    assert a.nbytes > 0
    assert "<svg" in a.svg()
    with pytest.raises(TypeError, match="int"):
        a & 3


def test_lists_as_given():
    counts = torch.tensor([[[2, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[1, 0], [1, -1]]]], dtype=torch.int32)
    arguments = dict(BLOCK_SIZE=16, mask_mod=causal, seq_lengths=(30, 32))
    theirs = flex.BlockMask.from_kv_blocks(counts, indices, **arguments, compute_q_blocks=False)
    ours = twt.BlockMask.from_kv_blocks(counts, indices, **arguments, compute_q_blocks=False)
    assert isinstance(ours, twt.BlockMask)
    assert ours.kv_indices is indices
    assert ours == theirs
    wanted = flex.create_mask(causal, 1, 1, 30, 32, device="cpu")
    wanted[..., 16:30, :16] = False
    assert torch.equal(ours.elements(), wanted)
    # Lists that are written to are read again.
    indices[0, 0, 1, 0] = 0
    wanted[..., 16:30, :] = False
    wanted[..., 16:30, :16] = True
    assert torch.equal(ours.elements(), wanted)


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_past_the_last_query_are_not_read(compiled):
    """As torch's paged attention makes masks for one query of lists for many."""
    wide = flex.create_block_mask(causal, 1, 1, 64, 64, device="cpu", BLOCK_SIZE=16)
    lists = {name: getattr(wide, name) for name in (*LISTS[:2], *LISTS[4:6])}
    mask = flex.BlockMask.from_kv_blocks(
        **lists, BLOCK_SIZE=16, mask_mod=lambda b, h, q, kv: q + 5 >= kv, seq_lengths=(1, 64)
    )
    assert mask.kv_num_blocks.shape[2] == 4
    query, key, value = (dense.normal(1, 2, n, 8) for n in (1, 64, 64))
    attention = twt.flex_attention
    if compiled:
        attention = torch.compile(attention, fullgraph=True, backend="aot_eager")
    seen = slice(0, 6)
    dense.close(
        attention(query, key, value, block_mask=mask),
        dense.attention(query, key[:, :, seen], value[:, :, seen])[0],
    )


def test_one_list_for_many_heads():
    """Lists for one head apply to every head, even if mask_mod tells heads apart."""
    table = torch.tensor([3, 9])

    def mod(b, h, q, kv):
        return kv <= q + table[h] - b

    counts, indices = torch.tensor([[[2, 2]]]), torch.tensor([[[[0, 1], [0, 1]]]])
    mask = flex.BlockMask.from_kv_blocks(
        counts.int(), indices.int(), BLOCK_SIZE=16, mask_mod=mod, seq_lengths=(20, 24)
    )
    query, key, value = (dense.normal(2, 2, n, 8) for n in (20, 24, 24))
    want, _, _ = dense.attention(query, key, value, mask=mod)
    dense.close(twt.flex_attention(query, key, value, block_mask=mask), want)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (
            {"full_kv_num_blocks": torch.ones(1, 1, 1).int()},
            AssertionError,
            "both provided or omitted",
        ),
        ({"kv_indices": torch.ones(1).int()}, RuntimeError, "at least 2 dimensions"),
    ],
)
def test_lists_that_do_not_fit(arguments, error, text):
    given = {
        "kv_num_blocks": torch.ones(1, 1, 1).int(),
        "kv_indices": torch.zeros(1, 1, 1, 1).int(),
        **arguments,
    }
    for kind in (flex.BlockMask, twt.BlockMask):
        with pytest.raises(error, match=text):
            kind.from_kv_blocks(**given)


def test_lists_out_of_range():
    mask = twt.BlockMask.from_kv_blocks(
        torch.full((1, 1, 1), 2).int(), torch.tensor([[[[0, 7]]]]).int(), compute_q_blocks=False
    )
    query = dense.normal(1, 1, 128, 8)
    key = dense.normal(1, 1, 256, 8)
    with pytest.raises(ValueError, match="block_mask"):
        twt.flex_attention(query, key, key, block_mask=mask)


def test_bad_arguments():
    with pytest.raises(AssertionError, match="requires a mask_mod"):
        twt.create_block_mask(lambda s, b, h, q, kv: s, 1, 1, 8, 8, device="cpu")
    with pytest.raises(RuntimeError, match="callable mask_mods"):
        twt.and_masks(causal, 3)
    with pytest.raises(TypeError, match="Q_LEN"):
        twt.create_block_mask(causal, 1, 1, "8", 8, device="cpu")
    with pytest.raises(ValueError, match="0 to"):
        twt.create_block_mask(causal, 1, 1, -8, 8, device="cpu")
    with pytest.raises(TypeError, match="BlockMask"):
        query = dense.normal(1, 1, 8, 8)
        twt.flex_attention(query, query, query, block_mask=torch.ones(8, 8))


def test_and_or_of_nothing():
    assert twt.create_mask(twt.and_masks(), None, None, 4, 5, device="cpu").all()
    assert not twt.create_mask(twt.or_masks(), None, None, 4, 5, device="cpu").any()
    both = twt.and_masks(causal, lambda b, h, q, kv: kv > 1)
    i, j = torch.arange(6)[:, None], torch.arange(6)
    want = (i >= j) & (j > 1)
    assert torch.equal(twt.create_mask(both, None, None, 6, 6, device="cpu")[0, 0], want)


def test_create_mask_of_a_score_mod():
    def mod(s, b, h, q, kv):
        return torch.where(q - kv < 3, s, -float("inf"))

    want = flex.create_mask(mod, 1, 2, 9, 7, device="cpu")
    assert torch.equal(twt.create_mask(mod, 1, 2, 9, 7, device="cpu"), want)


def test_masks_of_the_other_front_end():
    mask = tw.create_block_mask(tw.masks.causal(), None, None, 20, 24)
    query, key, value = (dense.normal(1, 2, n, 8) for n in (20, 24, 24))
    want, _, _ = dense.attention(query, key, value, mask=causal)
    dense.close(twt.flex_attention(query, key, value, block_mask=mask), want)


def test_a_mask_of_a_long_sequence_is_small():
    mask = twt.create_block_mask(causal, None, None, 96000, 96000, device="cpu")
    assert mask.nbytes < 4 << 20


def test_names_and_signatures_are_torchs():
    for name in flex.__all__:
        assert hasattr(twt, name), name
    for name in (
        *("_mask_mod_signature", "_score_mod_signature", "_LARGE_SPARSE_BLOCK_SIZE"),
        "flex_attention_hop",
    ):
        assert getattr(twt, name) is getattr(flex, name)
    with pytest.raises(AttributeError, match="no attribute '_nothing'"):
        twt._nothing  # noqa: B018
    pairs = [(getattr(twt, n), getattr(flex, n)) for n in ("flex_attention", "create_mask")]
    pairs += [(twt.BlockMask, flex.BlockMask)]
    pairs += [(twt.BlockMask.from_kv_blocks, flex.BlockMask.from_kv_blocks)]
    for ours, torchs in pairs:
        have = list(inspect.signature(ours).parameters.values())
        want = list(inspect.signature(torchs).parameters.values())
        assert [(p.name, p.default, p.kind) for p in have[: len(want)]] == [
            (p.name, p.default, p.kind) for p in want
        ]


@pytest.mark.parametrize("create", [twt.create_block_mask, twt.create_mask])
def test_masks_say_which_sizes_they_need(create):
    def by_head(b, h, q, kv):
        return q >= kv + h * b

    with pytest.raises(ValueError, match="expected B and H, since the mod depends on the batch"):
        create(by_head, None, None, 8, 8, device="cpu")
    with pytest.raises(ValueError, match=r"expected H, since the mod depends on the head \(h\)"):
        create(by_head, 2, None, 8, 8, device="cpu")
    assert create(by_head, 2, 3, 8, 8, device="cpu").shape == (2, 3, 8, 8)
    assert create(lambda b, h, q, kv: q >= kv, None, None, 8, 8, device="cpu").shape[2:] == (8, 8)


def test_masks_made_in_a_capture_are_mods_there(monkeypatch):
    """The host cannot read a GPU's tensors then: here the CPU stands for a GPU."""
    from tilewright.torch import _attention, _block_mask, _host_copies

    query = dense.normal(2, 2, 48, 8, dtype=torch.float32).detach()
    ids = torch.arange(48) // 9

    def document(b, h, i, j):
        return ids[i] == ids[j]

    def close(i, j):
        return (i - j).abs() < 12

    want = twt.flex_attention(
        query, query, query, mask_mod=lambda b, h, i, j: (ids[i] == ids[j]) & close(i, j)
    )
    monkeypatch.setattr(_host_copies, "is_capturing", lambda device: True)

    def refused(*_):
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(_block_mask, "at_hand", refused)
        patch.setattr(_attention, "_exact_mask", refused)
        mask = twt.create_block_mask(document, None, None, 48, 48, "cpu", BLOCK_SIZE=16)
        out = twt.flex_attention(
            query, query, query, block_mask=mask, mask_mod=lambda b, h, i, j: close(i, j)
        )
        with pytest.raises(ValueError, match="block_mask was created for"):
            twt.flex_attention(query[:, :, :9], query, query, block_mask=mask)
    torch.testing.assert_close(out, want)
    assert mask.kv_num_blocks.shape == (1, 1, 3) and mask._core is None
    with pytest.raises(ValueError, match="expected H, since the mod depends on the head .h., but"):
        twt.create_block_mask(lambda b, h, i, j: ids[i] > h, None, None, 48, 48, "cpu")
    monkeypatch.undo()
    torch.testing.assert_close(
        twt.flex_attention(query, query, query, block_mask=mask),
        twt.flex_attention(query, query, query, mask_mod=document),
    )
    mask.mask_mod = lambda b, h, i, j: i >= j
    assert not mask._is_mod


def test_lists_read_in_a_capture(monkeypatch):
    """The GPU makes them, since nothing can be copied to it: here the CPU stands for a GPU."""
    from tilewright.torch import _attention, _block_mask, _host_copies

    def copied(*_):
        raise AssertionError

    def causal(b, h, i, j):
        return i >= j

    library = twt.masks.causal()
    query = dense.normal(1, 1, 40, 8, dtype=torch.float32).detach()
    want = twt.flex_attention(query, query, query, causal=True)
    whole = twt.create_block_mask(causal, None, None, 40, 40, "cpu", BLOCK_SIZE=(16, 8))
    ids = torch.arange(40) * 0
    monkeypatch.setattr(_host_copies, "is_capturing", lambda device: True)
    with monkeypatch.context() as patch:
        patch.setattr(_block_mask.BlockMask, "_blocks", copied)
        with twt.install():
            mask = flex.create_block_mask(causal, None, None, 40, 40, "cpu", BLOCK_SIZE=(16, 8))
            decided = flex.create_block_mask(library, None, None, 40, 40, "cpu", BLOCK_SIZE=16)
            patch.setattr(_attention, "_exact_mask", copied)
            there = [twt.flex_attention(query, query, query, block_mask=m) for m in (mask, decided)]
        combined = mask & decided
        with pytest.raises(ValueError, match="mask without mask_mod to be read before a CUDA"):
            combined.kv_indices  # noqa: B018
        documents = twt.create_block_mask(
            twt.masks.document(ids) & library, None, None, 40, 40, "cpu", BLOCK_SIZE=16
        )
        out = twt.flex_attention(query, query, query, block_mask=documents)
        pairs = twt.create_mask(causal, 1, 1, 40, 40, "cpu")
    monkeypatch.undo()
    assert mask._core is not None
    for name in _block_mask._LISTS:
        assert torch.equal(getattr(mask, name), getattr(whole, name)), name
    assert torch.equal(pairs, whole.elements())
    assert decided.kv_num_blocks.tolist() == [[[3, 3, 3]]]  # it decides in every block
    lists = flex.BlockMask.from_kv_blocks(
        decided.kv_num_blocks, decided.kv_indices, BLOCK_SIZE=16, mask_mod=library,
        seq_lengths=(40, 40),
    )  # fmt: skip
    for made in (mask, decided, lists, documents):
        assert torch.equal(twt.flex_attention(query, query, query, block_mask=made), want)
    for have in (out, *there):
        assert torch.equal(have, want)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2), (2, 1), (2, 2), (None, 1)])
def test_masks_of_one_batch_or_head_are_its_masks_for_all(sizes, monkeypatch):
    """Also if they are made in a capture, where the mod is evaluated for every batch and head."""
    from tilewright.torch import _host_copies

    query = dense.normal(2, 2, 48, 8, dtype=torch.float32).detach()
    ids = torch.stack([torch.arange(48) // 9, torch.arange(48) // 5])

    def document(b, h, i, j):
        row = 0 if sizes[0] is None else b
        return (ids[row, i] == ids[row, j]) & (i >= j * h)

    want = dense.attention(
        *(query, query, query),
        mask=lambda b, h, i, j: document(
            b if sizes[0] == 2 else b * 0, h if sizes[1] == 2 else h * 0, i, j
        ),
    )[0]
    monkeypatch.setattr(_host_copies, "is_capturing", lambda device: True)
    made = twt.create_block_mask(document, *sizes, 48, 48, "cpu", BLOCK_SIZE=16)
    assert made._core is None
    dense.close(twt.flex_attention(query, query, query, block_mask=made), want, 1e-5)
    monkeypatch.undo()
    dense.close(twt.flex_attention(query, query, query, block_mask=made), want, 1e-5)
    mask = twt.create_block_mask(document, *sizes, 48, 48, "cpu")
    dense.close(twt.flex_attention(query, query, query, block_mask=mask), want, 1e-5)
