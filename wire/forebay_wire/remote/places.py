"""Places that processes beside devices may be let out to, ``host:port``, and addresses that nobody is."""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
METADATA = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Where clouds tell a host its credentials, beside all link-local addresses: AWS, Google, Alibaba, Azure and Oracle."""
PLACE = re.compile(r"(\[[0-9a-f:.]+\]|(?!-)[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*):([0-9]{1,5})")
HOST_CHARACTERS_MAX = 253


def place(text: str) -> str:
    """The place in the one form that is compared. Raises ValueError, with a sentence, for what is none, or is let out to nobody."""
    found = PLACE.fullmatch(text.strip().lower())
    if found is None or len(found[1]) > HOST_CHARACTERS_MAX or not 0 < int(found[2]) < 65_536:
        raise ValueError(f"{text!r} is no place: write a name or an address and a port, as in pypi.org:443")
    host, port = found[1], int(found[2])
    try:
        address = plain(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if host.startswith("[") or host.rpartition(".")[2].isdigit():
            raise ValueError(f"{text!r} is no place: {host} is no address") from None
        return f"{host}:{port}"
    if address in METADATA or address.is_link_local or address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError(f"processes are never let out to {address}")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def plain(address: Address) -> Address:
    """An address of IPv4 that is written as one of IPv6 as what it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
