"""What settings of tenants and of tcp must be together, though each for itself is allowed.

Says by file, variable or flag which one to change; opens no file and knows no slab.
"""

from collections.abc import Iterator

from kvd.settings_sources import Said, Settled
from kvd.settings_values import Address
from kvd.units import size_text

_IDENTITIES = (".token_file", ".client_names")


def check_quotas(settled: Settled, tenants: tuple[str, ...]) -> None:
    """Refuse a quota of a tier that is smaller, or not there, or promised to others already."""
    dram, budget, data = (settled[key] for key in ("dram.size", "ssd.budget", "ssd.data"))
    _check_quotas_of([settled[f"tenants.{name}.dram"] for name in tenants], dram)
    on_disk = [settled[f"tenants.{name}.ssd"] for name in tenants]
    for said in on_disk:
        if said.value and not data.value:
            raise said.refuse("none without ssd.data (--data) or ssd.budget (--ssd)")
    _check_quotas_of(on_disk, budget)


def _check_quotas_of(quotas: list[Said], tier: Said) -> None:
    """Compare with the size of a tier; one that stands open until the start promises nothing."""
    if not isinstance(tier.value, int):
        return
    left = tier.value
    for said in quotas:
        quota = said.value or 0
        assert isinstance(quota, int)
        if quota > left:
            others = ", less what other tenants are sure of" if left < tier.value else ""
            whole = f"{tier.key}, which is {size_text(tier.value)}"
            raise said.refuse(f"none, or at most {size_text(left)}: {whole}{others}")
        left -= quota


def check_tcp(settled: Settled, tenants: tuple[str, ...]) -> None:
    """Refuse half a certificate, and a port that would be nobody's or read on its way."""
    listen, certificate, key, client_ca = (
        settled[f"tcp.{name}"] for name in ("listen", "certificate", "key", "client_ca")
    )
    if certificate.value and not key.value:
        raise certificate.refuse("one with its key: set tcp.key too")
    if key.value and not certificate.value:
        raise key.refuse("one with its certificate: set tcp.certificate too")
    if client_ca.value and not certificate.value:
        raise client_ca.refuse("one beside tcp.certificate and tcp.key: set them too")
    if not isinstance(listen.value, Address):
        return
    if not certificate.value and not listen.value.is_loopback:
        raise listen.refuse(
            "127.0.0.1 or [::1] while there is no TLS, as a token would travel in the clear: set "
            "tcp.certificate and tcp.key"
        )
    if not any(_identities(settled, tenants)):
        raise listen.refuse(
            "none while nobody could show who he is: set tenants.NAME.token_file, or tcp.client_ca "
            "and tenants.NAME.client_names"
        )


def check_identities(settled: Settled, tenants: tuple[str, ...]) -> None:
    """Refuse what would make one client two tenants, or that no client could be known by."""
    taken: dict[object, str] = {}
    for name, said, identity in _identities(settled, tenants):
        if said.key.endswith(".client_names") and not settled["tcp.client_ca"].value:
            raise said.refuse("none without tcp.client_ca")
        if identity in taken:
            raise said.refuse(f"what is not tenant {taken[identity]!r}'s already")
        taken[identity] = name


def _identities(settled: Settled, tenants: tuple[str, ...]) -> Iterator[tuple[str, Said, object]]:
    """Yield what each tenant's clients are known by over TCP: files of secrets, and names."""
    for name in tenants:
        for said in (settled[f"tenants.{name}{of}"] for of in _IDENTITIES):
            each = said.value if isinstance(said.value, tuple) else (said.value,)
            yield from ((name, said, identity) for identity in each if identity)
