"""Pods of Kubernetes as nodes: ``host = "kubectl:POD"`` or ``"kubectl:NAMESPACE/POD"``."""

from __future__ import annotations

import shutil

from hadar_cli.core.model import POD
from hadar_cli.errors import InputError
from hadar_cli.nodes.connection import answer_of
from hadar_cli.nodes.wire import LinkLostError, said
from hadar_cli.pipes.transport import PipeTransport

_READY = "ready"
_ANSWER_S = 30.0


def into_pod(host: str) -> PipeTransport:
    """Runs commands in the pod, as whoever kubectl's own configuration says."""
    namespace, _, pod = host.removeprefix(POD).rpartition("/")
    within = ["--namespace", namespace] if namespace else []
    return PipeTransport(["kubectl", "exec", "--stdin", *within, pod, "--", "sh", "-c"])


def check_kubectl(host: str) -> None:
    """InputError where nothing can be run in the pod."""
    if not shutil.which("kubectl"):
        raise InputError(
            f"{host!r} is reached by kubectl, which is not here",
            field="node.host",
            fix="install kubectl and see that `kubectl get pods` works, or reach it by SSH",
        )
    try:
        told, complaint = answer_of(into_pod(host), f"echo {_READY}", _ANSWER_S)
    except LinkLostError as error:
        told, complaint = "", str(error)
    if _READY not in told:
        last = complaint.splitlines()[-1:] or ["it says nothing"]
        raise InputError(
            f"kubectl runs nothing in {host!r}: {said(last[0])}",
            field="node.host",
            fix="see that `kubectl get pods` shows it: kubectl:POD or kubectl:NAMESPACE/POD",
        )
