"""Stands between the head and a Ray cluster: a driver that moves bytes, in a process of its own.

    bridge ADDRESS, with the head's socket as stdin

Each message from the head is JSON with sockets attached: the last one is for answers, a line of
JSON each; before it, to open a stream, one for the stream's bytes. It ends with the head.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import deque
from contextlib import suppress
from typing import Any

import ray
from ray.cloudpickle import register_pickle_by_value
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hadar_cli.ray_cluster import keeper
from hadar_cli.ray_cluster.places import Place, places_for, told

NAMESPACE = "hadar"
IDLE_S = 900.0  # without a head, before a keeper ends
_KNOCK_S = 10.0
_PROMPT_S = 20.0  # for a keeper to start; later it is waited for
_CLOSING_S = 10.0
_GONE_S, _POLL_S = 30.0, 0.1  # for a keeper that is killed
_MOST_UNDER_WAY = 4  # pieces of a stream's input
_CHUNK = 1 << 20
_LONGEST = 1 << 16
_LAST_REQUESTS_S = 1.0  # to tell everybody that the cluster cannot be reached

Message = dict[str, Any]


class NoRoomError(Exception):
    """Waiting helps."""


class NoPlaceError(Exception):
    """No machine of the cluster, as it is now, will ever do."""


def main() -> None:
    address = sys.argv[1]
    control = socket.socket(fileno=0)
    try:
        _knock(os.environ.get("RAY_ADDRESS", "") if address == "auto" else address)
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except Exception as error:  # whatever it is, whoever asked is told
        _refuse_all(control, f"{type(error).__name__}: {error}")
        return
    register_pickle_by_value(keeper)  # nodes have no hadar
    asyncio.run(serve(control))
    os._exit(0)  # Ray's own farewell may wait for a cluster that is gone


def _knock(address: str) -> None:
    """Ray itself would try for minutes where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()


def _refuse_all(control: socket.socket, why: str) -> None:
    control.settimeout(_LAST_REQUESTS_S)
    with suppress(OSError):
        while True:
            content, sockets, _, _ = socket.recv_fds(control, _LONGEST, 2)
            if not content:
                return
            answers = [socket.socket(fileno=number) for number in sockets][-1]
            _tell(answers, {"error": why, "kind": "unreachable"})


def _tell(answers: socket.socket, message: Message) -> None:
    with suppress(OSError):
        answers.sendall(json.dumps(message).encode() + b"\n")


async def serve(control: socket.socket) -> None:
    """Until the head is gone."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    under_way: set[asyncio.Task[None]] = set()

    def take() -> None:
        content, sockets, _, _ = socket.recv_fds(control, _LONGEST, 2)
        if not content:
            loop.remove_reader(control)
            ended.set()
            return
        task = loop.create_task(handle(json.loads(content), *map(_socket, sockets)))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    loop.add_reader(control, take)
    await ended.wait()
    for task in list(under_way):
        task.cancel()
    await asyncio.wait(under_way, timeout=_CLOSING_S) if under_way else None


def _socket(number: int) -> socket.socket:
    found = socket.socket(fileno=number)
    found.setblocking(False)
    return found


async def handle(request: Message, *sockets: socket.socket) -> None:
    answers = sockets[-1]
    try:
        match request["do"]:
            case "open":
                await open_stream(request, sockets[0], answers)
            case "check":
                place = await asyncio.to_thread(find_place, request["wanted"])
                _tell(answers, {"place": place.in_words()})
            case "give back":
                _tell(answers, await give_back(request["names"]))
    except NoRoomError as error:
        _tell(answers, {"error": str(error), "kind": "later"})
    except NoPlaceError as error:
        _tell(answers, {"error": str(error), "kind": "never"})
    except Exception as error:  # of Ray, or of a keeper
        _tell(answers, {"error": told(error), "kind": "lost"})
    finally:
        for one in sockets:
            one.close()


# -- keepers ---------------------------------------------------------------------------------


def find_place(wanted: Message) -> Place:
    return places_for(wanted, ray.nodes(), NoPlaceError)[wanted["nth"]]


def find_keeper(request: Message) -> Any:
    """That of the run, if it lives; else a new one, on the machine that is the node's."""
    name, wanted = request["name"], request["wanted"]
    if name:
        with suppress(ValueError):
            return ray.get_actor(name)
    place = find_place(wanted)
    asked: Message = {"num_cpus": 0, "num_gpus": 0}  # a visit takes nothing
    if name:
        asked = {key: wanted[key] for key in ("num_cpus", "num_gpus", "resources")}
        asked |= {"name": name, "lifetime": "detached", "get_if_exists": True}
    return (
        ray.remote(keeper.Keeper)
        .options(
            **asked,
            max_concurrency=1000,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.id, soft=False),
        )
        .remote(request["directory"] if name else None, IDLE_S)
    )


async def ready_keeper(request: Message) -> Any:
    actor = await asyncio.to_thread(find_keeper, request)
    try:
        await asyncio.wait_for(actor.ready.remote(), _PROMPT_S)
    except (asyncio.TimeoutError, GetTimeoutError):
        raise NoRoomError(
            "Ray has not started its keeper: what it asks for is in use there (`ray status`)"
        ) from None
    return actor


async def give_back(names: list[str]) -> Message:
    """Ends keepers; how many there were, and are left."""
    found = {name: actor for name in names if (actor := await asyncio.to_thread(_named, name))}
    await asyncio.gather(*map(_end, found.values()))
    loop = asyncio.get_running_loop()
    deadline, left = loop.time() + _GONE_S, set(found)
    while left and loop.time() < deadline:
        left = {name for name in left if await asyncio.to_thread(_named, name)}
        await asyncio.sleep(_POLL_S if left else 0)
    return {"before": len(found), "after": len(left)}


def _named(name: str) -> Any:
    with suppress(ValueError):
        return ray.get_actor(name)
    return None


async def _end(actor: Any) -> None:
    with suppress(RayError, asyncio.TimeoutError):  # one that only waits, or is gone
        await asyncio.wait_for(actor.close_all.remote(), _CLOSING_S)
    with suppress(RayError):
        await asyncio.to_thread(ray.kill, actor)


# -- streams ---------------------------------------------------------------------------------


async def open_stream(request: Message, data: socket.socket, answers: socket.socket) -> None:
    actor = await ready_keeper(request)
    number = await actor.open.remote(request["command"])
    _tell(answers, {"ready": True})
    ways = [_up(data, actor, number), _down(data, actor, number)]
    tasks = [asyncio.ensure_future(way) for way in ways]
    complaint = ""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        complaint = "".join(told(why) for task in done if (why := task.exception()))
    finally:
        for task in tasks:
            task.cancel()
        with suppress(RayError, asyncio.TimeoutError):
            said = await asyncio.wait_for(actor.close.remote(number), _CLOSING_S)
            complaint = said or complaint
        if not request["name"]:
            ray.kill(actor)
        _tell(answers, {"complaint": complaint})


async def _up(data: socket.socket, actor: Any, number: int) -> None:
    """From the head to the node."""
    loop, position, under_way = asyncio.get_running_loop(), 0, deque[Any]()
    while content := await loop.sock_recv(data, _CHUNK):
        under_way.append(actor.write.remote(number, position, content))
        position += len(content)
        while len(under_way) > _MOST_UNDER_WAY:
            await under_way.popleft()
    for piece in under_way:
        await piece


async def _down(data: socket.socket, actor: Any, number: int) -> None:
    loop = asyncio.get_running_loop()
    while (content := await actor.read.remote(number)) != b"":
        if content:
            await loop.sock_sendall(data, content)
