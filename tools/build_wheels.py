#!/usr/bin/env python3
"""Builds the source distribution and manylinux wheels in dist/, and tests each wheel.

usage: tools/build_wheels.py PREFIX [--python PROGRAM ...] [--no-jax] [--from-sdist]

PREFIX is an installation of the library (`cmake --install build --prefix PREFIX`), which every
wheel ships, so that only the extension modules are compiled for each Python. Wheels are built from
the source distribution: one each for CPython 3.10 and 3.11, and one for 3.12 and later (the stable
ABI). Pythons are looked up on PATH, in ~/.pyenv and in /opt/python (as in manylinux images);
missing ones are named, and so is the pack of compiled kernels if PREFIX has none. Then each wheel
is installed in a fresh environment, with no compiler on PATH, and used: NumPy, the command line,
`find_package`, JAX, NVRTC by the extra cuda.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
STABLE = 12  # the minor version from which one wheel fits all
VERSIONS = range(10, 15)
FIRST_WITH_JAX = 11
PACK = "tilewright-kernels.pack"

NUMPY_DEMO = """
import numpy as np, tilewright as tw
rng = np.random.default_rng(0)
query, key, value = rng.standard_normal((3, 1, 4, 200, 64), dtype=np.float32)
slopes = tw.capture(np.exp2(-np.arange(1, 5)).astype(np.float32))
out, pullback = tw.flex_attention_vjp(
    query, key, value, lambda s, b, h, q, kv: s + slopes[h] * (kv - q), causal=True)
score = query @ key.swapaxes(-1, -2) / 8
place = np.arange(200)
score += slopes.array[:, None, None] * (place[None] - place[:, None])
score = np.where(place[None] <= place[:, None], score, -np.inf)
p = np.exp(score - score.max(-1, keepdims=True))
want = (p / p.sum(-1, keepdims=True)) @ value
assert np.abs(out - want).max() < 1e-5, np.abs(out - want).max()
assert pullback(np.ones_like(out)).captured[0].shape == (4,)

@tw.kernel
def double(x, y):
    y[...] = x[...] + x[...]
call = tw.call(double, out_shape=tw.ShapeDtype((8,), np.float32))
assert (call(np.arange(8, dtype=np.float32)) == np.arange(0, 16, 2)).all()

# The library and all that it needs came with the wheel.
import pathlib
site = str(pathlib.Path(tw.__file__).parent.parent)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
ours = [p for p in loaded if any(n in p for n in ("libtilewright", "libtbb", "libhwy", "libfmt", "libxxhash"))]
assert len(ours) >= 4 and all(p.startswith(site) for p in ours), ours
tw.doctor()
"""

# The last JAX for Python 3.10 is 0.6.2; tilewright.jax needs 0.10.2.
JAX_REFUSAL = """
try:
    import tilewright.jax
except ImportError as error:
    assert "needs Python 3.11 or newer" in str(error), error
else:
    raise AssertionError("tilewright.jax is there on Python 3.10")
"""

JAX_DEMO = """
import jax, jax.numpy as jnp, numpy as np, tilewright.jax as twj
q = jax.random.normal(jax.random.key(0), (1, 4, 200, 64))
def loss(q):
    return twj.flex_attention(q, q, q, causal=True, window=(50, 0)).sum()
def plain(q):
    place = jnp.arange(200)
    gap = place[:, None] - place[None]
    s = jnp.where((gap >= 0) & (gap <= 50), q @ q.swapaxes(-1, -2) / 8, -jnp.inf)
    return (jax.nn.softmax(s, -1) @ q).sum()
got, want = (jax.jit(jax.grad(f))(q) for f in (loss, plain))
np.testing.assert_allclose(got, want, atol=1e-4)
print("jax", jax.__version__)
"""


def say(text):
    print(f"build_wheels: {text}", flush=True)


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def minor_of(program):
    """The minor version (13 for CPython 3.13) of a CPython that has its headers, else None."""
    code = (
        "import os, sys, sysconfig; print(sys.version_info.minor if sys.implementation.name == 'cpython'"
        " and not sysconfig.get_config_var('Py_GIL_DISABLED')"
        " and os.path.exists(sysconfig.get_path('include') + '/Python.h') else '')"
    )
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return int(done.stdout) if done.stdout.strip() else None


def find_pythons():
    """{minor: program} for the Pythons on this machine."""
    found = {}
    for minor in VERSIONS:
        on_path = shutil.which(f"python3.{minor}")
        places = [on_path] if on_path else []
        places += sorted(pathlib.Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        places += pathlib.Path("/opt/python").glob(f"cp3{minor}-cp3{minor}/bin/python")
        for program in places:
            if minor_of(program) == minor:
                found[minor] = str(program)
                break
    return found


def environment(folder, python, *requirements):
    """Makes a fresh environment; returns its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    if requirements:
        run(folder / "bin/python", "-m", "pip", "install", "--quiet", *requirements)
    return folder / "bin/python"


def build_tools(minor, python):
    """The pinned build environment for this Python, kept between calls."""
    pins = ROOT / "tools" / "wheel-requirements.txt"
    folder = WORK / f"build-3.{minor}"
    stamp = folder / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != pins.read_text():
        # Only the headers of jaxlib are used: its dependencies are not installed.
        environment(folder, python)
        lines = [line for line in pins.read_text().splitlines() if not line.startswith("#")]
        jaxlib = [line for line in lines if line.startswith("jaxlib")]
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet"]
        run(*pip, *[line for line in lines if line not in jaxlib])
        run(*pip, "--no-deps", *jaxlib)
        stamp.write_text(pins.read_text())
    return folder / "bin/python"


def build_sdist(python):
    run(
        python,
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        DIST,
        ROOT,
    )
    return next(DIST.glob("*.tar.gz"))


def unpacked(sdist):
    """The folder with its files. Unchanged ones are kept, so that nothing is compiled twice."""
    folder = WORK / "source"
    with tarfile.open(sdist) as archive:
        files = {m.name.partition("/")[2]: m for m in archive.getmembers() if m.isfile()}
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            if str(path.relative_to(folder)) not in files:
                path.unlink()
        for name, member in files.items():
            path, content = folder / name, archive.extractfile(member).read()
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(member.mode)
    return folder


def build_wheel(minor, tools, source, prefix, repair):
    """Compiles the extension modules of the unpacked sources; returns the repaired wheel."""
    raw = WORK / f"raw-3.{minor}"
    shutil.rmtree(raw, ignore_errors=True)
    before = set(DIST.glob("*.whl"))
    path = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"
    settings = {
        "cmake.define.TILEWRIGHT_INSTALLED": "ON",
        "build-dir": WORK / f"cmake-3.{minor}",
    }
    run(
        *(tools, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", raw),
        *(f"--config-settings={name}={value}" for name, value in settings.items()),
        source,
        env=os.environ | {"CMAKE_PREFIX_PATH": str(prefix), "PATH": path},
    )
    wheel = next(raw.glob("*.whl"))
    path = f"{repair.parent}{os.pathsep}{os.environ['PATH']}"
    run(
        *(repair, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", DIST, wheel),
        env=os.environ | {"PATH": path},
    )
    return (set(DIST.glob("*.whl")) - before).pop()


def build_from_sdist(python, sdist):
    """What `pip install` of the source distribution does: compiles all in a new environment."""
    folder = WORK / "from-sdist"
    start = time.monotonic()
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sdist)
    say(f"the source distribution alone becomes a wheel in {time.monotonic() - start:.0f} s")


def check_pack(wheel, prefix):
    """Checks that the wheel has the compiled kernels if the installation does; returns a note."""
    held = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(PACK)]
    if not list(prefix.glob(f"lib*/**/{PACK}")):
        return f"NOT CHECKED: no {PACK}, since {prefix} has none (build tilewright_kernels)"
    assert held, f"{wheel.name} lacks {PACK}, which {prefix} has"
    return f"{PACK} is in it"


def test_wheel(wheel, minor, python, with_jax):
    """Installs and uses the wheel with nothing on PATH but the fresh environment."""
    folder = WORK / f"test-3.{minor}"
    fresh = environment(folder, python, "numpy>=1.24")
    bare = {
        name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH")
    }
    bare |= {"PATH": str(fresh.parent), "TILEWRIGHT_CACHE_DIR": str(folder / "cache")}

    def quiet(*command):
        return run(*command, env=bare, cwd=folder, stdout=subprocess.PIPE, text=True).stdout

    start = time.monotonic()
    quiet(fresh, "-m", "pip", "install", "--quiet", wheel)
    seconds = time.monotonic() - start
    quiet(fresh, "-c", NUMPY_DEMO)
    assert "cpu" in quiet("tilewright", "doctor").lower()
    quiet("tilewright", "mask", "causal & sliding_window(8)", "--q-len", "32", "--kv-len", "32")
    assert "__global__" in quiet(fresh, "-m", "tilewright", "dump", "softmax", "--to", "cuda")
    consumer = "left out"
    if shutil.which("cmake") and shutil.which(os.environ.get("CXX", "g++")):
        package = quiet(fresh, "-m", "tilewright", "--cmake-dir").strip()
        build = folder / "consumer"
        output = {"stdout": subprocess.DEVNULL}
        run(
            "cmake",
            "-S",
            ROOT / "tests/consumer",
            "-B",
            build,
            f"-Dtilewright_DIR={package}",
            **output,
        )
        run("cmake", "--build", build, **output)
        run(build / "consumer", **output)
        consumer = "passed"
    jax = "JAX left out, as asked for"
    if minor < FIRST_WITH_JAX:
        quiet(fresh, "-c", JAX_REFUSAL)
        jax = "JAX refused, which needs Python 3.11"
    elif with_jax:
        quiet(fresh, "-m", "pip", "install", "--quiet", f"{wheel}[jax]")
        jax = quiet(fresh, "-c", JAX_DEMO).strip()
    # The extra's NVRTC is found in the environment, without a toolkit or a GPU.
    quiet(fresh, "-m", "pip", "install", "--quiet", f"{wheel}[cuda]")
    assert ".entry kernel_softmax" in quiet("tilewright", "dump", "softmax", "--to", "ptx")
    say(
        f"3.{minor}: {wheel.name} ({wheel.stat().st_size / 2**20:.1f} MiB) installs in {seconds:.1f} s;"
        f" NumPy, command line and doctor passed; find_package {consumer}; {jax}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prefix", type=pathlib.Path)
    parser.add_argument(
        "--python", action="append", help="Pythons to build for, instead of a search"
    )
    parser.add_argument("--no-jax", action="store_true", help="do not install JAX to test with")
    parser.add_argument("--from-sdist", action="store_true", help="compile the library of it too")
    given = parser.parse_args()
    pythons = {minor_of(p): p for p in given.python} if given.python else find_pythons()
    if None in pythons:
        parser.error(f"{pythons[None]} is no CPython with its headers")
    if not pythons:
        parser.error("no Python 3.10 or newer with its headers was found")

    shutil.rmtree(DIST, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    newest = max(pythons)
    repair = build_tools(newest, pythons[newest])
    sdist = build_sdist(repair)
    source = unpacked(sdist)
    say(f"{sdist.name} ({sdist.stat().st_size / 2**20:.1f} MiB)")

    missing = [f"3.{minor}" for minor in (10, 11) if minor not in pythons]
    stable = [minor for minor in sorted(pythons) if minor >= STABLE]
    if not stable:
        missing.append("3.12 or later")
    for minor in [minor for minor in sorted(pythons) if minor < STABLE] + stable[:1]:
        tools = build_tools(minor, pythons[minor])
        prefix = given.prefix.resolve()
        wheel = build_wheel(minor, tools, source, prefix, repair)
        say(f"{wheel.name}: {check_pack(wheel, prefix)}")
        for user in stable if minor >= STABLE else [minor]:
            test_wheel(wheel, user, pythons[user], not given.no_jax)
    if given.from_sdist:
        build_from_sdist(repair, sdist)
    if missing:
        say(f"no wheel for Python {', '.join(missing)}: not found on this machine")


if __name__ == "__main__":
    sys.exit(main())
