"""Runs of MLflow: one for each series, in an experiment named like the mix."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# MLflow keeps its folder store for those who ask for it. Servers that are down are tried again by
# whoever opens sinks: the client itself would try for minutes.
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from hadar_cli.core.measures.points import Point
from hadar_cli.observers.sink import Missing, Subject

_MOST = 1000  # metrics in one request, MLflow's own limit
_TAG = "hadar.series"
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}


class Mlflow:
    def __init__(self, subject: Subject, fields: Mapping[str, str]) -> None:
        self._subject = subject
        beside = (subject.directory.parent / "mlruns").absolute().as_uri()
        self._uri = fields.get("uri") or os.environ.get("MLFLOW_TRACKING_URI") or beside
        if "://" not in self._uri and not self._uri.startswith(("file:", "databricks")):
            self._uri = Path(self._uri).absolute().as_uri()
        self._client = MlflowClient(self._uri)
        self._experiment = self._experiment_id(fields.get("experiment") or subject.facts.mix.name)
        self._runs: dict[str, str] = {}
        self._missing: dict[str, Missing] = {}

    @property
    def place(self) -> str:
        if not self._uri.startswith("file:"):
            return f"the MLflow server, experiment {self._experiment}"
        return f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {self._uri}"

    def _experiment_id(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        return str(known.experiment_id if known else self._client.create_experiment(name))

    def write(self, points: Sequence[Point]) -> int:
        by_series: dict[str, list[Metric]] = {}
        for point in points:
            new = self._open(point.series).of(point)
            at_ms = round(1000 * (self._subject.began_at + point.t))
            metrics = [Metric(tag, value, at_ms, point.step) for tag, value in new.items()]
            by_series.setdefault(point.series, []).extend(metrics)
        for series, metrics in by_series.items():
            for first in range(0, len(metrics), _MOST):
                self._client.log_batch(self._runs[series], metrics[first : first + _MOST])
        return sum(map(len, by_series.values()))

    def _open(self, series: str) -> Missing:
        if series not in self._missing:
            self._runs[series] = self._find(series) or self._create(series)
            self._missing[series] = Missing(self._there(self._runs[series]))
        return self._missing[series]

    def _find(self, series: str) -> str | None:
        wanted = f"tags.`{_TAG}` = '{self._subject.key(series)}'"
        found = self._client.search_runs([self._experiment], wanted, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _create(self, series: str) -> str:
        subject = self._subject
        tags = {_TAG: subject.key(series), "mlflow.runName": f"{subject.facts.id}/{series}"}
        began_ms = round(1000 * subject.began_at)
        run = self._client.create_run(self._experiment, began_ms, tags).info.run_id
        params = [Param(name, str(value)) for name, value in subject.settings(series).items()]
        self._client.log_batch(run, params=params, tags=[RunTag("hadar.run", subject.facts.id)])
        return str(run)

    def _there(self, run: str) -> dict[str, int]:
        tags: Iterable[str] = self._client.get_run(run).data.metrics
        return {tag: len(self._client.get_metric_history(run, tag)) for tag in tags}

    def close(self, standings: Mapping[str, str]) -> None:
        for series, run in self._runs.items():
            if status := _STATUS.get(standings[series]):
                self._client.set_terminated(run, status)
