"""Data sets by their contents: hashed once, packed alike, found on a node by their seals."""

import hashlib
import os
from pathlib import Path

import pytest

from hadar_cli.errors import InputError
from hadar_cli.node.files import datasets
from hadar_cli.project import data
from hadar_cli.project.data import HashCache, list_files, next_pack, place_of


def write(root: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))  # long ago: nothing races with the test
    return root


def read(source: Path, cache: Path) -> data.DataSet:
    with HashCache(cache) as hashes:
        return hashes.read(source)


def arrive(held: data.DataSet, workdir: Path) -> None:
    """What a node is left with once all was sent."""
    (workdir / "data" / "sets").mkdir(parents=True, exist_ok=True)
    (workdir / "data" / "sets" / held.digest).write_bytes(held.manifest)
    numbers, _ = datasets.missing(workdir, held.digest)
    while numbers:
        archive = workdir / "pack.tar"
        _, taken = next_pack(held, numbers, archive)
        datasets.take_in_pack(archive, workdir)
        numbers = numbers[taken:]


# -- on the head ---------------------------------------------------------------------------------


def test_a_set_is_named_by_names_and_contents_alone(tmp_path):
    one = read(write(tmp_path / "one", a=b"1", sub__b=b"2"), tmp_path / "cache")
    same = read(write(tmp_path / "same", a=b"1", sub__b=b"2"), tmp_path / "cache")
    other = read(write(tmp_path / "other", a=b"1", sub__c=b"2"), tmp_path / "cache")
    assert one.digest == same.digest != other.digest
    assert one.hashes[0] == hashlib.sha256(b"1").hexdigest()


def test_hashes_are_kept_by_size_and_time(tmp_path):
    source = write(tmp_path / "set", a=b"old")
    before = read(source, tmp_path / "cache")
    (source / "a").write_bytes(b"new")
    os.utime(source / "a", (1e9, 1e9))  # nobody can tell: it is not read again
    assert read(source, tmp_path / "cache").digest == before.digest
    os.utime(source / "a", (1e9, 2e9))
    assert read(source, tmp_path / "cache").digest != before.digest


def test_a_file_changed_just_now_is_not_remembered(tmp_path):
    source = write(tmp_path / "set", a=b"old")
    (source / "a").write_bytes(b"one")
    state = (source / "a").stat()
    before = read(source, tmp_path / "cache")
    (source / "a").write_bytes(b"two")
    os.utime(source / "a", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert read(source, tmp_path / "cache").digest != before.digest


def test_links_are_followed_and_circles_are_not(tmp_path):
    source = write(tmp_path / "set", a=b"1")
    write(tmp_path / "elsewhere", b=b"2")
    (source / "more").symlink_to(tmp_path / "elsewhere")
    (source / "circle").symlink_to(source)
    assert [file.name for file in list_files(source)] == ["a", "more/b"]


def test_what_cannot_be_sent_is_refused_with_a_fix(tmp_path):
    source = write(tmp_path / "set", a=b"1")
    os.mkfifo(source / "pipe")
    with pytest.raises(InputError, match="no plain file") as caught:
        list_files(source)
    assert (caught.value.field, bool(caught.value.fix)) == ("data", True)
    with pytest.raises(InputError, match="No such file"):
        list_files(tmp_path / "nowhere")


def test_data_is_found_as_by_hand_within_the_project_and_by_name_beyond_it(tmp_path):
    assert place_of(tmp_path / "p/data/train", tmp_path / "p") == "data/train"
    assert place_of(tmp_path / "elsewhere/cifar", tmp_path / "p") == "cifar"


def test_the_same_missing_files_make_the_same_pack(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_PACK_BYTES", 3)
    held = read(write(tmp_path / "set", a=b"11", b=b"22", c=b"3"), tmp_path / "cache")
    first = next_pack(held, [0, 1, 2], tmp_path / "one.tar")
    assert first == next_pack(held, [0, 1, 2], tmp_path / "two.tar")
    assert first[1] == 1  # the second would make it too large
    assert next_pack(held, [1, 2], tmp_path / "rest.tar")[1] == 2


# -- on a node -----------------------------------------------------------------------------------


def test_a_set_arrives_and_is_seen_under_its_own_names(tmp_path):
    held = read(write(tmp_path / "set", a=b"1", sub__b=b"22", twin=b"1"), tmp_path / "cache")
    arrive(held, tmp_path / "node")
    assert datasets.missing(tmp_path / "node", held.digest) == ([], 0)
    shown = datasets.show_set(tmp_path / "run", held.digest, tmp_path / "node")
    assert (shown / "sub" / "b").read_bytes() == b"22"
    assert (shown / "twin").read_bytes() == b"1"
    (shown / "sub" / "cache").write_text("beside the data")  # which no other run sees
    other = datasets.show_set(tmp_path / "other", held.digest, tmp_path / "node")
    assert not (other / "sub" / "cache").exists()


def test_a_set_of_one_file_is_that_file(tmp_path):
    source = write(tmp_path / "set", a=b"1") / "a"
    held = read(source, tmp_path / "cache")
    arrive(held, tmp_path / "node")
    assert datasets.show_set(tmp_path, held.digest, tmp_path / "node").read_bytes() == b"1"


def test_only_what_changed_is_missing(tmp_path):
    source = write(tmp_path / "set", a=b"1", b=b"2")
    arrive(read(source, tmp_path / "cache"), tmp_path / "node")
    held = read(write(source, b=b"333"), tmp_path / "cache")
    (tmp_path / "node/data/sets" / held.digest).write_bytes(held.manifest)
    assert datasets.missing(tmp_path / "node", held.digest) == ([1], 3)


def test_a_content_that_a_script_changed_in_place_is_sent_again(tmp_path):
    held = read(write(tmp_path / "set", a=b"123"), tmp_path / "cache")
    arrive(held, tmp_path / "node")
    path = datasets.content_path(tmp_path / "node", held.hashes[0])
    path.chmod(0o600)
    path.write_bytes(b"xyz")
    assert datasets.missing(tmp_path / "node", held.digest) == ([0], 3)


def test_a_touched_content_is_looked_at_and_kept(tmp_path):
    held = read(write(tmp_path / "set", a=b"123"), tmp_path / "cache")
    arrive(held, tmp_path / "node")
    datasets.content_path(tmp_path / "node", held.hashes[0]).touch()
    assert datasets.missing(tmp_path / "node", held.digest) == ([], 0)


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b"])
def test_a_manifest_leads_nowhere_else(tmp_path, name):
    (tmp_path / "data" / "sets").mkdir(parents=True)
    manifest = f'[["{"0" * 64}", 1, "{name}"]]'
    (tmp_path / "data" / "sets" / "x").write_text(manifest)
    with pytest.raises(ValueError, match="cannot be"):
        datasets.show_set(tmp_path / "run", "x", tmp_path)
