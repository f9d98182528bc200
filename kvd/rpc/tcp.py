"""The TCP port of gRPC: what is refused before it opens, its certificates, its options.

Never open: without a credential that somebody could show there is no port, and without TLS none
that another machine can reach, as a token would travel in the clear.
"""

import logging
import os
import ssl
from dataclasses import replace

import grpc

from kvd.config import TcpSettings
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.credentials import Credentials
from kvd.rpc.tokens import check_private
from kvd.settings_values import Address

INT_MAX = (1 << 31) - 1

_log = logging.getLogger("kvd.tcp")


def _refuse(what: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, what)


def check_tcp(tcp: TcpSettings, credentials: Credentials) -> None:
    """Raise INVALID for a port that would be open, or readable on its way, or nobody's."""
    if tcp.certificate is None and not Address(tcp.host, tcp.port).is_loopback:
        raise _refuse(
            f"tcp.listen is {address_of(tcp)!r} without TLS: a token would travel in the clear; "
            "add certificate and key to [tcp], or listen on 127.0.0.1 or [::1]"
        )
    if tcp.client_ca is None and not credentials.has_tokens:
        raise _refuse(
            f"tcp.listen is {address_of(tcp)!r} and nobody could show who he is: add token_file "
            "to [tenants.NAME], or client_ca to [tcp] and client_names to [tenants.NAME]"
        )
    if not (credentials.has_tokens or credentials.has_names):
        raise _refuse(
            "tcp.client_ca is set and no certificate is anybody's: add client_names or token_file "
            "to [tenants.NAME]"
        )


def address_of(tcp: TcpSettings) -> str:
    return str(Address(tcp.host, tcp.port))


def add_port(server: grpc.aio.Server, tcp: TcpSettings) -> str:
    """Bind the port, and return the address; raise KvdError when it cannot be had."""
    try:
        if tcp.certificate is None:
            port = server.add_insecure_port(address_of(tcp))
        else:
            certificates = Certificates(tcp)
            port = server.add_secure_port(address_of(tcp), certificates.credentials())
    except RuntimeError as error:
        raise _refuse(f"tcp.listen: cannot listen on {address_of(tcp)}: {error}") from None
    return address_of(replace(tcp, port=port))


def tcp_options() -> list[tuple[str, int]]:
    """Return what holds for connections of other machines beyond `server_options`."""
    return [
        # Else a second daemon would share the port, and get half of the connections.
        ("grpc.so_reuseport", 0),
        # A session is a call of a connection; one with an age would end sessions that are well.
        ("grpc.max_connection_age_ms", INT_MAX),
        ("grpc.max_connection_age_grace_ms", INT_MAX),
    ]


class Certificates:
    """The files of the server's TLS; read again by the next handshake after they changed."""

    def __init__(self, tcp: TcpSettings) -> None:
        """Raise KvdError for files that do not fit together."""
        assert tcp.certificate is not None and tcp.key is not None
        self._certificate, self._key, self._client_ca = tcp.certificate, tcp.key, tcp.client_ca
        self._stamps = self._stamp()
        self._complaint = ""  # Said already.
        self._check()

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self.fetch, self._client_ca is not None
        )

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what to use from now on, None for what is in use; on a thread of the library."""
        try:
            stamps = self._stamp()
            if stamps == self._stamps:
                self._complaint = ""
                return None
            self._check()
            fresh = self._configuration()
        except (KvdError, OSError) as error:
            self._complain(error.message if isinstance(error, KvdError) else str(error))
            return None
        # Only now: what is wrong with files may be mended without a change of what is in them.
        self._stamps, self._complaint = stamps, ""
        _log.info("%s was read again", self._certificate)
        return fresh

    def _complain(self, what: str) -> None:
        if what != self._complaint:
            _log.error("the certificate before stays in use: %s", what)
        self._complaint = what

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = self._key.read_bytes(), self._certificate.read_bytes()
        roots = self._client_ca.read_bytes() if self._client_ca is not None else None
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def _check(self) -> None:
        check_private(self._key, os.stat(self._key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # With a password, as it would be asked for on the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise _refuse(
                f"tcp.certificate {self._certificate} and tcp.key {self._key}, which may have no "
                f"password, do not fit: {error}"
            ) from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise _refuse(f"tcp.client_ca {self._client_ca} is no PEM: {error}") from None

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        paths = [self._certificate, self._key, *filter(None, [self._client_ca])]
        try:
            found = [os.stat(path) for path in paths]
        except OSError as error:
            raise _refuse(f"tcp: {error.filename}: {error.strerror}") from None
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
