"""Who is what: keyspace digests, chain digests, chunk keys. Never Python's hash, never pickled.

Both sides derive keys from fields; the daemon trusts no key that a client computed.
"""

import hashlib
import struct
from dataclasses import dataclass, fields

import numpy as np

from kvd.errors import ErrorKind, KvdError
from kvd.limits import CELL_BYTES_MAX, CHUNK_KEY_BYTES, CHUNK_TOKENS_DEFAULT, DIGEST_BYTES
from kvd.shape import BlockShape, validate_shape

CHAIN_START = bytes(DIGEST_BYTES)
_CHUNK_TOKENS_MAX = 65_536
KVD_CHAIN = "kvd.chain.v0"  # Chain digests made by `chain_digests`, as against an engine's own.


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Everything besides the tokens that changes the KV. The tenant is added by the daemon."""

    model: str
    weight_revision: str
    shape: BlockShape
    tokenizer: str = ""
    chain: str = KVD_CHAIN
    layout: str = "kvd"
    rope: str = ""
    adapter: str = ""
    chunk_tokens: int = CHUNK_TOKENS_DEFAULT


def validate_keyspace(keyspace: Keyspace) -> None:
    """Raise INVALID for a keyspace that nothing can be stored under, naming value and bound.

    What is on disk keeps to it, too (docs/format.md, 5.4 and 6).
    """
    validate_shape(keyspace.shape)
    for name in ("model", "weight_revision", "chain", "layout"):
        if not getattr(keyspace, name):
            raise KvdError(
                ErrorKind.INVALID, f"keyspace field {name} is empty; it is part of the identity"
            )
    if not 1 <= keyspace.chunk_tokens <= _CHUNK_TOKENS_MAX:
        raise KvdError(
            ErrorKind.INVALID,
            f"chunk_tokens is {keyspace.chunk_tokens}, allowed are 1 to {_CHUNK_TOKENS_MAX}",
        )
    for group in keyspace.shape.groups:
        for tensor in group.tensors:
            size = keyspace.chunk_tokens * tensor.width * tensor.dtype.size_bytes
            if size > CELL_BYTES_MAX:
                raise KvdError(
                    ErrorKind.INVALID,
                    f"a cell of {tensor.role.name} has {size} bytes, the limit is "
                    f"{CELL_BYTES_MAX}: use smaller chunks (chunk_tokens)",
                )


def _field(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _shape_bytes(shape: BlockShape) -> bytes:
    words = [len(shape.groups)]
    for group in shape.groups:
        words += [group.layers, int(group.hit_rule), group.trailing_chunks, len(group.tensors)]
        for tensor in group.tensors:
            words += [int(tensor.role), tensor.heads, tensor.width, int(tensor.dtype)]
    return struct.pack(f"<{len(words)}I", *words)


def keyspace_bytes(keyspace: Keyspace, tenant: str) -> bytes:
    """Return tenant and every field, each with its length, in field order: what is digested."""
    parts = [_field(tenant.encode())]
    for field in fields(keyspace):
        value = getattr(keyspace, field.name)
        match value:
            case BlockShape():
                data = _shape_bytes(value)
            case str():
                data = value.encode()
            case int():
                data = struct.pack("<I", value)
        parts.append(_field(data))
    return b"".join(parts)


def digest_of_keyspace_bytes(data: bytes) -> bytes:
    """Return BLAKE2b-256 of what `keyspace_bytes` made."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=b"kvd.keyspace.v0").digest()


def keyspace_digest(keyspace: Keyspace, tenant: str) -> bytes:
    """Return BLAKE2b-256 over tenant and every field, each with its length, in field order."""
    return digest_of_keyspace_bytes(keyspace_bytes(keyspace, tenant))


def chain_digests(
    tokens: np.ndarray | list[int],
    chunk_tokens: int,
    extras: bytes = b"",
    after: bytes = CHAIN_START,
) -> bytes:
    """Return the chain digest of each whole chunk of `tokens`, 32 bytes each, joined.

    Digest i covers all tokens up to the end of chunk i: BLAKE2b-256 over (previous digest, the
    chunk's tokens as little-endian u32, extras). `extras` is whatever else changes the KV of
    these tokens (image hashes, a salt). A tail shorter than a chunk has no digest. Raise INVALID
    for what is no token id: two of them must never give one digest.
    """
    assert len(after) == DIGEST_BYTES and chunk_tokens > 0
    ids = np.asarray(tokens, np.int64 if not len(tokens) else None)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise KvdError(ErrorKind.INVALID, f"tokens are {ids.ndim}-d {ids.dtype}, not a list of ids")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= 1 << 32):
        raise KvdError(
            ErrorKind.INVALID,
            f"token ids run from {ids.min()} to {ids.max()}, allowed are 0 to 4294967295",
        )
    data = np.ascontiguousarray(ids, dtype="<u4").tobytes()
    step, digest, out = 4 * chunk_tokens, after, []
    for begin in range(0, len(data) - step + 1, step):
        state = hashlib.blake2b(digest, digest_size=DIGEST_BYTES, person=b"kvd.chain.v0")
        state.update(data[begin : begin + step])
        state.update(extras)
        digest = state.digest()
        out.append(digest)
    return b"".join(out)


def chunk_key(keyspace: bytes, chain: bytes) -> bytes:
    """Return BLAKE2b-128 of (keyspace digest, chain digest)."""
    assert len(keyspace) == len(chain) == DIGEST_BYTES
    return hashlib.blake2b(keyspace + chain, digest_size=CHUNK_KEY_BYTES).digest()
