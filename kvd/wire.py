"""Frames of the session's message stream: a fixed header, then a protobuf message or a piece.

Both ends use these words, so they lie on floor 0. Layout in docs/protocol.md.
"""

import struct
from enum import IntEnum, IntFlag

# Body length, request id, kind, pad (zero), pad (zero).
FRAME_HEAD = struct.Struct("<IIBBH")
# Of a PIECE body: class, lane, pad (zero), chunk, offset in the strip; the data follows.
PIECE_HEAD = struct.Struct("<BBHII")
# Of the control page, at offset 0: magic, daemon epoch, revoke counter.
CONTROL_PAGE = struct.Struct("<8sQQ")
CONTROL_MAGIC = b"kvdctrl0"
REVOKE_OFFSET = 16

# Of a reply to an operator, which may list all keyspaces or pins there are.
ADMIN_REPLY_BYTES_MAX = 256 << 20

# In place of a number of ready pieces: all of each strip.
WHOLE = 255


class Feature(IntFlag):
    """What exists beyond the first protocol; a hello states what is understood, the welcome what
    both know."""

    READY = 1  # A promise may come before all of it is there; READY frames say how far it is.
    PREFETCH = 2
    CLEAR = 4
    ATTACH = 8  # The gRPC call; a client on the slab channel learns that others may come so.


FEATURES = int(Feature.READY | Feature.PREFETCH | Feature.CLEAR | Feature.ATTACH)


class FrameKind(IntEnum):
    """Requests are below 64, answers from 64; an answer carries its request's id."""

    BIND = 1
    REGISTER_KEYSPACE = 2
    RESERVE = 3
    SEAL = 4
    ABORT = 5
    LOOKUP = 6
    FETCH = 7
    RELEASE = 8
    RENEW = 9
    CANCEL = 10
    CREDIT = 11
    PREFETCH = 12
    CLEAR = 13
    ERROR = 64  # Final.
    REPLY = 65  # Final; the message type follows from the request's kind.
    PROMISE = 66
    PIECE = 67
    NOTICE = 68  # Request id 0.
    READY = 69
