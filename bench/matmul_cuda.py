#!/usr/bin/env python3
"""Measures products as tile programs beside cuBLAS on one GPU, interleaved, checked against f64.

usage: matmul_cuda.py LIBRARY [--rounds N] [--cases WORD ...] [--no-timing]
       matmul_cuda.py LIBRARY --sweep [--rounds N] [--tiles] [--autotune]
       matmul_cuda.py LIBRARY --epilogues [--rounds N]

LIBRARY is libtilewright.so. A program loads whole bands of its operands, multiplies, applies the
case's epilogue and stores a block of 256 x 256 or the case's size. A burst is 0.2 s of rest, 3
warm-up launches and 5 to 50 timed ones; a round runs cuBLAS (torch.mm, without the epilogue;
torch._scaled_mm for f8 with its precise sums, and with its fast ones in brackets; torch._int_mm for
i8) and the program once; results are medians over rounds. The error is relative to f64, over the
first and the last rows. --sweep: bf16 sizes from 512 to 16384, and others, as replays of CUDA
graphs without rests, and the geometric mean; --tiles: with programs of blocks of a few sizes, too;
--autotune: also with the choices that were measured to be fastest, and the speed of the default as
a multiple of theirs. --epilogues: bf16 products of some sizes, plain and with each epilogue, as
replays of CUDA graphs without rests; all kernels of a size, cuBLAS and the epilogues that cuBLASLt
fuses (bias with relu or tanh-gelu, and the sum with what the result held) alternate.
"""

import argparse
import ctypes
import dataclasses
import faulthandler
import math
import os
import statistics
import time

import torch
import torch.nn.functional as functional

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f8e4m3": torch.float8_e4m3fn,
    "i8": torch.int8,
    "i32": torch.int32,
}
CODES = {  # DLPack's
    torch.bfloat16: (4, 16),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float8_e4m3fn: (10, 8),
    torch.int8: (0, 8),
    torch.int32: (0, 32),
}
SECONDS_OF_A_CASE = 30  # more means that it hangs

BIAS = """%fb = cast %bias : f32ROW
%eb = expand_dims %fb axis 0 : f32LINE
%bb = broadcast %eb : f32TILE
%s = add %d, %bb : f32TILE
"""
CONSTANT = "%{} = constant {} : f32TILE\n"
HALF_OF = """%t1 = add %t, %one : f32TILE
%sh = mul %s, %half : f32TILE
%g = mul %sh, %t1 : f32TILE
%q = cast %g : OUTTILE"""
EPILOGUES = {
    "relu": BIAS
    + CONSTANT.format("none", 0)
    + "%g = max %s, %none : f32TILE\n%q = cast %g : OUTTILE",
    "gelu tanh": BIAS
    + CONSTANT.format("c1", 0.044715)
    + CONSTANT.format("c2", math.sqrt(2 / math.pi))
    + CONSTANT.format("half", 0.5)
    + CONSTANT.format("one", 1)
    + """%s2 = mul %s, %s : f32TILE
%s3 = mul %s2, %s : f32TILE
%s4 = mul %s3, %c1 : f32TILE
%s5 = add %s, %s4 : f32TILE
%s6 = mul %s5, %c2 : f32TILE
%t = tanh %s6 approx : f32TILE
"""
    + HALF_OF,
    "gelu erf": BIAS
    + CONSTANT.format("c2", math.sqrt(0.5))
    + CONSTANT.format("half", 0.5)
    + CONSTANT.format("one", 1)
    + "%s6 = mul %s, %c2 : f32TILE\n%t = erf %s6 : f32TILE\n"
    + HALF_OF,
    "residual": "%fr = cast %rest : f32TILE\n%g = add %d, %fr : f32TILE\n%q = cast %g : OUTTILE",
}


@dataclasses.dataclass
class Case:
    """C = A B, m x k by k x n. `order` "NT": B is stored transposed; `after`: see EPILOGUES."""

    m: int
    n: int
    k: int
    block: tuple = (256, 256)
    dtype: str = "bf16"
    out: str = ""
    order: str = "NN"
    after: str = ""
    row: int = 0  # row stride of each array in elements; 0: dense

    def name(self):
        parts = [f"{self.m} x {self.n} x {self.k}", self.dtype, self.order]
        parts += ["tf32"] * (self.dtype == "f32")
        parts += [f"to {self.out}"] * bool(self.out) + [self.after] * bool(self.after)
        parts += [f"rows of {2 * self.row} bytes"] * (self.row != 0)
        parts += [f"blocks {self.block[0]} x {self.block[1]}"] * (self.block != (256, 256))
        return " ".join(parts)

    def text(self):
        """The program as IR text (docs/reference/ir.md)."""
        bm, bn = self.block
        out = self.out or self.dtype
        tile = f"[{bm}, {bn}]"

        def operand(name, transposed, rows, columns, at):
            shape, places = (rows, columns), [(at[0], rows), (at[1], columns)]
            if transposed:
                shape, places = shape[::-1], places[::-1]
            slices = ", ".join(f"%{start} : {size}" for start, size in places)
            return f"load %{name}[{slices}] : {self.dtype}[{shape[0]}, {shape[1]}]"

        def ref(name, dtype, *shape):
            return f"%{name}: ref<{dtype}[{', '.join(map(str, shape))}]>"

        ta, tb = self.order[0] == "T", self.order[1] == "T"
        refs = [ref("x", self.dtype, *((self.k, self.m) if ta else (self.m, self.k)))]
        refs += [ref("y", self.dtype, *((self.n, self.k) if tb else (self.k, self.n)))]
        loads = ""
        if self.has_bias():
            refs += [ref("u", self.dtype, self.n)]
            loads += f"%bias = load %u[%j : {bn}] : {self.dtype}[{bn}]\n"
        if self.after == "residual":
            refs += [ref("r", self.dtype, self.m, self.n)]
            loads += f"%rest = load %r[%i : {bm}, %j : {bn}] : {self.dtype}{tile}\n"
        refs += [ref("z", out, self.m, self.n)]
        sums = "i32" if self.dtype == "i8" else "f32"
        plain = (
            "%q = cast %d : OUTTILE"
            if out != sums
            else f"%zz = constant 0 : {sums}TILE\n%q = add %d, %zz : {sums}TILE"
        )
        precision = " precision tf32" * (self.dtype == "f32")
        after = EPILOGUES.get(self.after, plain)
        for word, by in (("TILE", tile), ("LINE", f"[1, {bn}]"), ("ROW", f"[{bn}]"), ("OUT", out)):
            after = after.replace(word, by)
        return f"""func @product({", ".join(refs)}) grid [{-(-self.m // bm)}, {-(-self.n // bn)}] {{
%pi = program_id axis 0 : i64
%pj = program_id axis 1 : i64
%bm = constant {bm} : i64
%bn = constant {bn} : i64
%o = constant 0 : i64
%i = mul %pi, %bm : i64
%j = mul %pj, %bn : i64
%a = {operand("x", ta, bm, self.k, ("i", "o"))}
%b = {operand("y", tb, self.k, bn, ("o", "j"))}
%d = dot %a, %b{" transpose_a" * ta}{" transpose_b" * tb}{precision} : {sums}{tile}
{loads}{after}
store %z[%i : {bm}, %j : {bn}], %q
yield
}}"""

    def has_bias(self):
        return self.after not in ("", "residual")

    def arrays(self):
        torch.manual_seed(self.m * 7 + self.n * 3 + self.k)
        dtype = DTYPES[self.dtype]

        def random(rows, columns):
            shape = (rows, self.row or columns)
            if self.dtype == "i8":
                return torch.randint(-128, 128, shape, device="cuda").to(dtype)[:, :columns]
            return torch.randn(shape, device="cuda").to(dtype)[:, :columns]

        x, y = random(self.m, self.k), random(self.k, self.n)
        x = x.T.contiguous().T if self.order[0] == "T" else x
        y = y.T.contiguous().T if self.order[1] == "T" else y
        bias = random(1, self.n)[0] if self.has_bias() else None
        rest = random(self.m, self.n) if self.after == "residual" else None
        z = torch.empty(self.m, self.n, device="cuda", dtype=DTYPES[self.out or self.dtype])
        z.fill_(-(2**31) if self.out == "i32" else math.nan)
        return x, y, bias, rest, z

    def expected(self, rows, x, y, bias, rest):
        d = x[rows].double() @ y.double()
        d = d if bias is None else d + bias.double()
        d = d if rest is None else d + rest[rows].double()
        if self.after == "relu":
            return d.relu()
        return (
            functional.gelu(d, approximate=self.after[5:].replace("erf", "none"))
            if "gelu" in self.after
            else d
        )


def peers_of(case, x, y):
    """Functions that multiply x and y by cuBLAS, by name; the first is the baseline."""
    if case.dtype == "i8":
        return {"cuBLAS": lambda: torch._int_mm(x, y)}
    if case.dtype.startswith("f8"):
        one, out = torch.ones((), device="cuda"), DTYPES[case.out]

        def product(fast):
            return torch._scaled_mm(x, y, one, one, out_dtype=out, use_fast_accum=fast)

        return {"cuBLAS": lambda: product(False), "(fast sums)": lambda: product(True)}
    torch.backends.cuda.matmul.allow_tf32 = True
    product = torch.empty(case.m, case.n, device="cuda", dtype=DTYPES[case.dtype])
    return {"cuBLAS": lambda: torch.mm(x, y, out=product)}


def fused_peer_of(case, x, y, bias):
    """The same epilogue by cuBLASLt, or None; a residual is what the result held before."""
    product = torch.zeros(case.m, case.n, device="cuda", dtype=DTYPES[case.dtype])
    if case.after == "residual":
        return lambda: torch.addmm(product, x, y, out=product)
    if case.after not in ("relu", "gelu tanh"):
        return None
    gelu = case.after == "gelu tanh"
    return lambda: torch._addmm_activation(bias, x, y, use_gelu=gelu, out=product)


class DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class Library:
    """libtilewright.so (tilewright/c_api.h)."""

    def __init__(self, path):
        self.handle = ctypes.CDLL(path)
        self.handle.tw_error.restype = ctypes.c_char_p
        self.handle.tw_program_create.argtypes = [
            ctypes.c_char_p,
            DLDevice,
            ctypes.c_int,
            ctypes.c_void_p,
        ]
        self.handle.tw_program_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.handle.tw_error().decode())

    def launcher(self, text, arrays):
        """A function that runs the program on these arrays."""
        cuda = DLDevice(2, torch.cuda.current_device())
        program = ctypes.c_void_p()
        self.check(self.handle.tw_program_create(text.encode(), cuda, 0, ctypes.byref(program)))
        tensors = []
        for array in arrays:
            dims = (ctypes.c_int64 * array.dim())(*array.shape)
            strides = (ctypes.c_int64 * array.dim())(*array.stride())
            tensors.append(
                DLTensor(
                    array.data_ptr(), cuda, array.dim(), *CODES[array.dtype], 1, dims, strides, 0
                )
            )
        places = (ctypes.POINTER(DLTensor) * len(tensors))(*map(ctypes.pointer, tensors))

        def launch():
            self.check(self.handle.tw_program_run(program, places, len(tensors)))

        launch.kept = (arrays, tensors)
        return launch


def burst(launch, count):
    torch.cuda.synchronize()
    time.sleep(0.2)
    for _ in range(3):
        launch()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        launch()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def error_of(case, arrays, launch):
    """The error against f64 of the first and the last rows, and whether bits repeat."""
    x, y, bias, rest, z = arrays
    if z.is_floating_point():
        z.fill_(math.nan)
    launch()
    torch.cuda.synchronize()
    error = 0.0
    for rows in (slice(0, 256), slice(max(0, case.m - 64), case.m)):
        want = case.expected(rows, x, y, bias, rest)
        off = ((z[rows].double() - want).norm() / want.norm()).item()
        error = off if not off <= error else error
    first = z.clone()
    for _ in range(20):
        launch()
    torch.cuda.synchronize()
    return error, torch.equal(first, z)


def measure(library, case, rounds):
    x, y, bias, rest, z = case.arrays()
    stored = [x.T if case.order[0] == "T" else x, y.T if case.order[1] == "T" else y]
    launch = library.launcher(case.text(), [a for a in (*stored, bias, rest, z) if a is not None])
    error, repeats = error_of(case, (x, y, bias, rest, z), launch)
    line = f"{case.name():52s} error {error:.1e}{'' if repeats else ' BITS CHANGE'}"
    if rounds > 0:
        peers = {**peers_of(case, x, y), "tiles": launch}
        flop = 2.0 * case.m * case.n * case.k
        count = max(5, min(25, int(0.06e15 / flop))) if flop > 1e11 else 50
        times = {name: [] for name in peers}
        for _ in range(rounds):
            for name, peer in peers.items():
                times[name].append(burst(peer, count))
        medians = {name: statistics.median(all_of) for name, all_of in times.items()}
        rates = [f"{name} {flop / ms / 1e9:6.1f} TFLOP/s" for name, ms in medians.items()]
        line += f"  {'  '.join(rates)}  x {medians['cuBLAS'] / medians['tiles']:.3f}"
    print(line, flush=True)


SWEEP = [
    *((512, 512, 512), (512, 512, 16384), (512, 16384, 512), (16384, 512, 512), (512, 2048, 4096)),
    *((1024, 1024, 1024), (1024, 1024, 8192), (1024, 4096, 1024), (1024, 16384, 1024)),
    *((2048, 2048, 2048), (2048, 2048, 512), (2048, 8192, 2048), (2048, 4096, 8192)),
    *((4096, 4096, 4096), (4096, 4096, 512), (4096, 4096, 16384), (4096, 2048, 1024)),
    *((8192, 8192, 8192), (8192, 8192, 512), (8192, 1024, 8192), (1024, 8192, 16384)),
    *((16384, 16384, 1024), (16384, 16384, 16384), (16384, 2048, 4096), (16384, 512, 16384)),
    *((1008, 1040, 528), (1504, 2000, 3008), (3008, 5008, 4000), (4112, 4112, 4112)),
    *((5120, 3072, 2064), (6000, 6000, 6000), (777, 1552, 2576), (9999, 2048, 2048)),
    *((3000, 5000, 4000), (4104, 4104, 4104)),
]
EPILOGUE_SIZES = [
    (8192, 8192, 8192),
    (8192, 8192, 2048),
    (16384, 4096, 4096),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (8192, 1024, 4096),
]
BLOCKS = [(128, 256), (128, 128), (128, 64), (64, 128)]


def graph_of(library, launch, calls):
    """Replays of a CUDA graph of some calls."""
    stream = torch.cuda.Stream()
    library.handle.tw_set_cuda_stream(ctypes.c_void_p(stream.cuda_stream))
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            launch()
    library.handle.tw_set_cuda_stream(None)
    return graph.replay


def replay_time(replay, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    begin.record()
    for _ in range(count):
        replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def sweep(library, rounds, tiles, autotune):
    ratios, of_best = [], []
    for m, n, k in SWEEP:
        x, y, _, _, z = Case(m, n, k).arrays()
        launches = peers_of(Case(m, n, k), x, y)
        for block in [(256, 256), *(BLOCKS if tiles else [])]:
            case = Case(m, n, k, block=block)
            launches[block] = library.launcher(case.text(), [x, y, z])
        if autotune:
            os.environ["TILEWRIGHT_AUTOTUNE"] = "1"
            launches["best"] = library.launcher(Case(m, n, k).text(), [x, y, z])
            os.environ["TILEWRIGHT_AUTOTUNE"] = "0"
        rows = slice(max(0, m - 64), m)
        want = x[rows].double() @ y.double()
        error = 0.0
        for name in [(256, 256), *(["best"] if autotune else [])]:
            z.fill_(math.nan)
            launches[name]()
            torch.cuda.synchronize()
            off = ((z[rows].double() - want).norm() / want.norm()).item()
            error = off if not off <= error else error
        flop = 2.0 * m * n * k
        calls, count = (10, 20) if flop < 1e11 else (1, max(3, int(4e12 / flop)))
        replays = {name: graph_of(library, launch, calls) for name, launch in launches.items()}
        times = {name: [] for name in replays}
        for _ in range(rounds):
            for name, replay in replays.items():
                times[name].append(replay_time(replay, count) / calls)
        median = {name: statistics.median(all_of) for name, all_of in times.items()}
        cublas, best = median.pop("cuBLAS"), median.pop("best", None)
        ratios.append(cublas / median[256, 256])
        others = "".join(
            f"  {block[0]} x {block[1]}: {cublas / ms:.3f}"
            for block, ms in median.items()
            if block != (256, 256)
        )
        if best is not None:
            of_best.append(best / median[256, 256])
            others += f"  best {cublas / best:.3f}, default {of_best[-1]:.3f} of it"
        print(
            f"{m:5d} x {n:5d} x {k:5d} error {error:.1e}  cuBLAS {flop / cublas / 1e9:6.1f} TFLOP/s  "
            f"x {ratios[-1]:.3f}{others}",
            flush=True,
        )
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
    if autotune:
        mean = statistics.geometric_mean(of_best)
        print(f"default, of the best: geometric mean {mean:.3f}, least {min(of_best):.3f}")


def epilogues(library, rounds):
    for m, n, k in EPILOGUE_SIZES:
        replays, fused_replays, worst, repeats = {}, {}, 0.0, True
        arrays_of, peers = {}, {}  # replays read them
        flop = 2.0 * m * n * k
        calls, count = (10, 10) if flop < 1e11 else (1, max(3, min(20, int(8e12 / flop))))
        for after in ("", *EPILOGUES):
            case = Case(m, n, k, after=after)
            arrays = arrays_of[after] = case.arrays()
            if not after:
                cublas = peers_of(case, *arrays[:2])["cuBLAS"]
                replays["cuBLAS"] = graph_of(library, cublas, calls)
            launch = library.launcher(case.text(), [a for a in arrays if a is not None])
            error, same = error_of(case, arrays, launch)
            worst = error if not error <= worst else worst
            repeats = repeats and same
            replays[after or "plain"] = graph_of(library, launch, calls)
            fused = peers[after] = fused_peer_of(case, *arrays[:3])
            if fused is not None:
                fused_replays[after] = graph_of(library, fused, calls)
        replays |= {f"cuBLASLt {after}": replay for after, replay in fused_replays.items()}
        times = {name: [] for name in replays}
        names = list(replays)
        for name in names:  # the clock falls to what the products' power allows
            replay_time(replays[name], count)
        for i in range(rounds):
            # Each has another place in each round: what runs first after a pause is faster.
            first = i * len(names) // rounds
            for name in names[first:] + names[:first]:
                times[name].append(replay_time(replays[name], count) / calls)
        median = {name: statistics.median(all_of) for name, all_of in times.items()}
        cublas = median.pop("cuBLAS")
        of_lt = {after: median.pop(f"cuBLASLt {after}") for after in fused_replays}
        print(
            f"{m:5d} x {n:5d} x {k:5d} error {worst:.1e}{'' if repeats else ' BITS CHANGE'}"
            f"  cuBLAS {flop / cublas / 1e9:6.1f} TFLOP/s"
            + "".join(
                f"  {name} {cublas / ms:.3f} ({median['plain'] / ms:.3f} of plain"
                + (f", cuBLASLt {cublas / of_lt[name]:.3f})" if name in of_lt else ")")
                for name, ms in median.items()
            ),
            flush=True,
        )


def cases():
    big = {"m": 8192, "n": 8192, "k": 8192}
    yield from (Case(**big, order=order) for order in ("NN", "NT", "TN", "TT"))
    yield from (Case(**big, after=after) for after in EPILOGUES)
    yield Case(**big, dtype="f16")
    yield Case(**big, out="f32")
    yield Case(**big, block=(128, 128))
    for m, n, k in (
        (4096, 4096, 4096),
        (2048, 2048, 2048),
        (1024, 1024, 1024),
        (512, 512, 512),
        (8192, 8192, 1024),
        (2048, 2048, 8192),
        (1024, 8192, 4096),
        (16384, 4096, 4096),
        (1000, 1048, 520),
        (4104, 4104, 4104),
        (3000, 5000, 4000),
        (4100, 4100, 4100),  # rows of multiples of 8, 4 and 2 bytes
        (4098, 4098, 4098),
        (4095, 4095, 4095),
    ):
        yield Case(m, n, k)
    for size in (8192, 4096, 2048):
        square = {"m": size, "n": size, "k": size, "order": "NT"}
        yield Case(**square, dtype="f8e4m3", out="bf16", block=(128, 128))
        yield Case(**square, dtype="i8", out="i32")
        yield Case(**square, dtype="f32")
        yield Case(size, size, size, dtype="f32")
    yield Case(4100, 4100, 4100, dtype="f16", order="NT")
    yield from (Case(4096, 4096, 4096, row=row) for row in (4104, 4112, 4128, 4160))
    yield Case(1024, 4096, 4096, dtype="f16")
    yield Case(64, 8192, 8192, block=(64, 256))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=[], help="words that the names of cases hold")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--sweep", action="store_true", help="bf16 sizes from 512 to 16384")
    parser.add_argument("--tiles", action="store_true", help="with --sweep: each size of tile")
    parser.add_argument("--autotune", action="store_true", help="with --sweep: the best choices")
    parser.add_argument("--epilogues", action="store_true", help="bf16 sizes with each epilogue")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    library = Library(arguments.library)
    if arguments.sweep:
        sweep(library, arguments.rounds, arguments.tiles, arguments.autotune)
        return
    if arguments.epilogues:
        epilogues(library, arguments.rounds)
        return
    for case in cases():
        if all(word in case.name() for word in arguments.cases):
            faulthandler.dump_traceback_later(SECONDS_OF_A_CASE, exit=True)
            measure(library, case, 0 if arguments.no_timing else arguments.rounds)


if __name__ == "__main__":
    main()
