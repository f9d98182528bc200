"""The log of a real daemon: its form, and what never stands in it."""

import json
import signal

from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.process import running
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import put, read_mapped, register


def test_json_lines_without_secrets_or_contents(short_directory):
    flags = ("--log-format", "json", "--log-level", "debug")
    with running(short_directory, *flags) as daemon:
        client = RawClient(daemon.tenant)
        keyspace = register(client, keyspace_message(small_keyspace("log")))
        stored = put(client, keyspace, chain_of(2), 4, 500)
        read_mapped(client, stored)
        stranger = RawClient(daemon.tenant)
        # A nonce is for one stream, and a frame that nobody knows ends one.
        stranger.stream.send(FrameKind.BIND, 9, pb.Bind(nonce=b"x" * 16).SerializeToString())
        stranger.stream.send(200, 10, b"")
        client.close()
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
        daemon.wait_line("stopped")
    secrets = [client.welcome.token, client.welcome.nonce.hex(), stranger.welcome.token]
    secrets += [token.split(".")[1] for token in (client.welcome.token, stranger.welcome.token)]
    contents = stored.strips[0, 0][1000:1008].tobytes()
    secrets += [contents.hex(), repr(contents)[2:-1], stored.chain[:32].hex()]
    messages = []
    for line in daemon.lines:
        assert not [secret for secret in secrets if secret in line], line
        told = json.loads(line)
        assert told.keys() >= {"time", "level", "logger", "message"}
        messages.append(told["message"])
    assert any(message.startswith("ready on") for message in messages)
    assert messages[-1] == "stopped"
