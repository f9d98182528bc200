"""Every backend of kvd and the second decoder read the vectors alike, and refuse them alike."""

import json
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import xxhash

from kvd.codec import available, backend, use_backend
from kvd.identity import Keyspace, chain_digests, chunk_key, keyspace_digest
from kvd.types import PlaneClass
from tests.golden import accepted, kvd_reader, refused
from tests.golden.descriptions import shape_of
from tests.golden.vectors import ACCEPT, HERE, READINGS, REFUSE, all_files, strips_of
from tests.golden.writer import Chunk, encode_chunk
from tests.reference import decoder

ALL_BYTES_MAX = 300_000


@cache
def manifest(path: str) -> dict:
    return json.loads((HERE / path / "manifest.json").read_text())


@cache
def entry(path: str, name: str) -> dict:
    return next(e for e in manifest(path)["vectors"] if e["name"] == name)


@cache
def strips(path: str, name: str) -> dict[str, bytes]:
    joined = (HERE / path / f"{name}.strips.bin").read_bytes()
    return strips_of(entry(path, name), joined)


def kinds_of_rules(rule: int) -> str:
    ends = {1: "profile", 6: "table", 7: "root", 9: "sum", 21: "cell"}
    return next(kind for end, kind in ends.items() if rule <= end)


@pytest.fixture(params=available())
def each_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    before = backend()
    use_backend(request.param)
    yield
    use_backend(before)


def read_with_kvd(path: str, name: str, planes: str) -> bytes:
    return kvd_reader.read_chunk(
        entry(path, name), strips(path, name), READINGS[planes], accepted.TEST_PROFILES
    )


def read_with_reference(path: str, name: str, planes: str) -> bytes:
    known = entry(path, name)
    profiles = {int(number): profile for number, profile in manifest(path)["profiles"].items()}
    cells = decoder.read_chunk(
        known, strips(path, name), planes if planes == "exact" else int(planes), profiles
    )
    sizes = [decoder.BYTES_OF_DTYPE[tensor["dtype"]] for tensor in decoder.tensors_of_cells(known)]
    return b"".join(
        np.array(cell, f"<u{size}").tobytes() for cell, size in zip(cells, sizes, strict=True)
    )


def digest(data: bytes) -> str:
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def test_vectors_are_what_is_made_today():
    files = all_files()
    there = {
        f"{path}/{file.name}": file.read_bytes()
        for path in (ACCEPT, REFUSE)
        for file in (HERE / path).iterdir()
    }
    assert there.keys() == files.keys(), "run python -m tests.golden.vectors"
    different = [name for name, data in files.items() if there[name] != data]
    assert not different, "is a change of the format meant? python -m tests.golden.vectors"
    assert sum(map(len, there.values())) < ALL_BYTES_MAX


def test_manifests_name_every_vector():
    assert [e["name"] for e in manifest(ACCEPT)["vectors"]] == list(accepted.ACCEPTED)
    assert [e["name"] for e in manifest(REFUSE)["vectors"]] == list(refused.REFUSED)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("name", accepted.ACCEPTED)
def test_kvd_reads(name):
    for planes, expected in entry(ACCEPT, name)["readings"].items():
        assert digest(read_with_kvd(ACCEPT, name, planes)) == expected, planes
    values = (HERE / ACCEPT / f"{name}.values.bin").read_bytes()
    assert read_with_kvd(ACCEPT, name, "exact") == values


@pytest.mark.parametrize("name", accepted.ACCEPTED)
def test_reference_reads(name):
    for planes, expected in entry(ACCEPT, name)["readings"].items():
        assert digest(read_with_reference(ACCEPT, name, planes)) == expected, planes


@pytest.mark.parametrize("name", refused.REFUSED)
def test_nothing_but_what_is_spoilt_is_refused(name):
    spoils = refused.make(name).spoils
    readable = {PlaneClass.ANCHOR: 0, PlaneClass.RESIDUAL: 4, PlaneClass.EXACT: 8}[spoils]
    assert list(entry(REFUSE, name)["readings"]) == list(READINGS)[:readable]


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("name", refused.REFUSED)
def test_kvd_refuses(name):
    known = entry(REFUSE, name)
    for planes in READINGS:
        if planes in known["readings"]:
            assert digest(read_with_kvd(REFUSE, name, planes)) == known["readings"][planes]
            continue
        with pytest.raises(kvd_reader.Refusal) as refusal:
            read_with_kvd(REFUSE, name, planes)
        assert refusal.value.kind == kinds_of_rules(known["rule"])


@pytest.mark.parametrize("name", refused.REFUSED)
def test_reference_refuses(name):
    known = entry(REFUSE, name)
    for planes in READINGS:
        if planes in known["readings"]:
            assert digest(read_with_reference(REFUSE, name, planes)) == known["readings"][planes]
            continue
        with pytest.raises(decoder.Refused) as refusal:
            read_with_reference(REFUSE, name, planes)
        assert refusal.value.rule == known["rule"]


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("name", accepted.ACCEPTED)
def test_every_backend_writes_the_same_strings(name):
    chunk: Chunk = accepted.make(name).chunk
    first = encode_chunk(chunk)
    use_backend("reference")
    assert encode_chunk(chunk) == first


@pytest.mark.parametrize("case", manifest(ACCEPT)["identities"], ids=lambda case: case["tenant"])
def test_identities(case):
    fields = case["keyspace"] | {"shape": shape_of(case["keyspace"]["shape"])}
    digest_bytes = bytes.fromhex(case["keyspace_digest"])
    assert keyspace_digest(Keyspace(**fields), case["tenant"]) == digest_bytes
    assert decoder.keyspace_digest(case["tenant"], case["keyspace"]) == digest_bytes
    size, extras = fields["chunk_tokens"], bytes.fromhex(case["extras"])
    chain = chain_digests(np.array(case["tokens"]), size, extras)
    assert chain.hex() == "".join(case["chain"])
    before = bytes.fromhex(case["chain_start"])
    for index, (link, key) in enumerate(zip(case["chain"], case["chunk_keys"], strict=True)):
        tokens = case["tokens"][index * size : (index + 1) * size]
        before = decoder.chain_digest(before, tokens, extras)
        assert before.hex() == link
        assert decoder.chunk_key(digest_bytes, before).hex() == key
        assert chunk_key(digest_bytes, before).hex() == key
