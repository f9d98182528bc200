"""What the file system gives by itself: fio, on the same directory, in the same run."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.report import rival
from kvd.limits import KIB, MIB, READ_PIECE_BYTES_MIN, Limits
from kvd.types import CLASS_COUNT

HINT = "apt-get install fio"
READ_JOBS = 4  # As the daemon's reading threads.
READ_BLOCK_BYTES = READ_PIECE_BYTES_MIN  # As the pieces it reads.
WRITE_BLOCK_BYTES = Limits().write_batch_bytes // CLASS_COUNT  # Of one class in a batch: synced.


@dataclass(frozen=True, slots=True)
class Fio:
    """fio in a directory; the speeds are bytes a second."""

    program: str
    directory: Path

    def read(self, size_bytes: int) -> float:
        each = size_bytes // READ_JOBS // READ_BLOCK_BYTES * READ_BLOCK_BYTES
        return self._run(
            "read", "--rw=read", f"--bs={READ_BLOCK_BYTES}", f"--numjobs={READ_JOBS}",
            f"--size={each}", f"--offset_increment={each}", "--group_reporting",
        )  # fmt: skip

    def write(self, size_bytes: int) -> float:
        """Write a fresh, preallocated file, synced after each block."""
        (self.directory / "fio.write").unlink(missing_ok=True)
        block = WRITE_BLOCK_BYTES // (4 * KIB) * (4 * KIB)
        return self._run(
            "write", "--rw=write", f"--bs={block}", "--fdatasync=1", "--fallocate=native",
            f"--size={size_bytes // block * block}",
        )  # fmt: skip

    def lay(self, size_bytes: int) -> None:
        """Write the file that `read` reads."""
        self._run("write", "--rw=write", f"--bs={MIB}", f"--size={size_bytes}", name="read")

    def _run(self, kind: str, *options: str, name: str = "") -> float:
        command = [
            self.program, f"--name=kvd-{kind}", f"--filename={self.directory}/fio.{name or kind}",
            "--direct=1", "--ioengine=psync", "--thread", "--output-format=json", *options,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"fio: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
        [job] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
        return float(job[kind]["bw_bytes"])


def find_fio(directory: Path) -> Fio | None:
    """Return fio for a directory, or None, having said how to install it."""
    program = rival("fio", HINT)
    return None if program is None else Fio(program, directory)
