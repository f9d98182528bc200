"""Which tenant a credential is of: a token of its file, or a name in a client certificate.

Says who somebody is, never why he is nobody: that goes to the audit log only.
"""

import hmac
from collections.abc import Callable, Sequence

from kvd.config import TenantSettings
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.tokens import TOKEN_CHARACTERS_MAX, TokenFile, digest_of


class Denied(Exception):
    """No tenant for what was shown; `why` is for the audit log."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Credentials:
    """Of all tenants of a daemon. Raises KvdError for files and names that cannot be used."""

    def __init__(self, tenants: Sequence[TenantSettings], now_ns: Callable[[], int]) -> None:
        self._files = {
            tenant.name: TokenFile(tenant.token_file, now_ns)
            for tenant in tenants
            if tenant.token_file is not None
        }
        self._names: dict[str, str] = {}
        for tenant in tenants:
            for name in tenant.client_names:
                first = self._names.setdefault(name, tenant.name)
                if first != tenant.name:
                    raise KvdError(
                        ErrorKind.INVALID,
                        f"client_names: {name!r} is of both tenants {first} and {tenant.name}",
                    )
        self._check_tokens()

    @property
    def has_tokens(self) -> bool:
        return bool(self._files)

    @property
    def has_names(self) -> bool:
        return bool(self._names)

    def identify(self, token: str, names: Sequence[str]) -> str:
        """Return the tenant of a token, of a certificate's names, or of both if they agree."""
        tenants = self.tenants_of(names)
        if token:
            tenants.add(self._tenant_of(token))
        if not tenants:
            raise Denied(_nobody(names))
        if len(tenants) > 1:
            raise Denied(f"its credentials are of the tenants {' and '.join(sorted(tenants))}")
        return tenants.pop()

    def tenants_of(self, names: Sequence[str]) -> set[str]:
        """Return every tenant that a certificate names."""
        return {self._names[name] for name in names if name in self._names}

    def _tenant_of(self, token: str) -> str:
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise Denied(f"a token of {len(token)} characters, at most {TOKEN_CHARACTERS_MAX}")
        shown = digest_of(token)
        # All are compared, and each in constant time: how long it takes says nothing.
        tenants = {
            tenant
            for tenant, file in self._files.items()
            for known in file.digests()
            if hmac.compare_digest(shown, known)
        }
        if len(tenants) != 1:
            what = "of several tenants" if tenants else "that no tenant has"
            raise Denied(f"a token {what} ({len(token)} characters)")
        return tenants.pop()

    def _check_tokens(self) -> None:
        seen: dict[bytes, str] = {}
        for tenant, file in self._files.items():
            for digest in file.digests():
                first = seen.setdefault(digest, tenant)
                if first != tenant:
                    raise KvdError(
                        ErrorKind.INVALID,
                        f"token_file: tenants {first} and {tenant} have a token in common",
                    )


def _nobody(names: Sequence[str]) -> str:
    if names:
        return f"a certificate of no tenant's client_names ({', '.join(names)})"[:200]
    return "neither a token nor a client certificate"
