"""The arguments of attention, written once for all front ends.

Each front end still spells these parameters out, for readers and for tools that do not run code;
tests/python/test_signatures.py compares them with the fields here.
"""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from ._arrays import Array
from ._mods import ModLike


class AuxRequest(NamedTuple):
    """Which auxiliary results `flex_attention` returns."""

    lse: bool = False
    max_scores: bool = False


@dataclasses.dataclass(frozen=True)
class AttentionArguments:
    """The arguments of `flex_attention`; its docstring says what they mean."""

    query: Array
    key: Array
    value: Array
    score_mod: ModLike | None = None
    block_mask: Any = None
    scale: float | None = None
    enable_gqa: bool = False
    return_lse: bool = False
    kernel_options: Mapping[str, Any] | None = None
    _: dataclasses.KW_ONLY
    return_aux: AuxRequest | None = None
    mask_mod: ModLike | None = None
    causal: bool = False
    window: tuple[int, int] | None = None
    segment_ids: Array | None = None
    kv_segment_ids: Array | None = None
    cu_seqlens: Array | None = None
    kv_cu_seqlens: Array | None = None
    kv_lengths: Array | None = None
    sinks: Array | None = None
    dropout: float = 0.0
    seed: int = 0
    layout: str = "bhsd"
    deterministic: bool = True
    device: str | None = None

    def check(self, op: str) -> None:
        """Raises ValueError or TypeError for arguments that no front end accepts."""
        for name in ("query", "key", "value"):
            if getattr(self, name) is None:
                raise TypeError(f"[{op}] expected {name} to be an array but got None")
        if self.layout not in ("bhsd", "bshd"):
            raise ValueError(f'[{op}] expected layout "bhsd" or "bshd" but got {self.layout!r}')
        if self.return_aux is not None and self.return_lse:
            raise ValueError(f"[{op}] expected return_lse or return_aux but got both")
        if self.return_aux is not None and not isinstance(self.return_aux, AuxRequest):
            raise TypeError(
                f"[{op}] expected return_aux to be an AuxRequest but got "
                f"{type(self.return_aux).__name__}"
            )
        if self.kernel_options is not None and not isinstance(self.kernel_options, Mapping):
            raise TypeError(
                f"[{op}] expected kernel_options to be a dict but got "
                f"{type(self.kernel_options).__name__}"
            )

    def window_bounds(self, op: str) -> tuple[int, int]:
        """(left, right), -1 where unbounded."""
        if self.window is None:
            return -1, -1
        most = 1 << 62  # longer than any sequence
        try:
            left, right = (min(max(operator.index(x), -most), most) for x in self.window)
        except (TypeError, ValueError):
            raise TypeError(
                f"[{op}] expected window to be two integers (left, right) but got {self.window!r}"
            ) from None
        return left, right
