"""Sizes of a model's KV, for people and as one object for programs."""

from collections.abc import Iterator

from kvd.sizing.sizes import Case, Sizes, Wish
from kvd.types import Dtype, PlaneClass
from kvd.units import human

_BOUND = "bound"


def as_object(model: str, wish: Wish, sizes: Sizes) -> dict:
    """Return what `--json` prints; its fields stand in `size`."""
    shape = wish.shape
    return {
        "model": model.lower(),
        "source": shape.source,
        "layers": shape.layers,
        "kv_heads": shape.heads,
        "width": shape.width,
        "dtype": shape.dtype.name.lower(),
        "latent": shape.latent,
        "chunk_tokens": wish.chunk_tokens,
        "values_per_token": sizes.grid.values_per_token(),
        "raw_bytes_per_token": sizes.grid.bytes_per_token(),
        "coded": sizes.is_coded,
        "cases": {case.name: _case(wish, sizes, case) for case in sizes.cases},
        "fits": [{name: getattr(fit, name) for name in fit.__slots__} for fit in sizes.fits],
    }


def _case(wish: Wish, sizes: Sizes, case: Case) -> dict:
    strips = zip(PlaneClass, case.strips, strict=True)
    return {
        "exact_bits": None if case.name == _BOUND else case.exact_bits,
        "chunk_bytes": case.chunk_bytes,
        "bytes_per_token": case.chunk_bytes / wish.chunk_tokens,
        "bits_per_value": _bits(wish, sizes, case.chunk_bytes),
        "strips": {plane_class.name.lower(): strip for plane_class, strip in strips},
    }


def _bits(wish: Wish, sizes: Sizes, chunk_bytes: int) -> float:
    return 8 * chunk_bytes / (wish.chunk_tokens * sizes.grid.values_per_token())


def as_lines(model: str, wish: Wish, sizes: Sizes) -> Iterator[str]:
    shape = wish.shape
    heads = "one latent" if shape.latent else f"{shape.heads} KV heads"
    name = f"{model.lower()}: " if model else ""
    source = f" ({shape.source})" if shape.source else ""
    yield (
        f"{name}{shape.layers} layers, {heads} of width {shape.width}, "
        f"{shape.dtype.name.lower()}{source}"
    )
    raw = sizes.grid.bytes_per_token()
    chunk = human(raw * wish.chunk_tokens)
    yield f"raw: {raw:,} bytes a token, {chunk} a chunk of {wish.chunk_tokens} tokens"
    if not sizes.is_coded:
        yield "this dtype has no code: all of it is kept as it is, in the anchor"
    yield f"\n{'class':10}" + "".join(f"{case.name:>16}" for case in sizes.cases)
    for plane_class in PlaneClass:
        cells = (_each(wish, sizes, case.strips[plane_class]) for case in sizes.cases)
        yield f"{plane_class.name.lower():10}" + "".join(f"{cell:>16}" for cell in cells)
    cells = (_each(wish, sizes, case.chunk_bytes) for case in sizes.cases)
    yield f"{'all':10}" + "".join(f"{cell:>16}" for cell in cells)
    exact = ", ".join(f"{case.exact_bits:g}" for case in sizes.cases if case.name != _BOUND)
    how = "as measured" if shape.dtype == Dtype.BF16 else "reckoned from what BF16 measured"
    yield (
        "in bytes a token and bits a value, tables and whole pages counted. Anchor and residual "
        f"are as they will be;\nleast, usual and most are {exact} bits of exact, {how}; "
        "no values pass the bound"
    )
    if sizes.fits:
        yield ""
    for fit in sizes.fits:
        more = ""
        if fit.sequences is not None:
            more = f", {fit.sequences:,} sequences of {wish.sequence_tokens:,}"
        size = f"{fit.tier} {human(fit.size_bytes)}"
        yield f"{size:16} {fit.case:6} {fit.tokens:>14,} tokens ({fit.chunks:,} chunks){more}"


def _each(wish: Wish, sizes: Sizes, strip_bytes: int) -> str:
    bits = _bits(wish, sizes, strip_bytes)
    return f"{strip_bytes / wish.chunk_tokens:,.0f} {bits:5.2f}"
