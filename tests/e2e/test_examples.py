"""The example clients, against a daemon whose chunks the SDK has put: the same bytes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format

from kvd.client import Client
from kvd.client.messages import keyspace_message
from kvd.v1 import kvd_pb2 as pb
from tests.e2e.certificates import Authority
from tests.e2e.client_story import CHUNKS, DEADLINE_S, KEYSPACE, TOKENS, tensors
from tests.e2e.process import ROOT, Daemon
from tests.e2e.remote_node import A_TOKEN, Attached, channel_to, remote_node, write_tokens

EXAMPLES = ROOT / "deploy" / "examples"
INSTALL_SECONDS, RUN_SECONDS = 120, 60


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Install the example in a copy, or skip where Node or the registry is missing."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not here")
    copy = tmp_path_factory.mktemp("node") / "example"
    shutil.copytree(EXAMPLES / "node", copy, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    try:
        done = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm install did not end within {INSTALL_SECONDS} s")
    if done.returncode:
        words = ("ENOTFOUND", "ETIMEDOUT", "ECONNREFUSED", "EAI_AGAIN", "ECONNRESET")
        assert any(word in done.stderr for word in words), done.stderr
        pytest.skip("the package registry is out of reach")
    return copy


@pytest.fixture
def node(short_directory):
    tokens = write_tokens(short_directory / "tokens", A_TOKEN)
    config = short_directory / "kvd.toml"
    config.write_text(f'[tcp]\nlisten = "127.0.0.1:0"\n[tenants.a]\ntoken_file = "{tokens}"\n')
    daemon = Daemon(short_directory / "run", "--config", str(config), "--dram", "128MiB")
    line = daemon.wait_line("gRPC on tcp")
    address = re.search(r"127\.0\.0\.1:[0-9]+", line)[0]
    daemon.ready()
    yield short_directory, address
    daemon.stop()


def asked(directory: Path, tokens: int = TOKENS) -> Path:
    keyspace = json_format.MessageToDict(
        keyspace_message(KEYSPACE), preserving_proto_field_name=True
    )
    path = directory / "question.json"
    path.write_text(json.dumps({"keyspace": keyspace, "tokens": list(range(tokens))}))
    return path


def run(example: Path, directory: Path, address: str, *more: str) -> subprocess.CompletedProcess:
    command = ["node", "fetch.js", "--address", address, "--proto", str(ROOT / "proto"), *more]
    command += ["--question", str(asked(directory))]
    return subprocess.run(command, cwd=example, capture_output=True, text=True, timeout=RUN_SECONDS)


@pytest.fixture
def chain(node):
    """Have chunks in memory, by the SDK; return their chain."""
    directory, _ = node
    with Client(directory / "run" / "a", "test", DEADLINE_S) as client:
        assert client.wait_connected(DEADLINE_S)
        space = client.keyspace(KEYSPACE)
        chain = space.chain(np.arange(TOKENS))
        stored = space.put(chain, tensors())
        assert stored.stored == CHUNKS, stored
        yield chain


def test_node_fetches_the_bytes_that_python_fetches(example, node, chain):
    directory, address = node
    out = directory / "strips"
    out.mkdir()
    tokens = ("--token-file", str(directory / "tokens"), "--out", str(out))
    done = run(example, directory, address, *tokens)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["chunks"] == CHUNKS and said["found"] == said["counts"] == [CHUNKS] * 3
    ours = by_python(address, chain)
    theirs = {path.stem: path.read_bytes() for path in out.iterdir()}
    assert theirs == ours and len(ours) == 3 * CHUNKS
    assert said["bytes"] == sum(len(strip) for strip in ours.values())


def test_plain_python_fetches_them_too(node, chain):
    directory, address = node
    out = directory / "strips"
    out.mkdir()
    command = [sys.executable, str(EXAMPLES / "python" / "fetch.py"), "--address", address]
    command += ["--question", str(asked(directory)), "--out", str(out), "--token-file"]

    def run_with(tokens: Path) -> subprocess.CompletedProcess:
        search = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [*command, str(tokens)], capture_output=True, text=True, timeout=RUN_SECONDS, env=search
        )

    done = run_with(directory / "tokens")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == [CHUNKS] * 3
    theirs = {path.stem: path.read_bytes() for path in out.iterdir()}
    assert theirs == by_python(address, chain) and len(theirs) == 3 * CHUNKS
    denied = run_with(write_tokens(directory / "others", "x" * 40))
    assert denied.returncode == 1 and "UNAUTHENTICATED" in denied.stderr


def by_python(address: str, chain: bytes) -> dict[str, bytes]:
    with channel_to(address) as channel:
        session = Attached(channel, A_TOKEN)
        message = pb.RegisterKeyspaceRequest(keyspace=keyspace_message(KEYSPACE))
        keyspace = session.stub.RegisterKeyspace(message, **session.credentials).keyspace
        request = pb.FetchRequest(
            keyspace=keyspace, lanes=[pb.Lane()], chain=chain, class_count=3,
            delivery=pb.DELIVERY_BYTES,
        )  # fmt: skip
        strips: dict[str, bytes] = {}
        for reply in session.stub.Fetch(request, **session.credentials):
            if reply.HasField("piece"):
                piece = reply.piece
                name = f"{piece.lane}-{piece.plane_class}-{piece.chunk}"
                strips[name] = strips.get(name, b"").ljust(piece.offset, b"\0") + piece.data
        return strips


def test_nothing_stored_is_no_failure(example, node):
    directory, address = node
    done = run(example, directory, address, "--token-file", str(directory / "tokens"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == [0, 0, 0]


def test_without_a_token_it_says_what_is_missing(example, node):
    directory, address = node
    done = run(example, directory, address)
    assert done.returncode == 1 and "Attach needs" in done.stderr and done.stdout == ""


def test_by_certificates_over_tls(example, short_directory):
    authority = Authority()
    files = dict(
        zip(
            ("certificate", "key"),
            authority.issue("localhost", addresses=("127.0.0.1",)).write(short_directory, "server"),
            strict=True,
        )
    )
    ca = short_directory / "ca.crt"
    ca.write_bytes(authority.pem)
    certificate, key = authority.issue("client-a").write(short_directory, "client")
    ours = ("--certificate", str(certificate), "--key", str(key))
    with remote_node(short_directory, **files, client_ca=ca) as node:
        address = f"localhost:{node.here.tcp.rpartition(':')[2]}"
        done = run(example, short_directory, address, "--ca", str(ca), *ours)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["counts"] == [0, 0, 0]
        done = run(example, short_directory, address, "--ca", str(ca))
        assert done.returncode == 1 and done.stdout == ""
