"""The paper's evaluation, measured anew, as a page with its figures beside ours.

    scripts/paper --quick              # within ten minutes; the page goes to build/paper/
    scripts/paper --full               # hours; the page goes to docs/paper.md
    scripts/paper --full --only lab    # one section; the others stay as they were measured
    scripts/paper --full --only rivals --rivals FOLDER   # docs/rivals.md, a page of its own

What was measured is kept and not measured again, unless ``--again`` says so.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from bench.__main__ import commit, machine, now
from bench.paper.cache import Cache, NotMeasured
from bench.paper.section import ROOT, Setting, Text

SECTIONS = (
    "motivation",
    "trace_driven",
    "scalability",
    "clusters",
    "lab",
    "slots",
    "forks",
    "optimum",
    "quality",
    "scale",
)
OWN_PAGE = "rivals"
INTRODUCTION = """\
# The paper's evaluation, measured anew

Every table and figure of *Resource Heterogeneity-Aware and Utilization-Enhanced Scheduling for
Deep Learning Clusters* (Sultana, Pakka, Xu, Yuan, Chen, Tzeng) that can be run without its
machines, with its numbers beside ours and a word where they differ. This page is written by
`scripts/paper`; do not edit it.
"""


class Place(NamedTuple):
    """Where the page, its pictures and the measurements go."""

    page: Path
    results: Path


def place(quick: bool, out: Path | None) -> Place:
    if quick:
        folder = ROOT / "build" / "paper"
        return Place(out or folder / "paper.md", folder / "results")
    return Place(out or ROOT / "docs" / "paper.md", ROOT / "bench" / "results" / "paper")


def chapter(module: ModuleType, setting: Setting, cache: Cache) -> Text:
    """One section, measured if it may be."""
    text = Text([f"## {module.TITLE}"])
    try:
        module.write(module.measure(setting, cache), text)
    except NotMeasured as missing:
        text = Text([f"## {module.TITLE}", f"Not measured yet ({missing})."])
    if cache.origin:
        text.say(f"*Measured at {cache.origin}.*")
    return text


def write_page(chapters: Sequence[Text], where: Place, setting: Setting) -> None:
    kind = "--quick" if setting.quick else "--full"
    head = (
        f"`scripts/paper {kind}`, seed {setting.seed}, written at commit {commit()} on {now()}; "
        f"{machine()}, no GPU. Trace and throughputs: {_sources(setting)}."
    )
    pictures = where.page.parent / "paper"
    pictures.mkdir(parents=True, exist_ok=True)
    for text in chapters:
        for name, svg in text.pictures.items():
            (pictures / f"{name}.svg").write_text(svg)
    parts = [INTRODUCTION.rstrip(), head, *(part for text in chapters for part in text.parts)]
    where.page.write_text("\n\n".join(parts) + "\n")
    print(f"wrote {where.page}")


def write_own_page(where: Place, setting: Setting, page_only: bool, again: bool) -> None:
    """The rivals' page; it lies beside the paper's."""
    module = importlib.import_module(f"bench.paper.{OWN_PAGE}")
    cache = Cache(where.results / f"{OWN_PAGE}.json", commit(), now)
    cache.may_measure, cache.again = not page_only, again
    text = Text([module.INTRODUCTION.rstrip()])
    module.write(module.measure(setting, cache), text)
    text.say(f"*Measured at {cache.origin}; {machine()}.*")
    page = where.page.with_name(f"{OWN_PAGE}.md")
    page.write_text("\n\n".join(text.parts) + "\n")
    print(f"wrote {page}")


def _sources(setting: Setting) -> str:
    if not setting.trace and not setting.throughputs:
        return "drawn from a seed, with speeds from a small table of Gavel's published figures"
    return f"Gavel's own files ({setting.source})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/paper", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--quick", action="store_true", help="small sizes (the default)")
    much.add_argument("--full", action="store_true", help="everything, for docs/paper.md")
    parser.add_argument("--only", nargs="+", choices=(*SECTIONS, OWN_PAGE), metavar="SECTION")
    parser.add_argument("--rivals", type=Path, help="a folder with rivals' public workloads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="measure what is kept, too")
    parser.add_argument("--page", action="store_true", help="write the page, measure nothing")
    parser.add_argument("--trace", type=Path, help="a real trace in Gavel's format")
    parser.add_argument("--throughputs", type=Path, help="a real table of throughputs")
    parser.add_argument("--out", type=Path, help="where the page goes")
    parser.add_argument("--wrap", default="", help="words put before each real run on the lab")
    parser.add_argument("--note", default="", help="how the lab's runs are made, for the page")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a lab that is up goes down
    wrap = tuple(asked.wrap.split())
    given = (asked.seed, asked.trace, asked.throughputs, wrap, asked.note, asked.rivals)
    setting = Setting(not asked.full, *given)
    where = place(not asked.full, asked.out)
    if asked.only == [OWN_PAGE]:
        write_own_page(where, setting, asked.page, asked.again)
        return
    chapters = []
    made_with = commit()
    for name in SECTIONS:
        module = importlib.import_module(f"bench.paper.{name}")
        cache = Cache(where.results / f"{name}.json", made_with, now)
        cache.may_measure = not asked.page and name in (asked.only or SECTIONS)
        cache.again = asked.again and cache.may_measure
        if cache.may_measure:
            print(module.TITLE, flush=True)
        chapters.append(chapter(module, setting, cache))
    write_page(chapters, where, setting)


if __name__ == "__main__":
    main()
