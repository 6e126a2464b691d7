"""Addresses and URLs in settings: which are of this machine, and which are safe from who reads them on the way."""

import ipaddress
import re
from urllib.parse import urlsplit

LOCAL_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})  # as written: `localhost.` is what a name server says
PLAIN_URL = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?(/[a-z0-9/._~!$&'()*+,;=:@%-]*)?(\?[a-z0-9/._~!$&'()*+,;=:@%?-]*)?",
    re.IGNORECASE | re.ASCII,
)
"""RFC 3986 without a user (`http://localhost:80@evil.example/`), a fragment, spaces and backslashes."""


def is_loopback(address: str) -> bool:
    """Whether no other machine reaches an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def is_address(url: str) -> bool:
    """Whether it is an HTTP URL with a host."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:  # brackets without an IPv6 address in them
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def is_url(source: str) -> bool:
    """Whether it is a URL, of any scheme, rather than a file."""
    return "://" in source


def is_trustworthy(url: str) -> bool:
    """Whether it is of https, or of this machine, whatever reads it: parsers differ about URLs of other forms."""
    if not PLAIN_URL.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if not parts.hostname or port == 0:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOCAL_HOSTS)


def host_of(header: str) -> str:
    """The name in a Host header; "" where it has none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:  # such as a bracket without its other one
        return ""
