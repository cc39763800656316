"""Links as labs have them from the beginning: far, lossy, with small buffers, or all of it."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.real_scenario import Scenario, was_used
from tests.faults.real_site import Site


def odd_links(is_full: bool) -> list[Scenario]:
    """The run has to use the node behind each, and never lose it."""
    kinds = {"far, lossy link with small buffers": _link(0.1, 0.02, 1 << 13)}
    if is_full:
        kinds |= {
            "far link": _link(delay_s=0.1),
            "lossy link": _link(loss=0.02, delay_s=0.01),
            "link with small buffers": _link(buffer_bytes=1 << 13),
        }
    found = [Scenario(name, (), arrange, proves=was_used) for name, arrange in kinds.items()]
    slow = Scenario(
        "slow, far link, large weights", (), _link(delay_s=0.05), proves=was_used, large=True
    )
    return [*found, slow]


def _link(
    delay_s: float = 0.0, loss: float = 0.0, buffer_bytes: int = 0
) -> Callable[[Site], object]:
    def arrange(site: Site) -> None:
        link = site.link
        link.delay_s, link.loss, link.buffer_bytes = delay_s, loss, buffer_bytes

    return arrange
