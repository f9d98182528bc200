"""Why the sockets of a daemon cannot be used, and whose they are: for the one line of a status."""

import os
from pathlib import Path

SLABS_SOCKET, SESSION_SOCKET = "slabs.sock", "session.sock"


def closed_door(where: Path) -> str:
    """Return which path this process may not use, whose it is, and what opens it."""
    doors = [*reversed(where.absolute().parents), where.absolute()]
    wanted = [(path, os.X_OK, "search") for path in doors]
    wanted += [(where / name, os.W_OK, "write to") for name in (SLABS_SOCKET, SESSION_SOCKET)]
    remedy = f"name uid {os.geteuid()} in allow_uids, or open the directory to it"
    for path, mode, verb in wanted:
        try:
            stat = os.stat(path)
            if os.access(path, mode, effective_ids=True):
                continue
        except OSError as error:
            return f"{path}: {os.strerror(error.errno or 0)} ({remedy})"
        owner = f"uid {stat.st_uid} and gid {stat.st_gid}, mode {stat.st_mode & 0o7777:04o}"
        return f"uid {os.geteuid()} may not {verb} {path}, of {owner} ({remedy})"
    return f"the sockets in {where} refuse uid {os.geteuid()}, a security module perhaps ({remedy})"
