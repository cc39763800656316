"""Holds an allocation: runs in its batch step, and starts there what relays ask for.

    python -I keeper.py NOTICE IDLE_S

A step's processes end with its srun, so that a head that is killed would take its workers along.
Therefore relay.py, in a step of its own, only hands over its stdin, stdout and stderr; the command
behind them is this process's child and lives in the batch step, as do all that it starts.

It listens on no port: on an abstract socket of this machine, and for its own user only. Without a
stream for IDLE_S it ends, and the allocation with it. Word that the allocation ends goes to NOTICE;
then it waits for the streams that are there, and no longer.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

_LOOK_EVERY_S = 0.2
_PR_SET_CHILD_SUBREAPER = 36
_FAREWELL_S = 10.0  # for a command whose relay is gone
_WHY = {
    signal.SIGUSR1: "its allocation by Slurm is about to reach its time limit",
    signal.SIGTERM: "Slurm takes its allocation away",
}


def main() -> None:
    notice, idle_s = Path(sys.argv[1]), float(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans stay within the step
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for signum in _WHY:
        signal.signal(signum, lambda number, frame: leave_word(notice, number))
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(f"\0hadar-{os.getuid()}-{os.environ['SLURM_JOB_ID']}")
    server.listen(16)
    streams: dict[int, Stream] = {}
    used_at = time.monotonic()
    while streams or (time.monotonic() < used_at + idle_s and not notice.exists()):
        used_at = time.monotonic() if streams else used_at
        relays = [stream.relay for stream in streams.values() if not stream.left_at]
        ready, _, _ = select.select([server, *relays], [], [], _LOOK_EVERY_S)
        if server in ready and (stream := take(server.accept()[0])):
            streams[stream.pid] = stream
        for stream in streams.values():
            if stream.relay in ready:
                stream.hear(notice)
            stream.end_if_left()
        reap(streams)


class Stream:
    """A command, and the relay through which its srun reaches it."""

    def __init__(self, pid: int, relay: socket.socket) -> None:
        self.pid, self.relay = pid, relay
        self.left_at = 0.0  # when the relay was gone

    def hear(self, notice: Path) -> None:
        """A byte tells that Slurm has asked the step to end; no byte that the relay is gone."""
        word = b""
        with suppress(OSError):
            word = self.relay.recv(1)
        if word:
            leave_word(notice, signal.SIGTERM)
        else:
            self.left_at = time.monotonic()

    def end_if_left(self) -> None:
        """It ends by itself with its input; what hangs is ended."""
        if self.left_at and time.monotonic() > self.left_at + _FAREWELL_S:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def take(relay: socket.socket) -> Stream | None:
    """Starts what the relay asks for, with its streams."""
    relay.settimeout(5.0)
    streams: list[int] = []
    try:
        if peer_of(relay) != os.getuid():
            raise ValueError("somebody else's relay")
        request, streams, _, _ = socket.recv_fds(relay, 1 << 16, 3)
        argv = json.loads(request)["argv"]
        for stream in streams:
            os.set_inheritable(stream, False)
        placed = [(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)]
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=placed, setsid=True)
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"a stream could not be started: {error!r}", file=sys.stderr, flush=True)
        relay.close()
        return None
    finally:
        for stream in streams:
            os.close(stream)
    return Stream(pid, relay)


def peer_of(relay: socket.socket) -> int:
    """The user at the other end."""
    told = relay.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", told)[1])


def reap(streams: dict[int, Stream]) -> None:
    """Tells relays of commands that have ended; orphans are only buried."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if ended := streams.pop(pid, None):
                with suppress(OSError):
                    ended.relay.send(b"%d" % (os.waitstatus_to_exitcode(status) & 0xFF))
                ended.relay.close()


def leave_word(notice: Path, signum: int) -> None:
    """The first word stands."""
    with suppress(OSError), notice.open("x") as file:
        file.write(_WHY[signal.Signals(signum)])


if __name__ == "__main__":
    main()
