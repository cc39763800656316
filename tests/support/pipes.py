"""Stand-ins for pods: "pods" of this machine, with a home of their own."""

from __future__ import annotations

import shlex
from pathlib import Path

from hadar_cli.pipes.transport import PipeTransport


def into(home: str) -> PipeTransport:
    return PipeTransport(["sh", "-c", f'HOME={shlex.quote(home)} exec sh -c "exec $0"'])


KUBECTL = """#!/bin/sh
# As much of kubectl as hadar uses: kubectl exec --stdin [--namespace SPACE] POD -- COMMAND…
[ "$1 $2" = "exec --stdin" ] || { echo "unknown: $*" >&2; exit 1; }
shift 2
[ "$1" = --namespace ] && shift 2
[ "$1" = gone ] && { echo 'Error from server (NotFound): pods "gone" not found' >&2; exit 1; }
HOME=HOMES/$1; export HOME; mkdir -p "$HOME"
shift
[ "$1" = -- ] && shift
exec "$@"
"""


def fake_kubectl(folder: Path) -> Path:
    """A folder for PATH with a ``kubectl`` whose pods have their homes in ``folder``."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "kubectl").write_text(KUBECTL.replace("HOMES", str(folder / "homes")))
    (tools / "kubectl").chmod(0o755)
    return tools
