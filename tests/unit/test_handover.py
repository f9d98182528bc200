"""Dram as bytes and descriptors: packed, refused for any flaw, believed once."""

import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from kvd.arena.memfd import map_memory, open_memory
from kvd.arena.slabs import MemfdArena
from kvd.core.disk_effects import LaneName, RowKeys
from kvd.core.dram import LeftDram, LeftRows, LeftSlab
from kvd.daemon.adopting import Kept, check_strips, take_over
from kvd.daemon.handover import SLABS_NAME, Whose, handover_of, left_of
from kvd.daemon.keeping import file_key, keep_dram
from kvd.daemon.loop import run as run_loop
from kvd.format.handover import MAGIC, NO_HOME, pack_handover, parse_handover
from kvd.format.keyspaces import pack_keyspace
from kvd.format.page import Reason, Refused
from kvd.identity import Keyspace, chunk_key
from kvd.limits import DIGEST_BYTES, GENERATION_MAX, MIB, PAGE_BYTES
from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.testing.disk_strips import CELLS, PROFILE, make_strip
from kvd.types import CLASS_COUNT, Dtype, Lane, PlaneClass, Role

SLAB_BYTES = 32 * PAGE_BYTES
SHAPE = BlockShape((KvGroup(CELLS, (TensorShape(Role.K, 1, 8, Dtype.BF16),)),))
KEYSPACE = Keyspace("m", "r", SHAPE)
DIGEST, _ = pack_keyspace(KEYSPACE, "red")
MINE = Whose(b"/run/kvd", NO_HOME)
CHUNKS = 3


def chain(number: int) -> bytes:
    return bytes([number + 1]) * DIGEST_BYTES


class Store:
    """In place of a service manager: keeps duplicates of descriptors by name."""

    def __init__(self) -> None:
        self.kept: dict[str, list[int]] = {}

    def keep(self, name: str, descriptors) -> bool:
        self.kept.setdefault(name, []).extend(os.dup(number) for number in descriptors)
        return True

    def wait_heard(self) -> bool:
        return True

    def give(self) -> Kept:
        """Return duplicates, as each start gets its own."""
        copies = {name: tuple(map(os.dup, kept)) for name, kept in self.kept.items()}
        return Kept(copies.get("kvd-dram", ()), copies.get(SLABS_NAME, ()))


@pytest.fixture
def arenas():
    """Return a function that makes an arena; all are closed at the end."""
    made = []

    def make() -> MemfdArena:
        made.append(MemfdArena(lambda slab, fault: None, slabs_max=8))
        return made[-1]

    yield make
    for arena in made:
        arena.close()


def fill(arena: MemfdArena) -> LeftDram:
    """Write chunks into slabs 1 and 2 as a client does, and return what the core would leave."""
    for slab in (1, 2):
        arena.create_slab(slab, SLAB_BYTES)
    shape = (CHUNKS, CLASS_COUNT)
    slabs, offsets = np.ones(shape, np.uint32), np.zeros(shape, np.uint64)
    sizes, roots = np.full(shape, 2 * PAGE_BYTES, np.uint32), np.zeros(shape, np.uint64)
    slabs[:, 2] = 2
    generations = np.arange(10, 10 + CHUNKS, dtype=np.uint64)
    for at in range(CHUNKS):
        for plane_class in PlaneClass:
            place = at * 2 + plane_class % 2
            offsets[at, plane_class] = place * 2 * PAGE_BYTES
            strip = replace(
                make_strip(2 * (at * 3 + plane_class), plane_class=plane_class),
                key=chunk_key(DIGEST, chain(at)), generation=int(generations[at]),
            )  # fmt: skip
            roots[at, plane_class] = strip.root
            write(arena, int(slabs[at, plane_class]), int(offsets[at, plane_class]), strip.data)
    keys = RowKeys(
        (LaneName(DIGEST, Lane(), CELLS),),
        np.zeros(CHUNKS, np.uint32),
        [*map(chain, range(CHUNKS))],
    )
    rows = LeftRows(
        keys, [b"", chain(0), chain(1)], generations, np.full(CHUNKS, PROFILE, np.uint64),
        np.zeros(CHUNKS), slabs, offsets, sizes, roots,
    )  # fmt: skip
    left = (LeftSlab(1, "red", False), LeftSlab(2, "red", True))
    return LeftDram(20, SLAB_BYTES, {DIGEST: (KEYSPACE, "red")}, left, rows)


def write(arena: MemfdArena, slab: int, offset: int, data: bytes) -> None:
    descriptor = arena.slab_descriptor(slab, writable=True)
    mapping = map_memory(descriptor, SLAB_BYTES, writable=True)
    mapping[offset : offset + len(data)] = np.frombuffer(data, np.uint8)


def packed(left: LeftDram) -> bytes:
    return pack_handover(
        handover_of(left, MINE, {slab.slab: (1, slab.slab) for slab in left.slabs})
    )


@pytest.fixture
def left(arenas) -> LeftDram:
    return fill(arenas())


# ---- bytes ----


def equal(one: LeftDram, other: LeftDram) -> bool:
    names = ("generations", "profiles", "heats", "slabs", "offsets", "sizes", "roots")
    same = all(np.array_equal(getattr(one.rows, n), getattr(other.rows, n)) for n in names)
    keys, others = one.rows.keys, other.rows.keys
    same &= (keys.names, keys.chain) == (others.names, others.chain)
    same &= one.rows.parents == other.rows.parents and one.keyspaces == other.keyspaces
    return same and (one.generation, one.slabs) == (other.generation, other.slabs)


def test_what_is_packed_is_parsed(left):
    found = parse_handover(packed(left))
    again, files = left_of(found)
    assert equal(left, again) and files == {1: (1, 1), 2: (1, 2)}
    assert (found.directory, found.home, found.slab_bytes) == (b"/run/kvd", NO_HOME, SLAB_BYTES)


def test_nothing_is_packed_as_well():
    rows = np.zeros((0, 3), np.uint64)
    none = LeftRows(
        RowKeys((), np.zeros(0, np.uint32), []), [], rows[:, 0], rows[:, 0], np.zeros(0),
        rows.astype(np.uint32), rows, rows.astype(np.uint32), rows,
    )  # fmt: skip
    left = LeftDram(0, SLAB_BYTES, {}, (LeftSlab(7, "", False),), none)
    again, _ = left_of(parse_handover(packed(left)))
    assert equal(left, again)


def test_any_flipped_bit_is_refused(left):
    data = packed(left)
    for at in [*range(64), *range(64, len(data), 41), len(data) - 1]:
        flipped = bytearray(data)
        flipped[at] ^= 1
        assert isinstance(parse_handover(bytes(flipped)), Refused), at


def test_a_cut_one_and_one_with_more_are_refused(left):
    data = packed(left)
    for other in (b"", data[:8], data[:-1], data + b"\0"):
        assert isinstance(parse_handover(other), Refused)


def test_another_version_is_refused_by_its_number(left):
    from kvd.format.page import seal

    body = packed(left)[24:]
    for version, reason in ((0, Reason.OLDER), (2, Reason.NEWER)):
        refused = parse_handover(seal(MAGIC, body, version))
        assert refused.reason == reason and f"format {version}" in refused.message


@pytest.mark.parametrize(
    ("column", "place", "value"),
    [
        ("slabs", (0, 0), 9), ("sizes", (0, 0), 100), ("sizes", (1, 1), 0),
        ("offsets", (0, 0), SLAB_BYTES), ("offsets", (0, 1), 0), ("generations", 0, 21),
        ("generations", 0, 0), ("heats", 0, np.nan),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_though_its_checksum_fits(left, column, place, value):
    values = getattr(left.rows, column).copy()
    values[place] = value
    bad = replace(left, rows=replace(left.rows, **{column: values}))
    files = {slab.slab: (1, slab.slab) for slab in left.slabs}
    refused = parse_handover(unchecked(handover_of(bad, MINE, files)))
    assert isinstance(refused, Refused) and refused.reason == Reason.DAMAGED


@pytest.mark.parametrize(
    ("column", "value"),
    [("inode", 1), ("tenant", b"\xff"), ("slab", 1 << 31)],
)
def test_slabs_that_cannot_be_are_refused_though_the_checksum_fits(left, column, value):
    """Two of one file would be taken over twice; what is no text would end the start."""
    found = parse_handover(packed(left))
    slabs = found.slabs.copy()
    slabs[column][1] = value
    rows = found.rows.copy()
    if column == "slab":
        rows["slab"][rows["slab"] == 2] = value
    assert isinstance(parse_handover(unchecked(replace(found, slabs=slabs, rows=rows))), Refused)


def test_a_generation_that_leaves_no_other_is_refused(left):
    most = parse_handover(packed(replace(left, generation=GENERATION_MAX)))
    assert most.generation == GENERATION_MAX
    assert isinstance(parse_handover(unchecked(replace(most, generation=1 << 63))), Refused)


def unchecked(found) -> bytes:
    """Return an index that nobody looked at before it was packed."""
    from kvd.format import handover

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handover, "_problem", lambda left: "")
        return pack_handover(found)


# ---- descriptors ----


def kept_by(left: LeftDram, arena: MemfdArena, whose: Whose = MINE) -> Store:
    store = Store()
    assert keep_dram(left, whose, arena, store)
    return store


def checked(left: LeftDram, arena: MemfdArena) -> LeftDram:
    found = []

    async def check() -> None:
        found.append(await check_strips(left, arena, lambda done, count: None))

    run_loop(check())
    return found[0]


def test_the_next_daemon_has_the_same_memory(arenas):
    old, new = arenas(), arenas()
    left = fill(old)
    store = kept_by(left, old)
    found = take_over(store.give(), MINE, SLAB_BYTES, new)
    assert equal(left, checked(found, new))
    for slab in (1, 2):
        assert bytes(new.view_slab(slab)) == bytes(old.view_slab(slab))
        mine = new.slab_descriptor(slab, writable=True)
        assert file_key(mine) == file_key(old.slab_descriptor(slab, writable=True))
        assert os.fstat(mine).st_mode & 0o777 == 0 and not os.get_inheritable(mine)
    write(new, 1, 0, b"new")
    assert bytes(old.view_slab(1)[:3]) == b"new"


def test_it_is_believed_once(arenas, caplog):
    """A daemon that took over and died without a word leaves slabs that changed since."""
    old, new, third = arenas(), arenas(), arenas()
    store = kept_by(fill(old), old)
    assert take_over(store.give(), MINE, SLAB_BYTES, new) is not None
    assert take_over(store.give(), MINE, SLAB_BYTES, third) is None
    assert "did not end in order" in caplog.text


def test_a_start_that_dies_right_after_it_leaves_nothing_to_believe(arenas):
    """Also where nothing of it was used: the index is cut before anything else happens."""
    old, new = arenas(), arenas()
    store = kept_by(fill(old), old)
    other = Whose(b"/run/other", NO_HOME)
    assert take_over(store.give(), other, SLAB_BYTES, new) is None
    assert take_over(store.give(), MINE, SLAB_BYTES, new) is None


def test_an_index_that_cannot_be_cut_is_not_believed(arenas, monkeypatch, caplog):
    old, new = arenas(), arenas()
    store = kept_by(fill(old), old)

    def refuse(descriptor: int, size: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "ftruncate", refuse)
    assert take_over(store.give(), MINE, SLAB_BYTES, new) is None
    assert "not taken over" in caplog.text


@pytest.mark.parametrize(
    ("whose", "slab_bytes", "words"),
    [
        (Whose(b"/run/other", NO_HOME), SLAB_BYTES, "/run/kvd"),
        (Whose(b"/run/kvd", b"x" * 16), SLAB_BYTES, "other data directories"),
        (MINE, 2 * SLAB_BYTES, f"{2 * SLAB_BYTES}"),
    ],
)
def test_another_daemons_is_dropped_in_one_line(arenas, caplog, whose, slab_bytes, words):
    old, new = arenas(), arenas()
    store = kept_by(fill(old), old)
    before = len(os.listdir("/proc/self/fd"))
    assert take_over(store.give(), whose, slab_bytes, new) is None
    [record] = caplog.records
    assert words in record.getMessage() and len(os.listdir("/proc/self/fd")) == before


def test_a_strip_whose_table_changed_is_left_out(arenas, caplog):
    old, new = arenas(), arenas()
    left = fill(old)
    store = kept_by(left, old)
    write(old, 1, int(left.rows.offsets[1, 0]) + 4, b"\xff")
    found = checked(take_over(store.give(), MINE, SLAB_BYTES, new), new)
    assert found.rows.slabs[1, 0] == 0 and (found.rows.slabs != 0).sum() == 3 * CHUNKS - 1
    assert "1 strips" in caplog.text


def test_a_slab_that_was_not_kept_takes_its_strips_with_it(arenas):
    old, new = arenas(), arenas()
    store = kept_by(fill(old), old)
    os.close(store.kept[SLABS_NAME].pop())  # Slabs that hold most were kept first.
    found = checked(take_over(store.give(), MINE, SLAB_BYTES, new), new)
    assert [slab.slab for slab in found.slabs] == [1]
    assert (found.rows.slabs == [1, 1, 0]).all()


def test_an_index_that_says_it_is_huge_is_not_read(arenas, caplog):
    old, new = arenas(), arenas()
    store = kept_by(fill(old), old)
    [index] = store.kept["kvd-dram"]
    os.ftruncate(index, 1 << 42)
    tracemalloc.start()
    assert take_over(store.give(), MINE, SLAB_BYTES, new) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB and "more than" in caplog.text
    assert os.fstat(index).st_size == 0


def test_two_indexes_that_claim_it_are_both_dropped(arenas, caplog):
    old, new = arenas(), arenas()
    store = kept_by(left := fill(old), old)
    assert keep_dram(left, MINE, old, store)
    assert take_over(store.give(), MINE, SLAB_BYTES, new) is None
    assert "2 indexes" in caplog.text


def test_memory_that_is_no_slab_is_not_adopted(arenas, caplog):
    """One that could shrink under its readers would kill them."""
    old, new = arenas(), arenas()
    left = fill(old)
    fake = open_memory("fake", SLAB_BYTES)

    class Arena:
        def slab_descriptor(self, slab: int, *, writable: bool) -> int:
            return fake if slab == 1 else old.slab_descriptor(slab, writable=writable)

    store = Store()
    assert keep_dram(left, MINE, Arena(), store)
    os.close(fake)
    before = len(os.listdir("/proc/self/fd"))
    assert take_over(store.give(), MINE, SLAB_BYTES, new) is None
    assert "not sealed" in caplog.text and len(os.listdir("/proc/self/fd")) == before


def test_foreign_descriptors_are_closed(arenas):
    reader, writer = os.pipe()
    arena = arenas()
    before = len(os.listdir("/proc/self/fd"))
    assert take_over(Kept((os.dup(reader),), (os.dup(writer),)), MINE, SLAB_BYTES, arena) is None
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(reader)
    os.close(writer)
