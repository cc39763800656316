"""What jobs leave comes home whole, bounded, and never outside of its folder."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hadar_cli.assembly import Interrupted
from hadar_cli.cli import foreground
from hadar_cli.core import events
from hadar_cli.core.model import Job, Mix, Node
from hadar_cli.core.slurm import SlurmRequest
from hadar_cli.core.state import RunState
from hadar_cli.node.files.outputs import list_outputs
from hadar_cli.nodes.supply import outputs
from hadar_cli.nodes.supply.output_collector import OutputCollector
from hadar_cli.nodes.supply.outputs import bring_home, read_list
from hadar_cli.nodes.wire import AgentError, LinkLostError
from hadar_cli.runs.output_devices import OutputDevices
from hadar_cli.runs.store import RunFacts, RunStore

JOB = Job(3, "job", 10, 8)


@dataclass
class Liar:
    """A node that lists what it likes, and has a byte for whatever it is asked."""

    listed: list[tuple[str, int, int]]
    others: int = 0
    node: Node = field(default_factory=lambda: Node("one", "local"))

    def list_out(self, job: int) -> tuple[list[tuple[str, int, int]], int]:
        return self.listed, self.others

    def fetch_out(self, job: int, name: str, size: int, target: Path) -> None:
        assert not target.exists() and not target.is_symlink()
        target.write_bytes(b"x")

    def close(self) -> None: ...

    def abort(self) -> None: ...


def bring(folder: Path, *names: str) -> list[str]:
    return bring_home([Liar([(name, 1, 5) for name in names])], {"one": [JOB]}, folder / "out")


def found(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}


def test_files_come_home_under_their_own_names(tmp_path):
    assert bring(tmp_path, "model.pt", "logs/a/events.1") == []
    assert found(tmp_path) == {"out/job/model.pt", "out/job/logs/a/events.1"}


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "a/../../x", "/etc/x", "", ".", "a//b", "a/./b", "a\nb", "x\x1b[2J", "a\\b"),
        *("x" * 300, "/".join("abcdefghijklmnopqrstuvwxyz"), "\u202egnp.exe"),
    ],
)
def test_names_that_could_lead_elsewhere_are_left_and_told(tmp_path, name):
    [problem] = bring(tmp_path, name, "good")
    assert problem.startswith("job: 1 of what it left on one stay there")
    assert found(tmp_path) == {"out/job/good"}


def test_a_file_that_is_also_a_folder_costs_this_job_only(tmp_path):
    [problem] = bring(tmp_path, "a", "a/b")
    assert "did not come" in problem
    assert not (tmp_path / "out" / "job").exists()


def test_what_is_too_much_is_left_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "MOST_FILES", 2)
    [problem] = bring(tmp_path, "a", "b", "c")
    assert "1 of what it left" in problem
    assert found(tmp_path) == {"out/job/a", "out/job/b"}
    monkeypatch.setattr(outputs, "_MOST_BYTES", 10)
    liar = Liar([("large", 11, 0), ("small", 10, 0)])
    [problem] = bring_home([liar], {"one": [JOB]}, tmp_path / "bounded")
    assert found(tmp_path / "bounded") == {"job/small"}


def test_what_came_home_before_is_fetched_again_only_if_it_changed(tmp_path):
    fetched = []

    class Writer(Liar):
        def fetch_out(self, job: int, name: str, size: int, target: Path) -> None:
            fetched.append(name)
            target.write_bytes(b"x" * size)

    def bring_from(*listed: tuple[str, int, int]) -> set[str]:
        fetched.clear()
        assert bring_home([Writer(list(listed))], {"one": [JOB]}, tmp_path) == []
        assert found(tmp_path) == {f"job/{name}" for name, *_ in listed}
        return set(fetched)

    same = ("sub/same", 1, 10)
    assert bring_from(same, ("longer", 1, 10), ("later", 1, 10)) == {"sub/same", "longer", "later"}
    assert bring_from(same, ("longer", 2, 10), ("later", 1, 11), ("new", 1, 1)) == {
        *("longer", "later", "new")
    }
    assert (tmp_path / "job" / "longer").read_bytes() == b"xx"
    assert bring_from(same) == set()  # what the script itself removed goes, too


def test_a_node_that_fails_later_leaves_what_came_before(tmp_path):
    bring(tmp_path, "a")
    [problem] = bring(tmp_path, "b", "b/c")
    assert "did not come" in problem
    assert found(tmp_path / "out" / "job") == {"a"}


@pytest.mark.parametrize(
    "answer",
    [
        *({}, {"files": 3}, {"files": [["a"]], "others": 0}, {"files": [], "others": "x"}),
        *([], None, {"files": [[1, "a"]], "others": 0}, {"files": [["a", True, 0]], "others": 0}),
        {"files": [["a", 1]], "others": 0},
    ],
)
def test_a_list_that_makes_no_sense_is_refused(answer):
    with pytest.raises(AgentError, match="makes no sense"):
        read_list(answer)


def test_a_node_lists_plain_files_only(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("12")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/etc")
    time_ns = (tmp_path / "sub" / "a").stat().st_mtime_ns
    assert list_outputs(tmp_path, 10) == ([("sub/a", 2, time_ns)], 2)
    assert list_outputs(tmp_path, 0) == ([], 3)
    assert list_outputs(tmp_path / "nowhere", 10) == ([], 0)


def test_the_copy_with_most_steps_of_the_last_merge_leads():
    def copy(attempt: str, device: str, steps: int) -> list[events.Event]:
        begun = events.CopyStarted(0, attempt, 3, 1, device, 1, 0, ((0, steps),))
        return [begun, events.CopyFinished(1, attempt, steps, (), 0, 0, 0, "steps")]

    first = [*copy("a", "one", 9), *copy("b", "two", 2)]
    merged = events.WeightsMerged(1, 3, 1, "w", ("a", "b"))
    last = [*copy("c", "one", 3), *copy("d", "two", 5), *copy("e", "three", 99)]
    assert OutputDevices([*first, merged]).by_job == {3: "one"}
    again = events.WeightsMerged(2, 3, 2, "w", ("c", "d"))
    assert OutputDevices([*first, merged, *last, again]).by_job == {3: "two"}


class Lent:
    """A node that somebody else allots, and may not take back."""

    def __init__(self) -> None:
        self.node = Node("a", "local", slurm=SlurmRequest(time="10"))
        self.why = "Slurm's squeue does not answer"

    def give_back(self) -> None:
        if self.why:
            raise LinkLostError(self.why)


def test_what_is_still_held_is_told_however_a_run_ends_and_only_as_long(
    tmp_path, monkeypatch, capsys
):
    store = RunStore.create(tmp_path, RunFacts("r", Mix("m", (JOB,)), (), "", ""))
    store.journal_path.touch()
    lent = Lent()

    def drive(*_: object) -> None:
        OutputCollector(store, RunState([JOB]), [lent], lambda node: lent).end(brings_all=False)
        raise Interrupted

    monkeypatch.setattr(foreground, "drive", drive)
    monkeypatch.setattr(foreground, "_kept", lambda store: "saved")

    def told() -> str:
        with pytest.raises(SystemExit):
            foreground.run_in_foreground(store, as_json=False, no_live=True)
        return " ".join(capsys.readouterr().err.split())

    assert "a: Slurm's squeue does not answer" in (words := told()) and "hadar clean r" in words
    lent.why = ""
    assert "squeue" not in told()
