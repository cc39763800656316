"""What a node says no by: in words, with the fix that it knows, whichever way it is said."""

from __future__ import annotations

import errno
import json
import os
import queue

import pytest

from hadar_cli.node.agent.bootstrap import MARK, refusal
from hadar_cli.nodes.agent_client import AgentLink
from hadar_cli.nodes.wire import AgentError, SupersededError, Wire
from hadar_cli.visits.inspection import problem_of


class Answers:
    """A stream that gives each answer when it is asked for one."""

    def __init__(self, answer: dict) -> None:
        self._answer, self._given = answer, queue.Queue[bytes]()

    def write(self, content: bytes) -> None:
        asked = json.loads(content)
        told = json.dumps({"answer": asked.get("id"), **self._answer})
        self._given.put(f"{MARK}{told}\n".encode())

    def read(self, size: int) -> bytes:
        return self._given.get()

    def close(self) -> None:
        self._given.put(b"")


def heard(answer: dict) -> list[AgentError]:
    """The same by a transfer's wire and by an agent's link."""
    wire = Wire(Answers(answer))
    wire.send({"do": "put"})
    with pytest.raises(AgentError) as by_wire:
        wire.answer()
    stream = Answers(answer)
    link = AgentLink(Wire(stream), lambda event: None, lambda link: None)
    with pytest.raises(AgentError) as by_link:
        link.ask("open")
    stream.close()
    return [by_wire.value, by_link.value]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_what_to_do(number):
    for error in heard(refusal(OSError(number, os.strerror(number)))):
        assert str(error).startswith("its disk is full (")
        assert "another workdir" in error.fix
        problem = problem_of(error, "looking around")
        assert problem.what == str(error)
        assert "ssh" not in problem.fix


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_place_that_cannot_be_written_to_is_named(number):
    for error in heard(refusal(OSError(number, os.strerror(number), "/srv/hadar"))):
        assert str(error) == f"/srv/hadar: {os.strerror(number)}"
        assert error.fix == "set a workdir in nodes.toml that may be written to"


def test_any_other_error_is_told_as_it_is():
    for error in heard(refusal(ValueError("the file arrived damaged"))):
        assert (str(error), error.fix) == ("the file arrived damaged", None)
    assert (
        problem_of(AgentError("no"), "looking around").fix == "it was reached, and says so itself"
    )
    for error in heard({"error": "another head", "superseded": True}):
        assert isinstance(error, SupersededError)
