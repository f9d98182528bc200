"""The one table of backends, and which of them is in use; both give the same bytes.

The choice is made once per process: native when its library loads, otherwise the reference, with
one loud warning that says what is missing and what it costs.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvd.codec import native, reference_batch


@dataclass(frozen=True, slots=True)
class Backend:
    """Kernels over batches whose columns were checked by `batch`."""

    name: str
    encode: Callable
    decode: Callable
    checksum: Callable


REFERENCE = Backend(
    "reference", reference_batch.encode, reference_batch.decode, reference_batch.checksum
)
_in_use: list[Backend] = []


def _native(name: str, kernels: native.Kernels) -> Backend:
    return Backend(
        name,
        partial(native.encode, kernels),
        partial(native.decode, kernels),
        partial(native.checksum, kernels),
    )


def available() -> tuple[str, ...]:
    """Return the names that `use_backend` takes here, the best one first."""
    if native.load().library is None:
        return (REFERENCE.name,)
    return ("native", "portable", REFERENCE.name)


def use_backend(name: str) -> None:
    """Take one backend from now on: native, portable (without wide instructions) or reference."""
    assert name in available(), (name, available(), native.load().problem)
    if name == REFERENCE.name:
        _in_use[:] = [REFERENCE]
        return
    library = native.load().library
    assert library is not None
    path = native.BEST if name == "native" else native.PORTABLE
    _in_use[:] = [_native(name, native.Kernels(library, path))]


def chosen() -> Backend:
    """Return the backend in use, choosing it at the first call."""
    if not _in_use:
        name = available()[0]
        if name == REFERENCE.name:
            warnings.warn(
                f"kvd: the native kernels are missing ({native.load().problem}); encoding, "
                "decoding and checking KV runs in numpy, 50 to 500 times slower. Install a C++ "
                "compiler (g++ or clang++) and reinstall kvd.",
                RuntimeWarning,
                stacklevel=3,
            )
        use_backend(name)
    return _in_use[0]


def backend() -> str:
    """Return the name of the backend in use."""
    return chosen().name
