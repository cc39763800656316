"""What a section of the page is given, and what it hands back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.paper.batches import own_table
from hadar_cli.simulation.traces import Throughputs, read_throughputs

MIXES = ("m1", "m3", "m4", "m5", "m8", "m10", "m12")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Setting:
    """How much to measure, from which seed, and whose trace and table."""

    quick: bool
    seed: int = 0
    trace: Path | None = None
    throughputs: Path | None = None
    before_lab: tuple[str, ...] = ()  # words put before each real run, such as a lock's
    note: str = ""  # on how the real runs are made, kept with them
    rivals: Path | None = None  # a folder with other schedulers' public workloads

    @property
    def table(self) -> Throughputs:
        return read_throughputs(self.throughputs) if self.throughputs else own_table()

    @property
    def source(self) -> str:
        """Names of the files used in place of our own, part of what a measurement is kept under."""
        given = [path.name for path in (self.trace, self.throughputs) if path]
        return "+".join(given) or "own"


@dataclass(slots=True)
class Text:
    """A section's Markdown, and the pictures it shows by name."""

    parts: list[str] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)

    def say(self, *paragraphs: str) -> None:
        self.parts.extend(paragraphs)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        lines = [head, ["---"] * len(head), *rows]
        self.parts.append("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))

    def picture(self, name: str, alt: str, svg: str) -> None:
        self.pictures[name] = svg
        self.parts.append(f"![{alt}](paper/{name}.svg)")


def mix_name(mix: str) -> str:
    return f"M-{mix[1:]}"
