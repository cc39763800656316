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
from ray.exceptions import RayError

from hadar_cli.ray_cluster.cluster import (
    CLOSING_S,
    NoPlaceError,
    NoRoomError,
    connect,
    disconnect,
    find_place,
    give_back,
    ready_keeper,
)
from hadar_cli.ray_cluster.places import told

_MOST_UNDER_WAY = 4  # pieces of a stream's input
_CHUNK = 1 << 20
_LONGEST = 1 << 16
_LAST_REQUESTS_S = 1.0  # to tell everybody that the cluster cannot be reached

Message = dict[str, Any]


def main() -> None:
    address = sys.argv[1]
    control = socket.socket(fileno=0)
    try:
        connect(address)
    except Exception as error:  # whatever it is, whoever asked is told
        _refuse_all(control, f"{type(error).__name__}: {error}")
        return
    asyncio.run(serve(control))
    disconnect()
    os._exit(0)


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
    await asyncio.wait(under_way, timeout=CLOSING_S) if under_way else None


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
            said = await asyncio.wait_for(actor.close.remote(number), CLOSING_S)
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
