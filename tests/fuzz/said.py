"""Rows of the table: what people and service managers say: files, variables, words of a call."""

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

from kvd.cli import admin
from kvd.cli.chains import _hex, _read_chain, _read_tokens
from kvd.cli.service import take_service
from kvd.config import TcpSettings, TenantSettings, build, complete, serve_config
from kvd.errors import KvdError
from kvd.identity import chain_digests
from kvd.limits import DIGEST_BYTES
from kvd.rpc.credentials import Credentials, Denied
from kvd.rpc.entrance import TcpEntrance
from kvd.rpc.tcp import Certificates
from kvd.rpc.tokens import TOKENS_MAX, TokenFile
from kvd.settings import Setting
from kvd.settings_limits import SETTINGS
from kvd.settings_sources import settle
from kvd.settings_values import plain, read_text, toml
from kvd.units import parse_size, parse_time, size_text
from tests.e2e.certificates import Authority
from tests.fuzz import parser
from tests.fuzz.parser import Parser
from tests.unit.settings_scene import NO_FILE, PLAIN, beside, example


@cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="kvd-fuzz-", dir=parser.scratch_home)


def _file(name: str, data: bytes) -> Path:
    """Return a file of this process alone that holds the bytes."""
    path = Path(_scratch().name) / name
    with open(path, "wb", opener=lambda each, flags: os.open(each, flags, 0o600)) as file:
        file.write(data)
    return path


@contextlib.contextmanager
def _in_a_line() -> Iterator[None]:
    """What is refused is told in one line that can be printed."""
    try:
        yield
    except KvdError as error:
        assert "\n" not in error.message and len(error.message) < 2000, error.message
        error.message.encode(errors="surrogateescape")
        raise


def _take_file(data: bytes) -> bool:
    path = _file("kvd.toml", data)
    with _in_a_line():
        settled = settle({"config": str(path)}, {}, NO_FILE)
        for said in settled.values():
            plain(said.value, said.setting)
            toml(said.value, said.setting)
        build(complete(settled, {}))
    return True


def _configurations() -> list[bytes]:
    each = "".join(
        f"{setting.key} = {example(setting)[0]}\n" for setting in PLAIN if setting.key != "tenants"
    )
    each += "tenants.red.client_names = ['one.example']\n"
    tenants = '[tenants.red]\ndram = "1MiB"\nrequests_per_second = 2.5\n[tenants."b.c"]\n'
    sections = _sections() + "[tenants.red]\ntoken_file = '/x'\n"
    return [text.encode() for text in (each, tenants, beside(SETTINGS[0]), sections)]


def _sections() -> str:
    sections: dict[str, str] = {}
    for setting in PLAIN:
        if setting.key != "tenants":
            line = f"{setting.name} = {example(setting)[0]}  # {setting.help}\n"
            sections[setting.section] = sections.get(setting.section, "") + line
    return "".join(f"[{name}]\n{lines}" if name else lines for name, lines in sections.items())


def _take_variable(data: bytes) -> bool:
    """The first byte says which; the rest is its text, as the system hands it over."""
    if not data or b"\0" in data[1:]:
        return False
    setting, text = _variables()[data[0] % len(_variables())], os.fsdecode(data[1:])
    with _in_a_line():
        config = serve_config({}, {setting.variable: text}, NO_FILE)
        if text:
            value = read_text(setting, text, "x")
            plain(value, setting)
    return config is not None


@cache
def _variables() -> tuple[Setting, ...]:
    return tuple(setting for setting in SETTINGS if setting.variable)


def _texts() -> list[bytes]:
    said = enumerate(_variables())
    return [bytes([at]) + (example(each)[1] or "one").encode() for at, each in said]


def _take_unit(data: bytes) -> bool:
    text = data.decode("latin-1")
    size, time_ns = parse_size(text), parse_time(text)
    assert size is None or (size >= 0 and parse_size(size_text(size)) == size)
    assert time_ns is None or time_ns >= 0
    return (size, time_ns) != (None, None)


# ---- files beside the settings ----


def _take_tokens(data: bytes) -> bool:
    with _in_a_line():
        file = TokenFile(_file("tokens", data), lambda: 0)
    assert 1 <= len(file.digests()) <= TOKENS_MAX
    return True


TOKEN = "a" * 32


def _take_credential(data: bytes) -> bool:
    """A header of a call, and the names of a certificate, by lines."""
    header, *names = data.split(b"\n")
    entrance = TcpEntrance(_credentials())
    assert entrance.tenant_of(_Call(header.decode("latin-1"), names)) == "red"  # type: ignore[arg-type]
    return True


class _Call:
    """The context of a call, as far as it says who calls."""

    def __init__(self, header: str, names: list[bytes]) -> None:
        self._header, self._names = header, names

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return [("x-other-bin", b"x"), ("authorization", self._header)]

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": self._names[:1], "x509_subject_alternative_name": self._names}


@cache
def _credentials() -> Credentials:
    path = _file("tokens.red", TOKEN.encode())
    tenant = TenantSettings("red", token_file=path, client_names=("one.example",))
    return Credentials([tenant], lambda: 0)


def _take_pem(data: bytes) -> bool:
    """The first byte says whose place the bytes take: the certificate's, the key's or the CA's."""
    if not data:
        return False
    names = ["certificate", "key", "client_ca"]
    files = dict(zip(names, _pems(), strict=True))
    files[names[data[0] % 3]] = data[1:]
    paths = {name: _file(name, content) for name, content in files.items()}
    with _in_a_line():
        Certificates(TcpSettings("127.0.0.1", 0, **paths))._configuration()
    return True


@cache
def _pems() -> tuple[bytes, bytes, bytes]:
    authority = Authority()
    pair = authority.issue("server")
    return pair.certificate, pair.key, authority.pem


# ---- words of a call ----


def _take_token_ids(data: bytes) -> bool:
    with _in_a_line():
        tokens = _read_tokens(str(_file("ids", data)))
        chain_digests(tokens, 4)
    return bool(tokens)


def _take_chain(data: bytes) -> bool:
    with _in_a_line():
        chain = _read_chain(str(_file("chain", data)))
    assert chain and len(chain) % DIGEST_BYTES == 0
    return True


def _take_extras(data: bytes) -> bool:
    with _in_a_line():
        return bool(_hex(os.fsdecode(data), "--extras"))


# Of the manager's words, each on a line; its descriptors are not this process's to take.
MANAGER = ("WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def _take_manager(data: bytes) -> bool:
    words = os.fsdecode(data.replace(b"\0", b"")).split("\n")
    said = dict(zip(MANAGER, words, strict=False))
    if said.get("LISTEN_FDS", "").strip("0") and said.get("LISTEN_FDNAMES"):
        said["LISTEN_FDNAMES"] = ""
    said = {name: word.replace("PID", str(os.getpid())) for name, word in said.items()}
    with _in_a_line():
        service = take_service(said)
    assert not said.keys() & set(MANAGER) and service.watchdog_ns >= 0
    return True


# What a person types behind `kvd-admin`, each word on a line; no daemon is there to be asked.
CODES = (0, 1, 2, 3)


def _take_command(data: bytes) -> bool:
    words = os.fsdecode(data.replace(b"\0", b"")).split("\n")
    nobody = f"--directory={_scratch().name}/none"
    out, err = (io.TextIOWrapper(io.BytesIO()) for _ in range(2))
    with (
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        patch.object(sys, "stdin", io.StringIO("1 2 3")),
    ):  # fmt: skip
        code = admin.main([*words, *([nobody] if words[0] != "size" else [])])
    assert code in CODES, code
    err.seek(0)
    assert "Traceback" not in err.read()
    return code == 0 or code == admin.EXIT_NOBODY


COMMANDS = (
    "status",
    "stats\n--json",
    "top\n--count\n1\n--interval\n0.5",
    "report\n--seconds\n1",
    "explain\n--keyspace\nabcd1234\n--tokens\n-\n--extras\nff",
    "unpin\n7",
    "pin\n--keyspace\nabcd\n--chain\n" + "ab" * 32,
    "evict\n--tenant\nred\n--bytes\n64MiB",
    "clear\n--tenant\nred\n--yes",
    "drain",
    "lookup\n--keyspace\nabcd\n--tokens\n-",
    "size\nllama-3.1-8b\n--dram\n64GiB\n--ssd\n1TiB\n--tokens\n8192",
    "size\n--layers\n32\n--kv-heads\n8\n--width\n128\n--dtype\nbf16\n--json",
)


PARSERS = (
    Parser(
        "command_line", _take_command, lambda: [line.encode() for line in COMMANDS],
        ("units.py:parse_size",), (SystemExit,),
        tries=60,
    ),
    Parser(
        "config_file", _take_file, _configurations,
        ("settings_sources.py:_read_file", "settings_sources.py:settle",
         "settings_values.py:read_toml", "config.py:build"), (KvdError,),
    ),
    Parser(
        "variables", _take_variable, _texts,
        ("settings_values.py:read_text", "settings_sources.py:_of_environment"), (KvdError,),
    ),
    Parser(
        "units", _take_unit, lambda: [b"10.5GiB", b"30s", b"1", b"500ms"],
        ("units.py:parse_size", "units.py:parse_time"),
    ),
    Parser(
        "token_file", _take_tokens,
        lambda: [f"# of red\n{TOKEN}\n\n{'b' * 64}\n".encode(), TOKEN.encode()],
        ("rpc/tokens.py:_read", "rpc/tokens.py:_digests_in"), (KvdError,),
    ),
    Parser(
        "credential", _take_credential,
        lambda: [f"Bearer {TOKEN}".encode(), b"\none.example", f"Bearer {TOKEN}\nx".encode()],
        ("rpc/credentials.py:identify", "rpc/entrance.py:token_of", "rpc/entrance.py:names_of"),
        (Denied,),
    ),
    Parser(
        "certificates", _take_pem,
        lambda: [bytes([at]) + pem for at, pem in enumerate(_pems())],
        ("rpc/tcp.py:_check", "rpc/tcp.py:_configuration"), (KvdError,),
        tries=40,
    ),
    Parser(
        "token_ids", _take_token_ids, lambda: [b"[1, 2, 3, 4, 5]", b"7 8 9\n10", b"4294967295"],
        ("cli/chains.py:_read_tokens", "cli/chains.py:_read", "identity.py:chain_digests"),
        (KvdError,),
    ),
    Parser(
        "chain_hex", _take_chain, lambda: [b"ab" * 32, b"CD" * 32 + b"\n" + b"01" * 32],
        ("cli/chains.py:_read_chain", "cli/chains.py:_hex"), (KvdError,),
    ),
    Parser("extras_hex", _take_extras, lambda: [b"abcd"], ("cli/chains.py:_hex",), (KvdError,)),
    Parser(
        "service_manager", _take_manager, lambda: [b"20000000\n\nPID\n0\n", b"1\nPID", b"\n\n\n\n"],
        ("cli/service.py:take_service", "cli/service.py:_take_descriptors",
         "cli/service.py:_number"), (KvdError,),
    ),
)  # fmt: skip
