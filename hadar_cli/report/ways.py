"""Words for the way a job took: alone, by shared steps, by merged copies, and why."""

from __future__ import annotations

from hadar_cli.core.measures.summary import Ways


def way_words(ways: Ways) -> str:
    """``300 steps shared, 900 in merged copies``."""
    parts = [(ways.alone, "alone"), (ways.shared, "shared"), (ways.merged, "in merged copies")]
    first, *others = [(steps, way) for steps, way in parts if steps]
    words = [f"{first[0]:,} steps {first[1]}", *(f"{steps:,} {way}" for steps, way in others)]
    if ways.batches > 1:
        words.append(f"up to {ways.batches} mini-batches joined")
    return ", ".join(words)


def why_words(ways: Ways) -> str:
    """What decided that."""
    match ways.decided_by:
        case "policy":
            return "one device at a time, by its policy"
        case "mix":
            return "as its mix asks for"
        case "script":
            return "its script cannot share steps"
    if ways.alone_s is None or ways.shared_s is None:
        return ""
    alone, shared = _milliseconds(ways.alone_s), _milliseconds(ways.shared_s)
    if ways.sharing_pays:
        return (
            f"a step takes {shared} where {ways.sharers} devices share it, {alone} on the fastest"
        )
    return f"sharing a step would take {shared}, the fastest device alone takes {alone}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
