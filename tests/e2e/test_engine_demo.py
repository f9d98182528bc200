"""The demo: a daemon killed between its two halves, and nothing left behind by an interruption."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.demo import two_lives
from kvd.client import Client
from tests.e2e.process import DEADLINE_S, ROOT
from tests.e2e.ssd_node import CHUNK_TOKENS, CHUNKS, KEYSPACE, tensors

FAILED = 7


@pytest.fixture
def model() -> None:
    """Fetch the model first, or skip where that is not possible."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from bench.model import model_directory

    try:
        model_directory()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"the small real model cannot be fetched: {error}")


@pytest.fixture
def temporary(short_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have runtime directories made, and looked for, in one directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_directory))
    return short_directory


class Engines:
    """In the place of the engine processes: one stores a few chunks durably, one looks for them."""

    def __init__(self, store_status: int = 0) -> None:
        self._store_status = store_status
        self.roles: list[str] = []
        self.daemons: list[int] = []

    def __call__(self, role: str, tenant: Path) -> int:
        self.roles.append(role)
        self.daemons += processes_naming(str(tenant.parent))
        with Client(tenant, role, DEADLINE_S) as client:
            assert client.wait_connected(DEADLINE_S), client.status().reason
            space = client.keyspace(KEYSPACE)
            chain = space.chain(range(CHUNKS * CHUNK_TOKENS))
            if role == "store":
                assert space.put(chain, tensors(), durability="disk").durable
                return self._store_status
            return 0 if space.lookup(chain).counts == (CHUNKS,) * 3 else FAILED


def test_what_was_stored_outlives_the_daemon(temporary: Path) -> None:
    engines = Engines()
    assert two_lives(temporary / "data", engines) == 0
    assert engines.roles == ["store", "answer"]
    first, second = engines.daemons
    assert first != second
    assert not processes_naming(str(temporary))
    assert [path.name for path in temporary.iterdir()] == ["data"]


def test_a_failed_store_is_not_answered_from(temporary: Path) -> None:
    engines = Engines(store_status=FAILED)
    assert two_lives(temporary / "data", engines) == FAILED
    assert engines.roles == ["store"]
    assert not processes_naming(str(temporary))


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_an_interrupted_demo_takes_its_daemon_along(model, number: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="kvd-") as directory:
        data = Path(directory) / "data"
        process = subprocess.Popen(
            [sys.executable, "-m", "bench", "demo"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"TMPDIR": directory, "KVD_BENCH_DATA": str(data)},
            start_new_session=True,
            preexec_fn=_hear_the_keyboard,
        )
        for line in process.stdout:
            if line.startswith("daemon: ready"):
                break
        runtime = next(Path(directory).glob("kvd-*"))
        assert processes_naming(str(runtime))  # The daemon; an engine may have begun, too.
        assert list(data.glob("*/kvd/superblock"))
        if number == signal.SIGINT:  # As a terminal does it: to everyone in the foreground.
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(DEADLINE_S) == 130
        assert not runtime.exists()
        assert not list(data.iterdir())
        assert not processes_naming(str(runtime))
        process.stdout.close()


def _hear_the_keyboard() -> None:
    """Undo what a shell does to its background jobs, and they pass on: SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def processes_naming(text: str) -> list[int]:
    """Return the processes with the text in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if text.encode() in words:
            found.append(int(path.parent.name))
    return found
