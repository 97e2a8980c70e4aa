"""Tell which network addresses are reached from this machine alone."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether an address or host name is reached from this machine alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    # A socket of both protocols has IPv4 addresses as ::ffff:127.0.0.1; before Python 3.13 such an
    # address is no loopback address.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
