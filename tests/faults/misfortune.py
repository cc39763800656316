"""What can go wrong, and the dice that say when: one seed decides a whole schedule."""

from __future__ import annotations

from collections import Counter
from random import Random

_OFTEN = ("head", "power", "disk", "interrupted", "second", "node", "link")  # at every call
KINDS = {
    "copy crashed": "the worker dies while it trains",
    "copy out of memory": "somebody else holds the card's memory for a while",
    "copy hung": "the worker never reports",
    "copy slow": "the worker hands in late, perhaps after the others were merged",
    "report dropped": "a result never arrives",
    "report delayed": "a result arrives late, and so in another order",
    "report repeated": "a result arrives twice",
    "result after loss": "a copy given up for lost reports after all",
    "stranger's report": "a result of an attempt that nobody started",
    "lie: too many steps": "",
    "lie: negative steps": "",
    "lie: steps not given": "",
    "lie: another job's steps": "",
    "lie: steps repeated": "",
    "lie: steps uncounted": "",
    "lie: no weights": "",
    "lie: figures not finite": "loss, seconds and quality are NaN or infinite",
    "weights not finite": "",
    "weights of another shape": "",
    "another frozen part": "what it did not train, and does not send, is not what the job has",
    "weights unreadable": "the file is no checkpoint",
    "update of other weights": "it says it began with weights that nobody gave it",
    "order refused": "the node takes it not: its disk is full",
    "link reset": "while an order or a checkpoint is on the way",
    "node rebooted": "its processes are gone, the node is back at once",
    "link cut shortly": "the node is silent for some seconds, then back",
    "link cut for long": "the node is gone for the head, while its copies may live; then back",
    "node refused": "for security, for good",
    "head killed": "kill -9 at a call to the world",
    "head killed at a sync": "kill -9 before or after a write reached the disk",
    "power lost at a sync": "the same, and all that was not synced is lost or torn",
    "disk full": "a sync fails",
    "disk full, write cut short": "only part of a journal line is written",
    "interrupted": "Ctrl-C",
    "interrupted twice": "Ctrl-C, and again",
    "second head": "another hadar tries to drive the run",
    "checkpoint damaged": "while no head runs; restored from a backup after it was refused",
}


_ASKED_OFTEN = {kind for kind in KINDS if kind.split()[0] in _OFTEN}


class Misfortune:
    """Strikes a limited number of times; after that the world is calm and the run has to end."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"misfortune {seed}")
        self.aside = Random(f"aside {seed}")  # how long merges and transfers take
        self.longest_move_s = self.aside.choice((1.0, 5.0, 40.0))  # of checkpoints, either way
        chosen = self.dice.sample(sorted(KINDS), self.dice.randint(1, 12))
        if self.dice.random() < 0.4:  # copies go on while the head waits for them in vain
            chosen = ["report dropped", "report delayed", "copy slow"]
        self._chances = {
            kind: self.dice.choice((0.03, 0.1, 0.3)) * (0.2 if kind in _ASKED_OFTEN else 1.0)
            for kind in chosen
        }
        self._chances |= {"checkpoint damaged": 0.1, "result after loss": 0.3}  # rare occasions
        self.left = self.dice.randint(1, 15)
        self.fired: Counter[str] = Counter()

    def strikes(self, kind: str) -> bool:
        assert kind in KINDS
        if not self.left or self.dice.random() >= self._chances.get(kind, 0.0):
            return False
        self.left -= 1
        self.fired[kind] += 1
        return True

    def struck(self, kinds: list[str]) -> str | None:
        """The first of the kinds that strikes now."""
        return next((kind for kind in kinds if self.strikes(kind)), None)


class HeadKilledError(BaseException):
    """The head's process ends here; nothing of it runs any more."""
