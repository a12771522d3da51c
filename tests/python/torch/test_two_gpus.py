"""tilewright.torch on two GPUs: tensors decide where a call runs, whatever device is current."""

import os
import pathlib
import subprocess
import sys
import threading
import time

import dense_torch as dense
import pytest
import torch
from test_torch_cuda import causal, tensors
from torch.nn.attention import flex_attention as flex

import tilewright as tw
import tilewright.torch as twt

sys.path.insert(0, str(pathlib.Path(__file__, "../../../../examples/custom_op").resolve()))

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NOT RUN: needs two GPUs")
DEVICES = "cuda:0", "cuda:1"
BOUNDS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}  # the Hopper engine, and tile programs


@pytest.fixture(params=[0, 1], autouse=True)
def current(request):
    """The current device, which calls leave as it was."""
    torch.cuda.set_device(request.param)
    yield request.param
    assert torch.cuda.current_device() == request.param
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    torch.cuda.set_device(0)
    # Of the device that was current in the first capture of the process: other tests' are of cuda:0.
    torch.cuda.graph.default_capture_stream = None


def with_mods(query, key, value, slopes, ids):
    return twt.flex_attention(
        *(query, key, value),
        lambda s, b, h, i, j: 5 * torch.tanh(s / 5) + slopes[h] * (j - i) * 0.01,
        mask_mod=lambda b, h, i, j: (i >= j) & (ids[i] == ids[j]),
    )


def dense_with_mods(query, key, value, slopes, ids):
    return dense.attention(
        *(query, key, value),
        lambda s, b, h, i, j: 5 * torch.tanh(s / 5) + slopes[h] * (j - i) * 0.01,
        lambda b, h, i, j: (i >= j) & (ids[i] == ids[j]),
    )[0]


def check(attention, inputs, want, tolerance):
    """Checks out and gradients, and where they are, against the definition in f64 on the CPU."""
    device = inputs[0].device
    out = attention(*inputs)
    wide = [x.detach().double().cpu().requires_grad_() for x in inputs]
    exact = want(*wide)
    assert out.device == device
    dense.close(out.cpu(), exact, tolerance)
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, inputs, dout)
    for have, y in zip(
        gradients, torch.autograd.grad(exact, wide, dout.double().cpu()), strict=True
    ):
        assert have.device == device
        dense.close(have.cpu(), y, 2 * tolerance)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_both_devices_in_turn(dtype):
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        inputs = tensors(dtype=dtype, device=device)
        check(
            lambda *x: twt.flex_attention(*x, causal=True),
            inputs,
            lambda *x: dense.attention(*x, mask=causal)[0],
            BOUNDS[dtype],
        )
        slopes = torch.rand(4, device=device).requires_grad_()
        ids = torch.arange(512, device=device) // 100
        check(
            lambda *x, ids=ids: with_mods(*x, ids),
            [*inputs, slopes],
            lambda *x, ids=ids: dense_with_mods(*x, ids.cpu()),
            BOUNDS[dtype],
        )


def test_mods_that_make_tensors():
    """Both devices share one recording, with the tensors that the mod makes on each."""

    def score(s, b, h, q, kv):
        return s + torch.tensor([0.5, -0.5, 0.25, 1.0], device=s.device)[h] * (q - kv) * 0.01

    for device in ("cuda:1", "cuda:0", "cuda:1"):
        check(
            lambda *x: twt.flex_attention(*x, score),
            tensors(device=device),
            lambda *x: dense.attention(*x, score)[0],
            2e-2,
        )


def test_the_same_bits_on_both():
    """Also the mask of dropout."""
    results = []
    inputs = [x.detach().cpu() for x in tensors()]
    for device in DEVICES:
        query, key, value = (x.to(device).requires_grad_() for x in inputs)
        out = twt.flex_attention(query, key, value, causal=True, dropout=0.3, seed=7)
        gradients = torch.autograd.grad(out, (query, key, value), out.detach())
        results.append([x.cpu() for x in (out, *gradients)])
    for x, y in zip(*results, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("whose", ["ours", "torch"])
def test_block_masks(whose):
    create = (twt if whose == "ours" else flex).create_block_mask
    for device in ("cuda:1", "cuda:0"):
        ids = torch.arange(512, device=device) // 100

        def document(b, h, q, kv, ids=ids):
            return (q >= kv) & (ids[q] == ids[kv])

        mask = create(document, None, None, 512, 512, device=device)
        assert mask.kv_indices.device == torch.device(device)
        for other in DEVICES if whose == "ours" else (device,):  # exact masks move along
            check(
                lambda *x, mask=mask: twt.flex_attention(*x, block_mask=mask),
                tensors(device=other),
                lambda *x, ids=ids: dense.attention(
                    *x, mask=lambda b, h, i, j: (i >= j) & (ids.cpu()[i] == ids.cpu()[j])
                )[0],
                2e-2,
            )


def test_masks_stay_where_they_were_made(current):
    """Lists are made when they are read, but on the device that was current before."""
    mask = twt.create_block_mask(causal, None, None, 512, 512, device="cuda")
    with torch.cuda.device(1 - current):
        assert mask.kv_indices.device == torch.device("cuda", current)
        assert mask.to_dense().device == torch.device("cuda", current)
        assert twt.create_mask(causal, 1, 1, 8, 8, device=f"cuda:{current}").get_device() == current


def test_library_mods():
    for device in ("cuda:1", "cuda:0"):
        slopes = torch.rand(4, device=device)
        ids = torch.arange(512, device=device) // 100
        mask = twt.masks.causal() & twt.masks.document(ids)
        check(
            lambda *x, slopes=slopes, mask=mask: twt.flex_attention(
                *x, twt.scores.alibi(slopes), mask_mod=mask
            ),
            tensors(device=device),
            lambda *x, slopes=slopes, ids=ids: dense.attention(
                *x,
                lambda s, b, h, i, j: s + slopes.cpu()[h] * (j - i),
                lambda b, h, i, j: (i >= j) & (ids.cpu()[i] == ids.cpu()[j]),
            )[0],
            2e-2,
        )


def test_the_stream_of_the_tensors_device():
    """That of cuda:1 is the one last chosen there, also while cuda:0 is current."""
    for index in (1, 0):
        device = f"cuda:{index}"
        query, key, value = (x.detach() for x in tensors(2048, device=device))
        ids = torch.arange(2048, device=device) // 300
        want = twt.flex_attention(query, key, value)
        torch.cuda.synchronize(index)
        side = torch.cuda.Stream(index)
        later, later_ids = torch.zeros_like(query), torch.zeros_like(ids)
        torch.cuda.synchronize(index)
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            later.copy_(query)
            later_ids.copy_(ids)
            with torch.cuda.device(1 - index):
                assert torch.cuda.current_stream(index) == side
                out = twt.flex_attention(later, key, value)
                mask = twt.create_block_mask(
                    lambda b, h, q, kv, ids=later_ids: ids[q] == ids[kv],
                    *(None, None, 2048, 2048, device),
                )
        side.synchronize()
        assert torch.equal(out, want)
        assert torch.equal(mask.elements()[0, 0].to(device), ids[:, None] == ids)


def test_neither_waits_for_the_other():
    """A warm call waits for no GPU, and work of one GPU is not ordered after that of the other."""
    for index in (1, 0):
        query, key, value = tensors(1024, device=f"cuda:{index}")
        mask = twt.create_block_mask(causal, None, None, 1024, 1024, device=f"cuda:{index}")

        def step(query=query, key=key, value=value, mask=mask):
            out = twt.flex_attention(
                query, key, value, lambda s, b, h, q, kv: s + (q - kv) * 0.01, block_mask=mask
            )
            return torch.autograd.grad(out, (query, key, value), out.detach())

        for _ in range(3):
            step()
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        events = []
        torch.cuda.set_sync_debug_mode("error")
        try:
            for busy in (1 - index, index):
                with torch.cuda.device(busy):
                    torch.cuda._sleep(2_000_000_000 if busy != index else 300_000_000)
                    events.append(torch.cuda.Event())
                    events[-1].record()
            step()
            with torch.cuda.device(index):
                done = torch.cuda.Event()
                done.record()
            assert not events[1].query()  # the host is ahead of the GPU that computes
        finally:
            torch.cuda.set_sync_debug_mode("default")
        done.synchronize()
        assert not events[0].query()  # while the other one still sleeps


def allocated():
    return [torch.cuda.memory_allocated(i) for i in (0, 1)]


def check_memory(index):
    """Steps on a device keep no memory, and take none on the other device."""
    query, key, value = tensors(2048, device=f"cuda:{index}")
    slopes = torch.rand(4, device=f"cuda:{index}").requires_grad_()

    def step():
        out = twt.flex_attention(
            query, key, value, lambda s, b, h, q, kv: s + slopes[h], causal=True
        )
        return torch.autograd.grad(out, (query, key, value, slopes), out.detach())

    step()
    torch.cuda.synchronize(index)
    time.sleep(0.5)  # autograd's thread lets go of gradients after they have been returned
    before = allocated()
    torch.cuda.reset_peak_memory_stats(1 - index)
    for last in (False, False, True):
        free = [torch.cuda.mem_get_info(i)[0] for i in (0, 1)]
        for _ in range(20):
            step()
        torch.cuda.synchronize(index)
        end = time.monotonic() + 10
        while allocated() != before and time.monotonic() < end:
            time.sleep(0.01)
        assert allocated() == before
        assert torch.cuda.max_memory_allocated(1 - index) == before[1 - index]
        taken = [free[i] - torch.cuda.mem_get_info(i)[0] for i in (0, 1)]
        if max(taken) < 64 << 20:
            break
        assert not last, f"{taken} bytes"  # once may be another process's


def test_memory_comes_from_the_tensors_device(current):
    """In a process of its own: what other tests hold or let go of does not count."""
    done = subprocess.run(
        [sys.executable, __file__, str(current)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    assert done.stdout == "done\n"


@pytest.mark.parametrize("sets_device", [False, True])
def test_threads(sets_device):
    """Two threads for each device; half of them alternate between the devices."""
    cases = {}
    for device in DEVICES:
        inputs = [*tensors(device=device), torch.rand(4, device=device).requires_grad_()]
        ids = torch.arange(512, device=device) // 100

        def step(inputs=inputs, ids=ids):
            out = with_mods(*inputs, ids)
            return [out, *torch.autograd.grad(out, inputs, out.detach())]

        cases[device] = step, step()
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    failures = []

    def run(index, alternates):
        try:
            if sets_device:
                torch.cuda.set_device(index)
            for n in range(20):
                device = DEVICES[(index + n * alternates) % 2]
                step, want = cases[device]
                side = torch.cuda.Stream(device)
                with torch.cuda.stream(side):
                    have = step()
                side.synchronize()
                for x, y in zip(have, want, strict=True):
                    if not torch.equal(x, y):
                        failures.append(f"thread of {index}, call {n} on {device}: other results")
        except BaseException as error:  # shown by the assertion
            failures.append(repr(error))

    threads = [
        threading.Thread(target=run, args=(index, alternates))
        for index in (0, 1)
        for alternates in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("inside", [False, True])
def test_cuda_graphs(inside):
    """Of both passes, on each device; `inside`: the other device is current in the capture."""
    graphs = []
    for index in (1, 0):
        device = f"cuda:{index}"
        query, key, value = tensors(device=device)
        slopes = torch.rand(4, device=device, requires_grad=True)
        mask = twt.create_block_mask(causal, None, None, 512, 512, device=device)

        def step(query=query, key=key, value=value, slopes=slopes, mask=mask, index=index):
            def run():
                out = twt.flex_attention(
                    query, key, value, lambda s, b, h, q, kv: s + slopes[h] * (kv - q), mask
                )
                return torch.autograd.grad(out.float().square().sum(), (query, key, value, slopes))

            if not inside:
                return run()
            with torch.cuda.device(1 - index):
                return run()

        with torch.cuda.device(index):
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(3):
                    step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                captured = step()
        graphs.append((graph, captured, step, query))
    for graph, captured, step, query in graphs:
        with torch.no_grad():
            query.copy_(torch.randn_like(query))
        with torch.cuda.device(query.device):
            graph.replay()
        for have, want in zip(captured, step(), strict=True):
            torch.testing.assert_close(have, want)


def test_block_masks_made_in_a_capture():
    for index in (1, 0):
        device = f"cuda:{index}"
        query, key, value = (x.detach() for x in tensors(device=device))
        ids = torch.randint(0, 4, (512,), device=device, dtype=torch.int32).sort().values

        def document(b, h, q, kv, ids=ids):
            return ids[q] == ids[kv]

        for _ in range(2):
            twt.flex_attention(query, key, value, mask_mod=document)
            flex.create_block_mask(document, 1, 1, 512, 512, device)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(index)
        with torch.cuda.device(index), torch.cuda.graph(graph, stream=stream):
            mask = twt.create_block_mask(document, None, None, 512, 512, device=device)
            out = twt.flex_attention(query, key, value, block_mask=mask)
        ids.copy_(torch.randint(0, 9, (512,), device=device, dtype=torch.int32).sort().values)
        with torch.cuda.device(index):
            graph.replay()
        torch.cuda.synchronize(index)
        want = twt.flex_attention(query, key, value, mask_mod=document)
        torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_regions(mode):
    compiled = torch.compile(
        lambda q, k, v, s, m: twt.flex_attention(
            q * 2, k, v, lambda x, b, h, i, j: x + s[h] * (j - i), m
        ).sin(),
        mode=mode,
        fullgraph=True,
    )
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        mask = twt.create_block_mask(causal, None, None, 512, 512, device=device)
        inputs = [*tensors(device=device), torch.rand(4, device=device).requires_grad_()]
        for _ in range(3):
            check(
                lambda *x, mask=mask: compiled(*x, mask),
                inputs,
                lambda q, k, v, s: dense.attention(
                    q * 2, k, v, lambda x, b, h, i, j: x + s[h] * (j - i), causal
                )[0].sin(),
                3e-2,
            )


def test_mixed_devices_are_refused_by_name():
    here = [x.detach() for x in tensors(device="cuda:0")]
    there = [x.detach() for x in tensors(device="cuda:1")]
    with pytest.raises(ValueError, match="same device type.*cuda:0.*cuda:1"):
        twt.flex_attention(here[0], *there[1:])
    with pytest.raises(ValueError, match="same device type"):
        twt.scaled_dot_product_attention(here[0], here[1], there[2])
    tables = {device: torch.rand(4, device=device) for device in DEVICES}

    def attend(inputs, table, mask_table, compiled=False):
        def function(*x):
            return twt.flex_attention(
                *x, lambda s, b, h, q, kv: s + table[h],
                mask_mod=lambda b, h, q, kv: mask_table[h] * 0 <= kv,
            )  # fmt: skip

        if compiled:
            torch._dynamo.reset()
            function = torch.compile(function, backend="aot_eager", fullgraph=True)
        return function(*inputs)

    one, other = tables.values()
    for _ in range(3):  # also once such calls are known
        attend(here, one, one)
        attend(there, other, other)
        with pytest.raises(ValueError, match="score_mod captures on cuda:0.*got one on cuda:1"):
            attend(here, other, one)
        with pytest.raises(ValueError, match="mask_mod captures on cuda:1.*got one on cuda:0"):
            attend(there, other, one)
    attend(there, other, other, compiled=True)
    with pytest.raises(Exception, match="cuda:0.*cuda:1|cuda:1.*cuda:0"):
        attend(here, other, one, compiled=True)
    extras = {
        "sinks": torch.zeros(4),
        "segment_ids": torch.zeros(2, 512, dtype=torch.int32),
        "kv_lengths": torch.full((2,), 500, dtype=torch.int32),
    }
    for name, x in extras.items():
        twt.flex_attention(*there, **{name: x.to("cuda:1")})
        with pytest.raises(ValueError, match=f"{name} on cuda:1.*cuda:0"):
            twt.flex_attention(*there, **{name: x.to("cuda:0")})
    x, weight = torch.randn(4, 64, device="cuda:1"), torch.ones(64, device="cuda:0")
    with pytest.raises(ValueError, match="cuda:0"):
        twt.rms_norm(x, weight)


def test_starts_of_sequences_may_be_anywhere():
    """The host reads them."""
    inputs = [x.detach()[:1] for x in tensors(device="cuda:1")]
    starts = torch.tensor([0, 200, 512], dtype=torch.int32)
    want = twt.flex_attention(*inputs, causal=True, cu_seqlens=starts)
    for device in DEVICES:
        have = twt.flex_attention(*inputs, causal=True, cu_seqlens=starts.to(device))
        assert torch.equal(have, want)


def test_layers_on_two_devices():
    """One backward pass through both."""
    x = torch.randn(2, 4, 256, 64, device="cuda:0").requires_grad_()
    slopes = [torch.rand(4, device=device).requires_grad_() for device in DEVICES]

    def model(x, slopes, attention, move):
        for table, device in zip(slopes, DEVICES, strict=True):
            x = move(x, device)
            x = attention(x, x, x, lambda s, b, h, q, kv, table=table: s + table[h] * (kv - q))
        return x

    out = model(x, slopes, twt.flex_attention, lambda x, device: x.to(device))
    have = torch.autograd.grad(out.sin().sum(), (x, *slopes))
    wide = [t.detach().double().cpu().requires_grad_() for t in (x, *slopes)]
    exact = model(wide[0], wide[1:], lambda *a: dense.attention(*a)[0], lambda x, _: x)
    dense.close(out.cpu(), exact, 1e-4)
    for a, b in zip(have, torch.autograd.grad(exact.sin().sum(), wide), strict=True):
        dense.close(a.cpu(), b, 1e-4)
    assert [g.device for g in have] == [t.device for t in (x, *slopes)]


class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(32, 96)
        self.slopes = torch.nn.Parameter(torch.rand(2))

    def forward(self, x):
        parts = self.project(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        return twt.flex_attention(
            *parts, lambda s, b, h, q, kv: s + self.slopes[h] * (kv - q), causal=True
        )


def test_data_parallel_threads():
    module, x = Heads().to("cuda:0"), torch.randn(8, 24, 32, device="cuda:0")
    module(x).square().mean().backward()
    want = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    parallel = torch.nn.DataParallel(module, device_ids=[0, 1])
    parallel(x).square().mean().backward()
    for p, y in zip(module.parameters(), want, strict=True):
        dense.close(p.grad, y, 1e-4)


def test_norms():
    for device in ("cuda:1", "cuda:0"):
        x = torch.randn(64, 1024, dtype=torch.bfloat16, device=device, requires_grad=True)
        weight = torch.randn(1024, dtype=torch.bfloat16, device=device, requires_grad=True)
        check(
            lambda x, w: twt.rms_norm(x, w),
            [x, weight],
            lambda x, w: torch.nn.functional.rms_norm(x, (1024,), w, 1e-5),
            2e-2,
        )


def test_cuda_kernels_of_users():
    from rms_norm import make_rms_norm, reference

    op = make_rms_norm(__file__)  # on a GPU no library is needed
    for device in ("cuda:1", "cuda:0"):
        x, weight = torch.randn(37, 100, device=device), torch.randn(100, device=device)
        y = op(x, weight, eps=1e-3)[0]
        want = reference(x.cpu().double().numpy(), weight.cpu().double().numpy(), 1e-3)[0]
        assert y.device == torch.device(device)
        dense.close(y.cpu(), torch.as_tensor(want), 1e-5)
        with pytest.raises(ValueError, match="expected `weight` on"):
            op(x, weight.to(DEVICES[device == "cuda:0"]))


def test_tensors_in_the_numpy_front_end():
    for device in ("cuda:1", "cuda:0"):
        query, key, value = (x.detach().float() for x in tensors(device=device))
        out = tw.flex_attention(query, key, value, causal=True)
        want = dense.attention(*(x.double().cpu() for x in (query, key, value)), mask=causal)[0]
        assert out.device == torch.device(device)
        dense.close(out.cpu(), want, 1e-4)


PROGRAM = pathlib.Path(__file__).with_name("sharded_calls.py")


@pytest.mark.parametrize("current", [0], indirect=True)
def test_two_ranks(current):
    """DTensors and DistributedDataParallel through NCCL, in processes that choose their devices."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(PROGRAM), "cuda"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        # Multicast over NVLink needs rights that containers often lack.
        env={"NCCL_NVLS_ENABLE": "0", **os.environ},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    assert done.stdout.count("done") == 2


if __name__ == "__main__":
    torch.cuda.set_device(int(sys.argv[1]))
    for of_device in (1, 0):
        check_memory(of_device)
    print("done")
