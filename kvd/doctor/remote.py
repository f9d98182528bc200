"""The TCP port's secrets and certificates, judged by what would open it."""

from collections.abc import Iterator

from kvd.clock import MonotonicClock
from kvd.doctor.findings import Finding, fail, ok
from kvd.doctor.plan import Scene
from kvd.errors import KvdError
from kvd.host.reading import Unseen


def security(scene: Scene) -> Iterator[Finding]:
    """Read tokens and certificates as the daemon will; say what it would refuse."""
    tcp = scene.plan.tcp
    if tcp is None:
        yield ok("tcp.security", "no TCP port is configured ([tcp] listen)")
        return
    try:
        from kvd.rpc.credentials import Credentials
        from kvd.rpc.tcp import Certificates, check_tcp
    except ImportError as error:
        raise Unseen(str(error)) from None
    try:
        check_tcp(tcp, Credentials(scene.plan.tenant_settings, MonotonicClock().now_ns))
        if tcp.certificate is not None:
            Certificates(tcp)
    except (KvdError, OSError) as error:
        of_system = isinstance(error, OSError)
        said = f"{error.filename}: {error.strerror}" if of_system else error.message
        wanted = "what opens the port: the daemon refuses to start"
        yield fail("tcp.security", said, wanted, "as said there, in [tcp] and [tenants.NAME]")
        return
    how = "with TLS" if tcp.certificate else "on the loopback without TLS"
    yield ok("tcp.security", f"the port opens {how}; its tokens and certificates can be read")
