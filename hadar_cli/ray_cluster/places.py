"""Which machine of a Ray cluster is which node. A list of Ray's goes in; Ray is not imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_KINDS = {"num_cpus": "CPU", "num_gpus": "GPU"}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One machine of the cluster; the order is that in which nodes get them."""

    address: str
    name: str
    id: str

    def in_words(self) -> str:
        return self.address if self.name in ("", self.address) else f"{self.name} ({self.address})"


def places_for(
    wanted: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]], error: type[Exception]
) -> list[Place]:
    """The machines that fit, enough of them; ``error`` with what there is if they are too few."""
    alive = [node for node in nodes if node["Alive"]]
    named = [node for node in alive if _is_called(node, wanted["node"])]
    if not named:
        there = ", ".join(place.in_words() for place in sorted(map(_place, alive)))
        raise error(f"no machine of the cluster is called {wanted['node']!r}; there are: {there}")
    needs = {**wanted["resources"]}
    needs |= {kind: wanted[key] for key, kind in _KINDS.items() if wanted[key]}
    fit = [node for node in named if all(node["Resources"].get(k, 0) >= needs[k] for k in needs)]
    if len(fit) > wanted["nth"]:
        return sorted(map(_place, fit))
    asked = ", ".join(f"{count:g} {kind}" for kind, count in needs.items()) or "nothing"
    having = "; ".join(
        f"{_place(node).in_words()} has {_shown(node)}" for node in sorted(named, key=_place)
    )
    raise error(f"{len(fit)} of {wanted['nth'] + 1} machines have {asked}: {having}")


def _place(node: Mapping[str, Any]) -> Place:
    return Place(node["NodeManagerAddress"], node.get("NodeName") or "", node["NodeID"])


def _is_called(node: Mapping[str, Any], name: str | None) -> bool:
    labels = (f"{key}={value}" for key, value in (node.get("Labels") or {}).items())
    keys = ("NodeManagerAddress", "NodeManagerHostname", "NodeName", "NodeID")
    return name is None or name in (*(node.get(key) for key in keys), *labels)


def _shown(node: Mapping[str, Any]) -> str:
    return ", ".join(_counts(node["Resources"])) or "nothing"


def _counts(resources: Mapping[str, float]) -> Iterator[str]:
    """Without what Ray itself counts."""
    for kind, count in sorted(resources.items()):
        if ":" not in kind and kind not in ("memory", "object_store_memory"):
            yield f"{count:g} {kind}"


def told(error: BaseException) -> str:
    """What Ray says, without the traces it brings along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}" if lines else type(error).__name__
