"""Which folder is a script's project, and which of its files travel."""

import os
from pathlib import Path

import pytest

from hadar_cli.cli import uploads
from hadar_cli.core.model import Job, Launch, Mix
from hadar_cli.errors import InputError
from hadar_cli.project import folder, selection
from hadar_cli.project.folder import find_module, find_project
from hadar_cli.project.selection import select


def make(root: Path, *names: str, content: str = "x") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def names(chosen: selection.Selection) -> list[str]:
    return [path.relative_to(chosen.root).as_posix() for path in chosen.files]


# -- the folder ----------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", [".git/HEAD", "pyproject.toml"])
def test_the_nearest_marked_folder_is_the_project(tmp_path, marker):
    make(tmp_path, marker, f"inner/{marker}", "inner/src/deep/train.py", "train.py")
    found = find_project(tmp_path / "inner" / "src" / "deep" / "train.py")
    assert (found.folder, found.found_by) == (tmp_path / "inner", marker.split("/")[0])
    assert find_project(tmp_path / "train.py").folder == tmp_path


def test_without_a_marker_it_is_the_scripts_own_folder(tmp_path):
    make(tmp_path, "a/b/train.py")
    found = find_project(tmp_path / "a" / "b" / "train.py")
    assert (found.folder, found.found_by) == (tmp_path / "a" / "b", "the script")


def test_a_home_directory_is_no_project_even_if_it_is_a_repository(tmp_path, monkeypatch):
    make(tmp_path, ".git/HEAD", "train.py", "mine/train.py")
    monkeypatch.setattr(folder.Path, "home", lambda: tmp_path)
    assert find_project(tmp_path / "train.py") is None
    assert find_project(tmp_path / "mine" / "train.py").folder == tmp_path / "mine"


def test_modules_are_found_as_python_would(tmp_path):
    make(tmp_path, "pack/train.py", "src/other/__main__.py")
    assert find_module("pack.train", tmp_path) == tmp_path / "pack" / "train.py"
    assert find_module("other", tmp_path) == tmp_path / "src" / "other" / "__main__.py"
    assert find_module("pack.test", tmp_path) is None


# -- what travels --------------------------------------------------------------------------------


def test_what_ignore_files_leave_out_is_told_with_its_size(tmp_path):
    make(tmp_path, "train.py", "model.py")
    make(tmp_path, "data/train.bin", "data/val.bin", "meta.pkl", content="x" * 1000)
    (tmp_path / ".gitignore").write_text("*.bin\n*.pkl\n")
    chosen = select(tmp_path)
    assert names(chosen) == [".gitignore", "model.py", "train.py"]
    told = {one.path.name: (one.bytes, one.files, one.rule) for one in chosen.left_out}
    assert told == {name: (1000, 1, ".gitignore") for name in ("train.bin", "val.bin", "meta.pkl")}


def test_a_folder_that_is_left_out_is_told_as_one(tmp_path):
    make(tmp_path, "train.py", "data/a/1", "data/b/2", content="x" * 10)
    (tmp_path / ".gitignore").write_text("data/\n")
    [left_out] = select(tmp_path).left_out
    assert (left_out.path, left_out.bytes, left_out.files) == (tmp_path / "data", 20, 2)


def test_data_in_a_folder_that_is_left_out_is_not_told_as_left_out(tmp_path):
    make(tmp_path, "train.py", "data/train.bin", "data/sub/b", "data/notes.txt", content="xx")
    (tmp_path / ".gitignore").write_text("data/\n")
    data = [tmp_path / "data" / "train.bin", tmp_path / "data" / "sub"]
    [left_out] = select(tmp_path, data).left_out
    assert (left_out.bytes, left_out.files) == (2, 1)
    (tmp_path / "data" / "notes.txt").unlink()
    assert select(tmp_path, data).left_out == ()


def test_hadarignore_has_the_last_word(tmp_path):
    make(tmp_path, "train.py", "meta.pkl", "secret.key", "out/model.pt")
    (tmp_path / ".gitignore").write_text("*.pkl\n")
    (tmp_path / ".hadarignore").write_text("!meta.pkl\n*.key\n!/out/\n")
    chosen = select(tmp_path)
    assert {"meta.pkl", "out/model.pt"} <= set(names(chosen))
    assert [one.path.name for one in chosen.left_out] == ["secret.key"]


def test_what_hadar_and_python_leave_in_a_project_stays_behind(tmp_path):
    make(tmp_path, "train.py", "runs/r1/run.json", "runs/r1/journal.jsonl", "runs/notes.py")
    make(tmp_path, "runs/.hadar/hashes.sqlite3", "runs/mlruns/0/meta.yaml")
    make(tmp_path, "env/pyvenv.cfg", "env/bin/python", "out/a", ".git/HEAD", "__pycache__/t.pyc")
    chosen = select(tmp_path)
    assert names(chosen) == ["runs/notes.py", "train.py"]
    assert {one.rule for one in chosen.left_out} == {
        "being a virtual environment",
        "being a run of hadar",
        "hadar's own rule",
    }


def test_links_to_files_travel_as_files_and_links_to_folders_are_told(tmp_path):
    make(tmp_path, "shared/big/1", "shared/one.txt", "project/train.py")
    project = tmp_path / "project"
    (project / "data").symlink_to(tmp_path / "shared" / "big")
    (project / "one.txt").symlink_to(tmp_path / "shared" / "one.txt")
    (project / "lost").symlink_to("nowhere")
    chosen = select(project)
    assert names(chosen) == ["one.txt", "train.py"]
    told = {one.path.name: one.rule for one in chosen.left_out}
    assert told == {"data": "being a link to a folder", "lost": "being no plain file"}


def test_a_path_is_told_to_travel_or_why_not(tmp_path):
    make(tmp_path, "train.py", "data/x.bin", "set/y.npy", "elsewhere")
    (tmp_path / ".gitignore").write_text("data/\n")
    chosen = select(tmp_path, [tmp_path / "set"])
    assert chosen.why_not(tmp_path / "train.py") is None
    assert chosen.why_not(tmp_path / "set" / "y.npy") is None
    assert chosen.why_not(tmp_path / "data" / "x.bin") == "it is left out by .gitignore"
    assert chosen.why_not(Path("/etc/hosts")) == f"it is outside of {tmp_path}"
    assert "set/y.npy" not in names(chosen)


def test_a_path_is_taken_relative_to_here(tmp_path, monkeypatch):
    make(tmp_path, "train.py")
    monkeypatch.chdir(tmp_path)
    assert select(tmp_path).why_not(Path("train.py")) is None


def test_a_folder_too_large_to_be_code_is_refused_with_its_largest_files(tmp_path):
    make(tmp_path, "train.py", "weights.pt")
    os.truncate(tmp_path / "weights.pt", 3 << 30)  # a hole: it takes no room here
    with pytest.raises(InputError, match=r"3\.2 GB.*weights\.pt") as caught:
        select(tmp_path)
    assert "data:" in caught.value.fix


def test_a_folder_of_very_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "_MOST_FILES", 3)
    make(tmp_path, "train.py", *(f"many/{n}.txt" for n in range(9)))
    with pytest.raises(InputError, match=r"4 files or more; the largest: many/ \(\d files\)"):
        select(tmp_path)


# -- what a script knows of ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import torch", "one, wide: nothing in"),
        ("from accelerate import Accelerator", "one, wide: nothing in"),
        ("from hadar_cli import training", ""),
        ("result = os.environ['HADAR_RESULT']", "wide: nothing in"),
        ("torch.distributed.all_reduce(os.environ['HADAR_RESULT'])", ""),
    ],
)
def test_a_script_that_knows_nothing_of_hadar_or_of_its_gang_is_told(tmp_path, line, told):
    make(tmp_path, "train.py", "model.py", "notes.txt")
    make(tmp_path, "model.py", content=line)
    launch = Launch(script=str(tmp_path / "train.py"), sync=str(tmp_path))
    jobs = (Job(0, "one", 10, 8, launch=launch), Job(1, "wide", 10, 8, gpus=3, launch=launch))
    mix = Mix("m", jobs)
    warnings = [line for line in uploads.lines(mix, uploads.uploads(mix)) if "warning" in line]
    assert [line.removeprefix("[yellow]warning:[/] ")[: len(told)] for line in warnings] == (
        [told] if told else []
    )
