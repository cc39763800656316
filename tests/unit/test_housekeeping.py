"""Old checkpoints go, the ones that count stay, and finished models load like any other."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hadar_cli.core import events
from hadar_cli.core.state import RunState
from hadar_cli.runs.finished_models import export_model
from hadar_cli.runs.housekeeping import KEPT_GENERATIONS, Housekeeper
from hadar_cli.runs.store import RunFacts, RunStore
from tests.support.worlds import make_mix, make_nodes


@pytest.fixture
def store(tmp_path):
    return RunStore.create(tmp_path / "runs", RunFacts("r", make_mix([60]), make_nodes(), "", ""))


def put(store: RunStore, tmp_path, value: float) -> str:
    source = tmp_path / f"w{value}"
    save_file({"model/0/weight": np.full(4, value, np.float32)}, source)
    return store.take_in(source)


def test_only_recent_generations_and_pending_inputs_stay(store, tmp_path):
    state = RunState(make_mix([60]).jobs)
    keeper = Housekeeper(store, state)

    def happen(event: events.Event) -> None:
        state.apply(event)
        keeper.happened(event)

    merged = []
    for g in range(6):
        given = ((g * 10, g * 10 + 10),)
        mine = put(store, tmp_path, g + 0.25)
        merged.append(put(store, tmp_path, g + 0.5))
        happen(events.CopyStarted(g, f"a{g}", 0, 1, "t4", 1, g, given))
        happen(events.CopyFinished(g, f"a{g}", 10, given, 0, 1, 0, "steps", mine))
        assert store.object_path(mine).exists()
        happen(events.WeightsMerged(g, 0, g + 1, merged[-1], (f"a{g}",)))
        assert not store.object_path(mine).exists()
    left = {path.name for path in (store.directory / "objects").iterdir()}
    assert left == set(merged[-KEPT_GENERATIONS:])
    model = load_file(store.directory / "models" / "job-0.safetensors")
    assert model["weight"].tolist() == [5.5] * 4


def test_weights_that_a_slow_copy_was_given_stay_until_it_is_back(store, tmp_path):
    state = RunState(make_mix([90]).jobs)
    keeper = Housekeeper(store, state)

    def happen(event: events.Event) -> None:
        state.apply(event)
        keeper.happened(event)

    merged = []
    for g in range(6):
        given = ((g * 10, g * 10 + 10),)
        merged.append(put(store, tmp_path, g + 0.5))
        happen(events.CopyStarted(g, f"a{g}", 0, 1, "t4", 1, g, given))
        happen(events.CopyFinished(g, f"a{g}", 10, given, 0, 1, 0, "steps", None))
        happen(events.WeightsMerged(g, 0, g + 1, merged[-1], (f"a{g}",)))
        if g == 0:
            happen(events.CopyStarted(g, "slow", 0, 2, "t400", 1, 1, (), purpose="prepare"))
    assert store.object_path(merged[0]).exists()
    assert not store.object_path(merged[1]).exists()
    happen(events.CopyLost(7, "slow", "it was too slow"))
    happen(events.CopyStarted(8, "a8", 0, 1, "t4", 1, 6, ((60, 70),)))
    happen(events.CopyFinished(8, "a8", 10, ((60, 70),), 0, 1, 0, "steps", None))
    happen(events.WeightsMerged(8, 0, 7, put(store, tmp_path, 9.0), ("a8",)))
    assert not store.object_path(merged[0]).exists()


def test_leftovers_of_a_killed_head_are_collected(store, tmp_path):
    kept, leftover = put(store, tmp_path, 1.0), put(store, tmp_path, 2.0)
    store.scratch_path("half").write_text("half a file")
    pending = put(store, tmp_path, 3.0)  # handed in to a head that died before it merged
    state = RunState(make_mix([60]).jobs)
    state.jobs[0].weights = kept
    state.apply(events.CopyStarted(1, "a", 0, 1, "t4", 1, 0, ((0, 9),)))
    state.apply(events.CopyFinished(2, "a", 9, ((0, 9),), 0, 1, 0, "steps", pending))
    Housekeeper(store, state)
    assert store.object_path(kept).exists()
    assert store.object_path(pending).exists()
    assert not store.object_path(leftover).exists()
    assert not store.scratch_path("half").exists()


def test_an_exported_model_has_plain_names_and_no_optimizer(tmp_path):
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    notes = json.dumps({"tied": {"model/0/head.weight": "model/0/embed.weight"}})
    save_file(
        {"model/0/embed.weight": weight, "optimizer/0/0/exp_avg": weight},
        tmp_path / "full",
        metadata={"hadar": notes},
    )
    export_model(tmp_path / "full", tmp_path / "plain")
    loaded = load_file(tmp_path / "plain")
    assert loaded.keys() == {"embed.weight", "head.weight"}
    assert np.array_equal(loaded["head.weight"], weight)


def test_several_models_keep_their_numbers(tmp_path):
    one = np.ones(2, np.float32)
    save_file({"model/0/w": one, "model/1/w": 2 * one}, tmp_path / "gan")
    export_model(tmp_path / "gan", tmp_path / "plain")
    assert load_file(tmp_path / "plain")["1/w"].tolist() == [2.0, 2.0]


def test_what_a_late_copy_began_with_stays_until_it_is_merged(store, tmp_path):
    """Also for a head that takes over meanwhile."""
    state, happened = RunState(make_mix([90]).jobs), []
    keeper = Housekeeper(store, state)

    def happen(event: events.Event) -> None:
        state.apply(event)
        keeper.happened(event)
        happened.append(event)

    merged = []
    for g in range(6):
        given = ((g * 10, g * 10 + 10),)
        merged.append(put(store, tmp_path, g + 0.5))
        happen(events.CopyStarted(g, f"a{g}", 0, 1, "t4", 1, g, given))
        happen(events.CopyFinished(g, f"a{g}", 10, given, 0, 1, 0, "steps", None))
        happen(events.WeightsMerged(g, 0, g + 1, merged[-1], (f"a{g}",)))
        if g == 0:
            happen(events.CopyStarted(g, "late", 0, 2, "t400", 1, 1, ((80, 90),)))
    state = RunState(make_mix([90]).jobs, happened)
    keeper = Housekeeper(store, state)
    assert store.object_path(merged[0]).exists()
    assert not store.object_path(merged[1]).exists()
    mine = put(store, tmp_path, 7.0)
    happen(events.CopyFinished(8, "late", 10, ((80, 90),), 0, 9, 0, "steps", mine))
    assert store.object_path(merged[0]).exists()
    assert store.object_path(mine).exists()
    last = put(store, tmp_path, 9.0)
    happen(events.WeightsMerged(9, 0, 7, last, ("late",), late={"late": 0.5}))
    assert not store.object_path(mine).exists()
    for g in (7, 8):  # some generations are kept anyway
        given = ((g * 10 - 10, g * 10),)
        happen(events.CopyStarted(g, f"a{g}", 0, 1, "t4", 1, g, given))
        happen(events.CopyFinished(g, f"a{g}", 10, given, 0, 1, 0, "steps", None))
        digest = put(store, tmp_path, g + 0.75)
        happen(events.WeightsMerged(g, 0, g + 1, digest, (f"a{g}",)))
    assert not store.object_path(merged[0]).exists()
