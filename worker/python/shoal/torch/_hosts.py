"""The identity of this node, and the address at which other nodes reach it."""

import contextlib
import fcntl
import ipaddress
import itertools
import json
import os
import pathlib
import re
import socket
import struct
import warnings

from shoal import errors

# SageMaker's description of a training job.
RESOURCE_CONFIG = pathlib.Path("/opt/ml/input/config/resourceconfig.json")
# A node's name in a configuration has 63 bytes; those beyond these are for a number.
NODE_NAME_MOST = 56
_SIOCGIFADDR = 0x8915
_IPV6_SCOPE_LINK = "20"  # in /proc/net/if_inet6
# These addresses are for documentation (RFC 5737, RFC 3849): packets for them would take the default route.
_SOMEWHERE = ("192.0.2.1", "2001:db8::1")


def node_identity():
    """Return a text that is the same for two processes exactly if they share a machine, its files and its network, as
    the ranks of one daemon do. SHOAL_NODE, when set, makes nodes of one machine."""
    parts = [pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    parts += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "net", "user")]
    return " ".join(parts + [str(os.getuid()), os.environ.get("SHOAL_NODE", "")])


def node_name():
    """The host's name, with SHOAL_NODE behind it where that is set, in the characters that a node's name may have."""
    parts = [socket.gethostname(), os.environ.get("SHOAL_NODE", "")]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(filter(None, parts)))
    return name[:NODE_NAME_MOST] or "node"


def distinct(names):
    """Return the names, each with a number behind it where an earlier one is the same."""
    taken = []
    for name in names:
        tries = itertools.chain([name], (f"{name[:NODE_NAME_MOST]}-{number}" for number in itertools.count(2)))
        taken.append(next(one for one in tries if one not in taken))
    return taken


def resource_config():
    """SageMaker's {"current_host", "hosts", "network_interface_name"}, or {} elsewhere."""
    try:
        found = json.loads(RESOURCE_CONFIG.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:  # it is somebody else's: only who needs it is at a loss
        warnings.warn(f"{RESOURCE_CONFIG} cannot be read: {problem}", stacklevel=2)
        return {}
    return found if isinstance(found, dict) else {}


def interface_address(name):
    """Return the IPv4 address of a network interface; its IPv6 address where it has none, and a link-local one,
    with the interface's name behind it, where it has no other."""
    address = _ipv4_of(name) or _ipv6_addresses().get(name) or _ipv6_addresses(link_local=True).get(name)
    if not address:
        raise errors.InvalidError(f"the network interface {name} has no IPv4 and no IPv6 address, or does not exist")
    return address


def _ipv4_of(name):
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6_addresses(link_local=False):
    """Return {interface: address} of those that are not link-local; link_local: of those that are."""
    found = {}
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if (scope == _IPV6_SCOPE_LINK) == link_local:
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                found.setdefault(name, f"{address}%{name}" if link_local else address)
    return found


def own_address(others=()):
    """Return this node's address for the other nodes: of the interface that SHOAL_INTERFACE names, or SageMaker; else
    of the one that leads to MASTER_ADDR, or to an address of `others`; else the host name's; else of the one with the
    default route, or of the only one. A name that stands for the loopback, as Debian gives a host's own, says
    nothing."""
    interface = os.environ.get("SHOAL_INTERFACE") or resource_config().get("network_interface_name")
    if interface:
        return interface_address(interface)
    return (
        address_towards_master()
        or _first(_address_towards(address) for address in others)
        or _first(_resolve(socket.gethostname()))
        or _first(_address_towards(address) for address in _SOMEWHERE)
        or _only_address()
    )


def from_here(address):
    """Return an address that another node has given, as this node reaches it: a link-local one, which has the
    other's interface behind it, gets this node's own."""
    if "%" not in address:
        return address
    interface = os.environ.get("SHOAL_INTERFACE") or own_address().partition("%")[2]
    return f"{address.partition('%')[0]}%{interface}" if interface else address


def address_towards_master():
    """Return this node's address on the way to MASTER_ADDR; None: that is not set, or is this node."""
    master = os.environ.get("MASTER_ADDR")
    return _first(_address_towards(address) for address in _resolve(master)) if master else None


def _first(addresses):
    """Return the first that other nodes may reach, or None."""
    return next((address for address in addresses if address and not _is_loopback(address)), None)


def _only_address():
    ipv6, link_local = _ipv6_addresses(), _ipv6_addresses(link_local=True)
    names = [name for _, name in socket.if_nameindex()]
    found = {name: _ipv4_of(name) or ipv6.get(name) for name in names}
    found = {name: address for name, address in found.items() if _first([address])} or link_local
    if len(found) > 1:
        several = ", ".join(f"{name} ({address})" for name, address in found.items())
        raise errors.InvalidError(
            f"this node's address for the others is not known: set SHOAL_INTERFACE to the one of {several} that they"
            " reach it through"
        )
    return next(iter(found.values()), "127.0.0.1")  # without a network all nodes are on this machine


def _is_loopback(address):
    return ipaddress.ip_address(address).is_loopback


def _address_towards(address):
    """Return where packets for an address leave this node; no packet is sent."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            # Give the whole place: Python drops the interface of a (host, port) pair.
            probe.connect(socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0][4])
        except OSError:
            return None
        return _with_interface(probe.getsockname())


def _family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _resolve(host):
    """Return the addresses of a name: of IPv4, of IPv6, link-local ones. These lead nowhere without an interface."""
    try:
        found = [one[4] for one in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)]
    except OSError:
        return []
    usable = [one for one in found if len(one) == 2 or one[3] or not ipaddress.ip_address(one[0]).is_link_local]
    return sorted(map(_with_interface, usable), key=lambda address: (":" in address, "%" in address))


def _with_interface(place):
    """Return the address of a socket's (host, port, ...), with the name of its interface where it has one."""
    host = place[0].partition("%")[0]
    return f"{host}%{socket.if_indextoname(place[3])}" if place[3:] and place[3] else host
