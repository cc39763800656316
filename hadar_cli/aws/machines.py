"""Instances as EC2 describes them: state, times by this computer's clock, and host keys.

Keys are those that the console shows: AWS vouches for it, no key is trusted blindly.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from hadar_cli.aws.launching import NODE, TOKEN
from hadar_cli.nodes.wire import said

STARTING, UP, _ENDED = "pending", "running", ("shutting-down", "terminated", "stopped", "stopping")
_MOMENT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
# cloud-init prints them so at the first boot.
_KEYS = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.S)
_KEY = re.compile(r"((?:ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/=]+)")
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2", "ssh-rsa")


@dataclass(frozen=True, slots=True)
class Machine:
    """One instance."""

    id: str
    node: str
    state: str
    host: str  # its public address
    private_host: str
    launched_at: float
    type: str = ""
    token: str = ""  # of the run that it is tagged with
    ask: str = ""  # by which it was launched
    ended_at: float | None = None  # None: it has not, or EC2 does not say when
    why: str = ""  # it is in this state

    @property
    def is_up(self) -> bool:
        return self.state == UP

    @property
    def is_over(self) -> bool:
        return self.state in _ENDED


def read_machines(pages: Iterable[Any], now: float) -> Iterator[Machine]:
    """What EC2 tells. Its clock and ours may differ: ages count, by the clock of the answer."""
    for page in pages:
        headers = page.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        told_at = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else now
        for group in page["Reservations"]:
            for raw in group["Instances"]:
                yield _read(raw, now, told_at)


def _read(raw: dict[str, Any], now: float, told_at: float) -> Machine:
    tags = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
    launched, changed = raw.get("LaunchTime"), _MOMENT.search(raw.get("StateTransitionReason", ""))
    ended = datetime.strptime(changed[1], "%Y-%m-%d %H:%M:%S") if changed else None
    why = raw.get("StateReason", {})

    def by_our_clock(moment: datetime) -> float:
        return now - max(0.0, told_at - moment.timestamp())

    return Machine(
        id=str(raw["InstanceId"]),
        node=tags.get(NODE, ""),
        state=str(raw["State"]["Name"]),
        host=address_of(raw),
        private_host=address_of(raw, private=True),
        launched_at=by_our_clock(launched) if launched else now,
        type=str(raw.get("InstanceType", "")),
        token=tags.get(TOKEN, ""),
        ask=str(raw.get("ClientToken") or ""),
        ended_at=by_our_clock(ended.replace(tzinfo=timezone.utc)) if ended else None,
        why=said(why.get("Message") or why.get("Code") or ""),
    )


def address_of(raw: dict[str, Any], private: bool = False) -> str:
    """Where an instance is reached; "" while it has no address."""
    public = () if private else ("PublicDnsName", "PublicIpAddress")
    hosts = (raw.get(name) for name in (*public, "PrivateIpAddress"))
    return str(next(filter(None, hosts), ""))


def shown_host_key(client: Any, instance: str) -> str | None:
    """What the console shows now; None: no key, or not yet."""
    from botocore.exceptions import ClientError  # type: ignore[import-untyped]

    try:
        told = client.get_console_output(InstanceId=instance, Latest=True)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "UnsupportedOperation":
            raise
        told = client.get_console_output(InstanceId=instance)  # types before Nitro
    return read_host_key(told.get("Output", ""))


def read_host_key(console: str) -> str | None:
    """The best of the keys that cloud-init printed last; boto3 has decoded the output, or not."""
    for text in (console, _decoded(console)):
        if blocks := _KEYS.findall(text):
            keys = _KEY.findall(blocks[-1])
            ranked = [key for kind in _PREFERRED for key in keys if key.startswith(kind)]
            return ranked[0] if ranked else None
    return None


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""
