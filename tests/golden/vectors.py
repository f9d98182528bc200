"""The checked-in vectors: what they are made of, and how they lie in files.

`python -m tests.golden.vectors` writes accept/v0 and refuse/v0 anew; a test compares them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvd.checksum import checksum
from kvd.codec import EXACT
from kvd.identity import CHAIN_START, Keyspace, chain_digests, chunk_key, keyspace_digest
from kvd.limits import DIGEST_BYTES
from kvd.shape import BlockShape, HitRule, KvGroup, TensorShape
from kvd.types import Dtype, PlaneClass, Role
from tests.golden import accepted, refused
from tests.golden.descriptions import lane_description, profile_description, shape_description
from tests.golden.kvd_reader import Refusal, read_chunk
from tests.golden.writer import Chunk, Written

HERE = Path(__file__).parent
ACCEPT, REFUSE = "accept/v0", "refuse/v0"
READINGS = {**{str(planes): planes for planes in range(1, 9)}, "exact": EXACT}


def describe(chunk: Chunk, written: Written) -> tuple[dict, bytes]:
    """Return what a reader knows of a chunk, and the strips' bytes as the file holds them."""
    strips, joined = {}, b""
    for strip in written.strips:
        # A file has no zeros behind a strip's last byte: a reader adds them.
        text = bytes(strip.body[: strip.size]).rstrip(b"\0")
        strips[strip.plane_class.name.lower()] = {
            "begin": len(joined),
            "end": len(joined) + len(text),
            "size": strip.size,
            "root": f"{strip.root:016x}",
        }
        joined += text
    known = {
        "shape": shape_description(chunk.shape),
        "lane": lane_description(chunk.lane),
        "tokens": chunk.tokens,
        "first_chunk": chunk.first,
        "chunk_key": chunk.key.hex(),
        "generation": chunk.generation,
        "profile": chunk.profile.id,
        "strips": strips,
    }
    return known, joined


def strips_of(known: dict, joined: bytes) -> dict[str, bytes]:
    """Return the strips of a file, as long as they are."""
    return {
        name: joined[place["begin"] : place["end"]].ljust(place["size"], b"\0")
        for name, place in known["strips"].items()
    }


def read_digest(known: dict, strips: dict[str, bytes], planes: int) -> str:
    """Return the XXH3-64 of what kvd reads, or raise Refusal."""
    return f"{checksum(read_chunk(known, strips, planes, accepted.TEST_PROFILES)):016x}"


@dataclass(frozen=True, slots=True)
class Vector:
    """One entry of a manifest and its files."""

    entry: dict
    files: dict[str, bytes]


def accept_vectors() -> Iterator[Vector]:
    for name in accepted.ACCEPTED:
        made = accepted.make(name)
        known, joined = describe(made.chunk, made.written)
        strips = strips_of(known, joined)
        values = b"".join(cell.tobytes() for cell in made.chunk.cells)
        assert read_chunk(known, strips, EXACT, accepted.TEST_PROFILES) == values, name
        readings = {text: read_digest(known, strips, k) for text, k in READINGS.items()}
        entry = {"name": name, "covers": made.covers, **known, "readings": readings}
        yield Vector(entry, {f"{name}.strips.bin": joined, f"{name}.values.bin": values})


def refuse_vectors() -> Iterator[Vector]:
    for name in refused.REFUSED:
        made = refused.make(name)
        known, joined = describe(made.chunk, made.written)
        known |= made.known
        strips = strips_of(known, joined)
        readings = {}
        for text, planes in READINGS.items():
            try:
                readings[text] = read_digest(known, strips, planes)
            except Refusal:
                continue
        entry = {"name": name, "rule": made.rule, **known, "readings": readings}
        yield Vector(entry, {f"{name}.strips.bin": joined})


def identities() -> list[dict]:
    """Return keyspaces with their digests, chains and keys."""
    small = BlockShape.of_attention(1, 1, 8, Dtype.BF16)
    tensors = (TensorShape(Role.LATENT, 1, 576, Dtype.FP8_E4M3),)
    state = (TensorShape(Role.STATE, 4, 1 << 16, Dtype.FP32), TensorShape(Role.V, 2, 3, Dtype.INT8))
    hybrid = BlockShape(
        (
            KvGroup(61, tensors),
            KvGroup(2, state, HitRule.TRAILING, 7),
            KvGroup(1, state, HitRule.STATE),
        )
    )
    cases = (
        ("", Keyspace("m", "r", small, chunk_tokens=4), list(range(9)), b""),
        (
            "tenant/\u00fc",
            Keyspace(
                "modèle", "sha256:00", hybrid, "tok", rope="yarn", adapter="a", chunk_tokens=3
            ),
            [0, 1, 0xFFFFFFFF, 128000, 2, 2],
            b"\x00image",
        ),
    )
    out = []
    for tenant, keyspace, tokens, extras in cases:
        digest = keyspace_digest(keyspace, tenant)
        chain = chain_digests(np.array(tokens), keyspace.chunk_tokens, extras)
        parts = [chain[at : at + DIGEST_BYTES] for at in range(0, len(chain), DIGEST_BYTES)]
        fields = {name: getattr(keyspace, name) for name in Keyspace.__slots__}
        fields["shape"] = shape_description(keyspace.shape)
        out.append(
            {
                "tenant": tenant,
                "keyspace": fields,
                "keyspace_digest": digest.hex(),
                "tokens": tokens,
                "extras": extras.hex(),
                "chain_start": CHAIN_START.hex(),
                "chain": [part.hex() for part in parts],
                "chunk_keys": [chunk_key(digest, part).hex() for part in parts],
            }
        )
    return out


def to_json(manifest: dict) -> bytes:
    """Return a manifest with one line for each vector, so that a change shows where it is."""
    lines = []
    for key, value in manifest.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(entry) for entry in value) + "\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _directory(vectors: Iterator[Vector], **more: object) -> dict[str, bytes]:
    made = list(vectors)
    files = {name: data for vector in made for name, data in vector.files.items()}
    manifest = {"format": 0, **more, "vectors": [vector.entry for vector in made]}
    return {**files, "manifest.json": to_json(manifest)}


def all_files() -> dict[str, bytes]:
    """Return every checked-in file, by its path beside this module."""
    profiles = {
        str(number): profile_description(profile)
        for number, profile in accepted.TEST_PROFILES.items()
    }
    files = {}
    for path, directory in (
        (ACCEPT, _directory(accept_vectors(), profiles=profiles, identities=identities())),
        (REFUSE, _directory(refuse_vectors(), profiles=profiles)),
    ):
        files |= {f"{path}/{name}": data for name, data in directory.items()}
    return files


def main() -> None:
    for path in (ACCEPT, REFUSE):
        (HERE / path).mkdir(parents=True, exist_ok=True)
        for old in (HERE / path).iterdir():
            old.unlink()
    files = all_files()
    for name, data in files.items():
        (HERE / name).write_bytes(data)
    print(f"{len(files)} files, {sum(map(len, files.values()))} bytes")


assert [c.name.lower() for c in PlaneClass] == ["anchor", "residual", "exact"]

if __name__ == "__main__":
    main()
