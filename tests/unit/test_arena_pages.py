"""What is said of a host's setting of huge pages for shared memory."""

from pathlib import Path

import pytest

from kvd.arena.pages import pages_note


@pytest.mark.parametrize("chosen", ["never", "deny"])
def test_small_pages_are_said_with_the_line_that_mends_it(tmp_path: Path, chosen: str) -> None:
    setting = tmp_path / "shmem_enabled"
    words = "always within_size advise never deny force".replace(chosen, f"[{chosen}]")
    setting.write_text(words + "\n")
    note = pages_note(setting)
    assert f"{setting} is {chosen}" in note and "`advise`" in note


@pytest.mark.parametrize("text", ["always within_size [advise] never deny force", "", "odd"])
def test_huge_pages_and_what_nobody_knows_are_not_mentioned(tmp_path: Path, text: str) -> None:
    setting = tmp_path / "shmem_enabled"
    setting.write_text(text)
    assert pages_note(setting) == "" == pages_note(tmp_path / "absent")
