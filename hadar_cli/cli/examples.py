"""Examples for every command's help: what to type, and what it is for."""

from __future__ import annotations

EXAMPLES: dict[str, dict[str, str]] = {
    "": {
        "hadar run mixes/quickstart.yaml": "train a small batch on your machines",
        "hadar run mixes/m5.yaml --dry-run": "show what would run where, start nothing",
        "hadar profile nodes --measure": "measure how fast each machine trains",
        "hadar report": "what the newest run achieved",
        "hadar resume": "go on with a run that was interrupted",
    },
    "run": {
        "hadar run mixes/quickstart.yaml": "a first batch, in a minute or so",
        "hadar run mixes/m5.yaml --dry-run": "the plan and the forecast only",
        "hadar run mixes/m5.yaml --policy hadar": "let another policy decide",
        "hadar run mixes/m5.yaml --no-live 2>log": "plain lines, for a log file",
    },
    "profile nodes": {
        "hadar profile nodes": "the machines and their estimated speeds",
        "hadar profile nodes --measure": "train on each for a while, and compare",
    },
    "report": {
        "hadar report": "the newest run",
        "hadar report m5-1116-0342 --html report.html": "one page with charts, to send around",
        "hadar report --list": "all runs",
        "hadar report --json | jq .cru": "a single figure",
    },
    "status": {
        "hadar status": "one look at the newest run",
        "hadar status --watch": "look on, in any terminal, while it runs",
    },
    "logs": {
        "hadar logs weather": "the last lines of that job, from every machine",
        "hadar logs weather -f": "and what comes from now on",
    },
    "cancel": {"hadar cancel": "stop the newest run; hadar resume goes on"},
    "resume": {
        "hadar resume": "the newest unfinished run",
        "hadar resume m5-1116-0342": "this one",
    },
    "check": {
        "hadar check": "every machine of nodes.toml",
        "hadar check -n lab.toml": "those of another inventory",
    },
    "clean": {
        "hadar clean": "what all runs left on the machines",
        "hadar clean m5-1116-0342": "what this run left there",
    },
    "nodes list": {"hadar nodes list -n lab.toml": "what the inventory says, as hadar reads it"},
    "nodes trust": {"hadar nodes trust": "see and record new host keys"},
    "try": {"hadar try train.py -- --width 64": "is this script ready for hadar?"},
    "init": {"hadar init": "then edit nodes.toml, and: hadar run"},
    "simulate": {
        "hadar simulate mixes/m5.yaml --policy all": "which policy suits this mix?",
        "hadar simulate mixes/m5.yaml --like m5-1116-0342": "at the speeds of a real run",
    },
    "replay": {"hadar replay --policy hadare,gavel": "the newest run, had these decided"},
    "policies": {"hadar policies": "what --policy and a mix may name"},
}


def epilog(command: str) -> str | None:
    """The end of a command's help, in rich's markup; None if there is no example of it."""
    examples = EXAMPLES.get(command)
    if not examples:
        return None
    width = max(map(len, examples))
    lines = [f"{line:<{width}}   {about}" for line, about in examples.items()]
    title = "Examples" if len(lines) > 1 else "Example"
    return "\n".join([f"[bold]{title}[/]", "", *(line.replace("[", r"\[") for line in lines)])
