"""Keyspaces as the catalog holds them: the very bytes that their digest covers, and back.

The digest, which is their key, is thereby their checksum.
"""

import struct
from collections.abc import Iterator
from dataclasses import fields

from kvd.errors import KvdError
from kvd.format.page import Refused, damaged
from kvd.identity import Keyspace, digest_of_keyspace_bytes, keyspace_bytes, validate_keyspace
from kvd.limits import MIB
from kvd.shape import BlockShape, HitRule, KvGroup, TensorShape
from kvd.types import Dtype, Role

KEYSPACE_BYTES_MAX = 8 * MIB  # One message cannot declare a larger one.
_U32 = struct.Struct("<I")


class _Short(Exception):
    """The bytes end inside a field."""


def pack_keyspace(keyspace: Keyspace, tenant: str) -> tuple[bytes, bytes]:
    """Return digest and bytes of a keyspace: what the digest covers (docs/format.md, 6 and 15)."""
    data = keyspace_bytes(keyspace, tenant)
    assert len(data) <= KEYSPACE_BYTES_MAX, len(data)
    return digest_of_keyspace_bytes(data), data


def parse_keyspace(digest: bytes, data: bytes) -> tuple[Keyspace, str] | Refused:
    """Return keyspace and tenant of what `pack_keyspace` made, or why there are none."""
    if len(data) > KEYSPACE_BYTES_MAX:
        return damaged(f"a keyspace of {len(data)} bytes cannot be")
    if digest_of_keyspace_bytes(data) != digest:
        return damaged("a keyspace does not fit its digest")
    try:
        tenant, *texts = _split(data, 1 + len(fields(Keyspace)))
        values = {
            field.name: _read_field(field.type, text)
            for field, text in zip(fields(Keyspace), texts, strict=True)
        }
        keyspace, name = Keyspace(**values), tenant.decode()
        validate_keyspace(keyspace)
    except (_Short, ValueError, struct.error) as error:
        return damaged(f"a keyspace cannot be read: {error}")
    except KvdError as error:
        return damaged(f"a keyspace that cannot be: {error.message}")
    if keyspace_bytes(keyspace, name) != data:
        return damaged("a keyspace is not written in its one form")
    return keyspace, name


def _split(data: bytes, count: int) -> list[bytes]:
    """Return exactly `count` fields; never looks behind the end that a length claims."""
    found, at = [], 0
    for _ in range(count):
        if at + _U32.size > len(data):
            raise _Short("it ends inside a length")
        (size,) = _U32.unpack_from(data, at)
        at += _U32.size
        if size > len(data) - at:
            raise _Short(f"a field of {size} bytes passes its end")
        found.append(data[at : at + size])
        at += size
    if at != len(data):
        raise _Short(f"{len(data) - at} bytes follow its last field")
    return found


def _read_field(kind: object, data: bytes) -> str | int | BlockShape:
    if kind is BlockShape:
        return _read_shape(data)
    return data.decode() if kind is str else _U32.unpack(data)[0]


def _read_shape(data: bytes) -> BlockShape:
    if len(data) % _U32.size:
        raise _Short("its shape is not whole words")
    words = iter(struct.unpack(f"<{len(data) // _U32.size}I", data))
    groups = []
    for _ in range(_take(words)):
        layers, rule, trailing = _take(words), HitRule(_take(words)), _take(words)
        tensors = tuple(
            TensorShape(Role(_take(words)), _take(words), _take(words), Dtype(_take(words)))
            for _ in range(_take(words))
        )
        groups.append(KvGroup(layers, tensors, rule, trailing))
    if next(words, None) is not None:
        raise _Short("words follow its shape")
    return BlockShape(tuple(groups))


def _take(words: Iterator[int]) -> int:
    word = next(words, None)
    if word is None:
        raise _Short("its shape ends early")
    return word
