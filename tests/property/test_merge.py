"""What must hold of every merge, whatever the numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hadar_cli.core.model import MergeRules, OuterStep
from hadar_cli.weights.merging import Contribution, Merged, merge
from hadar_cli.weights.safetensors_file import DTYPES, Array, Checkpoint, Tensor, widen, write

FLOATS = ("F16", "BF16", "F32", "F64")
NAMES = (
    "model/0/weight",
    "model/0/bn.running_mean",
    "optimizer/0/0/exp_avg",
    "optimizer/0/0/step",
    "state/ema/weight",
)
RULES = st.builds(
    MergeRules,
    rule=st.sampled_from(["mean", "progress"]),
    optimizer_state=st.sampled_from(["average", "leader", "reset"]),
    outer=st.sampled_from([None, OuterStep()]),
)
settings.register_profile("merge", deadline=None, max_examples=60)
quick = settings.get_profile("merge")


@dataclass(frozen=True)
class Copies:
    """The same tensors from several copies, and the work each did."""

    tensors: tuple[Tensor, ...]
    data: tuple[tuple[Array, ...], ...]
    steps: tuple[int, ...]


def arrays(dtype: str, size: int) -> st.SearchStrategy[Array]:
    """Any bits, but for floats only finite ones."""
    bits = hnp.arrays(f"u{DTYPES[dtype].itemsize}", size)
    if dtype == "BOOL":
        return bits.map(lambda array: array % 2)

    def finite(array: Array) -> Array:
        stored = array.view(DTYPES[dtype])
        if dtype in FLOATS:
            stored[~np.isfinite(widen(stored, dtype))] = 0
        return stored

    return bits.map(finite)


@st.composite
def copies(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES)) -> Copies:
    tensors = tuple(
        Tensor(name, draw(st.sampled_from(dtypes)), (draw(st.integers(0, 4)),)) for name in NAMES
    )
    count = draw(st.integers(2, 4))
    data = [tuple(draw(arrays(t.dtype, t.size)) for t in tensors) for _ in range(count)]
    steps = draw(st.lists(st.integers(1, 10_000), min_size=count, max_size=count))
    return Copies(tensors, tuple(data), tuple(steps))


@contextmanager
def handed_in(given: Copies) -> Iterator[list[Contribution]]:
    with tempfile.TemporaryDirectory() as name:
        contributions = []
        for i, (data, steps) in enumerate(zip(given.data, given.steps, strict=True)):
            path = Path(name) / str(i)
            with path.open("wb") as file:
                write(file, given.tensors, {}, data)
            contributions.append(Contribution(i, path, steps, 8))
        yield contributions


def merged(contributions: list[Contribution], rules: MergeRules, base: Path | None) -> Merged:
    return merge(contributions, base, contributions[0].path.with_name("out"), rules)


@given(copies(), RULES, st.booleans(), st.randoms(use_true_random=False))
@settings(quick)
def test_the_order_of_the_copies_does_not_matter(
    given: Copies, rules: MergeRules, with_base: bool, random: object
) -> None:
    with handed_in(given) as contributions:
        base = contributions[0].path if with_base else None
        first = merged(contributions, rules, base)
        shuffled = list(contributions)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        assert merged(shuffled, rules, base) == first
        assert first.digest


@given(copies(), RULES)
@settings(quick)
def test_merging_identical_copies_changes_nothing(given: Copies, rules: MergeRules) -> None:
    same = Copies(given.tensors, given.data[:1] * len(given.data), given.steps)
    with handed_in(same) as contributions:
        merged(contributions, rules, contributions[0].path)
        with Checkpoint(contributions[0].path.with_name("out")) as out:
            for tensor, data in zip(given.tensors, given.data[0], strict=True):
                if rules.optimizer_state == "reset" and tensor.name.startswith("optimizer/"):
                    assert tensor.name not in out.tensors
                else:
                    assert out.read(tensor.name).tobytes() == data.tobytes()


@given(copies(FLOATS))
@settings(quick)
def test_a_mean_lies_between_the_copies(given: Copies) -> None:
    with handed_in(given) as contributions:
        assert merged(contributions, MergeRules(rule="mean"), None).refused == ()
        with Checkpoint(contributions[0].path.with_name("out")) as out:
            for i, tensor in enumerate(given.tensors):
                values = [widen(data[i], tensor.dtype) for data in given.data]
                mean = widen(out.read(tensor.name), tensor.dtype)
                assert np.all(np.min(values, axis=0) <= mean)
                assert np.all(mean <= np.max(values, axis=0))


@given(copies(FLOATS), RULES)
@settings(quick)
def test_finite_copies_make_a_finite_checkpoint(given: Copies, rules: MergeRules) -> None:
    """With extreme numbers too, where `progress` would leave the range of the type."""
    with handed_in(given) as contributions:
        merged(contributions, rules, contributions[0].path)
        with Checkpoint(contributions[0].path.with_name("out")) as out:
            for tensor in out.tensors.values():
                assert np.isfinite(widen(out.read(tensor.name), tensor.dtype)).all()
