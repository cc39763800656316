"""The results as a page: what HadarE's models are worth beside unforked ones, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from bench.quality.course import LAB, MERGING, Recipe
from bench.quality.notes import (
    BEST_RATE,
    INTRODUCTION,
    LORA,
    PAPER_TABLE,
    REASONS,
    RULES_AT_BEST_RATE,
    TIME,
    TRAVEL,
    TRIED,
)
from bench.quality.plan import (
    AMOUNTS,
    AT_BEST_RATE,
    BASE_LRS,
    CHOICES,
    DEFAULT,
    FASTEST,
    FEWER,
    FURTHER,
    HELD_OUT,
    IN_MIX,
    JUDGED,
    PLAIN,
    STEPS,
    TIMED,
    TRAVEL_SEEDS,
    TRAVELLED,
    TRAVELLING,
    TUNED,
    UNFORKED,
    at_base_lr,
    task,
    tasks,
    unforked_like,
)
from bench.quality.reached import PACES, cases, gain, rates_of, table, verdict
from bench.quality.results import Kept, Results
from bench.quality.scheduled import forked_in_mix, steps_in_mix
from hadar_cli.workloads import CATALOG

# The paper's table of inference quality: forking, no forking (mix M-5 on its lab's cluster).
PAPER = {
    "image_classification": (91.62, 87.34, "accuracy, %"),
    "language_model": (4.31, 4.46, "loss, called MSE there"),
    "translation": (54.69, 52.41, "accuracy, %"),
    "recommender": (38.7, 40.3, "MSE"),
    "weather": (0.025, 0.028, "MSE"),
}
ALLOWED = 1.05


def page(kept: Kept) -> str:
    """The whole page in Markdown; what has not been measured is left open."""
    results = kept.quality
    parts = [
        INTRODUCTION.format(
            speeds=", ".join(f"{speed:g}" for speed in LAB),
            steps=", ".join(f"{CATALOG[w].short} {steps}" for w, steps in STEPS.items()),
            held_out=_list(HELD_OUT),
            tuned=_list(TUNED),
        ),
        "## Time to quality\n\n" + _time(kept),
        "## Held-out seeds\n\n" + _equal_steps(results),
        "## Beside the paper's table\n\n" + _beside_the_paper(results),
        "## What each rule does\n\n" + _changes(results),
        "## Smaller hand-ins\n\n" + _travelling(kept.travel),
        *_at_the_best_rate(results),
        f"## What decided the defaults\n\n{REASONS}",
    ]
    return "\n\n".join(parts) + "\n"


def _time(kept: Kept) -> str:
    """By ways, links and the length of a step."""
    if not kept.costs:
        return "Not measured yet."
    best = {workload: best_base_lr(kept.quality, workload) for workload in STEPS}
    told = [TIME.format(limit=f"{sum(LAB):.2f}", seeds=_list(TIMED))]
    for pace in PACES:
        asked = cases(kept.costs, rates_of(best), pace)
        gains = {case: gain(case, TIMED, kept.curves, kept.quality) for case in asked}
        seconds = [f"{1000 * one.step_s:.0f}" for one in kept.costs.values()]
        own = f"Steps as the lab does them, {', '.join(seconds)} ms on the fastest device"
        heading = own if pace is None else f"Steps of {pace:g} s on the fastest device"
        told.append(f"**{heading}.** {verdict(gains)}\n\n{table(gains, len(TIMED))}")
    return "\n\n".join(told)


def _equal_steps(results: Results) -> str:
    note = _EQUAL_STEPS.format(
        mix=", ".join(f"{CATALOG[w].short} {steps_in_mix(w)}" for w in STEPS),
        every=DEFAULT.every,
        merging=_percent(MERGING),
        further=_list(FURTHER),
    )
    return f"{judgement(results, HELD_OUT, FURTHER)}\n\n{note}"


def judgement(results: Results, seeds: Sequence[int], further: Sequence[int] = ()) -> str:
    """Losses of unforked training, and the others' as multiples of them."""
    recipes = (IN_MIX, DEFAULT, PLAIN, FASTEST)
    judges = {recipe.name: seeds for recipe in recipes} | {DEFAULT.name: (*seeds, *further)}
    ratios = {
        recipe.name: [_ratio(results, workload, recipe, judges[recipe.name]) for workload in STEPS]
        for recipe in recipes
    }
    rows = [
        [
            CATALOG[workload].short,
            _spread(_losses(results, workload, UNFORKED, judges[DEFAULT.name]), 4),
            _percent(fmean(forked_in_mix(workload, s) for s in seeds) / steps_in_mix(workload)),
            *(str(ratios[recipe.name][row]) for recipe in recipes),
        ]
        for row, workload in enumerate(STEPS)
    ]
    heading = ["", "unforked", "forked in M-5", *(f"{recipe.name} ÷" for recipe in recipes)]
    within = {name: _count((ratio.value, ALLOWED) for ratio in row) for name, row in ratios.items()}
    pairs = zip(ratios[DEFAULT.name], ratios[FASTEST.name], strict=True)
    better = _count((one.value, other.value) for one, other in pairs)
    verdict = (
        f"Within {ALLOWED} x of unforked training at equal steps: HadarE in M-5 "
        f"{within[IN_MIX.name]}, all five devices on one job {within[DEFAULT.name]}, the plain "
        f"mean {within[PLAIN.name]}. All five devices on one job, better than the fastest alone in "
        f"equal time: {better}."
    )
    missing = [s for s in seeds if any(one not in results for one in tasks(JUDGED, [s]))]
    note = f" Seeds {_list(missing)} have not been measured in full." if missing else ""
    return f"{_table(heading, rows)}\n\n{verdict}{note}"


def _count(pairs: Iterable[tuple[float, float]]) -> str:
    """How many of those that were measured are no more than they may be."""
    known = [one <= most for one, most in pairs if not math.isnan(one + most)]
    return f"{sum(known)} of {len(known)}" if known else "not measured"


def _beside_the_paper(results: Results) -> str:
    rows = []
    for workload, (forked, unforked, measure) in PAPER.items():
        kind = CATALOG[workload]
        pairs = [(task(workload, IN_MIX, s), unforked_like(workload, IN_MIX, s)) for s in HELD_OUT]
        known = [pair for pair in pairs if all(one in results for one in pair)]
        ours = [[results[pair[i]].measure for pair in known] for i in range(2)]
        ahead = _mean(ours[0]) - _mean(ours[1])
        ahead = ahead if kind.higher_is_better else -ahead
        won = "HadarE" if ahead > 0 else "unforked" if ahead < 0 else "-" if ahead else "alike"
        row = [kind.short, measure, f"{forked:g}", f"{unforked:g}", "HadarE"]
        rows.append([*row, kind.metric, *(_spread(values, 3) for values in ours), won])
    heading = ["", "paper's measure", "HadarE", "Hadar", "better"]
    table = _table([*heading, "ours (tiny)", "HadarE", "unforked", "better"], rows)
    return f"{table}\n\n{PAPER_TABLE}"


def _changes(results: Results) -> str:
    rows, unmeasured = [], []
    changed = (recipe for recipe in (*CHOICES, *AMOUNTS) if not _is_default(recipe))
    for recipe in (DEFAULT, *changed):
        ratios = [_ratio(results, workload, recipe, TUNED) for workload in STEPS]
        if all(math.isnan(ratio.value) for ratio in ratios):
            unmeasured.append(recipe.name)
            continue
        known = not any(math.isnan(ratio.value) for ratio in ratios)
        worst = str(_Ratio(max(ratio.value for ratio in ratios))) if known else "-"
        rows.append([recipe.name, *map(str, ratios), worst])
    heading = ["loss ÷ unforked", *(CATALOG[w].short for w in STEPS), "worst"]
    note = (
        f"A lone job as above, on the tuned seeds ({_list(TUNED)}). Each row but the plain mean's "
        "is HadarE with one rule changed."
    )
    left = f"\n\nNot measured yet: {', '.join(unmeasured)}." if unmeasured else ""
    return f"{note}\n\n{_table(heading, rows)}{left}\n\n{TRIED}"


def _is_default(recipe: Recipe) -> bool:
    return replace(recipe, name=DEFAULT.name) == DEFAULT


def _travelling(results: Results) -> str:
    """What smaller hand-ins cost, beside whole ones, and what they save."""
    rows = []
    for recipe in TRAVELLING:
        row = ["`hand_in: full`" if recipe == DEFAULT else recipe.name]
        for workload in TRAVELLED:
            ratio = _ratio(results, workload, recipe, TRAVEL_SEEDS, DEFAULT)
            known = (task(workload, recipe, seed) for seed in TRAVEL_SEEDS)
            sizes = [results[one].bytes_in for one in known if one in results]
            size = next((f"{size / 1e6:.2f} MB" for size in sizes if size), "-")
            row += [size, "1" if recipe == DEFAULT else str(ratio)]
        rows.append(row)
    columns = [f"{CATALOG[w].short}, {what}" for w in TRAVELLED for what in ("a merge", "loss ÷")]
    note = TRAVEL.format(seeds=_list(TRAVEL_SEEDS))
    return f"{note}\n\n{_table(['', *columns], rows)}\n\n{LORA}"


def _at_the_best_rate(results: Results) -> Iterator[str]:
    """A section of its own, once anything but the presets' own rates was tried."""
    tried = (tasks([at_base_lr(UNFORKED, factor)], TUNED) for factor in BASE_LRS)
    if not any(one in results for each in tried for one in each):
        return
    rows = []
    for workload in STEPS:
        factor = best_base_lr(results, workload)
        unforked, hadare, plain = (at_base_lr(r, factor) for r in (UNFORKED, DEFAULT, PLAIN))
        own = _losses(results, workload, unforked, HELD_OUT)
        row = [CATALOG[workload].short, f"x {factor:g}", _spread(own, 4)]
        for recipe in (hadare, plain):
            row.append(str(_ratio(results, workload, recipe, HELD_OUT, unforked)))
        rows.append(row)
    heading = ["", "best base rate", "unforked", "HadarE ÷ unforked", "plain mean ÷"]
    yield f"## With the best base learning rate\n\n{BEST_RATE}\n\n{_table(heading, rows)}"
    rows = []
    for workload in STEPS:
        factor = best_base_lr(results, workload)
        unforked = at_base_lr(UNFORKED, factor)
        ratios = (
            _ratio(results, workload, at_base_lr(recipe, factor), FEWER, unforked)
            for recipe in AT_BEST_RATE
        )
        rows.append([CATALOG[workload].short, f"x {factor:g}", *map(str, ratios)])
    heading = ["", "best base rate", *(f"{recipe.name} ÷ unforked" for recipe in AT_BEST_RATE)]
    yield f"{RULES_AT_BEST_RATE}\n\n{_table(heading, rows)}"


def best_base_lr(results: Results, workload: str) -> float:
    """The factor on the workload's own rate that serves unforked training best (tuned seeds)."""
    recipes = {factor: at_base_lr(UNFORKED, factor) for factor in (1.0, *BASE_LRS)}
    losses = {f: _mean(_losses(results, workload, r, TUNED)) for f, r in recipes.items()}
    known = {factor: loss for factor, loss in losses.items() if not math.isnan(loss)}
    return min(known, key=lambda factor: known[factor], default=1.0)


def _losses(results: Results, workload: str, recipe: Recipe, seeds: Sequence[int]) -> list[float]:
    asked = (task(workload, recipe, seed) for seed in seeds)
    return [results[one].loss for one in asked if one in results]


@dataclass(frozen=True, slots=True)
class _Ratio:
    """A mean loss over another's, from the same seeds, and its standard error."""

    value: float = math.nan
    error: float | None = None
    seeds: int = 0  # told if they are fewer than asked for

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "-"
        if math.isinf(self.value):
            return "diverged"
        figures = f"{self.value:.3f}" + ("" if self.error is None else f" ± {self.error:.3f}")
        return f"{figures} ({self.seeds})" if self.seeds else figures


def _ratio(
    results: Results,
    workload: str,
    recipe: Recipe,
    seeds: Sequence[int],
    unforked: Recipe = UNFORKED,
) -> _Ratio:
    """Of the seeds that have both. Losses of single seeds scatter too widely to divide them."""
    pairs = []
    for seed in seeds:
        one = task(workload, recipe, seed)
        other = unforked_like(workload, recipe, seed, unforked)
        if one in results and other in results:
            pairs.append((results[one].loss, results[other].loss))
    if not pairs:
        return _Ratio()
    error = _jackknife(pairs) if len(pairs) > 1 else None
    return _Ratio(_of_sums(pairs), error, len(pairs) if len(pairs) < len(seeds) else 0)


def _of_sums(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(loss for loss, _ in pairs) / sum(other for _, other in pairs)


def _jackknife(pairs: Sequence[tuple[float, float]]) -> float:
    """The standard error of a ratio of sums, from what leaving out each seed does to it."""
    left = [_of_sums([*pairs[:i], *pairs[i + 1 :]]) for i in range(len(pairs))]
    centre = fmean(left)
    return math.sqrt((len(left) - 1) / len(left) * sum((one - centre) ** 2 for one in left))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _spread(values: Sequence[float], digits: int) -> str:
    """The mean and the standard deviation over seeds."""
    if not values:
        return "-"
    if not all(map(math.isfinite, values)):
        return "diverged"
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ± {stdev(values):.{digits}f}" if len(values) > 1 else mean


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


_EQUAL_STEPS = """\
Loss after as many counted steps as unforked training's. "HadarE" is a lone job, its first steps on
the fastest device, then all five devices to the end, merged every {every} counted steps. That is
more often than so short steps can afford, and what merging can do, not what a lone job gets on the
lab: the tables above have that. "HadarE in M-5" is what `hadar run mixes/m5.yaml` does: who trained
how many steps between which merges is taken from the journals of five real runs over SSH on the
lab's five nodes, another run for each seed, with the presets' own numbers of steps ({mix}); "forked
in M-5" is the share of steps that several copies did between two merges. "Fastest alone" has the
time that HadarE takes, merging included ({merging} of it), and a schedule that ends then. Of a lone
job, and unforked, the seeds {further} judge as well. ± is the standard error of a ratio (jackknife
over seeds), else the standard deviation over seeds; in brackets, of how many seeds a ratio is,
where of fewer."""
