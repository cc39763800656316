"""Host keys as an instance's console shows them: AWS vouches for it, no key is trusted blindly."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

# cloud-init prints them so at the first boot.
_KEYS = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.S)
_KEY = re.compile(r"((?:ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/=]+)")
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2", "ssh-rsa")


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
