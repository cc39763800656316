"""Why things went wrong, as data. Programs compare these; the words beside them are for people.

The journal holds both. Journals from before reasons were recorded say ``unknown``.
"""

from __future__ import annotations

from enum import Enum


class Loss(str, Enum):
    """Why a copy was lost."""

    UNKNOWN = "unknown"
    # how its process ended
    EXITED = "exited"  # with an error
    NO_RESULT = "no-result"  # with code 0, and nothing to show
    TERMINATED = "terminated"  # SIGTERM ended it before it could hand in
    OUT_OF_MEMORY = "out-of-memory"
    CANNOT_SPLIT = "cannot-split"  # told to use micro-batches, it cannot
    CANNOT_SHARE = "cannot-share"  # its steps cannot be shared by a gang
    CANNOT_MEET = "cannot-meet"  # the members of a gang do not find each other
    MEMBER_LOST = "member-lost"  # a gang's member ended because of another one
    DEADLINE = "deadline"
    NEVER_STARTED = "never-started"
    SUPERVISOR_KILLED = "supervisor-killed"
    LATE = "late"
    # what it handed in
    BAD_RESULT = "bad-result"
    BAD_CLAIM = "bad-claim"
    NO_WEIGHTS = "no-weights"
    REFUSED = "refused"  # by the merge
    # what its node, or the way there, did to it
    STALE = "stale"
    NODE_GONE = "node-gone"
    NODE_FORGOT = "node-forgot"
    PROCESS_GONE = "process-gone"
    NO_LEASE = "no-lease"
    NO_NURSERY = "no-nursery"
    NO_DISK = "no-disk"
    NO_TORCH = "no-torch"
    CONNECTION = "connection"
    ORDER_REFUSED = "order-refused"
    CARD_TAKEN = "card-taken"

    @property
    def text(self) -> str:
        return _LOSSES[self]

    @property
    def is_node_fault(self) -> bool:
        """Whether the job cannot be blamed for it."""
        return self in _NODE_FAULTS

    @property
    def is_too_large(self) -> bool:
        """Whether the job and the device do not fit each other, and neither is broken."""
        return self in (Loss.OUT_OF_MEMORY, Loss.CANNOT_SPLIT)

    @property
    def is_of_sharing(self) -> bool:
        """Whether one device alone would have fared better."""
        return self in (Loss.CANNOT_SHARE, Loss.CANNOT_MEET, Loss.MEMBER_LOST)

    @property
    def is_unfit(self) -> bool:
        """Whether the next copy on the device would fare no better."""
        return self is Loss.NO_TORCH


class Unfit(str, Enum):
    """Why a merge refused what a copy handed in."""

    UNKNOWN = "unknown"
    NO_STEPS = "no-steps"
    UNREADABLE = "unreadable"
    UNLIKE = "unlike"  # other weights than its siblings', or of other shapes
    NOT_FINITE = "not-finite"
    OUTLYING = "outlying"
    DAMAGED = "damaged"


class Absence(str, Enum):
    """Why a device is not used."""

    UNKNOWN = "unknown"
    GONE = "gone"  # its node cannot be reached
    AWAY = "away"  # its node was there before, and cannot be reached for the moment
    AWAITED = "awaited"  # its node is promised by a scheduler, and not there yet
    REFUSED = "refused"  # for security
    TAKEN = "taken"  # somebody else uses it, or its hours are over
    TURN = "turn"  # another run's that shares it
    UNTOLD = "untold"  # whether somebody else uses it cannot be told
    UNFIT = "unfit"  # it lacks what every job needs
    UNPREPARED = "unprepared"  # what its jobs need could not be put there
    FAILING = "failing"  # copy after copy fails there
    DRAINED = "drained"  # the run's user wants it to be left; for good

    @property
    def will_end(self) -> bool:
        """Whether the device comes back if only one waits."""
        return self is Absence.AWAITED or self.is_polite

    @property
    def is_polite(self) -> bool:
        """Whether it is left to whoever else may need it."""
        return self in (Absence.TAKEN, Absence.TURN, Absence.UNTOLD)


_LOSSES = {
    Loss.UNKNOWN: "it was lost",
    Loss.EXITED: "it exited with an error",
    Loss.NO_RESULT: "it exited with code 0, without a result: 'hadar try' tells what it lacks",
    Loss.TERMINATED: "released",
    Loss.OUT_OF_MEMORY: "it ran out of memory",
    Loss.CANNOT_SPLIT: "it ran out of memory, and its script cannot split a batch",
    Loss.CANNOT_SHARE: "its steps cannot be shared by several devices",
    Loss.CANNOT_MEET: "its members do not find each other",
    Loss.MEMBER_LOST: "another member of its gang was lost",
    Loss.DEADLINE: "did not stop at its deadline",
    Loss.NEVER_STARTED: "it never started",
    Loss.SUPERVISOR_KILLED: "its supervisor was killed",
    Loss.LATE: "nothing was heard of it past its deadline",
    Loss.BAD_RESULT: "its result cannot be taken",
    Loss.BAD_CLAIM: "it reports what cannot be",
    Loss.REFUSED: "its weights were refused",
    Loss.NO_WEIGHTS: "it reports steps but left no weights",
    Loss.STALE: "what it began with never were the job's weights: the others went on without it",
    Loss.NODE_GONE: "its node is gone",
    Loss.NODE_FORGOT: "its node knows nothing of it",
    Loss.PROCESS_GONE: "the process it was to go on in is gone",
    Loss.NO_LEASE: "the head's lease ran out",
    Loss.NO_NURSERY: "it never started",
    Loss.NO_DISK: "nothing can be written there",
    Loss.NO_TORCH: "its python lacks what every PyTorch job needs",
    Loss.CONNECTION: "its node's connection kept breaking",
    Loss.ORDER_REFUSED: "its node did not take the order",
    Loss.CARD_TAKEN: "another run trains on its GPU",
}
_NODE_FAULTS = frozenset(
    {
        *(Loss.STALE, Loss.NODE_GONE, Loss.NODE_FORGOT, Loss.PROCESS_GONE, Loss.NO_LEASE),
        *(Loss.NO_NURSERY, Loss.NO_DISK, Loss.NO_TORCH, Loss.CONNECTION, Loss.ORDER_REFUSED),
        Loss.CARD_TAKEN,
    }
)
