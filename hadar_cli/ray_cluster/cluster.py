"""A Ray cluster as the bridge knows it: joined and left, and keepers on its machines.

Only the bridge's process imports this.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import suppress
from typing import Any

import ray
from ray.cloudpickle import register_pickle_by_value
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hadar_cli.ray_cluster import keeper
from hadar_cli.ray_cluster.places import Place, places_for

NAMESPACE = "hadar"
IDLE_S = 900.0  # without a head, before a keeper ends
CLOSING_S = 10.0
_KNOCK_S = 10.0
_FAREWELL_S = 2.0
_PROMPT_S = 20.0  # for a keeper to start; later it is waited for
_GONE_S, _POLL_S = 30.0, 0.1  # for a keeper that is killed

Message = dict[str, Any]


class NoRoomError(Exception):
    """Waiting helps."""


class NoPlaceError(Exception):
    """No machine of the cluster, as it is now, will ever do."""


def connect(address: str) -> None:
    """As a driver; ``auto`` is what Ray takes for the cluster of this computer."""
    _knock(os.environ.get("RAY_ADDRESS", "") if address == "auto" else address)
    for is_last in (False, False, True):
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
            break
        except ConnectionAbortedError:  # on a busy machine, Ray Client's server did not start one
            if is_last:
                raise
    register_pickle_by_value(keeper)  # nodes have no hadar


def disconnect() -> None:
    """Ray Client's server has a process for each of its clients, and keeps that of one who is gone
    without a farewell. But the farewell may wait for a cluster that is gone."""
    farewell = threading.Thread(target=ray.shutdown, daemon=True)
    farewell.start()
    farewell.join(_FAREWELL_S)


def _knock(address: str) -> None:
    """Ray itself would try for minutes where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()


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
        await asyncio.wait_for(actor.close_all.remote(), CLOSING_S)
    with suppress(RayError):
        await asyncio.to_thread(ray.kill, actor)
