# %% [markdown]
# # 02 · Run naively, then in microbatches
#
# After this lesson you can
#
# - **say** why a cut model alone is no faster than one GPU, and what microbatches change;
# - **accumulate** the gradients of microbatches so that they are those of the whole batch, whatever the loss;
# - **name** the layers and losses with which it does not come out by itself.
#
# **You need** a model in stages (lesson 01); no GPU. **Time** 50 minutes.
#
# | letter | meaning |
# |---|---|
# | p | ranks; each holds one stage |
# | m | microbatches: parts of a batch that go through the pipeline one after another |
# | F, B | forward and backward of one microbatch on one rank |

# %%
import copy

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import ppcourse as pp

# %% [markdown]
# ## Predict: how busy are they?
#
# Two ranks hold half of a model each, and the whole batch goes through at once: rank 0 runs F, hands over, rank 1 runs
# F and B, hands back, rank 0 runs B. **What share of the step does each rank work?** Type a fraction.

# %%
share = 1 / 2  # solution
pp.predict("2.A", share)

# %% [markdown]
# This is the plan called *naive*. In the simulator, for 2 and for 4 ranks; `..` is a slot in which a rank waits.

# %% tags=["nbval-check-output"]
slot = pp.Costs(forward=1, input_grad=0.5, weight_grad=0.5)
for p in (2, 4):
    print(pp.gantt_text(pp.simulate(pp.build("naive", p=p, m=1), slot)), end="\n\n")

# %% tags=["nbval-check-output"]
for p in (1, 2, 4, 8):
    step = pp.simulate(pp.build("naive", p=p, m=1))
    print(f"p = {p}: each rank works {sum(step.busy) / p / step.makespan:.1%} of the time")
print("for p = 2 you predicted", pp.prediction("2.A"))

# %% [markdown]
# **1 ÷ p.** Four GPUs do the work of one; we paid for room, not for speed. More batches of that kind change nothing:
# each waits until the one before is through.

# %% tags=["nbval-check-output"]
several = pp.simulate(pp.build("naive", p=4, m=4))
print(f"p = 4, four batches one after another: {sum(several.busy) / 4 / several.makespan:.1%}")

# %% [markdown]
# **Explain.** Which rule keeps rank 0 from beginning with the next batch while it waits? Is it a rule of the hardware?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# None of the hardware. The next *batch* has to see the weights after this batch's update, and the update needs all
# gradients, so it has to wait. But parts of the *same* batch use the same weights: nothing keeps rank 0 from beginning
# with the second part while rank 1 works on the first.
# </details>
#
# ## Microbatches
#
# So cut the batch into m **microbatches** and send them one behind the other. The work stays the same: each F and B
# takes an m-th of the time. Let the whole batch take 80 ms for F on each rank, and 160 ms for B:


# %%
def costs(m: int) -> pp.Costs:
    """Of one microbatch, in seconds."""
    return pp.Costs(forward=0.080 / m, input_grad=0.080 / m, weight_grad=0.080 / m)


steps = {m: pp.simulate(pp.build("gpipe", p=4, m=m), costs(m)) for m in (1, 2, 4, 8)}
pp.gantt(*steps.values(), title="one batch in 1, 2, 4 and 8 microbatches, p = 4; times in s")

# %% tags=["nbval-check-output"]
for m, step in steps.items():
    print(f"m = {m}: {1e3 * step.makespan:4.0f} ms, ranks work {sum(step.busy) / 4 / step.makespan:.0%} of the time")

# %% [markdown]
# This order, all forwards and then all backwards, is GPipe's. One rank alone would need 4 · 240 = 960 ms, as the naive
# pipeline does. With eight microbatches it takes about a third of that. On real ranks, paced so that each F and B lasts
# as long as above; other programs only ever add time, so the better of two steps counts:

# %%
torch.manual_seed(2)
model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)])
x, y = torch.randn(32, 16), torch.randn(32, 16).tanh()
task = {"model": model, "inputs": x, "targets": y, "loss_fn": F.mse_loss}
twice = {m: [pp.run("gpipe", p=4, m=m, pace=costs(m), **task) for _ in range(2)] for m in (1, 2, 4, 8)}
real = {m: min(both, key=lambda result: result.timeline.makespan) for m, both in twice.items()}
for m, result in real.items():
    t, share = result.timeline, sum(result.timeline.busy) / 4 / result.timeline.makespan
    print(f"m = {m}: {1e3 * t.makespan:4.0f} ms (paced), ranks work {share:.0%} of the time, loss {result.loss:.6f}")
assert 1.5 < real[1].timeline.makespan / real[8].timeline.makespan < 4

# %%
pp.gantt(steps[4], real[4].timeline, overlay=True, title="m = 4: predicted above, measured below")

# %% [markdown]
# In words: behind the first F of rank 0 its other three follow at once, while ranks 1 to 3 join in one after the other;
# then the backwards come the other way. What is left of the waiting, at the edges and in the middle, is the **bubble**
# of lesson 03.
#
# ## Is it the same step?
#
# Look at the losses above: they are equal. Are the gradients? A mean over the batch is the mean of the parts' means, if
# the parts are equally large. So each part's loss has to be divided by m *before* its backward; gradients then add up,
# because `backward()` adds to `.grad`.
#
# ### Exercise 2.1 · Accumulate · ★★ · 8 minutes
#
# In one process: run the batch as m equal microbatches, so that no more than `len(x) // m` rows are in the model at
# once. Leave in the parameters the gradients of the whole batch's loss, and return that loss. `loss_fn` is a mean, like
# `mse_loss`; all `.grad` are None when your function is called.
#
# <details><summary>Hint</summary>
#
# `x.chunk(m)` gives the parts. In the loop: forward, loss, divide, backward. What do you add up for the return value?
# </details>


# %%
def accumulate(model: nn.Module, loss_fn, x: torch.Tensor, y: torch.Tensor, m: int) -> float:
    """The loss of the whole batch; its gradients are left in the parameters."""
    # solution
    total = 0.0
    for part_x, part_y in zip(x.chunk(m), y.chunk(m), strict=True):
        loss = loss_fn(model(part_x), part_y) / m
        loss.backward()
        total += loss.item()
    return total
    # end solution


accumulated = pp.grade("2.1", accumulate)

# %% [markdown]
# Your gradients, those of four ranks, and those of the whole batch in one process:

# %%
whole = pp.reference_step(**task)
if accumulated:
    mine = copy.deepcopy(model)
    accumulate(mine, F.mse_loss, x, y, 8)
    for name, weight in mine.named_parameters():
        assert torch.allclose(weight.grad, whole.grads[name], atol=1e-6)
        assert torch.allclose(real[8].grads[name], whole.grads[name], atol=1e-6)
    print(f"all {len(whole.grads)} gradients equal: whole, accumulated, on four ranks")

# %% [markdown]
# And if you forget to divide? All gradients are m times too large. With SGD, that is a learning rate m times too large.
# With Adam you hardly notice, for it divides by the size of the gradients, until something else looks at them:
# clipping, or weight decay beside them.

# %% tags=["nbval-check-output"]
for kind in (torch.optim.SGD, torch.optim.Adam):
    lengths = []
    for factor in (1, 8):
        weight = nn.Parameter(torch.zeros(3))
        weight.grad = factor * torch.tensor([1.0, -2.0, 3.0])
        kind([weight], lr=0.1).step()
        lengths.append(float(weight.detach().norm()))
    print(f"{kind.__name__}: with 8 times the gradient, a step {lengths[1] / lengths[0]:.1f} times as long")

# %% [markdown]
# Do m microbatches need m times the memory for gradients? No: each backward adds into the same tensor.

# %% tags=["nbval-check-output"]
layer, places = nn.Linear(16, 16), set()
for part in x.chunk(8):
    layer(part).sum().backward()
    places.add(layer.weight.grad.data_ptr())
print(f"8 microbatches, {len(places)} gradient tensor")

# %% [markdown]
# ## When the parts are not alike
#
# Ten rows do not divide by four. Then the mean of the means counts a row of a small part more than one of a large part:

# %% tags=["nbval-check-output"]
numbers = torch.arange(10.0)
parts = torch.tensor_split(numbers, 4)
print("parts of", *map(len, parts), "rows")
print(f"mean {numbers.mean():.3f}, mean of the means {torch.stack([part.mean() for part in parts]).mean():.3f}")

# %% [markdown]
# ### Exercise 2.2 · Uneven parts · ★★ · 6 minutes
#
# By what has each part's loss to be multiplied before its backward, so that the gradients add up to those of the whole
# batch? For a loss that is a *mean* over its part, and for one that is a *sum*.
#
# <details><summary>Hint</summary>
#
# Write the mean of the whole batch as a sum over parts. What stands before the mean of a part?
# </details>


# %%
def scales(sizes: list[int], reduction: str) -> list[float]:
    """One factor for each part; `sizes` are their rows, `reduction` is "mean" or "sum"."""
    # solution
    if reduction == "sum":
        return [1.0] * len(sizes)
    return [size / sum(sizes) for size in sizes]
    # end solution


scaled = pp.grade("2.2", scales)

# %% tags=["nbval-check-output"]
if scaled:
    factors = [float(factor) for factor in scales([len(part) for part in parts], "mean")]
    together = sum(factor * part.mean() for factor, part in zip(factors, parts, strict=True))
    print(*(f"{factor:g}" for factor in factors), f"give {together:.3f}")

# %% [markdown]
# Rows are not always what a loss counts. In language models some targets are padding: `cross_entropy` leaves out those
# that are -100 and divides by the *others*. Microbatches with unequal padding then need weights by counted targets,
# which `pp.run` takes as `weight`. Six real targets of eight, on two ranks:


# %%
def counted(targets: torch.Tensor) -> torch.Tensor:
    return (targets != -100).sum()


classifier = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
rows, targets = torch.randn(8, 4), torch.tensor([0, -100, 1, -100, 2, 0, 1, 2])
labelled = {"model": classifier, "inputs": rows, "targets": targets, "loss_fn": F.cross_entropy}
right = pp.reference_step(**labelled).grads["0.weight"]
for name, weight in {"rows": None, "counted targets": counted}.items():
    grad = pp.run("gpipe", p=2, m=4, weight=weight, **labelled).grads["0.weight"]
    print(f"weights by {name}: gradients equal? {torch.allclose(grad, right, atol=1e-6)}")

# %% [markdown]
# It is an easy mistake: "each microbatch's mean, divided by m" looks right, and is, until sequences
# have different lengths.
#
# ## Predict: which layers mind?
#
# Between two linear layers stands one of these: `Tanh`, `LayerNorm`, `BatchNorm1d`, `Dropout`. Same batch, same seed,
# once whole and once in four equal microbatches. **With how many of the four do the gradients differ?**

# %%
differing = 2  # solution
pp.predict("2.B", differing)


# %%
def apart(layer: nn.Module) -> float:
    """How far the gradient in four microbatches is from that of the whole batch, as a share of it."""
    between = nn.Sequential(nn.Linear(16, 32), layer, nn.Linear(32, 16)).double()
    batch = {"inputs": x.double(), "targets": y.double(), "loss_fn": F.mse_loss}
    one, four = (pp.reference_step(between, m=m, **batch).grads["0.weight"] for m in (1, 4))
    return float((one - four).norm() / one.norm())


# %%
kinds = [nn.Tanh(), nn.LayerNorm(32), nn.BatchNorm1d(32), nn.Dropout(0.5)]
distance = {type(layer).__name__: apart(layer) for layer in kinds}
for name, far in distance.items():
    print(f"{name:12} {'equal' if far < 1e-12 else f'differs by {far:.0%}'}")
print("you predicted", pp.prediction("2.B"))
assert [far > 1e-12 for far in distance.values()] == [False, False, True, True]

# %% [markdown]
# **Explain.** What do the two have in common that differ, and why is LayerNorm not one of them?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# BatchNorm takes mean and variance over the rows that it sees: with microbatches these are other rows, so it computes
# something else (and updates its running statistics m times a step). LayerNorm works within each row, so it does not
# matter which rows are beside it. Dropout draws anew for each microbatch: other masks, though as good as before.
# A pipeline gives the same gradient for everything that treats rows one by one.
# </details>
#
# ## One optimizer step a batch
#
# Microbatches are no small batches: weights must not change between them, or the later ones would see other weights.
#
# ### Exercise 2.3 · Train · ★★ · 8 minutes
#
# For each batch: clear the gradients, accumulate those of m microbatches, then one step of the optimizer. You may use
# your function from 2.1.
#
# <details><summary>Hint</summary>
#
# `zero_grad` and `step` stand in the outer loop only, which runs once a batch.
# </details>


# %%
def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn, batches: list, m: int) -> list[float]:
    """The loss of each batch (x, y), before its update."""
    # solution
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        losses.append(accumulate(model, loss_fn, x, y, m))
        optimizer.step()
    return losses
    # end solution


trained = pp.grade("2.3", train)

# %% [markdown]
# The same thirty batches: whole in one process, with your function in eight microbatches, and on two ranks. Last,
# undivided: the loss eight times as large, as if nobody had divided.

# %%
teacher = torch.randn(16, 16) / 4
batches = [(x, (x @ teacher).tanh()) for x in torch.randn(30, 32, 16)]


def undivided(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 8 * F.mse_loss(output, target)


def alone(m: int, loss_fn=F.mse_loss) -> list[float]:
    own = copy.deepcopy(model)
    return train(own, torch.optim.SGD(own.parameters(), lr=4.0), loss_fn, batches, m)


# %%
def sgd(parameters):
    return torch.optim.SGD(parameters, lr=4.0)


options = {"loss_fn": F.mse_loss, "optimizer": sgd, "steps": 30, "progress": False}
on_ranks = pp.train("gpipe", model, batches, p=2, m=8, **options).losses
if trained:
    whole, eight = alone(1), alone(8)
    wrong = [loss / 8 for loss in alone(8, undivided)]
    print(f"last losses: whole {whole[-1]:.4f}, m = 8 {eight[-1]:.4f}, two ranks {on_ranks[-1]:.4f}")
    assert torch.allclose(torch.tensor(whole), torch.tensor(on_ranks), rtol=0.05)
    assert wrong[-1] > 2 * whole[-1]

# %%
figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(on_ranks, lw=6, color="lightgray", label="two ranks, m = 8")
if trained:
    axes.plot(whole, "k-", label="one process, whole batch")
    axes.plot(eight, "o", color="#0072B2", ms=3, label="one process, your microbatches")
    axes.plot(wrong, "x--", color="#D55E00", ms=4, lw=1, label="not divided by m")
axes.set(xlabel="batch", ylabel="loss", title="three ways to the same weights, and a wrong one")
axes.legend()
plt.show()

# %% [markdown]
# In words: the first three lie on each other at every batch. Undivided, each step goes eight times too far: the loss
# jumps up and stays there.
#
# ## The flush
#
# An update needs *all* gradients of the batch. So at the end of a step each rank waits until its last microbatch is
# back, and only then updates its own weights: the pipeline runs empty, a **flush**, and fills anew. In the pictures
# above, that is the waiting on both sides. With it, a pipeline computes exactly what one process would; schemes
# without a flush (PipeDream) never run empty, and pay with weights of several ages.
#
# ## Say it in an interview
#
# *"Why microbatches at all? And does the result change?"* Answer aloud, with a clock, before you unfold.
#
# <details><summary>30 seconds</summary>
#
# With the whole batch at once only one of p ranks works, 1/p of the machine. Parts of a batch use the same weights, so
# the next part can enter while the first one moves on; then ranks work at the same time. Gradients of the parts are
# added up, each loss scaled so that the sum is that of the whole batch, 1/m for equal parts and a mean loss, and there
# is one optimizer step after the last backward. The result is the same, except for layers that mix rows, as BatchNorm.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add: the scale. Mean loss: nᵢ/N, with what the loss counts: rows, or targets that are not padding. Sum loss: 1. With
# SGD a forgotten factor is a learning rate m times too large; with Adam it hides, until clipping sees the gradients.
#
# What minds: BatchNorm sees other rows, and updates its statistics m times. Dropout draws other masks. LayerNorm,
# attention and linear layers do not mind. Sums in another order differ in the last digits.
#
# What it costs: gradients need no more memory, they are added in place; activations do, for all microbatches that are
# under way. The update waits for all of them, the flush, so filling and draining remain: (p − 1)/m of the working time.
# It is gradient accumulation, only that the parts overlap on different ranks.
# </details>
#
# ## Exit questions
#
# **1.** Eight GPUs, a model in eight stages, one batch at a time. How much faster than one (large enough) GPU?
#
# <details><summary>Answer</summary>
#
# Not at all: each works an eighth of the time, and messages come on top.
# </details>
#
# **2.** A run with m = 8 and SGD diverges; with m = 1 it was fine. What do you look at first?
#
# <details><summary>Answer</summary>
#
# Whether each microbatch's loss is divided by m, and whether `zero_grad` and `step` run once a batch.
# </details>
#
# **3.** A colleague reports per-step loss as the mean of the microbatches' means; sequences are padded. Is it wrong?
#
# <details><summary>Answer</summary>
#
# Yes, unless all parts count equally many targets; and if the backward used it, so are the gradients.
# </details>
#
# ## Sources
#
# - Huang et al. 2019, *GPipe*, §2.3 and the description of the algorithm before it: microbatches, gradients added up,
#   one synchronous update.
# - Narayanan et al. 2019, *PipeDream*, §3.3 of the 2018 preprint: without a flush.
# - PyTorch, `torch.nn.CrossEntropyLoss`: `ignore_index`, and what the mean divides by.
