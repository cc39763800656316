"""What the fields of nodes.toml and of mixes mean, for the reference and for editors."""

from __future__ import annotations

NODE_FIELDS = {
    "name": "What the node is called, in every table and log.",
    "host": "`local` for this computer, an ssh_config name, `user@host`, `kubectl:POD` for a "
    "pod of Kubernetes, or `ray://auto` and the like for a machine of a [Ray cluster](#ray).",
    "port": "Its SSH port; else what ssh_config says, or 22.",
    "user": "The login there; else what ssh_config says, or yours.",
    "identity_file": "The private key to log in with; else the agent's and the usual files.",
    "proxy_jump": "A gateway on the way, as in ssh_config.",
    "host_key": "A pin: the node's public key, or its SHA256 fingerprint. Then this alone decides.",
    "known_hosts": "A known_hosts file that alone decides, in place of yours.",
    "python": "The Python with torch and safetensors on the node.",
    "workdir": "Where the node keeps hadar's files; `~/.hadar` by default.",
    "env": "Environment variables of the copies there, on top of the mix's.",
    "gpus": "What it has, one entry a GPU. Left out, `hadar profile nodes` asks the machine.",
    "max_gpu_mem": "Leave a GPU alone while others hold more than this share of its memory; 0.1.",
    "hours": "Only train within these hours, by the node's own clock.",
    "turn_s": "The longest turn on a device of this node that other runs want, too; 120.",
    "price_per_hour": "What the node costs, in any currency: forecasts then tell the cost.",
    "enabled": "`false` leaves the node out.",
    "network": "Jobs of several devices may span the nodes with the same name here, whose network "
    "is trusted; else only devices of one machine.",
    "address": "Where the others of its network reach the node; `host` by default.",
    "slurm": "Slurm allots the node, by [this request](#slurm); `host` is then the login node, or "
    "`local` on it.",
    "ray": "What Ray is [asked for](#ray), where `host` is a Ray cluster.",
    "emulate": "`{ speed = 0.5 }` paces training to this share of one core: for trying out only.",
}
RAY_FIELDS = {
    "node": "Which machine: its address, host name, Ray's name or id for it, or a label, "
    "`key=value`. Left out: any that fits.",
    "num_gpus": "GPUs of the actor; as many as `gpus` lists.",
    "num_cpus": "CPUs of the actor.",
    "resources": "Custom resources of the actor: `{ big_disk = 1 }`.",
}
SLURM_FIELDS = {
    "time": "The time limit of an allocation. Shorter ones start sooner, and are renewed.",
    "partition": "sbatch's `--partition`.",
    "account": "sbatch's `--account`.",
    "qos": "sbatch's `--qos`.",
    "gres": "sbatch's `--gres`. GPUs of a known type (`gpu:a100:2`) need no `gpus`.",
    "constraint": "sbatch's `--constraint`.",
    "cpus": "sbatch's `--cpus-per-task`.",
    "mem": "sbatch's `--mem`.",
    "options": 'More options of sbatch, as they are: `["--exclusive"]`.',
    "setup": "Shell lines that run in a login shell before Python is started: `module load cuda`.",
    "renew": "Ask for another allocation when one ends; on unless `false`.",
    "bin": "Where Slurm's commands are on the login node, if not in its PATH.",
    "conf": "The slurm.conf that they are to use, if not the usual one.",
}
AWS_FIELDS = {
    "region": "Where; else as AWS is configured.",
    "profile": "Which of AWS's profiles; else as AWS is configured.",
    "config": "A file to read in place of `~/.aws/config` and `~/.aws/credentials`.",
    "budget": "Dollars that all instances of a run may cost together; no limit without it.",
    "idle_minutes": "An instance that has no work for so long is ended until there is some; one "
    "that hears of no head ends itself.",
    "tags": "Further tags of all instances.",
    "private": "Reach instances by their private addresses.",
}
INSTANCE_FIELDS = {
    "type": "The instance type, in place of the template's; with it, known GPUs need no `gpus`.",
    "template": "Launch instances from this template, by its id or name; they are terminated.",
    "version": "The version of the template.",
    "ids": "Or start these instances, which are stopped now; they are stopped again.",
    "spot": "Launch spot instances.",
    "count": "So many of the template; nodes are `name-1`, `name-2`, …",
}
GPU_FIELDS = {
    "model": "Its name. For known models nothing else is needed.",
    "tflops": "Tensor TFLOPS, for a model that is not in the table.",
    "vram_gb": "Memory in GB, for a model that is not in the table.",
    "pcie": "The PCIe generation.",
    "index": "Which card of the machine, as nvidia-smi counts; by default its place in this list.",
    "uuid": "Which card, or which part of one (MIG), by the name that `nvidia-smi -L` shows.",
}
MIX_FIELDS = {
    "name": "What the mix is called; the file's name by default.",
    "slot_s": "How long a round lasts, in seconds; `auto` goes by what a hand-in takes.",
    "policy": "Who decides: a name, or a table of `name` and the policy's fields.",
    "merge": "How copies become one model: a table, or `paper`.",
    "seed": "Orders the data and seeds the models.",
    "data": "The data of jobs that name none.",
    "jobs": "The jobs, a list.",
}
JOB_FIELDS = {
    "workload": "One of the built-in workloads, by its name or the paper's short one.",
    "script": "Your own training script instead, relative to the mix.",
    "module": "Or a module of your project, run as by `python -m`: `package.train`.",
    "name": "What the job is called; the workload's or the script's name by default.",
    "count": "So many jobs alike, named `name-1`, `name-2`, …",
    "epochs": "How long to train, in passes over the data.",
    "steps": "How long to train, in mini-batches, instead.",
    "samples": "The size of the data set: with it, epochs become steps.",
    "batch_size": "Samples in a mini-batch. A range such as `128..2048` lets several of the "
    "script's own be joined to one, as far as the noise of its gradients makes that pay.",
    "model_size": "For the first estimate of speed only.",
    "dataset_size": "For the first estimate of speed only.",
    "gpus": "How many devices it takes at once, under policies that do not fork. A range such as "
    "`1..8`, or `auto`, lets the policy `hadar` choose, and change that where it pays.",
    "elastic": "It may also run on fewer.",
    "shares": "What each of them takes of a mini-batch: `proportional` to what it can do, or "
    "`equal`.",
    "mode": "How `hadare` uses many devices: `share` every step among those that reach each other, "
    "`merge` copies that train apart, `alone`, or `auto`: where that makes them shorter, "
    "steps of 0.1 s and more are shared by the devices of one node, and, while a job is not to be "
    "forked yet, by all that reach each other; so are all steps of a job that is the only one, if "
    "that has half the pace of merging; other copies are merged.",
    "arrives_s": "It comes so many seconds after the start.",
    "preset": "`paper` is the paper's model and data, `tiny` a small one on synthetic data.",
    "args": "Arguments of the script: a list of words and numbers, or one line as in a shell.",
    "sync": "The folder that travels and is the working directory; by default the script's project "
    "folder: the nearest one above it with a `.git` or `pyproject.toml`, else its own.",
    "setup": "A shell command that runs once on each node before the job's first copy.",
    "env": "Environment variables of its copies.",
    "user": "Whose job it is. `hadar simulate` tells how fairly each user fares.",
    "priority": "Jobs of a higher one are given devices first; 0 by default. `hadar priority` "
    "changes it while the run goes on.",
    "grid": "A sweep: a trial for every combination of these values of arguments, or of variables "
    "(`env.NAME`). See [Sweeps](../guide/sweeps.md).",
    "sample": "A sweep of drawn values: `{log: [a, b]}`, `{uniform: [a, b]}`, `{int: [a, b]}`, or "
    "a list.",
    "trials": "How many to draw.",
    "optuna": "Optuna suggests the points of `sample` from what came of those before: `{metric, "
    "at_once}`; `at_once` (5) are tried, then the next are asked for. Needs `hadar[optuna]`.",
    "promote": "`{metric, keep: 3, rungs}`: of the trials that reach a rung, one in `keep` trains "
    "on.",
    "stop": "`{metric, patience, every}`: ends the job when it has not become better for so many "
    "measurements.",
    "retry": "How often in a row it may fail on a device before it is no longer given to it. It "
    "has failed when no device is left: the others go on, and the run exits with 3.",
    "min_vram_gb": "GPUs with less memory are not given the job. Without it, a job that runs out "
    "of memory is tried there with smaller micro-batches, then not at all.",
    "higher_is_better": "Whether more of the first figure that its evaluation returns is better. "
    "Without it, the script says so, or else known names (`accuracy`, `f1`, `loss`, `wer` …) do, "
    "as whole words; of others nothing is concluded.",
    "fork": "How many copies may train at once: `auto` (those worth their merges), `never`, "
    "or a number, which is not weighed against what the copies cost.",
    "max_duration": "How long it may train, not counting the time it waits. Then it ends with what "
    "it has: the report says so, and the run exits with 3.",
    "data": "Paths here, files or folders, that are sent once to every node and found at the same "
    "place in the working directory, and in `HADAR_DATA`; several are divided by a colon.",
    "venv": "A requirements file or pyproject.toml: every node makes a virtual environment of it, "
    "once, on top of its own Python, and the job's copies run with that.",
    "data_dir": "Where its data is, on the nodes; a script finds it in `HADAR_DATA`.",
}
MERGE_FIELDS = {
    "rule": "`progress`, which goes as far as the copy with most steps, or the `mean` by steps.",
    "lr_scale": "How the learning rate grows with the number of effective copies.",
    "warmup": "The first share of the steps, in which that factor, and the length that `progress` "
    "adds to a merge, rise to their full size.",
    "solo": "The first share of the steps, which one device does alone; where others would idle "
    "meanwhile, 250 steps of it, or 1.25 % of it if that is more.",
    "optimizer_state": "Averaged, the busiest copy's, or begun anew.",
    "outer": "An outer Nesterov step of `lr` and `momentum`, as in DiLoCo.",
    "hand_in": "`full`, or what forked copies that use `training` hand in updates as: `bf16`, or "
    "`int8` or `int4` with a scale for every 128 weights; what these two round off is added to the "
    "copy's next update. The head still pushes whole checkpoints.",
    "optimizer_every": "The optimizer's state travels with every so many merges of forked copies, "
    "up and down; in between each copy keeps its own, and one that starts gets the last.",
    "every_s": "Between merges: seconds, `auto`, or `slot` for its end only.",
}
