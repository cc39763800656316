"""Ends an instance that no head has been heard of for a while, by the instance itself.

A shell script, started as root: by user data at the first boot of an instance that hadar launches,
by ``sudo -n`` on one's own. The agent touches ALIVE as often as its head renews the lease.
"""

from __future__ import annotations

import base64
import binascii
from email import message_from_string
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

ALIVE = "/run/hadar-alive"
_LOOK_EVERY_S = 10
# What user data may begin with, and as what cloud-init reads it; the longer one comes first.
_KINDS = {
    "#!": "x-shellscript",
    "#cloud-config-archive": "cloud-config-archive",
    "#cloud-config": "cloud-config",
    "#cloud-boothook": "cloud-boothook",
    "#include-once": "x-include-once-url",
    "#include": "x-include-url",
    "## template: jinja": "jinja2",
}


def script(quiet_s: float, alive: str = ALIVE, look_every_s: float = _LOOK_EVERY_S) -> str:
    """Counts looks at which nothing was new; no clock is compared, for clocks jump at boot."""
    looks = max(1, round(quiet_s / look_every_s))
    return f"""#!/bin/sh
# hadar: ends this machine when no head has been heard of for {quiet_s / 60:g} minutes.
alive={alive}
[ ! -f $alive.pid ] || kill "$(cat $alive.pid)" 2>/dev/null
: >$alive && chmod 666 $alive
watch() {{
    trap '' HUP
    quiet=0 last=
    while sleep {look_every_s:g}; do
        now=$(stat -c %y $alive 2>/dev/null)
        if [ "$now" = "$last" ]; then quiet=$((quiet + 1)); else quiet=0 last=$now; fi
        [ $quiet -lt {looks} ] || shutdown -h now
    done
}}
watch </dev/null >/dev/null 2>&1 &
echo $! >$alive.pid
"""


def user_data(theirs: str | None, ours: str) -> str | None:
    """The script beside what a template has its instances do at their first boot.

    None where that is of a kind that cannot be joined: then the template's own is left alone.
    """
    if not theirs:
        return ours
    try:
        text = base64.b64decode(theirs, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    whole = MIMEMultipart()
    whole.attach(MIMEText(ours, "x-shellscript"))
    kind = next((kind for start, kind in _KINDS.items() if text.startswith(start)), None)
    if kind:
        whole.attach(MIMEText(text, kind))
    elif (parsed := message_from_string(text)).is_multipart():
        for part in parsed.get_payload():
            whole.attach(part)
    else:
        return None
    return whole.as_string()


_ONLY_ON_EC2 = """cat /sys/class/dmi/id/sys_vendor /sys/class/dmi/id/bios_version 2>/dev/null |
    grep -qi amazon || exit 1
"""


def command(quiet_s: float) -> str:
    """Starts it on a machine where the login may become root without a password.

    Only if the machine itself says that it is of EC2: whatever else an address leads to, such as
    the user's own computer, is not to be shut down.
    """
    packed = base64.b64encode((_ONLY_ON_EC2 + script(quiet_s)).encode()).decode()
    return f"echo {packed} | base64 -d | sudo -n sh && echo armed"
