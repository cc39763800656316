"""What the cloud's metadata service says of this instance: whether it is about to be taken away.

EC2's, version 2: a token first, then questions. Asked on a thread, for it may never answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

_LOOK_EVERY_S = 5.0
_PATIENCE_S = 2.0
_TOKEN_S = 300
_LONGEST = 4096
_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class MetadataWatch:
    """Calls ``tell`` once, with why the instance goes."""

    def __init__(
        self, address: str, tell: Callable[[str], None], every_s: float = _LOOK_EVERY_S
    ) -> None:
        self._host, self._tell, self._every_s = urlsplit(address).netloc, tell, every_s
        self._token = ""
        threading.Thread(target=self._watch, name="metadata", daemon=True).start()

    def _watch(self) -> None:
        while True:
            with suppress(OSError, HTTPException, ValueError):
                if why := self._news():
                    self._tell(why)
                    return
            time.sleep(self._every_s)

    def _news(self) -> str:
        if action := self._ask(_ACTION):
            what, when = action.get("action", "end"), action.get("time", "soon")
            return f"AWS takes the spot instance away: {what} at {when}"
        if self._ask(_REBALANCE) is not None:
            return "AWS recommends to leave the spot instance, which is likely to be taken away"
        return ""

    def _ask(self, path: str) -> dict[str, Any] | None:
        """The answer; None where there is nothing to say."""
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            status, told = self._send("PUT", "/latest/api/token", ttl)
            if status != HTTPStatus.OK:
                return None
            self._token = told
        status, told = self._send("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if status == HTTPStatus.UNAUTHORIZED:  # it is too old
            self._token = ""
        if status != HTTPStatus.OK:
            return None
        answer = json.loads(told)
        return answer if isinstance(answer, dict) else {}

    def _send(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        """Through no proxy: the address is the instance's own."""
        connection = HTTPConnection(self._host, timeout=_PATIENCE_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_LONGEST).decode(errors="replace")
        finally:
            connection.close()
