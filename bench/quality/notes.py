"""What the page says of smaller hand-ins and of adapters."""

TRAVEL = """\
A lone job as above on the held-out seeds {seeds}: what its five copies hand in for a merge, on
average, and the loss as a multiple of that with whole hand-ins. Both workloads use Adam, whose
state is twice the weights. `int8` and `int4` round the weights' updates, with a scale for every
128 of them, and the optimizer's state to bfloat16; what rounding the weights took is added to the
same copy's next update. With `optimizer_every` that state is handed in, and sent back, with every
Nth merge only. `python -m bench.quality --travel` measures these. RS was measured before hadar
followed a loader's own batches: its bytes are as they are now, its losses are those of other
batches. The other three workloads were not measured. Choose a smaller hand-in where the report
says that merging takes much of a device's time; nothing does so by itself."""

LORA = """\
**LoRA.** The mean of B times the mean of A is not the mean of BA. hadar merges the factors, and
this is what that leaves out. A small GPT-2 was trained on one Markov chain, then a PEFT adapter
of rank 8 on another, 480 counted steps with AdamW, the first 100 alone, then on the five devices
above with the default rules; three seeds each. The distance of the merged product from the mean
of products, as a share of the update, and the held-out loss; "product" is the best factors of
rank 8 of that mean (by QR and SVD), turned to lie next to the mean factors, and "balanced" the
same as the SVD leaves them.

| rate, merged every | left out | unforked | mean of factors | product | product, balanced |
| --- | --- | --- | --- | --- | --- |
| 0.002, 10 steps | 1.0 % | 2.9529 | 2.8863 | 2.8865 | 2.9687 |
| 0.002, 40 steps | 2.3 % | 2.9529 | 2.9016 | 2.9020 | 2.9346 |
| 0.002, 160 steps | 2.6 % | 2.9529 | 2.9430 | 2.9439 | 2.9559 |
| 0.008, 10 steps | 2.8 % | 2.7922 | 2.7938 | 2.7939 | 2.8346 |
| 0.008, 40 steps | 7.7 % | 2.7922 | 2.8212 | 2.8212 | 2.8415 |

The product is no better, and balanced factors are worse: the optimizer's moments belong to the
factors as they were. So the mean of the factors it is. This experiment is not part of the
repository."""
