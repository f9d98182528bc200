"""From what a person can name to what a daemon knows: a keyspace, and the digests of a chain."""

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from kvd.admin.asking import AdminClient
from kvd.errors import ErrorKind, KvdError
from kvd.identity import KVD_CHAIN, chain_digests
from kvd.limits import DIGEST_BYTES
from kvd.v1 import admin_pb2 as admin

HEX_LEAST = 4
REASON_CHARS_MAX = 400  # It may hold a word of a file, which may be as long as the file.


@dataclass(frozen=True, slots=True)
class Asked:
    digest: bytes
    chain: bytes


def chain_flags(parser: argparse.ArgumentParser, *, needed: bool) -> None:
    """Add the flags that name a keyspace and a chain in it."""
    parser.add_argument(
        "--keyspace",
        default="",
        metavar="HEX",
        required=needed,
        help="first digits of its digest, as `kvd-admin keyspaces` shows it",
    )
    way = parser.add_mutually_exclusive_group(required=needed)
    way.add_argument(
        "--tokens",
        default="",
        metavar="FILE",
        help="token ids from the start, as a JSON list or apart by blanks; - for standard input",
    )
    way.add_argument(
        "--chain",
        default="",
        metavar="HEX",
        help="digests of the chunks, joined, or a file of them; - for standard input",
    )
    parser.add_argument(
        "--extras",
        default="",
        metavar="HEX",
        help="extras that the digests of --tokens cover (a salt)",
    )


def _invalid(message: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, message)


def read_asked(client: AdminClient, arguments: argparse.Namespace) -> Asked:
    """Return the keyspace and chain that the flags name; raise INVALID naming what is wrong."""
    found = find_keyspace(client, arguments.keyspace)
    if arguments.chain:
        return Asked(found.digest, _read_chain(arguments.chain))
    keyspace = found.keyspace
    if keyspace.chain != KVD_CHAIN:
        raise _invalid(
            f"keyspace {found.digest.hex()[:12]} has chains of an engine's own ({keyspace.chain}); "
            "give their digests with --chain"
        )
    tokens = _read_tokens(arguments.tokens)
    chain = chain_digests(tokens, keyspace.chunk_tokens, _hex(arguments.extras, "--extras"))
    if not chain:
        raise _invalid(
            f"--tokens has {len(tokens)} tokens; a chunk of this keyspace has "
            f"{keyspace.chunk_tokens}, and shorter ones are not stored"
        )
    return Asked(found.digest, chain)


def find_keyspace(client: AdminClient, text: str) -> admin.KeyspaceInfo:
    """Return the keyspace whose digest begins so; raise INVALID unless it is exactly one."""
    if not re.fullmatch(rf"[0-9a-fA-F]{{{HEX_LEAST},64}}", text):
        raise _invalid(
            f"--keyspace is {text!r}; allowed are {HEX_LEAST} to 64 hexadecimal digits "
            "(see `kvd-admin keyspaces`)"
        )
    every = client.call("Keyspaces", admin.KeyspacesRequest()).keyspaces
    found = [each for each in every if each.digest.hex().startswith(text.lower())]
    if len(found) != 1:
        known = ", ".join(each.digest.hex()[:12] for each in every) or "none"
        raise _invalid(f"--keyspace {text} means {len(found)} keyspaces; there are {known}")
    return found[0]


def _read(text: str, flag: str) -> str:
    try:
        return sys.stdin.read() if text == "-" else Path(text).read_text()
    except UnicodeDecodeError:
        raise _invalid(f"{flag} {text}: not text") from None


def _read_tokens(name: str) -> list[int]:
    text = _read(name, "--tokens").strip()
    try:
        tokens = json.loads(text) if text.startswith("[") else [int(word) for word in text.split()]
    except ValueError as error:
        raise _invalid(f"--tokens {name}: not token ids: {error}"[:REASON_CHARS_MAX]) from None
    except RecursionError:
        raise _invalid(f"--tokens {name}: not token ids: lists too deep in each other") from None
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise _invalid(f"--tokens {name}: not a list of token ids")
    return tokens


def _read_chain(text: str) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]+", text):
        text = "".join(_read(text, "--chain").split())
    chain = _hex(text, "--chain")
    if not chain or len(chain) % DIGEST_BYTES:
        raise _invalid(f"--chain has {len(chain)} bytes; it is {DIGEST_BYTES} for each chunk")
    return chain


def _hex(text: str, flag: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise _invalid(f"{flag}: not hexadecimal digits, two for each byte") from None
