"""Event files for TensorBoard: a folder for each series, one file in it that only grows."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from hadar_cli.core.measures.points import Point
from hadar_cli.observers.sink import Missing, Subject

_AROUND = 8 + 4, 4  # bytes of a record before and after its data: length and checksums


class TensorBoard:
    """Points have the run's own times, so that a file written again is the same file."""

    def __init__(self, subject: Subject, fields: Mapping[str, str]) -> None:
        folder = Path(fields["dir"]) / subject.facts.id if "dir" in fields else None
        self._folder = folder or subject.directory / "tensorboard"
        self._began_at = subject.began_at
        self._files: dict[str, _EventFile] = {}

    @property
    def place(self) -> str:
        return f"tensorboard --logdir {self._folder}"

    def write(self, points: Sequence[Point]) -> int:
        count = 0
        for point in points:
            count += self._file(point.series).add(point, self._began_at + point.t)
        for file in self._files.values():
            file.flush()
        return count

    def _file(self, series: str) -> _EventFile:
        if series not in self._files:
            folder = self._folder / series
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"events.out.tfevents.{int(self._began_at)}.hadar"
            self._files[series] = _EventFile(path, self._began_at)
        return self._files[series]

    def close(self, standings: Mapping[str, str]) -> None:
        for file in self._files.values():
            file.close()


class _EventFile:
    def __init__(self, path: Path, began_at: float) -> None:
        there: Counter[str] = Counter()
        whole = 0
        for event, end in _whole_records(path) if path.exists() else ():
            there.update(value.tag for value in event.summary.value)
            whole = end
        self._missing = Missing(there)
        self._file: IO[bytes] = path.open("ab")
        self._file.truncate(whole)  # a record that whoever wrote last did not end
        self._writer = RecordWriter(self._file)
        if not whole:
            self._writer.write(
                Event(wall_time=began_at, file_version="brain.Event:2").SerializeToString()
            )

    def add(self, point: Point, wall_time: float) -> int:
        new = self._missing.of(point)
        if new:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in new.items()]
            event = Event(wall_time=wall_time, step=point.step, summary=Summary(value=values))
            self._writer.write(event.SerializeToString())
        return len(new)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _whole_records(path: Path) -> Iterator[tuple[Event, int]]:
    """The file's events, each with where its record ends."""
    before, after = _AROUND
    end = 0
    with path.open("rb") as file:
        while len(head := file.read(before)) == before:
            (size,) = struct.unpack("<Q", head[:8])
            body = file.read(size + after) if size < 1 << 20 else b""
            if len(body) < size + after:
                return
            end += before + len(body)
            yield Event.FromString(body[:size]), end
