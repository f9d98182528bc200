"""Whether the host gives shared memory huge pages, and what it costs when it does not."""

from pathlib import Path

SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_GIVEN = ("always", "within_size", "advise", "force")


def pages_note(setting: Path = SHMEM_ENABLED) -> str:
    """Return one line on what to set, or nothing when slabs get huge pages, or nobody can tell."""
    try:
        text = setting.read_text()
    except OSError:
        return ""
    chosen = text.partition("[")[2].partition("]")[0]
    if not chosen or chosen in _GIVEN:
        return ""
    return (
        f"{setting} is {chosen}: slabs have pages of 4 KiB, and direct reads from disk take more "
        "than twice as long; `advise` there gives them huge pages"
    )
