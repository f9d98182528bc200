"""Another tenant, and a stranger of this host, at every door: numbers guessed, paths tried.

Whatever is asked about somebody else's is answered as what nobody has.
"""

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from kvd.core.events import FetchWanted, LookupWanted, PrefetchWanted, ReserveWanted
from kvd.testing.scene import LANE, Scene, branch_of, chain_of
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.process import DEADLINE_S, ROOT, running
from tests.e2e.rawclient import RawClient, Refused, keyspace_message, small_keyspace
from tests.e2e.rawclient import chain_of as raw_chain_of
from tests.e2e.strips import Stored, fetch_request, lookup, put, read_mapped, register, reserve_all

CELLS, CHUNKS, GUESSES = 4, 3, 40
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    directory = tmp_path_factory.mktemp("doors")
    for path in (directory, *directory.parents[:2]):
        path.chmod(0o755)
    flags = ("--tenant", "red", "--tenant", "blue", "--allow-uid", "0", "--allow-uid", "12345")
    with running(directory / "d", *flags) as daemon:
        yield daemon


@pytest.fixture
def red(daemon):
    client = RawClient(daemon.directory / "red")
    yield client
    client.close()


@pytest.fixture
def blue(daemon):
    client = RawClient(daemon.directory / "blue")
    yield client
    client.close()


def stored(client: RawClient, model: str) -> Stored:
    keyspace = register(client, keyspace_message(small_keyspace(model)))
    return put(client, keyspace, raw_chain_of(CHUNKS), CELLS, 100)


def refusal(client: RawClient, kind: FrameKind, message) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        client.call(kind, message)
    return refused.value.kind, refused.value.message


# ---- numbers that are another's ----


def test_numbers_of_anothers_leases_and_reservations_say_and_do_nothing(red, blue):
    mine = stored(red, "numbers")
    lease = lookup(red, mine, lease=True)[1]
    sizes = np.full((1, 3), 4096, "<u4").tobytes()
    wanted = pb.ReserveRequest(
        keyspace=mine.keyspace, lane=pb.Lane(), chain=raw_chain_of(1, 700), sizes=sizes
    )
    reservation = reserve_all(red, wanted).reservation
    register(blue, keyspace_message(small_keyspace("numbers")))
    far = 10_000_000  # A number that nobody was told.
    for number in sorted({lease, reservation, *range(1, GUESSES)}):
        for kind, ask in (
            (FrameKind.RELEASE, lambda n: pb.ReleaseRequest(lease=n, corrupt=bytes(4))),
            (FrameKind.RENEW, lambda n: pb.RenewRequest(lease=n)),
            (FrameKind.ABORT, lambda n: pb.AbortRequest(reservation=n)),
            (
                FrameKind.SEAL,
                lambda n: pb.SealRequest(
                    reservation=n, sizes=sizes, roots=bytes(24), profile=1, last=True
                ),
            ),
            (FrameKind.FETCH, lambda n: fetch_request(mine, lease=n)),
        ):
            theirs, nobodys = (refusal(blue, kind, ask(each)) for each in (number, far))
            assert theirs[0] == nobodys[0] == pb.LOST
            assert theirs[1] == nobodys[1].replace(str(far), str(number))
    red.call(FrameKind.RENEW, pb.RenewRequest(lease=lease))
    assert lookup(red, mine)[0] == [CHUNKS] * 3, "nothing was condemned"
    red.call(FrameKind.ABORT, pb.AbortRequest(reservation=reservation))
    red.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=lease))


def test_a_foreign_slab_cannot_be_detached(red, blue):
    mine = stored(red, "slabs")
    [slab] = [number for number, each in red.channel.slabs.items() if each[2]]
    for number in range(1, GUESSES):
        detached = pb.SlabDetached(slab=number)
        blue.channel.send(pb.ToDaemon(slab_detached=detached))
    assert stored(blue, "slabs").strips
    assert not {slab} & set(blue.channel.slabs), "red writes there still"
    more = put(red, mine.keyspace, raw_chain_of(CHUNKS, 800), CELLS, 100)
    for each in (mine, more):
        read_mapped(red, each)


def test_what_another_clears_and_reports_is_its_own(red, blue):
    """The same keyspace, the same chunks, the same handle: one of each tenant's."""
    mine, theirs = stored(red, "clear"), stored(blue, "clear")
    assert mine.keyspace == theirs.keyspace
    lease = read_mapped(blue, theirs).lease
    corrupt = np.arange(CHUNKS, dtype="<u4").tobytes()
    blue.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=lease, corrupt=corrupt))
    assert lookup(blue, theirs)[0] == [0, 0, 0]
    assert lookup(red, mine)[0] == [CHUNKS] * 3
    blue.call(FrameKind.CLEAR, pb.ClearRequest(keyspace=theirs.keyspace))
    assert lookup(red, mine)[0] == [CHUNKS] * 3
    read_mapped(red, mine)


def test_a_handle_that_this_session_was_not_given_is_no_handle(red, blue):
    mine = stored(red, "handles")
    assert mine.keyspace > 0
    asked = (
        (FrameKind.LOOKUP, pb.LookupRequest(lanes=[pb.Lane()], chain=mine.chain)),
        (FrameKind.CLEAR, pb.ClearRequest()),
        (
            FrameKind.PREFETCH,
            pb.PrefetchRequest(lanes=[pb.Lane()], chain=mine.chain, class_count=1),
        ),
        (FrameKind.FETCH, pb.FetchRequest(lanes=[pb.Lane()], chain=mine.chain, class_count=3)),
    )
    for kind, request in asked:
        told = set()
        for handle in range(1, GUESSES):
            request.keyspace = handle
            code, words = refusal(blue, kind, request)
            assert code == pb.INVALID
            told.add(words.replace(f"keyspace {handle}", "keyspace"))
        assert len(told) == 1, told


# ---- the same work, whoever has it ----


def work_of(scene: Scene, wish) -> Counter:
    """Return how often which function of the core was called for a wish."""
    calls: Counter = Counter()

    def note(frame, event, argument):
        if event == "call" and "/kvd/" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        scene.tell(wish)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("chunks", (1, 7, 64))
def test_what_another_tenant_has_costs_what_nobody_has_costs(chunks):
    """Counted, not timed: the same functions of the core, each as often."""
    scene = Scene(slabs=4, slab_pages=240)
    red, blue = scene.join("red"), scene.join("blue")
    shared, own, unknown = (chain_of(chunks, text) for text in (1, 2, 3))
    scene.put(red, shared)
    scene.put(blue, own)
    sizes = np.full((chunks, 3), 4096, np.uint32)

    def wishes(chain):
        yield LookupWanted(scene.number(), blue, 1, (LANE,), chain, False)
        yield LookupWanted(scene.number(), blue, 1, (LANE,), chain, True)
        yield PrefetchWanted(scene.number(), blue, 1, (LANE,), chain, 3)
        for delivery in (0, 1):
            yield FetchWanted(
                scene.number(), blue, 1, (LANE,), chain, 3, 0, 0, delivery, 0, 0, 10**12
            )

    assert scene.counts(red, shared) == (chunks,) * 3
    for theirs, nobodys in zip(wishes(shared), wishes(unknown), strict=True):
        assert work_of(scene, theirs) == work_of(scene, nobodys) != Counter()
    for ours, nobodys in zip(wishes(own), wishes(unknown), strict=True):
        assert work_of(scene, ours) != work_of(scene, nobodys), "a hit is told from a miss so"
    behind = branch_of(shared, chunks, 9)[-32:] if chunks > 1 else chain_of(1, 9)
    theirs, nobodys = (
        ReserveWanted(scene.number(), blue, 1, LANE, parent[-32:], behind, sizes[:1])
        for parent in (shared, unknown)
    )
    assert work_of(scene, theirs) == work_of(scene, nobodys)


# ---- strangers of this host ----

STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
def tried(name, act):
    try:
        act()
    except OSError as error:
        print(name, type(error).__name__)
    else:
        print(name, "let in")
def knock(path, kind):
    socket.socket(socket.AF_UNIX, kind).connect(path)
fds = "/proc/{pid}/fd"
tried("fd", lambda: os.listdir(fds))
for number in range(40):
    tried("open", lambda: os.open(fds + "/" + str(number), os.O_RDONLY))
for name in ("mem", "maps", "environ", "map_files", "cwd", "root"):
    tried(name, lambda: os.open("/proc/{pid}/" + name, os.O_RDONLY))
tried("admin", lambda: knock("{directory}/admin.sock", socket.SOCK_STREAM))
tried("lock", lambda: os.open("{directory}/lock", os.O_RDWR))
"""


@needs_root
@pytest.mark.parametrize("uid", (NOBODY, 12345), ids=("a stranger", "one who may connect"))
def test_another_user_reaches_neither_memory_nor_descriptors_nor_the_operators_socket(daemon, uid):
    code = STRANGER.format(uid=uid, pid=daemon.process.pid, directory=daemon.directory)
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT
    )
    lines = child.stdout.splitlines()
    assert len(lines) == 1 + 40 + 6 + 2, child.stderr
    refused = ("PermissionError", "FileNotFoundError")  # No such descriptor, or no such socket.
    assert all(line.endswith(refused) for line in lines), lines
    assert "admin PermissionError" in lines and "mem PermissionError" in lines
