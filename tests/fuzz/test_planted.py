"""Defects put into a parser are found by what looks for them in the others: a test of the tests."""

import importlib.util
import struct

import pytest

from tests.fuzz import deep
from tests.fuzz import parser as table_of
from tests.fuzz.parser import Hang, Length, Parser, kept
from tests.fuzz.test_lengths import known_lengths, refuse_for_nothing
from tests.fuzz.test_parsers import try_by_chance

HEAD = struct.Struct("<4sI")
SOUND = HEAD.pack(b"head", 4) + b"body"


class Refused(Exception):
    pass


def parse(data: bytes) -> bytes:
    """Return the body behind a head; what the planted ones do is done to this one."""
    if len(data) < HEAD.size or data[:4] != b"head":
        raise Refused
    _, size = HEAD.unpack_from(data)
    if size != len(data) - HEAD.size:
        raise Refused
    return data[HEAD.size :]


def sound(data: bytes) -> bool:
    return HEAD.pack(b"head", len(parse(data))) + parse(data) == data


def fails_at_a_byte(data: bytes) -> bool:
    """As one that trusts an index which it has read."""
    if data[:1] == b"\xee":
        return bool([0, 1][data[0]])
    return sound(data)


def fails_at_an_edge(data: bytes) -> bool:
    """As one that counts with a sign where there is none."""
    if len(data) >= HEAD.size and data[7] > 0x7F:
        return bool([0, 1][data[7]])
    return sound(data)


def takes_another(data: bytes) -> bool:
    """As one that does not look at what follows."""
    _, size = HEAD.unpack_from(data.ljust(HEAD.size, b"\0"))
    if data[:4] != b"head":
        raise Refused
    body = data[HEAD.size :][:size]
    assert HEAD.pack(b"head", len(body)) + body == data
    return True


def allocates(data: bytes) -> bool:
    """As one that makes room before it looks."""
    _, size = HEAD.unpack_from(data.ljust(HEAD.size, b"\0"))
    return len(bytearray(min(size, 1 << 24))) > 0 and sound(data)


def hangs(data: bytes) -> bool:
    """As one that counts up to a number which it has read."""
    while len(data) >= HEAD.size and any(data[5:8]):
        pass
    return sound(data)


def planted(parse) -> Parser:
    return Parser(
        parse.__name__,
        parse,
        lambda: [SOUND],
        (),
        (Refused,),
        lengths=(Length(4, "<I"),),
        tries=400,
    )


def test_a_sound_one_passes():
    try_by_chance(planted(sound))
    refuse_for_nothing(planted(sound), known_lengths(planted(sound)))


@pytest.mark.parametrize(
    ("parse", "error"), [(fails_at_an_edge, IndexError), (takes_another, AssertionError)]
)
def test_chance_finds_what_it_must_not_raise(parse, error):
    with pytest.raises(error):
        try_by_chance(planted(parse))


def test_a_hang_is_found(monkeypatch):
    monkeypatch.setattr(table_of, "HANG_SECONDS", 0.02)
    with pytest.raises(Hang):
        try_by_chance(planted(hangs))


def test_room_that_a_length_asks_for_is_found():
    with pytest.raises(AssertionError):
        refuse_for_nothing(planted(allocates), known_lengths(planted(allocates)))


def test_an_input_that_was_kept_is_tried_again(tmp_path, monkeypatch):
    (tmp_path / "fails_at_a_byte").mkdir()
    (tmp_path / "fails_at_a_byte" / "once").write_bytes(b"\xee")
    monkeypatch.setattr(table_of, "CORPUS", tmp_path)
    assert kept(planted(fails_at_a_byte)) == [b"\xee"]


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="`make test-deep` has it")
@pytest.mark.parametrize("parse", [fails_at_a_byte, sound])
def test_the_deep_fuzzer_finds_it_and_keeps_the_input(tmp_path, parse):
    done = deep.campaign(planted(parse), 5, tmp_path / "corpora", tmp_path, tmp_path / "kept")
    assert done.executed > 0
    if parse is sound:
        assert done.is_good
    else:
        [path] = done.found
        assert path.parent == tmp_path / "kept" / parse.__name__
        assert path.read_bytes()[:1] == b"\xee"


def test_without_atheris_it_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "atheris", None)
    assert deep.main(["--seconds", "1"]) == 2
    assert "kvd[deep]" in capsys.readouterr().out
