"""A node in a network namespace of its own: its link is the kernel's, with a queue that is short.

``tbf`` gives the link its rate and drops what its queue cannot hold, so TCP meets real losses.
Delay and random loss are ``netem``'s, which many kernels lack; there the proxy stands in for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

from tests.faults.real_scenario import Scenario, Skip, was_used
from tests.faults.real_site import Site
from tests.support.lab import LabNode

# 40 Mbit/s, and a queue of twenty packets.
_NARROW = ("tbf", "rate", "40mbit", "burst", "16k", "limit", "30k")
_FAR = ("netem", "delay", "50ms", "5ms", "loss", "1%", "rate", "40mbit", "limit", "100")
_PORTS = 20_000  # servers' begin here: every one has a network of four addresses


def networks() -> list[Scenario]:
    words = {"narrow network, short queue": _NARROW, "far, lossy network": _FAR}
    return [
        Scenario(name, (), _move_out(*shape), _move_back, was_used, large=True)
        for name, shape in words.items()
    ]


def _move_out(*shape: str) -> Callable[[Site], None]:
    """The victim's server starts anew behind such a link, and the head reaches it there."""

    def arrange(site: Site) -> None:
        node = site.node
        if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
            raise Skip("network namespaces take root, ip and tc")
        site.lab.stop(site.victim)
        try:
            node.address = _build(node, shape)
        except Skip:
            _move_back(site)
            raise
        site.lab.start(site.victim)
        site.trust_at(node.address)
        site.extra.setdefault(site.victim, {}).update(host=node.address, port=node.port)

    return arrange


def _build(node: LabNode, shape: Sequence[str]) -> str:
    """Makes the node's namespace and its link; the address that it has there."""
    name, (here, there) = f"hadar{node.port}", _ends(node.port)
    node.namespace = name
    _do("ip", "netns", "add", name)
    _do("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
    first, second = (f"10.{_net(node.port)}{last}" for last in _hosts(node.port))
    within = ("ip", "-n", name)
    _do("ip", "addr", "add", f"{first}/30", "dev", here)
    _do(*within, "addr", "add", f"{second}/30", "dev", there)
    _do("ip", "link", "set", here, "up")
    for device in ("lo", there):
        _do(*within, "link", "set", device, "up")
    for words in (("tc",), ("tc", "-n", name)):
        device = here if words == ("tc",) else there
        _do(*words, "qdisc", "add", "dev", device, "root", *shape)
    return second


def _move_back(site: Site) -> None:
    node = site.node
    site.lab.stop(site.victim)
    if node.namespace:
        for words in (("link", "del", _ends(node.port)[0]), ("netns", "del", node.namespace)):
            subprocess.run(["ip", *words], check=False, capture_output=True)
    node.namespace, node.address = "", "127.0.0.1"
    site.lab.start(site.victim)


def _ends(port: int) -> tuple[str, str]:
    return f"hv{port}a", f"hv{port}b"


def _net(port: int) -> str:
    return f"213.{(port - _PORTS) // 48}."


def _hosts(port: int) -> tuple[int, int]:
    base = 4 * ((port - _PORTS) % 48)
    return base + 1, base + 2


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lacks = "this kernel has no netem: the proxy gives delay and loss"
        is_netem = "netem" in words and "unknown" in done.stderr
        raise Skip(lacks if is_netem else f"{' '.join(words)}: {done.stderr.strip()}")
