"""Protocol buffers as their bytes are: fields of messages, and what a peer may make of them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
DEEP = 150  # Beyond the 100 messages in each other that the library reads.
EDGES = (0, 1, 2, 127, 128, 255, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
         (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
HUGE = b"\xff\xff\xff\xff\x0f"  # A length of 4 GiB.


class _Ends(Exception):
    """The bytes are not whole fields."""


@dataclass(slots=True)
class Field:
    number: int
    kind: int
    value: bytes  # Without the length of BYTES.

    def pack(self) -> bytes:
        tag = varint(self.number << 3 | self.kind)
        return tag + (varint(len(self.value)) if self.kind == BYTES else b"") + self.value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def fields_of(data: bytes) -> list[Field] | None:
    """Return the fields of a message, or None for what is none."""
    try:
        return list(_fields(data))
    except _Ends:
        return None


def _fields(data: bytes) -> Iterator[Field]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        begin, size = at, 0
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                size = 8
            case 2:
                size, begin = _varint(data, at)
            case 5:
                size = 4
            case _:
                raise _Ends
        at = max(at, begin + size)
        if at > len(data):
            raise _Ends
        yield Field(tag >> 3, tag & 7, data[begin:at])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _Ends
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise _Ends


def mutate_message(rng: random.Random, data: bytes) -> bytes:
    """Return a message with one field changed, or one in a message inside; or no message."""
    fields = fields_of(data)
    if not fields:
        return data + _stranger(rng)
    at = rng.randrange(len(fields))
    field = fields[at]
    if field.kind == BYTES and fields_of(field.value) and rng.random() < 0.5:
        field.value = mutate_message(rng, field.value)
        return b"".join(field.pack() for field in fields)
    parts = [field.pack() for field in fields]
    parts[at] = _changed(rng, field, parts[at])
    return b"".join(parts)


def _changed(rng: random.Random, field: Field, packed: bytes) -> bytes:
    tag = field.number << 3
    match rng.randrange(9):
        case 0:
            return packed * rng.choice((0, 2, 3, 70))
        case 1:
            return varint(tag | VARINT) + varint(rng.choice(EDGES))
        case 2:  # Another kind than the field's.
            return varint(tag | rng.choice((VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32)))
        case 3:
            return varint(tag | BYTES) + HUGE + field.value
        case 4:
            return packed + _stranger(rng)
        case 5:
            return _nested(rng, field.number)
        case 6 if field.kind == BYTES:
            size = rng.choice((0, 1, 4, 12, 31, 32, 33, 64, 1025))
            return Field(field.number, BYTES, (field.value * 70)[:size]).pack()
        case 7:
            return Field(rng.choice((1, 2, 3, 15, 16, 1000)), field.kind, field.value).pack()
    return Field(field.number, field.kind, field.value[:-1] or b"\xff").pack()


def _stranger(rng: random.Random) -> bytes:
    """Return a field of a later version."""
    number = rng.choice((15, 16, 100, 19_000, (1 << 29) - 1))
    match rng.randrange(3):
        case 0:
            return varint(number << 3 | VARINT) + varint(rng.choice(EDGES))
        case 1:
            return varint(number << 3 | FIXED32) + bytes(4)
    return Field(number, BYTES, bytes(rng.choice((0, 1, 40)))).pack()


def _nested(rng: random.Random, number: int) -> bytes:
    """Return messages in each other, or groups, deeper than anything means."""
    if rng.random() < 0.5:
        return varint(number << 3 | GROUP) * DEEP + varint(number << 3 | END_GROUP) * DEEP
    value = b""
    for _ in range(DEEP):
        value = Field(number, BYTES, value).pack()
    return value
