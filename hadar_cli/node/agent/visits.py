"""Receives a visit outside any run: shows the node, tidies up, reads out logs.

Answers requests on stdin one by one, and ends when they do:

    {"do": "echo"}                       for the round trip
    {"do": "take", "bytes": n}           n bytes follow
    {"do": "give", "bytes": n}           n bytes follow the answer
    {"do": "facts" | "torch" | "kernels" | "memory", …}    see probe.py
    {"do": "listen" | "call", …}         see node/reach.py
    {"do": "leftovers" | "stop" | "remove" | "logs", …}    see leftovers.py
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by its path, where the package is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hadar_cli.node import reach
from hadar_cli.node.agent import leftovers, probe
from hadar_cli.node.agent.bootstrap import answer

_CHUNK = 1 << 16
_NOISE = os.urandom(_CHUNK)  # that no link can compress


def main() -> None:
    stdin = io.FileIO(0, closefd=False)
    while line := stdin.readline():
        request: dict[str, Any] = json.loads(line)
        try:
            _serve(request)
        except Exception as error:  # the head decides what to make of it
            answer({"error": f"{type(error).__name__}: {error}"})


def _serve(request: dict[str, Any]) -> None:
    match request["do"]:
        case "echo":
            answer({})
        case "take":
            _pass_over(int(request["bytes"]))
            answer({})
        case "give":
            answer({})
            _send_noise(int(request["bytes"]))
        case "facts":
            place = leftovers.Place.of(request)
            answer(probe.facts(request["workdir"], leftovers.our_pids(place)))
        case "torch":
            answer(probe.import_torch())
        case "kernels":
            answer({"kernels": probe.try_gpus()})
        case "memory":
            answer(probe.fill_memory(int(request["index"])))
        case "listen":
            answer({"port": reach.receive_callers(request["host"], request["secret"])})
        case "call":
            answer(reach.call(request["host"], int(request["port"]), request["secret"]))
        case "logs":
            place = leftovers.Place.of(request)
            found = leftovers.read_logs(place, request["job"], request["offsets"], request["limit"])
            answer({"logs": found})
        case action:
            answer(_tidy(action, leftovers.Place.of(request), request.get("held", ())))


def _tidy(action: str, place: leftovers.Place, held: Sequence[str]) -> dict[str, Any]:
    """What is there, and what is left after the action; refused under someone else's head."""
    before = leftovers.measure(place)
    if action == "leftovers":
        return before
    if driven := leftovers.driven(place, held):
        return {"driven": driven}
    {"stop": leftovers.stop, "remove": leftovers.remove}[action](place)
    return {"before": before, "after": leftovers.measure(place)}


def _pass_over(count: int) -> None:
    while count > 0:
        chunk = os.read(0, min(_CHUNK, count))
        if not chunk:
            return
        count -= len(chunk)


def _send_noise(count: int) -> None:
    while count > 0:
        count -= os.write(1, _NOISE[: min(_CHUNK, count)])


if __name__ == "__main__":
    main()
