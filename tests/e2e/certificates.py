"""Authorities and certificates for a test, made on the spot and good for a day."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        return certificate, key


class Authority:
    def __init__(self, name: str = "authority") -> None:
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pem = self._signed(self._name, self._key, DAY, (), ca=True)

    def issue(self, name: str, until=DAY, addresses: tuple[str, ...] = ()) -> Pair:
        """Return a certificate of a name, which is also its SAN; with `until` below 0, expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        other: list[x509.GeneralName] = [x509.DNSName(name)]
        other += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pair(self._signed(_name(name), key, until, other), pem)

    def _signed(self, subject: x509.Name, key, until, other, ca: bool = False) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + until)
            .add_extension(x509.BasicConstraints(ca, None), critical=True)
        )
        if other:
            builder = builder.add_extension(x509.SubjectAlternativeName(other), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
