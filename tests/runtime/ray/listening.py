"""Who listens where: the sockets of processes, from /proc."""

import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
LISTENS = "0A"


class Listening(NamedTuple):
    """A TCP socket that takes connections."""

    process: str
    address: str
    port: int

    @property
    def on_the_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


def listening(processes: Iterable[int]) -> set[Listening]:
    """The listening sockets of these processes; one that ends meanwhile has none."""
    sockets = dict(_table("tcp") + _table("tcp6"))
    found = set()
    for pid in processes:
        try:
            links = [os.readlink(entry) for entry in (PROC / str(pid) / "fd").iterdir()]
            name = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
        except OSError:
            continue
        for link in links:
            inode = re.fullmatch(r"socket:\[(\d+)\]", link)
            if inode is not None and inode[1] in sockets:
                found.add(Listening(name, *sockets[inode[1]]))
    return found


def _table(kind: str) -> list[tuple[str, tuple[str, int]]]:
    """Inode, address and port of each listening socket of the machine."""
    rows = [line.split() for line in (PROC / "net" / kind).read_text().splitlines()[1:]]
    return [(row[9], _place(row[1])) for row in rows if row[3] == LISTENS]


def _place(text: str) -> tuple[str, int]:
    """`0100007F:1F90` is 127.0.0.1, port 8080: four bytes at a time, the lowest first."""
    address, port = text.split(":")
    packed = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    found = ipaddress.ip_address(packed)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found), int(port, 16)
