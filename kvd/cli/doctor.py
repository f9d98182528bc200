"""`kvd doctor`: looks at the host for one configuration, and says what to change, line by line."""

import argparse
import json
import os
import pwd
import sys

from kvd.cli.doctor_report import as_object, show
from kvd.cli.serve_flags import said_flags
from kvd.config import serve_config
from kvd.doctor.examine import DEEP, PROBES, examine, scene_of
from kvd.doctor.findings import Level
from kvd.doctor.plan import plan_of
from kvd.errors import ErrorKind, KvdError
from kvd.host.reading import Host

EXIT_FINE = 0
EXIT_FAILS = 1
EXIT_CANNOT = 2


def run(arguments: argparse.Namespace) -> int:
    """Look, show, and return the exit code."""
    # Paths may hold bytes that are no text.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        plan = plan_of(serve_config(said_flags(arguments), os.environ))
        scene = scene_of(plan, Host(), _uid_of(arguments.as_user))
        findings = list(examine(scene, PROBES + DEEP if arguments.deep else PROBES))
        if arguments.json:
            print(json.dumps(as_object(findings, scene.running)))
        else:
            show(findings, everything=arguments.all)
        sys.stdout.flush()
    except KvdError as error:
        return _refuse(error.message)
    except BrokenPipeError:
        # Nobody reads on; and the interpreter would complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refuse("standard output was closed before all was said")
    except OSError as error:
        return _refuse(f"{error.filename or 'looking'}: {error.strerror}")
    except KeyboardInterrupt:
        return _refuse("interrupted; nothing is changed")
    return EXIT_FAILS if any(f.level == Level.FAIL for f in findings) else EXIT_FINE


def _uid_of(user: str) -> int | None:
    """Return the number of a user, None when none is named; raise INVALID."""
    if not user or user.isdigit():
        return int(user) if user else None
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        message = f"--as-user is {user!r}; allowed is a number, or the name of a user of this host"
        raise KvdError(ErrorKind.INVALID, message) from None


def _refuse(line: str) -> int:
    text = line.replace("\n", "\\n")
    print(f"kvd: {text}", file=sys.stderr, flush=True)
    return EXIT_CANNOT
