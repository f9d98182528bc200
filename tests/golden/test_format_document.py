"""What docs/format.md says is what kvd does: constants, structures, rules, the worked example."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from kvd import limits, table
from kvd.checksum import strip_root
from kvd.codec import EXACT, PROFILES, layout
from kvd.codec.layout import GROUP_DEFAULT, Grouping
from kvd.core.events import KeyspaceWanted
from kvd.core.keyspaces import on_keyspace
from kvd.core.state import CoreConfig, Session, new_state
from kvd.errors import KvdError
from kvd.identity import CHAIN_START, KVD_CHAIN, Keyspace, chain_digests, chunk_key, keyspace_digest
from kvd.shape import BlockShape, HitRule, KvGroup, TensorShape, validate_shape
from kvd.table import LENGTH_MASK, RAW_FLAG, TABLE_ENTRY
from kvd.types import Dtype, Lane, Part, PlaneClass, Role, Shard, ShardScheme
from tests.golden import accepted, document, refused
from tests.golden.example import GENERATION, KEYSPACE, TENANT, TOKENS, worked_example
from tests.golden.kvd_reader import read_chunk
from tests.golden.vectors import ACCEPT, HERE, REFUSE, describe, strips_of
from tests.reference import decoder

TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


def structure(rows: list[list[str]]) -> struct.Struct:
    """Return the struct of a table of fields, whose offsets must follow each other."""
    form, end = "<", 0
    for offset, size, kind, *_ in rows:
        assert int(offset) == end
        form += f"{size}s" if kind == "bytes" else TYPES[kind]
        end += int(size)
    assert struct.calcsize(form) == end
    return struct.Struct(form)


def test_constants():
    known = {**vars(limits), **vars(layout), **vars(table)}
    for name, value, _ in document.table("| constant | value | meaning |"):
        assert known[name] == int(value), name


def test_names():
    sets = {
        "class": PlaneClass,
        "role": Role,
        "dtype": Dtype,
        "hit rule": HitRule,
        "shard scheme": ShardScheme,
    }
    rows = dict(document.table("| set | names |"))
    assert rows.keys() == sets.keys()
    for name, members in sets.items():
        numbers = {word.split()[0]: int(word.split()[1]) for word in rows[name].split(", ")}
        upper = {word.upper(): number for word, number in numbers.items()}
        assert upper == {member.name: int(member) for member in members}


def test_table_entry():
    rows = document.tables_of("5.1")
    assert structure(rows).size == TABLE_ENTRY.itemsize
    for offset, _, kind, name, *_ in rows:
        dtype, at = TABLE_ENTRY.fields[name][:2]
        assert (at, dtype.str) == (int(offset), f"<u{int(kind[1:]) // 8}")
    meaning = next(row[4] for row in rows if row[3] == "length")
    assert "bits 0-27: length" in meaning and int(LENGTH_MASK) == (1 << 28) - 1
    assert "Bit 31: the cell is raw" in meaning and int(RAW_FLAG) == 1 << 31


def test_root():
    rows = document.table("| offset | size | type | name | meaning |")
    names = [row[3] for row in rows]
    lane = Lane(0x01020304, Shard(ShardScheme.LAYERS, 5, 0x0607), Part(bytes(range(1, 9)), 0x0809))
    values = {
        "chunk_key": bytes(range(16)),
        "kv_group": lane.kv_group,
        "shard_scheme": int(lane.shard.scheme),
        "plane_class": int(PlaneClass.EXACT),
        "shard_index": lane.shard.index,
        "shard_count": lane.shard.count,
        "part_index": lane.part.index,
        "zero": 0,
        "part_profile": lane.part.profile,
        "generation": 1 << 63,
        "profile": 0x1122334455667788,
    }
    head = structure(rows).pack(*(values[name] for name in names))
    expected = xxhash.xxh3_64_intdigest(head + b"table")
    root = strip_root(
        values["chunk_key"], lane, PlaneClass.EXACT, 1 << 63, values["profile"], b"table"
    )
    assert root == expected


def test_strings():
    """Build the sizes of 5.2 for a cell that has all parts, and compare them with a real one."""
    made = accepted.make("ignored-bits")
    known, _ = describe(made.chunk, made.written)
    tensor = known["shape"][0]["tensors"][0]
    names = {"G": 27, "sinks": 4, "width": 27, "A": 4, "P": 71, "B": 1, "tokens": 21, "s": 2}
    rows = document.table("| string | offset | size | content |")
    ends = {}
    for string, offset, size, _ in rows[:-3]:
        assert ends.get(string, 0) == product_sum(offset, names), string
        ends[string] = product_sum(offset, names) + product_sum(size, names)
    spec = made.chunk.specs()[0]
    geometry = layout.cell_geometry(spec)
    assert tensor["width"] == spec.width == names["width"] and names["G"] == geometry.groups
    assert ends == {"anchor": geometry.anchor, "residual": geometry.residual}
    raw = next(size for string, _, size, _ in rows if string == "anchor of a raw cell")
    assert product_sum(raw, names) == spec.raw_bytes


def product_sum(formula: str, names: dict[str, int]) -> int:
    """Evaluate sums of products written side by side: `4 G + 2 sinks width`, `(8 - A) P`."""
    total = 0
    for term in formula.replace("(8 - A)", str(8 - names["A"])).split(" + "):
        value = 1
        for factor in term.split():
            value *= names[factor] if factor in names else int(factor)
        total += value
    return total


def test_profiles():
    rows = document.table("| profile | role | grouping | group | anchor planes | sinks |")
    said = {(int(row[0]), row[1]): row[2:] for row in rows}
    real = {}
    for number, known in PROFILES.items():
        for role in Role:
            code = known.code_of(role)
            group = code.group or GROUP_DEFAULT[code.grouping]
            grouping = {Grouping.PER_CHANNEL: "per channel", Grouping.PER_TOKEN: "per token"}
            real[number, role.name] = [
                grouping[code.grouping], str(group), str(code.anchor_planes), str(known.sinks)
            ]  # fmt: skip
    assert said == real
    assert all(number < 1 << 63 for number in PROFILES)
    assert all(number >= 1 << 63 for number in accepted.TEST_PROFILES)


def _shape(what: str, count: int) -> BlockShape:
    number = dict.fromkeys(("kv groups", "layers", "tensors", "heads", "width"), 1)
    number[what] = count
    tensor = TensorShape(Role.K, number["heads"], number["width"], Dtype.BF16)
    group = KvGroup(number["layers"], (tensor,) * number["tensors"])
    return BlockShape((group,) * number["kv groups"])


def registered(chunk_tokens: int) -> bool:
    """Return whether the daemon takes a keyspace of such chunks."""
    state = new_state(CoreConfig(limits.GIB), 1)
    state.sessions[1] = Session(1, TENANT)
    try:
        on_keyspace(state, KeyspaceWanted(1, 1, replace(KEYSPACE, chunk_tokens=chunk_tokens)))
    except KvdError:
        return False
    return True


def test_bounds():
    said = {row[0]: (int(row[1]), int(row[2])) for row in document.table("| what | least | most |")}
    assert said.pop("length of a string") == (0, int(LENGTH_MASK))
    assert said.pop("cells of a strip") == (1, limits.CELLS_PER_STRIP_MAX)
    least, most = said.pop("tokens of a chunk")
    assert [registered(count) for count in (least - 1, least, most, most + 1)] == [
        False, True, True, False,
    ]  # fmt: skip
    for text, (least, most) in said.items():
        what = next(w for w in ("kv groups", "layers", "tensors", "heads", "width") if w in text)
        for count in (least, most):
            validate_shape(_shape(what, count))
        for count in (least - 1, most + 1):
            with pytest.raises(KvdError):
                validate_shape(_shape(what, count))


def test_keyspace_fields():
    """The digest covers the document's fields in its order, each with its length."""
    tensor = (TensorShape(Role.V, 2, 3, Dtype.FP16),)
    space = Keyspace(
        "m", "w", BlockShape((KvGroup(5, tensor, HitRule.TRAILING, 9),)), "t", "c", "l", "r", "a", 7
    )
    shape = struct.pack("<9I", 1, 5, 1, 9, 1, 2, 2, 3, 2)
    said = b""
    for order, (number, name, _) in enumerate(document.table("| order | field | bytes |"), 1):
        assert int(number) == order
        value = {"tenant": "who", "shape": shape}.get(name) or getattr(space, name)
        match value:
            case str():
                value = value.encode()
            case int():
                value = struct.pack("<I", value)
        said += struct.pack("<I", len(value)) + value
    digest = hashlib.blake2b(said, digest_size=32, person=b"kvd.keyspace.v0").digest()
    assert keyspace_digest(space, "who") == digest
    assert KVD_CHAIN == "kvd.chain.v0" and f"`{KVD_CHAIN}`" in document.section(6)


def test_rules_and_vectors():
    rules = document.rules(9)
    assert list(rules) == list(range(1, len(rules) + 1))
    said = {name: number for number, (_, names) in rules.items() for name in names}
    assert said == {name: refused.make(name).rule for name in refused.REFUSED}
    for name in said:
        assert (HERE / REFUSE / f"{name}.strips.bin").exists()
    assert (HERE / ACCEPT).is_dir() and f"tests/golden/{REFUSE}" in document.section(9)


def test_worked_example_is_what_kvd_makes():
    example = worked_example()
    assert document.hex_blocks() == example.blocks


def example_from_the_document() -> tuple[dict, dict[str, bytes]]:
    """Return what a reader knows and the strips, from the document's bytes alone."""
    blocks = document.hex_blocks()
    tensors = [
        {"role": "K", "heads": 1, "width": 8, "dtype": "BF16"},
        {"role": "V", "heads": 1, "width": 4, "dtype": "BF16"},
    ]
    group = {"layers": 1, "hit_rule": "ALL", "trailing_chunks": 0, "tensors": tensors}
    lane = {
        "kv_group": 0, "shard_scheme": "REPLICATED", "shard_index": 0, "shard_count": 1,
        "part_profile": "00" * 8, "part_index": 0,
    }  # fmt: skip
    names = ("anchor", "residual", "exact")
    roots = {name: int.from_bytes(blocks[f"{name}-root"], "little") for name in names}
    known = {
        "shape": [group], "lane": lane, "tokens": 8, "first_chunk": False, "generation": GENERATION,
        "chunk_key": blocks["chunk-key"].hex(), "profile": 1,
        "strips": {name: {"root": f"{root:016x}"} for name, root in roots.items()},
    }  # fmt: skip
    return known, {name: blocks[f"{name}-strip"].ljust(4096, b"\0") for name in names}


def test_worked_example_reads():
    known, strips = example_from_the_document()
    k, v = decoder.read_chunk(known, strips, "exact")
    assert np.array(k, "<u2").tobytes() == document.hex_blocks()["values-k"]
    numbers = decoder.NUMBERS["BF16"]
    said = [token / 4 + channel for token in range(8) for channel in range(4)]
    assert [numbers.value(decoder.ordinal_of(pattern)) for pattern in v] == said
    assert read_chunk(known, strips, EXACT, {}) == np.array(k + v, "<u2").tobytes()


def test_worked_example_names():
    blocks, text = document.hex_blocks(), document.section(10)
    assert f"Tenant `{TENANT}`" in text and f"generation {GENERATION}" in text
    keyspace = {
        "model": "tiny", "weight_revision": "r1", "shape": example_from_the_document()[0]["shape"],
        "tokenizer": "", "chain": "kvd.chain.v0", "layout": "kvd", "rope": "", "adapter": "",
        "chunk_tokens": 8,
    }  # fmt: skip
    assert decoder.keyspace_digest("demo", keyspace) == blocks["keyspace-digest"]
    first = decoder.chain_digest(bytes(32), list(range(101, 109)))
    assert first == blocks["chain-before"]
    tokens = list(struct.unpack("<8I", blocks["tokens"]))
    assert tokens == list(TOKENS[8:])
    assert decoder.chain_digest(first, tokens) == blocks["chain-digest"]
    key = decoder.chunk_key(blocks["keyspace-digest"], blocks["chain-digest"])
    assert (
        key
        == blocks["chunk-key"]
        == chunk_key(
            keyspace_digest(KEYSPACE, TENANT), chain_digests(TOKENS, 8, after=CHAIN_START)[32:]
        )
    )


def test_worked_example_walk():
    """Follow element 48 of K through the document's numbers."""
    said = {
        what: [word.strip() for word in values.split(",")]
        for what, values in document.table("| of element 48 | values |")
    }
    known, strips = example_from_the_document()
    anchor, residual = strips["anchor"][32:96], strips["residual"][32:64]
    lo, hi = struct.unpack_from("<HH", anchor)
    numbers = decoder.NUMBERS["BF16"]
    group = decoder.Group(numbers, lo, hi, 4)
    assert [float(group.low), float(group.high)] == [float(word) for word in said["lo, hi"]]
    steps = [float(group.h) * 16, float(group.h), float(group.o)]
    assert steps == [float(word) for word in said["S, h, o"]]
    bytes_6 = [(anchor[32:] + residual)[8 * plane + 6] for plane in range(8)]
    assert [f"{byte:02x}" for byte in bytes_6] == said["bytes 6 of p7 to p0 (hex)"]
    code = sum((byte & 1) << (7 - plane) for plane, byte in enumerate(bytes_6))
    first, behind = group.bin(code)
    assert [code, first, behind] == [int(word) for word in said["c, T(c), T(c+1)"]]
    rank, width, bit = (int(word) for word in said["rank, its width, its first bit in the block"])
    bits = int.from_bytes(strips["exact"][34:41], "little")
    assert (bits >> bit) % (1 << width) == rank and width == (behind - first - 1).bit_length()
    value, ordinal = said["value, ordinal"]
    assert int(ordinal) == first + rank and float(value) == numbers.value(first + rank)
    readings = [decoder.read_chunk(known, strips, k)[0][48] for k in range(1, 9)]
    values = [numbers.value(decoder.ordinal_of(pattern)) for pattern in readings]
    assert values == [float(word) for word in said["values read at 1 to 8 planes"]]
    assert decoder.read_chunk(known, strips, "exact")[0][48] == int(ordinal)


def error_bound(group: decoder.Group, k: int) -> float:
    largest = max(abs(float(group.low)), abs(float(group.high)))
    return 2.0 ** (7 - k) * float(group.h) + 2.0**-20 * largest + 2.0**-149


@pytest.mark.parametrize("name", ["plain", "sinks", "half", "extremes-bf16", "profile-whole"])
def test_error_bound(name):
    """No reading before its last rounding is farther from the value than section 8.5 says."""
    made = accepted.make(name)
    known, joined = describe(made.chunk, made.written)
    profiles = {
        number: {"K": ("per channel", p.k.group, p.k.anchor_planes),
                 "V": ("per token", p.v.group, p.v.anchor_planes), "sinks": p.sinks}
        for number, p in accepted.TEST_PROFILES.items()
    }  # fmt: skip
    strips = strips_of(known, joined)
    table = (decoder.PROFILES | profiles)[known["profile"]]
    for index, tensor in enumerate(decoder.tensors_of_cells(known)):
        cell = decoder.Cell(known, tensor, table)
        groups, codes = coded(cell, known, strips, index)
        numbers = decoder.NUMBERS[tensor["dtype"]]
        values = made.chunk.cells[index].reshape(-1).tolist()
        for element in range(cell.sinks * cell.width, cell.count):
            group = groups[cell.group_of(element)]
            x = numbers.value(decoder.ordinal_of(values[element]))
            for k in range(1, 9):
                with np.errstate(over="ignore"):
                    y = group.middle(codes[element], k)
                assert abs(y - x) <= error_bound(group, k)


def coded(
    cell: decoder.Cell, known: dict, strips: dict[str, bytes], index: int
) -> tuple[list[decoder.Group], list[int]]:
    """Return the groups and codes of a coded cell."""
    count = len(list(decoder.tensors_of_cells(known)))
    opened = [decoder.Strip(known, name, strips[name], count) for name in ("anchor", "residual")]
    assert not opened[0].raw(index)
    anchor, residual = (strip.string(index) for strip in opened)
    return cell.groups(anchor), cell.codes(anchor, residual, 8)
