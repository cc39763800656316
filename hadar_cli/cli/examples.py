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
        "hadar run mixes/m5.yaml --observe tensorboard": "its curves there, too; or wandb, mlflow",
        "hadar run mixes/m5.yaml --notify desktop": "tell me when it ends, or is in trouble",
        "hadar run mixes/m5.yaml --no-live 2>log": "plain lines, for a log file",
        "hadar run mixes/m1.yaml --name queue --wait-for-work": "then: hadar add queue MIX",
    },
    "profile nodes": {
        "hadar profile nodes": "the machines and their estimated speeds",
        "hadar profile nodes --measure": "train on each for a while, and compare",
    },
    "report": {
        "hadar report": "the newest run",
        "hadar report m5-1116-0342 --html report.html": "one page with charts, to send around",
        "hadar report --sweep": "the trials of a sweep, and the best",
        "hadar report m5-1116-0342 --to tensorboard": "its curves, where you look anyway",
        "hadar report --list": "all runs",
        "hadar report --json | jq .cru": "a single figure",
    },
    "status": {
        "hadar status": "one look at the newest run",
        "hadar status m5-1116-0342 --json": "for programs; hadar watch looks on while it runs",
    },
    "watch": {
        "hadar watch": "the live view of the newest run",
        "hadar watch m5-1116-0342 --web": "its page, as it goes on, in a browser",
    },
    "explain": {
        "hadar explain": "the newest run: why jobs wait and devices are idle, and what comes next",
        "hadar explain m5-1116-0342 weather": "only this job",
    },
    "logs": {
        "hadar logs weather": "the last lines of that job, from every machine",
        "hadar logs m5-1116-0342 weather -f": "of that run, and what comes from now on",
    },
    "cancel": {
        "hadar cancel": "stop the newest run; hadar resume goes on",
        "hadar cancel m5-1116-0342 weather": "only this job; the others go on",
    },
    "add": {
        "hadar add m5-1116-0342 mixes/m1.yaml": "more work, while it runs or while it is stopped",
        "hadar add m5-1116-0342 mixes/m1.yaml --rename": "also where names are taken",
    },
    "pause": {"hadar pause m5-1116-0342 weather": "it costs nothing until: hadar continue"},
    "continue": {"hadar continue m5-1116-0342 weather": "exactly where it was"},
    "priority": {"hadar priority m5-1116-0342 weather 5": "first of all, from the next round on"},
    "close": {"hadar close queue": "it ends when its jobs are done"},
    "resume": {
        "hadar resume": "the newest unfinished run",
        "hadar resume m5-1116-0342": "this one",
    },
    "check": {
        "hadar check": "every machine of nodes.toml",
        "hadar check -n lab.toml": "those of another inventory",
    },
    "selftest": {
        "hadar selftest": "a few minutes on every machine of nodes.toml",
        "hadar selftest -n lab.toml --json": "the record alone, for a program",
    },
    "clean": {
        "hadar clean": "what all runs left on the machines",
        "hadar clean m5-1116-0342": "what this run left there",
    },
    "nodes list": {"hadar nodes list -n lab.toml": "what the inventory says, as hadar reads it"},
    "nodes add": {"hadar nodes add m5-1116-0342 more.toml": "they join at once"},
    "nodes drain": {"hadar nodes drain m5-1116-0342 curie": "its copies hand in and leave"},
    "nodes aws": {"hadar nodes aws --tag Project=lab --user ubuntu": "entries for nodes.toml"},
    "nodes trust": {"hadar nodes trust": "see and record new host keys"},
    "try": {"hadar try train.py -- --width 64": "is this script ready for hadar?"},
    "init": {"hadar init": "then edit nodes.toml, and: hadar run"},
    "schema": {"hadar schema mix > mix.schema.json": "editors complete and check mixes with it"},
    "simulate": {
        "hadar simulate mixes/m5.yaml --policy all": "which policy suits this mix?",
        "hadar simulate jobs.trace --cluster v100:20,k80:20": "a trace, on machines you name",
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
