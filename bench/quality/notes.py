"""What the page says in words: how things were measured, and what cannot be measured again."""

from bench.quality.plan import BASE_LRS, FEWER

INTRODUCTION = """# Is a forked model as good, and how much sooner?

    python -m bench.quality            # measures what is missing, then writes this page
    python -m bench.quality --quick    # two held-out seeds of equal steps only

The five workloads' `tiny` presets, each trained to the end of its learning-rate schedule, unforked
and on five devices with the speeds of the paper's lab ({speeds}). Steps, checkpoints and merges are
real, done by the workloads' own scripts under the contract of a node; only the devices are virtual:
copies train one after another in one process, each for the steps that its device's speed gives it.
Counted steps: {steps}. The shorter a training, the harder it is to divide. The loss is of held-out
data: cross entropy for IC, LM and LT, squared error for RS and MM. "Unforked" is all steps one
after another. Defaults were looked for on the seeds {tuned}; {held_out} judge them."""

TIME = """\
How many times sooner than the fastest device alone five devices reach the loss with which unforked
training ends; the limit is the sum of their speeds, {limit}. Each cell: **merge / share / auto**.
`merge` trains copies and looks at every merge; where the loss is not reached in as many counted
steps, schedules of 1.25 and 1.6 times the steps are tried, and "never" is what fails at all three.
`share` divides every step, exactly: its loss is unforked training's by construction, and its speed
is the estimate that plans go by (`core/estimates/gangs.py`). `auto` is what a lone job gets that
says nothing: shared steps to its end where they have half the pace of merging (a bound that was
chosen by these tables), else the first steps alone or shared, and then merges. Left out is that in
a run the steps of the first slot are one device's, as nobody knows yet how large gradients are.
Which devices' copies pay, how often they merge and who shares is asked of the product's own
functions. Starts, steps and merges cost what they cost in real runs on the lab
(`bench/results/costs.json`); on a slower link the bytes are added, of all copies' weights through
the head's link for a merge, and of every member's gradients for a shared step. Losses are means
over the seeds {seeds}, or over as many of them as a number in brackets says; "-" is what was not
reached in as many steps, with longer schedules yet to be tried.

The estimate flatters shared steps: on the lab, five processes on two cores (`python -m bench --only
lone`, quiet: a small transformer, 480 steps of 0.15 s, slots of 10 s), one device took 78.2 s,
merged copies 54.3 s, and `auto` 57.6 s, its first slot alone, then shared; all three ended with the
same held-out loss (1.629, 1.628, 1.629). The wires were not emulated beside these figures."""

PAPER_TABLE = """\
The paper reports HadarE better on all five, by one run each of full-size models, without saying how
far runs differ by chance. What it does with the copies is our "plain mean". The two halves of the
table cannot be compared with each other: other data, other sizes of model. Where no copy was ever
forked, both columns show the shorter unforked training of the first table."""

# By a merge of its own in place of hadar's, which is not part of the repository.
TRIED = """\
Tried since, at the best base rates (below), merged every 40 counted steps; the loss as a multiple
of the default's, of one tuned seed. Nothing wins by more than chance, so none of them is an option.
"Radial" is the mean length times the direction of the mean of unit vectors, tensor by tensor;
"leader" the mean update as long as the copy with most steps went in its direction. Outer steps are
ramped in over half of the training.

|  | IC | LM | RS | MM |
| --- | --- | --- | --- | --- |
| radial | 1.021 | 0.995 | 1.019 | 0.997 |
| leader | 1.009 | 0.997 | 1.013 | 0.982 |
| leader, tensor by tensor | 0.988 | 0.997 | 1.014 | 1.012 |
| outer Nesterov step 0.7 / 0.9 | 4.089 | - | 2.163 | 1.256 |
| outer momentum 0.5 | 1.712 | - | 1.103 | 1.206 |

Weights by samples²/steps are those by steps here, as all micro-batches of a job are alike."""

TRAVEL = """\
A lone job as above on the held-out seeds {seeds}: what its five copies hand in for a merge, on
average, and the loss as a multiple of that with whole hand-ins. Both workloads use Adam, whose
state is twice the weights. `int8` and `int4` round the weights' updates, with what rounding took
added to the same copy's next update, and the optimizer's state to bfloat16; with `optimizer_every`
that state travels with every Nth merge only. RS's losses were measured before hadar followed a
loader's own batches. Choose a smaller hand-in where the report says that merging takes much of a
device's time; nothing does so by itself."""

LORA = """\
**LoRA.** The mean of B times the mean of A is not the mean of BA. hadar merges the factors; for a
small GPT-2 with an adapter of rank 8 that leaves 1 to 8 % of the update out. The best factors of
the mean product, found by SVD, were no better in held-out loss (2.8865 against 2.8863 at the
adapter's own rate, merged every 10 steps), and worse when balanced: the optimizer's moments belong
to the factors as they were. That experiment is not part of the repository."""

BEST_RATE = f"""\
The presets' rates lie somewhat below the best, which leaves room to scale them. Here each
workload's rate is the best for unforked training on the tuned seeds, out of
{", ".join(f"{factor:g}" for factor in sorted((1.0, *BASE_LRS)))} times its own."""

RULES_AT_BEST_RATE = f"""\
The same on the tuned seeds {", ".join(map(str, FEWER))}, with rules that go less far than the
default: tuned rates are what most scripts bring."""

REASONS = """\
- **`rule: progress`** is better than the mean on all five workloads at their own rates. At the best
  base rates it is better for IC, LM and LT, and 1 to 2 % worse for RS and MM.
- **`lr_scale: linear`** and the average of the optimizers' states are better than the other choices
  on all five at their own rates; `sqrt` is a little safer where rates are high already (RS, MM).
- **`hand_in: bf16`**, **`int8`** and **`int4`** cost nothing that can be told from chance; they
  stay off because they help only where the network is slow. So does **`optimizer_every`**, which
  costs up to a hundredth of the loss.
- **Solo and warm-up**. Image classification decides them: the only one with plain momentum, and the
  one that lost most by forking. Its ratio for a lone job, on 5 to 9 of the seeds 1 to 10, was
  1.14 ± 0.05 with 100 steps alone, 1.01 ± 0.03 with 200 and 0.94 ± 0.02 with 250. Hence `solo: 0.4`
  and, where other devices would idle meanwhile, 250 steps of that.
- Tried for it without success: merging twice as often, the leader's optimizer state, a small outer
  step, and shortening SGD's momentum as Adam's betas are, with gradients lengthened by as much or
  not. Its BatchNorm is not to blame: statistics taken anew changed the loss by less than 0.002.
- **Keeping the better of the last merge and its leader** was a rule, and is gone: it would have
  changed 111 of 308 results, by less than two seeds differ, for an evaluation each."""
