"""Who may come in by a gRPC door: whose tenant an Attach is, and whose calls a token may carry.

A session is used on the way that it was made on: a token told to a Unix socket is none over TCP.
"""

from collections.abc import Sequence
from typing import Protocol

import grpc

from kvd.rpc.credentials import Credentials, Denied
from kvd.rpc.session import Session

BEARER = "Bearer "
TCP = "tcp"
_NAMES = ("x509_common_name", "x509_subject_alternative_name")

Context = grpc.aio.ServicerContext
Metadata = Sequence[tuple[str, str | bytes]]


class Entrance(Protocol):
    def tenant_of(self, context: Context) -> str:
        """Return the tenant whose credential an Attach shows; raise Denied."""
        ...

    def admits(self, session: Session, context: Context) -> bool:
        """Return whether calls of this connection may use a session whose token they carry."""
        ...

    def made(self, session: Session) -> None:
        """Take note of a session that was attached here."""
        ...


def token_of(metadata: Metadata | None) -> str:
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value.startswith(BEARER):
            return value.removeprefix(BEARER)
    return ""


def names_of(context: Context) -> list[str]:
    """Return the names in the certificate that the library has verified; none without."""
    said = context.auth_context() or {}
    return [name.decode("utf-8", "replace") for key in _NAMES for name in said.get(key, ())]


class TenantEntrance:
    """The Unix socket of one tenant: the path says which."""

    def __init__(self, tenant: str, credentials: Credentials) -> None:
        self._tenant, self._credentials = tenant, credentials

    def tenant_of(self, context: Context) -> str:
        tenant = self._credentials.identify(token_of(context.invocation_metadata()), ())
        if tenant != self._tenant:
            raise Denied(f"a token of tenant {tenant}, at the socket of {self._tenant}")
        return tenant

    def admits(self, session: Session, context: Context) -> bool:
        return session.tenant == self._tenant and session.way != TCP

    def made(self, session: Session) -> None:
        pass


class TcpEntrance:
    """One for all tenants: the credential says which."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def tenant_of(self, context: Context) -> str:
        token = token_of(context.invocation_metadata())
        return self._credentials.identify(token, names_of(context))

    def admits(self, session: Session, context: Context) -> bool:
        return session.way == TCP and self._credentials.tenants_of(names_of(context)) <= {
            session.tenant
        }

    def made(self, session: Session) -> None:
        session.way = TCP
