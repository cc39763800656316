"""A run as tidy tables: one row an observation, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from hadar_cli.report.record import RunRecord

Row: TypeAlias = dict[str, Any]

LONG_FIELDS = ("run", "policy", "table", "job", "device", "t_s", "measure", "value")


def tables(records: Sequence[RunRecord]) -> dict[str, list[Row]]:
    """All tables by name; every row starts with its run and the run's policy."""
    made: dict[str, list[Row]] = {}
    for record in records:
        who = {"run": record.summary.run, "policy": record.summary.policy}
        for name, rows in _of_run(record).items():
            made.setdefault(name, []).extend({**who, **row} for row in rows)
    return made


def as_csv(rows: Sequence[Row], fields: Iterable[str] | None = None) -> str:
    text = io.StringIO()
    names = list(fields or dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def long_rows(made: dict[str, list[Row]]) -> Iterator[Row]:
    """All tables as one: a row for each value, so that everything fits in a single file."""
    subject = ("run", "policy", "job", "device", "t_s")
    for name, rows in made.items():
        for row in rows:
            about = {field: row[field] for field in subject if field in row}
            for measure, value in row.items():
                if measure not in subject and value is not None:
                    yield {**about, "table": name, "measure": measure, "value": value}


def _of_run(record: RunRecord) -> dict[str, list[Row]]:
    return {
        "run": [_run(record)],
        "jobs": [_without(job, "name", job=job.name) for job in record.summary.jobs],
        "devices": [
            _without(one, "name", "jobs", device=one.name) for one in record.summary.devices
        ],
        "rates": [dataclasses.asdict(rate) for rate in record.summary.rates],
        "commits": list(_commits(record)),
        "quality": list(_quality(record)),
        "attempts": list(_attempts(record)),
    }


def _without(item: Any, *left_out: str, **first: Any) -> Row:
    fields = dataclasses.asdict(item)
    return first | {name: value for name, value in fields.items() if name not in left_out}


def _run(record: RunRecord) -> Row:
    summary, mix = record.summary, record.facts.mix
    measures = ("mix", "state", "rounds", "ttd_s", "mean_jct_s", "cru", "cru_paper")
    row = {name: getattr(summary, name) for name in (*measures, "lower_bound_s", "busy_s")}
    settings = {"slot_s": mix.slot_s, "seed": mix.seed, "started_at": record.facts.started_at}
    return row | settings | dataclasses.asdict(summary.overhead)


def _commits(record: RunRecord) -> Iterator[Row]:
    for history in record.histories:
        for commit in history.commits:
            yield _without(commit, "t", job=history.job.name, t_s=commit.t)


def _quality(record: RunRecord) -> Iterator[Row]:
    for history in record.histories:
        for measured in history.measurements:
            about = {"job": history.job.name, "t_s": measured.t, "generation": measured.generation}
            yield about | dict(measured.values)


def _attempts(record: RunRecord) -> Iterator[Row]:
    names = {job.id: job.name for job in record.facts.mix.jobs}
    for device, spans in record.timeline.spans.items():
        for span in spans:
            yield {
                "job": names[span.job],
                "device": device,
                "t_s": span.begin,
                "end_s": span.end,
                "start_s": span.start_s,
                "train_s": span.train_s,
                "transfer_s": span.transfer_s,
                "evaluates": span.evaluates,
                "lost": span.lost,
            }
