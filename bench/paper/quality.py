"""Quality of merged models, from what ``python -m bench.quality`` has measured."""

from __future__ import annotations

from dataclasses import dataclass

from bench.paper.cache import Cache
from bench.paper.section import ROOT, Setting, Text

TITLE = "Model quality"
SHOWN = ("Held-out seeds", "Beside the paper's table")  # of the quality page


@dataclass(frozen=True, slots=True)
class Parts:
    markdown: dict[str, str]  # by heading


def measure(setting: Setting, cache: Cache) -> Parts:
    """Nothing is trained here: the quality benchmark takes hours, and keeps its own results."""
    from bench.quality.page import page  # torch
    from bench.quality.results import Kept

    text = page(Kept.beside(ROOT / "bench" / "results" / "quality.json"))
    parts = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    return Parts({heading: parts[heading].strip() for heading in SHOWN})


def write(found: Parts, text: Text) -> None:
    text.say(
        "Held-out loss of the five workloads' `tiny` presets, forked over five unequal devices, "
        "beside unforked training (Hadar) with the same steps; real steps and real merges."
    )
    for heading, markdown in found.markdown.items():
        text.say(f"### {heading}", markdown)
    text.say(
        "How this was measured, and what each rule does: [quality of merged models](quality.md)."
    )
