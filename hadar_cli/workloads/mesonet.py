"""Reads station records in the style of a Mesonet, and cuts them into windows.

``mesonet.csv`` has a header, then one row for each station and time:

    station, time            a name; ISO 8601, evenly spaced within a station
    any other column         an observed variable (temperature, humidity, wind, …): predicted
    any column hrrr_…        a WRF-HRRR forecast for that station and time: known beforehand

Cells may be empty. Windows that would span an empty cell or a gap in time are left out. The last
tenth of the time is held out, at every station.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from hadar_cli.workloads.datasets import find, refuse

SOURCE = "station records from your state's Mesonet (and WRF-HRRR forecasts from NOAA) as one CSV"
PAST, AHEAD = 24, 6
LENGTH = PAST + AHEAD
Array = NDArray[np.float64]


class Windows(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """The past, what is known of the hours ahead, and the truth about them."""

    def __init__(self, table: Tensor, observed: Tensor, starts: Sequence[int]) -> None:
        self.table, self.observed, self.starts = table, observed, starts

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        now = self.starts[i] + PAST
        past, ahead = self.table[now - PAST : now], self.table[now : now + AHEAD]
        # Observations are not known ahead of time: the latest one stands in for them.
        known = torch.where(self.observed, past[-1], ahead)
        return past, known, ahead[:, self.observed]


def split(
    stations: Sequence[str], times: Array, table: Array, names: Sequence[str]
) -> tuple[Windows, Windows]:
    """Windows of rows sorted by station and time: the early ones, and the last tenth."""
    late = times >= np.quantile(times, 0.9)
    _, station = np.unique(stations, return_inverse=True)
    together = (np.diff(station) == 0) & (late[1:] == late[:-1])
    steps = np.diff(times)
    usual = np.median(steps[together]) if together.any() else 0.0
    # Counting breaks and holes up to each row: a window is whole if neither count rises in it.
    breaks = np.append(0, np.cumsum(~together | (steps != usual)))
    holes = np.append(0, np.cumsum(np.isnan(table).sum(axis=1) > 0))
    in_step = breaks[LENGTH - 1 :] == breaks[: 1 - LENGTH]
    starts = np.flatnonzero(in_step & (holes[LENGTH:] == holes[:-LENGTH]))
    mean, deviation = np.nanmean(table[~late], axis=0), np.nanstd(table[~late], axis=0)
    scaled = torch.from_numpy((table - mean) / np.maximum(deviation, 1e-6)).float()
    observed = torch.tensor([not name.startswith("hrrr_") for name in names])
    early, held_out = starts[~late[starts]].tolist(), starts[late[starts]].tolist()
    return Windows(scaled, observed, early), Windows(scaled, observed, held_out)


def read_mesonet(data_dir: Path | None) -> tuple[Windows, Windows]:
    (path,) = find(data_dir, "mesonet", ("mesonet.csv",), SOURCE)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if header[:2] != ["station", "time"] or all(n.startswith("hrrr_") for n in header[2:]):
            refuse(f"{path}:1: the header must be station,time and at least one observed variable")
        rows = []
        for row in reader:
            try:
                rows.append(parse(row, len(header)))
            except ValueError as error:
                refuse(f"{path}:{reader.line_num}: {error}")
    too_short = f"{path}: no {LENGTH} rows in step both before and in the last tenth of the time"
    if not rows:
        refuse(too_short)
    stations, times, cells = zip(*sorted(rows, key=lambda row: row[:2]), strict=True)
    train, held_out = split(stations, np.array(times), np.array(cells), header[2:])
    if not (len(train) and len(held_out)):
        refuse(too_short)
    return train, held_out


def parse(row: Sequence[str], columns: int) -> tuple[str, float, list[float]]:
    """Station, seconds and numbers of one row; an empty cell is not a number."""
    if len(row) != columns:
        raise ValueError(f"{len(row)} cells under {columns} columns")
    seconds = np.datetime64(row[1].rstrip("Z"), "s").astype(np.int64)
    return row[0], float(seconds), [float(cell or "nan") for cell in row[2:]]
