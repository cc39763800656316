"""Pods of Kubernetes as nodes: ``host = "kubectl:POD"`` or ``"kubectl:NAMESPACE/POD"``."""

from __future__ import annotations

import shutil

from hadar_cli.errors import InputError
from hadar_cli.pipes.transport import PipeTransport

PREFIX = "kubectl:"


def into_pod(host: str) -> PipeTransport:
    """Runs commands in the pod, as whoever kubectl's own configuration says."""
    namespace, _, pod = host.removeprefix(PREFIX).rpartition("/")
    within = ["--namespace", namespace] if namespace else []
    return PipeTransport(["kubectl", "exec", "--stdin", *within, pod, "--", "sh", "-c"])


def check_kubectl(host: str) -> None:
    if not shutil.which("kubectl"):
        raise InputError(
            f"{host!r} is reached by kubectl, which is not here",
            field="node.host",
            fix="install kubectl and see that `kubectl get pods` works, or reach it by SSH",
        )
