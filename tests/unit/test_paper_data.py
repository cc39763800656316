"""The paper preset: readers of the real data sets' formats, on small files made in them."""

from __future__ import annotations

import csv
import importlib
import io
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hadar_cli.workloads import CATALOG, Workload, cifar10, mesonet, options, recommender
from hadar_cli.workloads.language_model import read_wikitext
from hadar_cli.workloads.translation import END, START, pad, read_multi30k

FILES = {
    "image_classification": (*cifar10.PARTS,),
    "language_model": ("wiki.train.tokens", "wiki.valid.tokens"),
    "translation": ("train.de", "train.en", "val.de", "val.en"),
    "recommender": ("ratings.csv",),
    "weather": ("mesonet.csv",),
}
every_workload = pytest.mark.parametrize("workload", CATALOG.values(), ids=lambda w: w.short)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# -- small files in the data sets' own formats ----------------------------------------------


class Python2Pickler(pickle._Pickler):
    """Writes strings as Python 2 did, which is how the published CIFAR-10 batches hold them."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, text: str | bytes) -> None:
        raw = text.encode("latin-1") if isinstance(text, str) else text
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)
        self.memoize(text)

    dispatch[bytes] = dispatch[str] = save_string


def pickled_as_published(batch: dict[bytes, Any]) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(batch)
    return file.getvalue().replace(b"numpy._core.", b"numpy.core.")


def cifar_arrays() -> list[tuple[np.ndarray[Any, Any], list[int]]]:
    rng = np.random.default_rng(0)
    return [(rng.integers(0, 256, (8, 3072), np.uint8), [*range(8)]) for _ in cifar10.PARTS]


def write_cifar10(folder: Path) -> None:
    (folder / "cifar-10-batches-py").mkdir()
    for name, (images, labels) in zip(cifar10.PARTS, cifar_arrays(), strict=True):
        raw = pickled_as_published({b"data": images, b"labels": labels, b"batch_label": b"one"})
        (folder / "cifar-10-batches-py" / name).write_bytes(raw)


def write_cifar10_binary(folder: Path) -> None:
    (folder / "cifar-10-batches-bin").mkdir()
    for name, (images, labels) in zip(cifar10.PARTS, cifar_arrays(), strict=True):
        records = np.column_stack([np.array(labels, np.uint8), images])
        (folder / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(records.tobytes())


def write_wikitext(folder: Path) -> None:
    line = " = The Cat = \n\n the cat sat on the <unk> , and the cat slept . \n"
    (folder / "wiki.train.tokens").write_text(line * 20)
    (folder / "wiki.valid.tokens").write_text(line.replace("slept", "barked") * 5)


def write_multi30k(folder: Path) -> None:
    for part, count in (("train", 12), ("val", 4)):
        (folder / f"{part}.de").write_text("Ein Hund schläft.\nZwei Männer laufen weg\n" * count)
        (folder / f"{part}.en").write_text("A dog sleeps.\nTwo men run away\n" * count)


def write_ratings(folder: Path) -> None:
    lines = ["userId,movieId,rating,timestamp"]
    for user in range(1, 41):
        lines += [f"{user},{10 * m},{0.5 + (user + m) % 10 / 2},11124860" for m in range(1, 16)]
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")


def weather_rows(hours: int = 400) -> list[list[str]]:
    rows = [["station", "time", "temperature", "wind", "hrrr_temperature"]]
    for station in ("FARM", "MRRY"):
        for hour in range(hours):
            time = str(np.datetime64("2023-01-01T00:00") + np.timedelta64(hour, "h")) + "Z"
            warmth = 10 + 5 * np.sin(hour / 24 * 2 * np.pi)
            rows.append([station, time, f"{warmth:.2f}", str(hour % 7), f"{warmth + 1:.2f}"])
    return rows


def write_rows(folder: Path, rows: list[list[str]]) -> None:
    with (folder / "mesonet.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def write_weather(folder: Path) -> None:
    write_rows(folder, weather_rows())


WRITERS: dict[str, Callable[[Path], None]] = {
    "image_classification": write_cifar10,
    "language_model": write_wikitext,
    "translation": write_multi30k,
    "recommender": write_ratings,
    "weather": write_weather,
}

# -- reading them ----------------------------------------------------------------------------


def test_both_versions_of_cifar10_hold_the_same_images(tmp_path: Path) -> None:
    for name, write in (("py", write_cifar10), ("bin", write_cifar10_binary)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    from_py, from_bin = (cifar10.read_cifar10(tmp_path / name) for name in ("py", "bin"))
    for one, other in zip(from_py, from_bin, strict=True):
        for left, right in zip(one.tensors, other.tensors, strict=True):
            assert torch.equal(left, right)
    train, held_out = from_py
    assert (len(train), len(held_out)) == (40, 8)
    images, labels = train.tensors
    assert labels.tolist() == [*range(8)] * 5
    assert images.mean((0, 2, 3)).abs().max() < 1e-5
    # Red, green and blue are planes, and rows come before columns.
    (pixels, _), *_ = cifar_arrays()
    spread = images[0, 2, 4, 5] - images[0, 2, 5, 4]
    plane = pixels[0, 2048:].reshape(32, 32).astype(float)
    raw = torch.cat([torch.from_numpy(x) for x, _ in cifar_arrays()[:-1]])[:, 2048:].float()
    assert spread.item() * raw.std().item() == pytest.approx(plane[4, 5] - plane[5, 4], rel=1e-3)


def test_a_pickle_that_calls_something_is_refused_unrun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Malice:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    write_cifar10(tmp_path)
    poisoned = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    poisoned.write_bytes(pickle.dumps({b"data": Malice(), b"labels": []}))
    with pytest.raises(SystemExit) as left:
        cifar10.read_cifar10(tmp_path)
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert str(poisoned) in message
    assert "mkdir" in message
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("name", ["builtins.eval", "os.system", "numpy.load", "numpy.core.os"])
def test_the_unpickler_admits_nothing_but_arrays(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    raw = b"c" + f"{module}\n{attribute}\n".encode() + b"."
    with pytest.raises(pickle.UnpicklingError, match=attribute):
        cifar10.ArrayUnpickler(io.BytesIO(raw)).load()


def test_wikitext_becomes_windows_that_overlap_by_the_word_to_predict(tmp_path: Path) -> None:
    write_wikitext(tmp_path)
    train, held_out = read_wikitext(tmp_path)
    # Each text is 3 lines of 4, 0 and 12 words, and each line gains an <eos>.
    assert len(train) == (20 * 19 - 1) // 35
    assert len(held_out) == (5 * 19 - 1) // 35
    x, y = train[0]
    assert x[1:].tolist() == y[:-1].tolist()
    assert train[1][0][0] == y[-1]
    words = {"=", "The", "Cat", "the", "cat", "sat", "on", ",", "and", "slept", "."}
    assert train.vocabulary_size == len(words | {"<unk>", "<eos>"})


def test_multi30k_pairs_lines_and_marks_their_ends(tmp_path: Path) -> None:
    write_multi30k(tmp_path)
    train, held_out = read_multi30k(tmp_path)
    assert (len(train), len(held_out)) == (24, 8)
    assert train.vocabulary_sizes == (4 + 8, 4 + 8)
    source, target = pad([train[0], train[1]])
    assert source.shape == (2, 5)
    assert target[:, 0].tolist() == [START, START]
    assert source[0, -1] == END


def test_multi30k_of_unequal_lengths_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_multi30k(tmp_path)
    (tmp_path / "val.en").write_text("A dog sleeps.\n")
    with pytest.raises(SystemExit):
        read_multi30k(tmp_path)
    assert "val.de and val.en" in capsys.readouterr().err


def test_ratings_become_rows_of_users(tmp_path: Path) -> None:
    write_ratings(tmp_path)
    train, held_out = recommender.read_ratings(tmp_path)
    assert (len(train), len(held_out)) == (38, 2)
    assert train.item_count == 15
    assert train[0].tolist() == [0.5 + (1 + m) % 10 / 2 for m in range(1, 16)]
    assert held_out[1].tolist() == [0.5 + (40 + m) % 10 / 2 for m in range(1, 16)]


def test_ratings_that_are_no_numbers_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,good,3\n")
    with pytest.raises(SystemExit) as left:
        recommender.read_ratings(tmp_path)
    assert left.value.code == 2
    assert "ratings.csv" in capsys.readouterr().err


def test_weather_windows_keep_to_one_station_and_one_side_of_the_split(tmp_path: Path) -> None:
    write_weather(tmp_path)
    train, held_out = mesonet.read_mesonet(tmp_path)
    early, late = 360, 40
    assert len(train) == 2 * (early - mesonet.LENGTH + 1)
    assert len(held_out) == 2 * (late - mesonet.LENGTH + 1)
    past, known, truth = train[0]
    assert (past.shape, known.shape, truth.shape) == ((24, 3), (6, 3), (6, 2))
    # Observations ahead are unknown, the forecast of them is known.
    assert torch.equal(known[:, :2], past[-1:, :2].expand(6, 2))
    assert torch.equal(known[:, 2], train.table[24:30, 2])


def test_weather_windows_span_neither_gaps_nor_empty_cells(tmp_path: Path) -> None:
    rows = weather_rows()
    rows[100][3] = ""
    write_rows(tmp_path, rows)
    without_hole = 2 * (360 - mesonet.LENGTH + 1) - mesonet.LENGTH
    assert len(mesonet.read_mesonet(tmp_path)[0]) == without_hole
    del rows[100]
    write_rows(tmp_path, rows)
    assert len(mesonet.read_mesonet(tmp_path)[0]) == without_hole


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (["FARM", "2023-01-01T00:00Z", "warm", "1", "2"], "mesonet.csv:2: "),
        (["FARM", "yesterday", "1", "1", "2"], "mesonet.csv:2: "),
        (["FARM", "2023-01-01T00:00Z", "1"], "mesonet.csv:2: 3 cells under 5 columns"),
    ],
)
def test_a_bad_weather_row_is_named(
    row: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path, [weather_rows()[0], row])
    with pytest.raises(SystemExit) as left:
        mesonet.read_mesonet(tmp_path)
    assert left.value.code == 2
    assert place in capsys.readouterr().err


# -- what every workload does ----------------------------------------------------------------


@every_workload
def test_missing_files_are_named_with_where_to_get_them(
    workload: Workload, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(workload.module).main
    with pytest.raises(SystemExit) as left:
        main(["--preset", "paper", "--data-dir", str(tmp_path)])
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert all(name in message for name in (*FILES[workload.name], str(tmp_path), "Get "))

    with pytest.raises(SystemExit) as left:
        main(["--preset", "paper"])
    assert left.value.code == 2
    assert "--data-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("image_classification", "cifar-10-batches-py"),
        ("language_model", "wikitext-2"),
        ("translation", "multi30k"),
    ],
)
def test_only_what_is_missing_is_named(
    name: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    present, *others, absent = FILES[name]
    (tmp_path / folder).mkdir()
    for file in (present, *others):
        (tmp_path / folder / file).touch()
    with pytest.raises(SystemExit):
        importlib.import_module(CATALOG[name].module).load("paper", tmp_path)
    assert f"missing {absent}: looked in {tmp_path / folder}." in capsys.readouterr().err


@every_workload
def test_the_papers_model_learns_from_such_files(workload: Workload, tmp_path: Path) -> None:
    WRITERS[workload.name](tmp_path)
    module = importlib.import_module(workload.module)
    train, held_out = module.load("paper", tmp_path)
    options.seed()
    model = module.build_model("paper", train)
    optimizer, _ = module.build_optimizer(model, "paper", steps=100)
    batch = next(iter(DataLoader(train, batch_size=4, collate_fn=getattr(module, "pad", None))))
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = module.batch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[1:]) < losses[0]
    with torch.no_grad():
        quality = module.evaluate(model.eval(), held_out)
    assert list(quality) == [workload.metric]
    assert np.isfinite(quality[workload.metric])


def test_augmented_images_are_shifted_copies() -> None:
    from hadar_cli.workloads.image_classification import augment

    torch.manual_seed(1)
    images = torch.rand(16, 3, 32, 32)
    augmented = augment(images)
    assert augmented.shape == images.shape
    assert not torch.equal(augmented, images)
    # The middle survives every shift by four and every mirroring.
    for before, after in zip(images, augmented, strict=True):
        middle = set(before[0, 8:24, 8:24].flatten().tolist())
        assert middle <= set(after[0].flatten().tolist())
