"""CUDA handlers under JAX's CPU client, on the stand-in GPU of tests/cuda/fake. Run as a program,
it does all checks of cuda_calls.py; LD_LIBRARY_PATH has to find the stand-in driver.
"""

import ctypes
import pathlib
import subprocess
import tempfile

import jax

FOLDER = pathlib.Path(__file__).parents[3] / "build" / "tests" / "cuda" / "fake"


def install():
    """Registers CUDA handlers as the CPU's; returns the library that runs them."""
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "fake_gpu.so"
        source = pathlib.Path(__file__).with_name("fake_gpu.cpp")
        command = ["c++", "-std=c++17", "-shared", "-fPIC", f"-I{jax.ffi.include_dir()}"]
        subprocess.run([*command, str(source), "-ldl", "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.fake_gpu_handler.restype = ctypes.c_void_p
    loaded.fake_gpu_handler.argtypes = [ctypes.c_void_p]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    register = jax.ffi.register_ffi_target

    def replaced(name, handler, platform="cpu", **options):
        if platform == "CUDA":
            runner = loaded.fake_gpu_handler(pointer(handler, None))
            register(name, capsule(runner, None, None), platform="cpu", **options)

    jax.ffi.register_ffi_target = replaced
    return loaded


def main():
    library = install()
    import cuda_calls  # imports tilewright.jax, whose handlers must be replaced by now

    cuda_calls.STAND_IN = library
    for name, check in cuda_calls.CHECKS.items():
        check()
        print(name, flush=True)
    # Again as a process with a GPU would trace them: known values become part of the call.
    jax.default_backend = lambda: "gpu"
    for name in ("masks_known_and_traced", "seeds_known_and_traced", "packed_sequences"):
        cuda_calls.CHECKS[f"check_{name}"]()
    print("known arrays", flush=True)


if __name__ == "__main__":
    main()
