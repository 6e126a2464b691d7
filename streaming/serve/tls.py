"""TLS of the server: its certificate, which may be renewed while it runs, and what client certificates say."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from streaming.serve.connections import CLOSING_SECONDS, HANDSHAKE_SECONDS
from streaming.serve.files import Changes
from streaming.settings import SettingsError
from streaming.settings.serve import TlsSettings

log = structlog.get_logger()

PEER = "lockkeeper.peer"  # of a request's scope
NAMES = frozenset({"DNS", "URI", "email"})
"""Kinds of subject alternative names that count, as Python calls them."""


class Peer(msgspec.Struct, frozen=True):
    """A client's verified certificate. `names`: as `serve.callers` has them; `until`: when it expires, Unix time, s."""

    names: frozenset[str]
    until: float


class Tls:
    """The context that connections begin with; `reread` lets new ones use a renewed certificate.

    Raises SettingsError where the files cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self.context = self._current = self._open()
        self._changes = Changes([settings.certificate, settings.key])
        self.context.sni_callback = self._choose

    def reread(self) -> None:
        """Take a renewed certificate and key, once they fit each other. Client authorities stay until a restart."""
        if not self._changes.seen():
            return
        try:
            self._current = self._open()
            log.info("the certificate was read again")
        except SettingsError as error:
            log.error("the certificate stays as it was", error=str(error))

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in each handshake."""
        if self._current is not self.context:
            connection.context = self._current

    def _open(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Without the function, OpenSSL would ask the terminal for the password of the key.
            context.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or type(error).__name__
            raise SettingsError(
                f"serve.tls: {settings.certificate} and {settings.key} are not a certificate and its key in PEM, "
                f"without a password, that can be read: {why}"
            ) from None
        if settings.client_ca:
            self._ask_clients(context)
        return context

    def _ask_clients(self, context: ssl.SSLContext) -> None:
        file = self._settings.client_ca
        try:
            context.load_verify_locations(file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"serve.tls.client_ca: {file} holds no certificates in PEM that can be read: {error.strerror}"
            ) from None
        needed = self._settings.client_certificate == "required"
        context.verify_mode = ssl.CERT_REQUIRED if needed else ssl.CERT_OPTIONAL


def peer_of(certificate: Any) -> Peer | None:
    """What a client's certificate says, of the form that `ssl` gives; None: it has none."""
    if not certificate or "notAfter" not in certificate:
        return None
    names = {f"CN:{value}" for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    names |= {f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ()) if kind in NAMES}
    return Peer(frozenset(names), float(ssl.cert_time_to_seconds(certificate["notAfter"])))


async def start_tls(
    transport: asyncio.Transport, protocol: asyncio.Protocol, context: ssl.SSLContext, early: Callable[[], bytes]
) -> asyncio.Transport | None:
    """The transport of an accepted connection after its handshake; None: there was none in time.

    `early`: takes what `protocol` received before.
    """
    loop = asyncio.get_running_loop()
    starting = loop.create_task(
        loop.start_tls(
            transport,
            protocol,
            context,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=CLOSING_SECONDS,
        )
    )
    await asyncio.sleep(0)  # it takes the transport
    await asyncio.sleep(0)  # and connects its protocol
    try:
        # uvloop reads whether or not `connection_made` has paused it, so the first bytes may have come before.
        _feed_buffer(transport.get_protocol(), early())
        return await starting
    except (Exception, asyncio.CancelledError):  # what a client does wrong is no news, whatever it is
        starting.cancel()
        return None


def _feed_buffer(receiver: Any, data: bytes) -> None:
    """Give bytes to an `asyncio.BufferedProtocol`."""
    while data:
        buffer = receiver.get_buffer(len(data))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        receiver.buffer_updated(size)
        data = data[size:]
