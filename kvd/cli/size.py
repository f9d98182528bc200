"""`kvd-admin size`: bytes of a model's KV as kvd keeps it, and how much of it fits."""

import argparse
import json
from dataclasses import replace
from difflib import get_close_matches

from kvd.cli.size_flags import DTYPES
from kvd.cli.size_report import as_lines, as_object
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB, Limits
from kvd.sizing.models import MODELS, ModelShape
from kvd.sizing.sizes import Wish, sizes_of
from kvd.units import SIZE_UNITS, parse_size

EXIT_OK = 0

_CHUNK_TOKENS_MAX = 4096
_DIRECTORIES_MAX = 255


def run(arguments: argparse.Namespace) -> int:
    """Tell, and return the exit code; raise KvdError for what cannot be."""
    if not (arguments.model or arguments.layers):
        _list(arguments)
        return EXIT_OK
    wish = _wish(arguments)
    sizes = sizes_of(wish)
    if arguments.json:
        print(json.dumps(as_object(arguments.model, wish, sizes)))
    else:
        print("\n".join(as_lines(arguments.model, wish, sizes)))
    return EXIT_OK


def _list(arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps({"models": {name: shape.source for name, shape in MODELS.items()}}))
        return
    for name, shape in MODELS.items():
        heads = "one latent" if shape.latent else f"{shape.heads} KV heads"
        print(f"{name:20} {shape.layers:>3} layers, {heads} of width {shape.width}")


def _wish(arguments: argparse.Namespace) -> Wish:
    if arguments.tokens and arguments.tokens < arguments.chunk_tokens:
        raise _refuse("--tokens", arguments.tokens, f"{arguments.chunk_tokens} (a chunk) and more")
    _check("--tokens", arguments.tokens, 0, 1 << 40)
    _check("--chunk-tokens", arguments.chunk_tokens, 1, _CHUNK_TOKENS_MAX)
    _check("--data-directories", arguments.data_directories, 1, _DIRECTORIES_MAX)
    limits = Limits()
    dram, ssd = (_size(name, getattr(arguments, name)) for name in ("dram", "ssd"))
    # As the core divides dram: at least four slabs beside a disk tier.
    slab_bytes = min(limits.slab_bytes, dram // (4 if ssd else 1)) or limits.slab_bytes
    return Wish(
        _shape(arguments), arguments.chunk_tokens, slab_bytes, dram, ssd,
        arguments.data_directories, arguments.tokens,
    )  # fmt: skip


def _size(name: str, text: str) -> int:
    size_bytes = parse_size(text) if text else 0
    if size_bytes is None or (text and size_bytes < MIB):
        units = " ".join(filter(None, SIZE_UNITS))
        raise _refuse(f"--{name}", text, f"1MiB and more, with one of the units {units}")
    return size_bytes


def _shape(arguments: argparse.Namespace) -> ModelShape:
    name = arguments.model.lower()
    if name and name not in MODELS:
        near = get_close_matches(name, MODELS, 3) or sorted(MODELS)[:3]
        raise _refuse(
            "MODEL", arguments.model, f"for example {', '.join(near)}; `kvd-admin size` lists"
        )
    shape = MODELS[name] if name else ModelShape(0, 0, 0)
    for flag, value in (("layers", "layers"), ("kv_heads", "heads"), ("width", "width")):
        if getattr(arguments, flag):
            shape = replace(shape, **{value: getattr(arguments, flag)}, source="")
    if arguments.latent_width:
        if arguments.kv_heads or arguments.width:
            raise _refuse("--latent-width", arguments.latent_width, "without --kv-heads, --width")
        shape = replace(shape, heads=1, width=arguments.latent_width, latent=True, source="")
    if arguments.dtype:
        shape = replace(shape, dtype=DTYPES[arguments.dtype])
    if not (shape.heads and shape.width):
        needed = "with --kv-heads and --width, or --latent-width"
        raise _refuse("--layers", arguments.layers, needed)
    return shape


def _check(flag: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _refuse(flag, value, f"{least} to {most}")


def _refuse(name: str, value: object, allowed: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, f"{name} is {value!r}; allowed is {allowed}")
