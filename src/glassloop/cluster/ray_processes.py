"""The processes of a Ray that is started on this machine: where they listen, and that none is left behind."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

_PATIENCE = 10.0  # seconds until a process that has outlived its Ray is killed


def open_ports() -> dict[str, list[int]]:
    """Returns the TCP ports at which this process and its children listen, by address."""
    import psutil  # Ray has it

    ports: dict[str, set[int]] = {}
    this = psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended meanwhile
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.setdefault(_plain(connection.laddr.ip), set()).add(connection.laddr.port)
    return {address: sorted(numbers) for address, numbers in sorted(ports.items())}


def told_ports(ports: dict[str, list[int]]) -> str:
    """Returns what the line at the start says of the ports."""
    parts = [
        f"{'all addresses' if ip_address(address).is_unspecified else address}"
        f" ({'ports' if len(numbers) > 1 else 'port'} {', '.join(map(str, numbers))})"
        for address, numbers in ports.items()
    ]
    return f"Ray listens on {' and '.join(parts)} and needs its token"


def keep_local(node: str) -> None:
    """Makes the gRPC server of a Serve replica in this process listen on the address of its node, if that is
    a loopback address. By itself it listens on all addresses, wherever the rest of Ray does."""
    from ray.serve._private import replica

    add_port = getattr(replica, "add_port_to_grpc_server", None)
    if add_port is None or not ip_address(node).is_loopback:
        return

    def add_local_port(server: Any, address: str) -> int:
        port: int = add_port(server, address.replace("[::]", node))
        return port

    replica.add_port_to_grpc_server = add_local_port


def children_of_ray() -> list[Any]:
    """Returns the processes that Ray's own processes have started, such as agents and replicas."""
    import psutil

    processes: list[Any] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            processes += child.children(recursive=True)
    return processes


def end(processes: Iterable[Any]) -> None:
    """Waits for the end of processes, and kills those that go on. Ray kills its own ones on a busy machine
    before these have told their agents, and an agent may stay with its ports open."""
    import psutil

    _, alive = psutil.wait_procs(list(processes), timeout=_PATIENCE)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()


def _plain(address: str) -> str:
    """Returns an address in its shortest form: ::ffff:127.0.0.1 is 127.0.0.1, and :: all addresses."""
    parsed = ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    plain = mapped or parsed
    return "0.0.0.0" if plain.is_unspecified else str(plain)
