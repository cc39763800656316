"""What scripts iterate: a job's mini-batches as a ``DataLoader`` would give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from hadar_cli.node.training.batches import Steps

_TWO_AT_ONCE = (
    "two loops over t.loader take turns, and each would count the steps of both: give t.loader one "
    "data set of both (torch.utils.data.StackDataset), or write zip(t.loader(one), other)"
)


class _Batches(Protocol):
    """What a loader needs of its ``Training``."""

    reader: object  # whichever loop over a loader began last

    @property
    def ends_epoch(self) -> bool: ...

    def batches(self, source: Steps) -> Iterator[Any]: ...


class Loader:
    """A script's view of its batches: iterable again and again, as long as an epoch.

    Whatever else it is asked, ``dataset`` or ``batch_size``, the script's own loader answers.
    """

    def __init__(self, training: _Batches, source: Steps, data: Any) -> None:
        self._training, self._source, self._data = training, source, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def __iter__(self) -> Iterator[Any]:
        reader = self._training.reader = object()
        for batch in self._training.batches(self._source):
            yield batch
            if self._training.reader is not reader:
                raise RuntimeError(_TWO_AT_ONCE)

    def __len__(self) -> int:
        length = self._source.source.per_epoch
        if length is None:
            raise TypeError("nobody knows how long this stream is")
        return length


def loader_of(training: _Batches, source: Steps, data: Any) -> Loader:
    kind = _PreparedLoader if hasattr(data, "base_dataloader") else Loader
    return kind(training, source, data)


class _PreparedLoader(Loader):
    """What accelerate has prepared: batches go to its device, and an epoch's last one ends an
    accumulated update."""

    def __iter__(self) -> Iterator[Any]:
        from accelerate.utils import send_to_device

        prepared = self._data
        prepared.begin()
        try:
            for batch in super().__iter__():
                prepared.end_of_dataloader = self._training.ends_epoch
                if prepared.device is None:
                    yield batch
                else:
                    yield send_to_device(batch, prepared.device, prepared._non_blocking)
        finally:
            prepared.end()
