"""Consolidation over the run's store: checkpoints by hash in, one merged checkpoint by hash out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hadar_cli.core.model import MergeRules
from hadar_cli.core.reasons import Unfit
from hadar_cli.engine.ports import Consolidated, Contribution, Refusal
from hadar_cli.errors import StorageError
from hadar_cli.runs.store import RunStore
from hadar_cli.weights import merging as tensors
from hadar_cli.weights.safetensors_file import CheckpointError

_DAMAGED = "its file was damaged on the head's disk"


class StoreConsolidator:
    """Merges what copies handed in and keeps the result before anyone hears of it.

    What comes in is hashed on the way. ``doubted`` came in to an earlier head, or is what late
    copies began with, which the disk may have outlived badly: it is hashed again before it is used.
    """

    def __init__(self, store: RunStore, doubted: Iterable[str] = ()) -> None:
        self._store, self._doubted = store, set(doubted)

    def consolidate(
        self, inputs: Sequence[Contribution], base: str | None, rules: MergeRules, warmth: float
    ) -> Consolidated:
        damaged = [c.attempt for c in inputs if any(map(self._is_damaged, _files(c)))]
        whole = [c for c in inputs if c.attempt not in damaged]
        inputs = sorted(whole, key=lambda c: (c.copy, c.attempt))
        attempts = [c.attempt for c in inputs]
        copies = [
            tensors.Contribution(
                number,
                self._store.object_path(c.weights),
                c.steps,
                c.batch_size,
                c.weights,
                self._lateness(c),
            )
            for number, c in enumerate(inputs)
        ]
        # Of its own: several jobs are merged at once.
        scratch = self._store.scratch_path(f"merged-{'-'.join(attempts[:1])}")
        base_path = self._store.object_path(base) if base else None
        try:
            merged = tensors.merge(copies, base_path, scratch, rules, warmth)
        except CheckpointError as error:  # only a bad base, for what copies bring is refused
            raise StorageError(
                f"{base_path}: {error}",
                fix="restore the file from a backup, then: hadar resume",
            ) from error
        if merged.is_written:
            self._store.keep(scratch, merged.digest)
        return Consolidated(
            weights=merged.digest,
            bytes=merged.bytes,
            accepted=tuple(attempts[number] for number in merged.accepted),
            refused=(
                *(Refusal(attempts[copy], one.reason, one.why) for copy, one in merged.refused),
                *(Refusal(attempt, Unfit.DAMAGED, _DAMAGED) for attempt in damaged),
            ),
            bytes_in=merged.bytes_in,
            optimizer=merged.has_optimizer,
            late={attempts[number]: share for number, share in merged.late},
        )

    def _lateness(self, copy: Contribution) -> tensors.Lateness | None:
        if not copy.late:
            return None
        base = self._store.object_path(copy.late.base)
        return tensors.Lateness(base, copy.late.merges, copy.late.lr_scale)

    def _is_damaged(self, digest: str) -> bool:
        if digest not in self._doubted:
            return False
        try:
            self._store.verify(digest)
        except StorageError:
            return True
        self._doubted.remove(digest)
        return False


def _files(copy: Contribution) -> list[str]:
    return [copy.weights, copy.late.base] if copy.late else [copy.weights]
