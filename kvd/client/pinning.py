"""Pins mapped slabs for the GPU, when there is one: then copies from them need no bounce buffer.

Imports cupy on the first use only, and does without it; whatever the driver refuses stays as it is.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

# Of cudaHostRegister: for all contexts, and memory that is mapped for reading only.
_PORTABLE, _READ_ONLY = 1, 8

Unpin = Callable[[], None]


@lru_cache(maxsize=1)
def _runtime() -> Any | None:
    """Return cupy's CUDA runtime when a device answers, else None."""
    if importlib.util.find_spec("cupy") is None:
        return None
    runtime = importlib.import_module("cupy").cuda.runtime
    try:
        return runtime if runtime.getDeviceCount() > 0 else None
    except runtime.CUDARuntimeError:  # No driver, or one too old.
        return None


def pin(address: int, size: int, *, writable: bool) -> Unpin | None:
    """Pin memory; return what unpins it before it is unmapped, or None when it cannot be pinned."""
    runtime = _runtime()
    if runtime is None:
        return None
    try:
        runtime.hostRegister(address, size, _PORTABLE if writable else _PORTABLE | _READ_ONLY)
    except runtime.CUDARuntimeError:
        return None
    return lambda: runtime.hostUnregister(address)
