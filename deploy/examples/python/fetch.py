"""Fetches the longest stored prefix of some tokens from a kvd daemon over TCP, with plain grpcio.

python fetch.py --address 127.0.0.1:9471 --token-file TOKENS --question QUESTION.json [--ca CA.pem]
Needs grpcio, protobuf and the modules kvd/v1. QUESTION.json is as in ../node/fetch.js.
"""

import argparse
import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
from google.protobuf import json_format

from kvd.v1 import kvd_pb2 as pb
from kvd.v1 import kvd_pb2_grpc as pb_grpc

DEADLINE_S = 30.0
OPTIONS = [
    # A pod or a daemon that vanished is noticed within half a minute, by either side.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 8 << 20),
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("address", "token-file", "question"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--ca", help="authority of the daemon's certificate, as PEM")
    parser.add_argument("--out", type=Path, help="keep each strip here, as lane-class-chunk.bin")
    return parser.parse_args()


def first_token(path: str) -> str:
    lines = (line.strip() for line in Path(path).read_text().splitlines())
    return next(line for line in lines if line and not line.startswith("#"))


def chain_of(tokens: list[int], chunk_tokens: int) -> bytes:
    """Return the chain digest of every whole chunk: each covers all tokens before its end."""
    before, digests = bytes(32), []
    for end in range(chunk_tokens, len(tokens) + 1, chunk_tokens):
        chunk = struct.pack(f"<{chunk_tokens}I", *tokens[end - chunk_tokens : end])
        before = hashlib.blake2b(before + chunk, digest_size=32, person=b"kvd.chain.v0").digest()
        digests.append(before)
    return b"".join(digests)


def bearer(token: str) -> dict:
    return {"metadata": (("authorization", f"Bearer {token}"),)}


def connect(address: str, ca: str | None) -> grpc.Channel:
    if ca is None:
        return grpc.insecure_channel(address, OPTIONS)  # Loopback only: the daemon insists.
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
    return grpc.secure_channel(address, credentials, OPTIONS)


def fetch(stub: pb_grpc.KvdStub, token: str, question: dict) -> dict:
    """Return a summary, and under `strips` each strip by its name."""
    session = {**bearer(token), "timeout": DEADLINE_S}
    keyspace = json_format.ParseDict(question["keyspace"], pb.Keyspace())
    request = pb.RegisterKeyspaceRequest(keyspace=keyspace)
    handle = stub.RegisterKeyspace(request, **session).keyspace
    chain = chain_of(question["tokens"], keyspace.chunk_tokens)
    wish = pb.FetchRequest(
        keyspace=handle, lanes=[pb.Lane()], chain=chain, class_count=3, delivery=pb.DELIVERY_BYTES
    )
    strips: dict[str, bytes] = {}
    counts: tuple[int, ...] = ()
    lease = delivered = 0
    for reply in stub.Fetch(wish, **session):
        match reply.WhichOneof("event"):
            case "promise":
                counts, lease = struct.unpack("<3I", reply.promise.counts), reply.promise.lease
            case "piece":
                piece = reply.piece
                name = f"{piece.lane}-{piece.plane_class}-{piece.chunk}"
                strips[name] = strips.get(name, b"").ljust(piece.offset, b"\0") + piece.data
            case "done":
                delivered = reply.done.delivered_bytes
    if lease:
        stub.Release(pb.ReleaseRequest(lease=lease), **session)
    return {"counts": list(counts), "bytes": delivered, "strips": strips}


def attached(stub: pb_grpc.KvdStub, token: str) -> tuple[grpc.Call, Iterator[pb.AttachReply]]:
    """Begin a session, which lives until the call is cancelled; its first reply is the welcome."""
    hello = pb.Hello(protocol_min=1, protocol_max=1, features=8, client="kvd-example python")
    call = stub.Attach(pb.AttachRequest(hello=hello), **bearer(token))
    return call, iter(call)


def main() -> int:
    said = arguments()
    question = json.loads(Path(said.question).read_text())
    with connect(said.address, said.ca) as channel:
        stub = pb_grpc.KvdStub(channel)
        call, replies = attached(stub, first_token(said.token_file))
        try:
            welcome = next(replies).welcome
            told = fetch(stub, welcome.token, question)
        except grpc.RpcError as error:
            print(f"kvd-example: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
        finally:
            call.cancel()
    strips = told.pop("strips")
    if said.out is not None:
        for name, strip in strips.items():
            (said.out / f"{name}.bin").write_bytes(strip)
    print(json.dumps({"daemon": welcome.daemon, "strips": len(strips), **told}))
    return 0 if told["bytes"] == sum(len(strip) for strip in strips.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
