"""The settings of `lockkeeper console`: where it is, and who may look."""

import ipaddress
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec

from streaming.settings.urls import is_trustworthy

PageKind = Literal["alerts", "changes", "decisions"]


def page_path(kind: PageKind, id_: str) -> str:
    """The page of something on the console's own site: of a change by the name that the job gave it."""
    return f"/{kind}/{quote(id_, safe='')}"


class OidcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenID Connect, the code flow with PKCE. `issuer`: whose metadata name its endpoints; "": nobody signs in so.

    `client_secret`: "" for a public client. `claim`: of the ID token, that names the
    viewer; `groups_claim`: that lists its groups.
    """

    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    claim: Annotated[str, msgspec.Meta(min_length=1)] = "sub"
    groups_claim: str = "groups"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Without the secret."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name != "client_secret"]

    def __repr__(self) -> str:
        """Without the secret: settings end up in logs."""
        return f"OidcSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class ProxySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A proxy that signs viewers in. `addresses`: its own, or networks; none: there is none.

    `header`: in which it names the viewer; `groups_header`: the viewer's groups, separated by commas; "": it does not.
    """

    addresses: tuple[str, ...] = ()
    header: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]+$")] = "X-Forwarded-User"
    groups_header: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]*$")] = ""


class ConsoleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lockkeeper console`. Without a way to sign in, only browsers of this machine see it, and they see all.

    `port`: 0 takes a free one. `url`: at which browsers reach it, for links to its pages; "": there are none. `access`:
    a YAML file of who sees which systems, by `oidc` or `proxy`. `anonymous`: any address without signing in, where only
    this machine reaches its port, as of a container.
    """

    address: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    url: str = ""
    access: str = ""
    oidc: OidcSettings = OidcSettings()
    proxy: ProxySettings = ProxySettings()
    anonymous: bool = False

    def page(self, kind: PageKind, id_: str) -> str:
        """Where browsers find the page of something; "" without `url`."""
        return f"{self.url.rstrip('/')}{page_path(kind, id_)}" if self.url else ""

    @property
    def signs_in(self) -> bool:
        """Whether viewers have to sign in."""
        return bool(self.oidc.issuer or self.proxy.addresses)


def console_problem(console: ConsoleSettings, is_local: bool) -> str | None:
    """What is wrong with the settings of the console, with the fix; None: nothing. `is_local`: its address is."""
    oidc, proxy = console.oidc, console.proxy
    if oidc.issuer and proxy.addresses:
        return "console.oidc, console.proxy: viewers sign in by one of them; leave the other out"
    if oidc.issuer and (not oidc.client_id or not is_trustworthy(oidc.issuer)):
        return "console.oidc: needs client_id, and an issuer that is an https URL without a user"
    if oidc.issuer and not console.url:
        return "console.url: must be set with console.oidc: the issuer sends browsers back to it"
    if console.signs_in and not console.access:
        return "console.access: must name a file that says who sees which systems"
    if console.access and not console.signs_in:
        return "console.access: needs a way to sign in: set console.oidc, or console.proxy"
    if console.url and not is_trustworthy(console.url):
        return "console.url: must be an https URL, or of this machine: sessions are not sent without encryption"
    if is_local or console.signs_in or console.anonymous:
        return _networks_problem(proxy.addresses)
    return (
        f"console.address: {console.address} lets other machines see all decisions and policies. Use 127.0.0.1, or say "
        "how viewers sign in: console.oidc or console.proxy, with console.access"
    )


def _networks_problem(addresses: tuple[str, ...]) -> str | None:
    for text in addresses:
        try:
            ipaddress.ip_network(text)
        except ValueError:
            return f"console.proxy.addresses: {text!r} is no IP address or network"
    return None
