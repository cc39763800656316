"""A step's only process: hands its streams to the allocation's keeper, and waits.

It runs under the same interpreter and with the same words as what it asks the keeper to start: both
execute the first line that they read, and this one leaves the rest of the input alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time

_KEEPER_S = 30.0  # for a keeper that is only starting
_READY = b'\n@hadar {"kept": true}\n'


def main() -> None:
    keeper = find(f"\0hadar-{os.getuid()}-{os.environ['SLURM_JOB_ID']}")
    signal.signal(signal.SIGTERM, lambda number, frame: keeper.send(b"T"))
    os.write(1, _READY)
    argv = [sys.executable, *sys.orig_argv[1:]]
    socket.send_fds(keeper, [json.dumps({"argv": argv}).encode()], [0, 1, 2])
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):  # the command's end must be the end of its streams
        os.dup2(nothing, number)
    code = keeper.recv(8)
    sys.exit(int(code or b"1"))


def find(name: str) -> socket.socket:
    deadline = time.monotonic() + _KEEPER_S
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    while True:
        try:
            keeper.connect(name)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                sys.exit("nobody keeps this allocation: its batch script did not start")
            time.sleep(0.05)
    told = keeper.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", told)[1] != os.getuid():
        sys.exit("somebody else poses as this allocation's keeper")
    return keeper


if __name__ == "__main__":
    main()
