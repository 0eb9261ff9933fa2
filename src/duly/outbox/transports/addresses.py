"""Where a webhook may connect to: addresses of the public Internet, unless private ones are allowed.

A name is resolved once, every address it has is judged, and the connection goes to an address that was judged: a name
server that gives another answer a moment later (DNS rebinding) changes nothing. TLS verifies the name all the same.

Source: OWASP, Server-Side Request Forgery Prevention; IANA's registries of special-purpose addresses.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

import httpcore2

from duly.kernel.errors import DestinationUnavailable

#: From (host, port) to the addresses of the host. Raises OSError when it has none.
Resolve = Callable[[str, int], Iterable[str]]

#: IPv6 addresses that stand for IPv4 ones behind a translator (RFC 6052), in their last 32 bits.
_TRANSLATED = IPv6Network("64:ff9b::/96")
#: The same, long deprecated (RFC 4291): ``::127.0.0.1``.
_COMPATIBLE = IPv6Network("::/96")


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host as the system knows them."""
    return list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


def forbidden(address: str) -> str | None:
    """Why nobody on the Internet has this address; None when somebody may."""
    ip = _meant(ip_address(address.partition("%")[0]))
    if ip.is_loopback:
        return "a loopback address"
    if ip.is_link_local:
        return "a link-local address"
    if ip.is_multicast:
        return "a multicast address"
    if ip.is_unspecified:
        return "the unspecified address"
    if ip.is_private or not ip.is_global:
        return "a private address"
    if ip.is_reserved or (isinstance(ip, IPv6Address) and ip.is_site_local):
        return "a reserved address"
    return None


def _meant(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address inside an IPv6 one that stands for it."""
    if isinstance(ip, IPv4Address):
        return ip
    inner = ip.ipv4_mapped or ip.sixtofour
    if inner is not None:
        return inner
    if ip in _TRANSLATED or (ip in _COMPATIBLE and int(ip) > 1):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


def judged(host: str, port: int, resolve: Resolve, allow_private: bool) -> list[str]:
    """The addresses of a host, each of them allowed. Raises DestinationUnavailable when one is not, OSError when there are none."""
    addresses = list(resolve(host, port))
    if not addresses:
        raise OSError(f"{host} has no address")
    if not allow_private:
        for address in addresses:
            reason = forbidden(address)
            if reason is not None:
                raise DestinationUnavailable(
                    f"the host of the endpoint has {reason}, which is not allowed (allow_private=True allows it)",
                    attention=True,
                )
    return addresses


class Guard(httpcore2.NetworkBackend):
    """Connects to judged addresses only, and lets no exchange go on beyond its deadline."""

    def __init__(self, resolve: Resolve, allow_private: bool, deadline: Callable[[], float]) -> None:
        #: ``deadline``: the monotonic instant at which the calling thread's exchange must be over.
        self._resolve, self._allow_private, self._deadline = resolve, allow_private, deadline
        self._plain = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.NetworkStream:
        try:
            addresses = judged(host, port, self._resolve, self._allow_private)
        except OSError as error:
            raise httpcore2.ConnectError(f"the host of the endpoint cannot be resolved: {error}") from error
        problem: Exception | None = None
        for address in addresses:
            try:
                stream = self._plain.connect_tcp(
                    address, port, left(self._deadline, timeout), local_address, socket_options or ()
                )
                return _Timed(stream, self._deadline)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                problem = error
        assert problem is not None
        raise problem

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _Timed(httpcore2.NetworkStream):
    """A stream whose every step ends at the deadline, however many steps the other side makes of it."""

    def __init__(self, inner: httpcore2.NetworkStream, deadline: Callable[[], float]) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, left(self._deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, left(self._deadline, timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Timed(
            self._inner.start_tls(ssl_context, server_hostname, left(self._deadline, timeout)), self._deadline
        )

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def left(deadline: Callable[[], float], timeout: float | None) -> float:
    """Seconds that a step may take. Raises ReadTimeout when there are none."""
    rest = deadline() - time.monotonic()
    if rest <= 0:
        raise httpcore2.ReadTimeout("the endpoint took too long")
    return rest if timeout is None else min(rest, timeout)
