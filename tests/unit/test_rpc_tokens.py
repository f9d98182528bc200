"""Token files: what is in them, who may read them, when they are read again."""

import logging

import pytest

from kvd.clock import NS_PER_S
from kvd.config import TenantSettings
from kvd.errors import KvdError
from kvd.rpc.credentials import Credentials, Denied
from kvd.rpc.tokens import (
    FILE_BYTES_MAX,
    LOOK_EVERY_NS,
    TOKEN_CHARACTERS_MAX,
    TOKEN_CHARACTERS_MIN,
    TOKENS_MAX,
    TokenFile,
    digest_of,
)

TOKEN, OTHER = "a" * TOKEN_CHARACTERS_MIN, "b" * TOKEN_CHARACTERS_MIN


class Now:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def now():
    return Now()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"{TOKEN}\n")
    return path


def test_comments_and_blank_lines_are_no_tokens(path, now):
    path.write_text(f"# of the first\n\n  {TOKEN}  \n{OTHER}")
    assert TokenFile(path, now).digests() == (digest_of(TOKEN), digest_of(OTHER))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 tokens"),
        ("# only this\n", "0 tokens"),
        ("a" * (TOKEN_CHARACTERS_MIN - 1), "line 1 has 31 characters"),
        (f"{TOKEN}\n" + "a" * (TOKEN_CHARACTERS_MAX + 1), "line 2 has 513 characters"),
        ("secret " * 8, "without spaces"),
        ("ä" * 40, "printable ASCII"),
        (f"{TOKEN}\n" * (TOKENS_MAX + 1), f"allowed are 1 to {TOKENS_MAX}"),
        ("#" * (FILE_BYTES_MAX + 1), f"more than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_what_cannot_be_used_is_refused_and_never_repeated(path, now, text, words):
    path.write_text(text)
    with pytest.raises(KvdError, match=words) as refused:
        TokenFile(path, now)
    assert str(path) in refused.value.message
    assert "secret" not in refused.value.message and "a" * 20 not in refused.value.message


@pytest.mark.parametrize(
    ("mode", "good"), [(0o400, True), (0o640, True), (0o604, False), (0o620, False), (0o644, False)]
)
def test_who_may_read_it(path, now, mode, good):
    path.chmod(mode)
    if good:
        assert TokenFile(path, now).digests()
        return
    with pytest.raises(KvdError, match=f"mode {mode:04o}.*chmod 0600"):
        TokenFile(path, now)


def test_what_is_no_file_is_refused(tmp_path, now):
    with pytest.raises(KvdError, match="No such file"):
        TokenFile(tmp_path / "none", now)
    with pytest.raises(KvdError, match="Is a directory"):
        TokenFile(tmp_path, now)


def test_it_is_looked_at_once_a_second_at_most(path, now):
    file = TokenFile(path, now)
    path.write_text(f"{OTHER}\n# another size\n")
    now.ns = LOOK_EVERY_NS - 1
    assert file.digests() == (digest_of(TOKEN),)
    now.ns = LOOK_EVERY_NS
    assert file.digests() == (digest_of(OTHER),)


def test_a_file_that_turns_bad_admits_nobody_and_says_so_once(path, now, caplog):
    caplog.set_level(logging.INFO, "kvd.tokens")
    file = TokenFile(path, now)
    path.write_text("short\n")
    for second in range(1, 4):
        now.ns = second * NS_PER_S
        assert file.digests() == ()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "line 1 has 5 characters" in caplog.text and "short" not in caplog.text
    path.write_text(f"{TOKEN}\n")
    now.ns = 4 * NS_PER_S
    assert file.digests() == (digest_of(TOKEN),)
    assert "read again: 1 tokens" in caplog.text


# ---- of all tenants ----


def credentials(tmp_path, now, **tokens: str) -> Credentials:
    tenants = []
    for name, token in tokens.items():
        path = tmp_path / name
        path.touch(mode=0o600)
        path.write_text(f"{token}\n")
        tenants.append(TenantSettings(name, token_file=path, client_names=(f"client-{name}",)))
    return Credentials(tenants, now)


def test_a_token_or_a_name_is_one_tenants(tmp_path, now):
    held = credentials(tmp_path, now, a=TOKEN, b=OTHER)
    assert held.identify(TOKEN, ()) == "a" and held.identify("", ["x", "client-b"]) == "b"
    assert held.identify(OTHER, ["client-b"]) == "b"
    for token, names, why in (
        ("", (), "neither a token"),
        (TOKEN.upper(), (), "a token that no tenant has"),
        ("x" * 513, (), "at most 512"),
        (TOKEN, ("client-b",), "of the tenants a and b"),
        ("", ("client-a", "client-b"), "of the tenants a and b"),
        ("", ("client-c",), "client-c"),
    ):
        with pytest.raises(Denied, match=why) as denied:
            held.identify(token, names)
        assert not token or token not in denied.value.why


def test_what_two_tenants_share_is_refused(tmp_path, now):
    with pytest.raises(KvdError, match="tenants a and b have a token in common"):
        credentials(tmp_path, now, a=TOKEN, b=TOKEN)
    twice = [TenantSettings(name, client_names=("same",)) for name in ("a", "b")]
    with pytest.raises(KvdError, match="'same' is of both tenants a and b"):
        Credentials(twice, now)


def test_a_token_that_two_tenants_come_to_share_is_nobodys(tmp_path, now):
    held = credentials(tmp_path, now, a=TOKEN, b=OTHER)
    (tmp_path / "b").write_text(f"{TOKEN}\n#\n")
    now.ns = LOOK_EVERY_NS
    with pytest.raises(Denied, match="of several tenants"):
        held.identify(TOKEN, ())
