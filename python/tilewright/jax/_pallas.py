"""Pallas kernels as tile programs: our pallas_call, and a lowering for JAX's own."""

import functools
import inspect
from dataclasses import dataclass, is_dataclass

import jax
from jax._src.pallas import pallas_call as _jax_pallas
from jax.experimental import pallas as pl
from jax.interpreters import mlir

from . import _ffi, _primitive, _targets
from ._jaxpr.kernels.kernel import Call, tile_program

_INTERPRET = ("jax", "checked", "native")


@dataclass(frozen=True)
class _Ours:
    """compiler_params that mark a call as ours, whether or not `install_pallas` was called."""

    params: object
    checked: bool

    @property
    def num_warps(self):
        return getattr(self.params, "num_warps", None)

    @property
    def num_stages(self):
        return getattr(self.params, "num_stages", None)


def pallas_call(kernel, out_shape, *, interpret=False, compiler_params=None, **options):
    """`jax.experimental.pallas.pallas_call`, run as a tile program: natively on the CPU and, on
    CUDA, without Mosaic or Triton.

    Takes the arguments of JAX's. `interpret=True` runs in the checked mode: bounds, undefined
    values, races between programs; slow, on the CPU. `num_warps` and `num_stages` of any
    compiler_params are hints on CUDA; `dimension_semantics` says which axes of the grid may run in
    parallel (see docs/reference/pallas.md). What has no counterpart is refused by name, with your
    source line, when the call is lowered.
    """
    if not callable(kernel):
        raise TypeError(
            f"[pallas_call] expected kernel to be a function of Refs but got {kernel!r}"
        )
    if isinstance(compiler_params, _Ours):
        compiler_params = compiler_params.params
    if compiler_params is not None and not is_dataclass(compiler_params):
        raise TypeError(
            "[pallas_call] expected compiler_params to be a CompilerParams of Pallas but got "
            f"{type(compiler_params).__name__}"
        )
    ours = _Ours(compiler_params, bool(interpret))
    return pl.pallas_call(kernel, out_shape, interpret=False, compiler_params=ours, **options)


pallas_call.__signature__ = inspect.signature(pl.pallas_call)  # type: ignore[attr-defined]


_installed = {}  # platform -> how interpret=True runs


class install_pallas:  # noqa: N801  (used as a function)
    """Registers Tilewright as the lowering of `pl.pallas_call` on the CPU and, with `cuda=True`, on
    CUDA, so that kernels of libraries run unchanged.

    A plain call installs it permanently, and once is enough; as a context manager (`with
    install_pallas():`) it restores the previous state at the end. `interpret` says how calls with
    `interpret=True` run: "jax" leaves them to JAX's interpreter, "checked" runs them in the checked
    mode, "native" like all others.
    """

    def __init__(self, cuda=False, *, interpret="jax"):
        if interpret not in _INTERPRET:
            raise ValueError(
                f"[install_pallas] expected interpret to be one of {_INTERPRET} but got "
                f"{interpret!r}"
            )
        self._before = dict(_installed)
        _installed["cpu"] = interpret
        if cuda:
            _installed["cuda"] = interpret

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        _installed.clear()
        _installed.update(self._before)


def _lowering(platform, context, *operands, interpret, compiler_params, **params):
    """The lowering of pallas_call_p on one platform: ours where requested, else JAX's."""
    if isinstance(compiler_params, _Ours):
        return _lower(platform, context, operands, compiler_params.params,
                      compiler_params.checked, **params)  # fmt: skip
    how = _installed.get(platform)
    if how is None or (interpret and how == "jax"):
        return _jax_pallas._pallas_call_lowering(
            context, *operands, interpret=interpret, compiler_params=compiler_params, **params
        )
    checked = bool(interpret) and how == "checked"
    return _lower(platform, context, operands, compiler_params, checked, **params)


def _lower(platform, context, operands, compiler_params, checked, *, jaxpr, grid_mapping,
           input_output_aliases, name=None, debug=False, **_):  # fmt: skip
    name = name or _name_of(jaxpr)
    for bound in context.avals_in[: grid_mapping.num_dynamic_grid_bounds]:
        if bound.shape != () or bound.dtype != "int32":
            raise NotImplementedError(
                f"[pallas] kernel `{name}`: expected the bounds of the grid to be int32 scalars "
                f"but got {bound.dtype}{list(bound.shape)}"
            )
    if any(isinstance(extent, int) and extent < 0 for extent in grid_mapping.grid):
        raise ValueError(
            f"[pallas] kernel `{name}`: expected grid extents of at least 0 but got "
            f"{tuple(grid_mapping.grid)}"
        )
    call = Call(jaxpr, grid_mapping, tuple(input_output_aliases), compiler_params, name, platform)
    text, _ = tile_program(call, checked)
    if debug:
        print(text)
    return lower_program(context, operands, text, dict(input_output_aliases), checked,
                         first=grid_mapping.num_dynamic_grid_bounds)  # fmt: skip


def lower_program(context, operands, text, aliases, checked=False, first=0):
    """The custom call of a tile program. aliases: {input: output}, inputs counted from operand
    `first`."""
    shared = set(aliases.values())
    aliased = "".join("01"[o in shared] for o in range(len(context.avals_out)))
    if "cpu" in context.module_context.platforms:
        _ffi.compile_program(text, checked, False, len(operands), aliased)
    rule = jax.ffi.ffi_lowering(
        "tilewright_program", operand_output_aliases={i + first: o for i, o in aliases.items()}
    )
    given = {"ir": text, "checked": checked, "profile": False, "aliased": aliased}
    attributes = _targets.attributes(given)
    return rule(context, *operands, **attributes)


def _name_of(jaxpr):
    info = getattr(jaxpr, "debug_info", None)
    return getattr(info, "func_name", None) or "pallas_kernel"


for _platform in _primitive.PLATFORMS:
    mlir.register_lowering(
        pl.pallas_call_p, functools.partial(_lowering, _platform), platform=_platform
    )
