"""Which node this is, and at which address other nodes reach it."""

import fcntl
import json
import os
import pathlib
import socket
import struct
import warnings

from shoal import errors

# SageMaker's description of a training job.
RESOURCE_CONFIG = pathlib.Path("/opt/ml/input/config/resourceconfig.json")
_SIOCGIFADDR = 0x8915


def node_identity():
    """The same for two processes exactly if they share a machine, its files and its network, as the
    ranks of one daemon do. SHOAL_NODE, when set, makes nodes of one machine."""
    parts = [pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    parts += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "net", "user")]
    return " ".join(parts + [str(os.getuid()), os.environ.get("SHOAL_NODE", "")])


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
    """The IPv4 address of a network interface."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
        except OSError as problem:
            raise errors.InvalidError(
                f"the network interface {name} has no IPv4 address: {problem.strerror}"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def own_address():
    """This node's address for the other nodes: of the interface that SHOAL_INTERFACE names, or
    SageMaker; else the one that leads to MASTER_ADDR; else the host name's."""
    interface = os.environ.get("SHOAL_INTERFACE") or resource_config().get("network_interface_name")
    if interface:
        return interface_address(interface)
    candidates = []
    master = os.environ.get("MASTER_ADDR")
    if master:
        candidates.append(_address_towards(master))
    candidates.append(_resolve(socket.gethostname()))
    for address in candidates:
        if address and not address.startswith("127."):
            return address
    for address in candidates:
        if address:
            return address
    raise errors.InvalidError(
        "this node's address for the others is not known: set SHOAL_INTERFACE to the name of the"
        " network interface that they reach it through"
    )


def _address_towards(host):
    """Where packets for a host leave this one; no packet is sent."""
    address = _resolve(host)
    if not address:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def _resolve(host):
    try:
        return socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]
    except OSError:
        return None
