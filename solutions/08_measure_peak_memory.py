# %% [markdown]
# # 08 · Measure peak memory
#
# After this lesson you can
#
# - **compute** what any rank holds at most, by formula and by replaying its plan;
# - **measure** it on real ranks, and explain every byte in which the two differ;
# - **answer** whether the peak is the same with and without a pipeline, and what to do when it is too high.
#
# **You need** 1F1B (lesson 04), I and W (lesson 06); no GPU, but with one a cell shows more. **Time** 55 minutes.
#
# | word | meaning |
# |---|---|
# | p, m | ranks, each with one stage; microbatches in a step |
# | activations | what F leaves behind for the backward: inputs and intermediate results |
# | held | activations of a rank between two actions, at most; weights and gradients counted apart |
# | layers' worth | activations of one layer for one microbatch |

# %%
from itertools import accumulate

import matplotlib.pyplot as plt
import torch
from torch import nn

import ppcourse as pp

# %% [markdown]
# The model is eight equal layers, each a small MLP, so that all differences come from the pipeline.

# %%
LAYERS, WIDTH, HIDDEN, ROWS = 8, 64, 256, 16  # rows of a microbatch; numbers have 4 bytes
torch.manual_seed(8)


def layer():
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))


model = nn.Sequential(*[layer() for _ in range(LAYERS)])

# %% [markdown]
# ## What does F leave behind?
#
# A linear layer keeps its input, since the gradient of its weights needs it. GELU keeps its input. So one of our layers
# keeps x, and the hidden vector twice: rows · (width + 2 · hidden) numbers. Autograd tells us if we ask: a hook sees
# each tensor that is saved.


# %%
def saved(module, x):
    """Bytes that F keeps for backward, weights left out."""
    kept, weights = {}, {w.untyped_storage().data_ptr() for w in module.parameters()}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = module(x)
    del out  # not before: what it keeps alive would make room for other tensors, in the same place
    return sum(size for place, size in kept.items() if place not in weights)


# %% tags=["nbval-check-output"]
ONE = saved(model[0], torch.randn(ROWS, WIDTH, requires_grad=True))
print(f"formula {4 * ROWS * (WIDTH + 2 * HIDDEN)} bytes, seen by the hook {ONE}")

# %% [markdown]
# This is one layer's worth. The output is not in it: nobody's gradient needs the result of a last `Linear`.
#
# ## Predict
#
# *"Is the peak memory the same with and without pipeline parallelism?"* is asked in interviews. One GPU without a
# pipeline holds, microbatch by microbatch, all 8 layers of one microbatch: 8 layers' worth. Now 1F1B, p = 4, m = 8,
# two layers a rank. **How many layers' worth does rank 0 hold at most?**

# %%
worth = 8  # solution
pp.predict("8.A", worth)

# %% [markdown]
# ### Exercise 8.1 · What a rank holds · ★ · 5 minutes
#
# The most that `rank` holds in 1F1B, in layers' worth, for any number of layers that p divides.
#
# <details><summary>Hint</summary>
#
# Lesson 04: how many microbatches does the rank hold? And how many layers of each?
# </details>


# %%
def held(rank: int, p: int, m: int, layers: int) -> float:
    """Layers' worth of activations that `rank` holds at most."""
    # solution
    return min(m, p - rank) * layers / p
    # end solution


solved = pp.grade("8.1", held)

# %% [markdown]
# ## Run it: three columns
#
# First the step without a pipeline, then with one. With `memory=True` each rank watches every tensor from the operator
# that makes it until nothing refers to it any more; `held_bytes` is the most between two actions.


# %%
def measure(plan, p, m=8, model=model, **options):
    x, y = torch.randn(2, m * ROWS, WIDTH)
    return pp.run(plan, model, x, y, loss_fn=nn.functional.mse_loss, p=p, m=m, memory=True, **options)


# %% [markdown]
# The batch grows with m; a microbatch always has 16 rows. Your prediction was for rank 0 of the second line:

# %%
alone, piped = measure("1f1b", p=1), measure("1f1b", p=4)
print(f"without a pipeline: {alone.held_bytes[0] / ONE:.2f} layers' worth")
print("1F1B, rank by rank:", *(f"{held_now / ONE:.2f}" for held_now in piped.held_bytes))

# %% [markdown]
# Rank 0 is a little below 8, the last rank a little above 2. Both ends differ by one tensor a microbatch, as large as a
# boundary: rank 0's input is the batch, which is there anyway and is not counted; and the loss keeps the model's
# output. So what F of each stage leaves behind, in bytes, is:

# %%
edge = 4 * ROWS * WIDTH  # one tensor at a boundary
stashed = [2 * ONE - edge, 2 * ONE, 2 * ONE, 2 * ONE + edge]

# %% [markdown]
# Three columns: your formula (the package's until 8.1 is solved), the plan replayed, and the real ranks.
# `pp.in_flight_bytes` walks along each row of a plan: F adds its stage's bytes, B takes them away.

# %%
plan = pp.build("1f1b", p=4, m=8)
counts = [held(rank, 4, 8, 8) / 2 for rank in range(4)] if solved else pp.formulas.one_f_one_b_in_flight(4, 8)
replayed = pp.in_flight_bytes(plan, stashed)
print("rank  formula  simulated  measured  (bytes)")
for rank, measured in enumerate(piped.held_bytes):
    print(f"{rank:4} {counts[rank] * stashed[rank]:8.0f} {replayed[rank]:10.0f} {measured:9}")
    assert 0 <= measured - replayed[rank] <= 4 * 8

# %% [markdown]
# They agree to the byte, but for 32 on the last rank: the eight losses, 4 bytes each. When you measure a program of
# your own, explain what is left in this way, tensor by tensor. A difference of a few per cent hides a bug well.
#
# **Explain.** With m ≥ p, why do activations on the first rank not shrink as p grows? What does shrink?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# Rank 0 has L/p layers, but holds p microbatches: p · L/p = L layers' worth, as one GPU that works microbatch by
# microbatch without a pipeline. More ranks: fewer layers, more microbatches underway. Later ranks hold less. What
# shrinks with p are parameters, gradients and optimizer state.
# </details>
#
# Does it hold for every p? Rank 0 on real ranks, with the memory that does shrink: per parameter 4 bytes of weight, 4
# of gradient, 8 of Adam's two averages.

# %%
rows = {}
for p in (1, 2, 4, 8):
    states = 16 * sum(weight.numel() for weight in model[: LAYERS // p].parameters())
    rows[f"p = {p}"] = measure("1f1b", p).held_bytes[0] / 1024, states / 1024
    print("p = {}: activations {:3.0f} KiB, parameter states {:4.0f} KiB".format(p, *rows[f"p = {p}"]))


# %%
def bars(rows, title):
    """Activations and parameter states, one bar a row."""
    _, axes = plt.subplots(figsize=(8, 2.6))
    activations, states = zip(*rows.values(), strict=True)
    axes.barh(list(rows), activations, color="#56B4E9", label="activations, measured")
    axes.barh(list(rows), states, left=activations, color="#D55E00", hatch="//", label="16 bytes a parameter")
    axes.set(xlabel="KiB", title=title)
    axes.invert_yaxis()
    axes.legend()
    plt.show()


bars(rows, "rank 0, m = 8")

# %% [markdown]
# The blue part stays (it loses only boundary tensors of the batch, which rank 0 does not count); the hatched part
# shrinks with p. With m < p rank 0 would hold m microbatches only.
#
# ## The slope against m
#
# **Predict.** GPipe and 1F1B, p = 4. From m = 8 to 16, with as many rows in each microbatch: by how many microbatches
# does the peak of rank 0 grow? Type both.

# %%
growth = [8, 0]  # solution
pp.predict("8.B", growth)

# %%
sizes = (2, 4, 8, 16)
peaks = {name: [measure(name, 4, m).held_bytes for m in sizes] for name in ("gpipe", "1f1b")}
for name, column in peaks.items():
    grown = (column[3][0] - column[2][0]) / stashed[0]
    print(f"{name:5} grows by {grown:g} microbatches; all ranks at m = 16:", *(f"{b / ONE:.1f}" for b in column[3]))

# %% [markdown]
# (On the right, layers' worth.) In GPipe all ranks hold the same, and more with each microbatch. In 1F1B the peak is
# flat from m = p on. That slope is the best test of an unknown program: measure it at two values of m, divide by what
# one microbatch keeps, and you know how many it holds. Lines are replayed, markers measured:

# %%
_, axes = plt.subplots(figsize=(7, 3))
for (name, column), style, marker in zip(peaks.items(), ("-", "--"), "os", strict=True):
    line = [pp.in_flight_bytes(pp.build(name, 4, m), stashed)[0] / 1024 for m in range(1, 17)]
    axes.plot(range(1, 17), line, style, label=f"{name}, replayed")
    axes.plot(sizes, [ranks[0] / 1024 for ranks in column], marker, color="black", label=f"{name}, measured")
axes.set(xlabel="microbatches m", ylabel="KiB held by rank 0", title="p = 4")
axes.legend()
plt.show()

# %% [markdown]
# ### Exercise 8.2 · How many fit? · ★★ · 6 minutes
#
# One microbatch costs rank 0 `kept` bytes, and `room` is free. The largest m, for "gpipe" and for "1f1b";
# `math.inf` if any m fits, 0 if none.
#
# <details><summary>Hint</summary>
#
# 1F1B holds min(m, p). When does that stop growing, and does that fit?
# </details>

# %%
import math


def largest_m(schedule: str, p: int, kept: int, room: int) -> float:
    """The largest number of microbatches with which rank 0 holds at most `room` bytes."""
    # solution
    fits = room // kept
    return math.inf if schedule == "1f1b" and fits >= p else fits
    # end solution


if pp.grade("8.2", largest_m):
    print("in 400 KiB:", {name: largest_m(name, 4, stashed[0], 400 * 1024) for name in peaks})

# %% [markdown]
# ## Three numbers on a GPU
#
# ```
# allocated   bytes of tensors that are alive                 torch.cuda.memory_allocated, max_memory_allocated
# reserved    what PyTorch has taken from the driver:         torch.cuda.memory_reserved
#             allocated, and freed blocks kept for later
# nvidia-smi  reserved, CUDA's context, NCCL's buffers,       torch.cuda.mem_get_info
#             and every other process on that GPU
# ```
#
# Compare peaks by the first, since it does not depend on what ran before; the second decides whether you run out of
# memory. Reset before you measure. Where this notebook sees a GPU, the cell measures one microbatch without a pipeline
# there; our ranks' meter on the CPU counts like `max_memory_allocated`.

# %%
if torch.cuda.is_available():
    on_gpu, x = model.to("cuda"), torch.randn(ROWS, WIDTH, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = on_gpu(x).square().mean()
    after_f = torch.cuda.memory_allocated() - before
    loss.backward()
    free, total = torch.cuda.mem_get_info()
    print(f"on the GPU: F left {after_f} bytes ({after_f / ONE:.2f} layers' worth)")
    print(f"peak allocated {torch.cuda.max_memory_allocated()}, reserved {torch.cuda.memory_reserved()}")
    print(f"in use on the device, by all: {total - free}")
    model.to("cpu").zero_grad()
else:
    print("no GPU here: nothing was measured with torch.cuda; the ranks' own meter counts on the CPU")

# %% [markdown]
# ## Sent outputs: freed or kept?
#
# After F a stage sends its output. The backward needs the graph behind it, and often not the output itself. A program
# that keeps the output until B, as one needs for `output.backward(grad)`, keeps one more tensor a microbatch. Let us
# do that by force, in GPipe, in the last layer of each stage:


# %%
class Keeping(nn.Module):
    """A layer that does not let go of its outputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.outputs = layer, []

    def forward(self, x):
        self.outputs.append(self.layer(x))
        return self.outputs[-1]


# %% [markdown]
# How many tensors more does each rank hold, compared with the same step of the usual layers?

# %%
clingy = nn.Sequential(*[Keeping(layer()) if n % 2 else layer() for n in range(LAYERS)])
usual, clinging = measure("gpipe", 4).held_bytes, measure("gpipe", 4, model=clingy).held_bytes
more = [(b - a) / edge for a, b in zip(usual, clinging, strict=True)]
print("more tensors held, rank by rank:", *(f"{n:g}" for n in more))
assert more == [8, 8, 8, 0]

# %% [markdown]
# Eight more, one a microbatch; none on the last rank, whose output the loss keeps anyway. Our ranks keep only the edge
# of the graph, no output. Megatron-LM frees the data of a sent output too (`deallocate_output_tensor`). If a stage
# ended with a ReLU, which keeps its *output*, nothing would be gained.
#
# ## Recompute
#
# With `recompute=True` a rank keeps only the input of its stage, and runs F again at the start of B. Between two
# actions that is one boundary tensor a microbatch (none on rank 0, whose input is the batch):

# %%
thin = measure("1f1b", 4, recompute=True)
expected = pp.in_flight_bytes(pp.build("1f1b", 4, 8), [0, edge, edge, edge])
for rank, bytes_held in enumerate(thin.held_bytes):
    peak, full = (run.peak_bytes[rank] // 1024 for run in (thin, piped))
    print(
        f"rank {rank}: held {bytes_held} (replayed {expected[rank]:.0f}); peak with weights {peak} KiB, before {full}"
    )
    assert 0 <= bytes_held - expected[rank] <= 4 * 8

# %% [markdown]
# `peak_bytes` also looks inside the actions, and counts weights and gradients. Inside a B one microbatch is there in
# full again, so the peak falls less than what is held; on the last rank, which never holds more than one, not at all.
#
# ## What W holds
#
# When B is split, I gives back only a part: W still needs something for each `Linear`.
#
# ### Exercise 8.3 · The share that stays · ★★★ · 8 minutes
#
# For Linear(d, h), GELU, Linear(h, d): what must be kept from I until W, as a share of what F had kept? F kept
# d + 2h numbers a row.
#
# <details><summary>Hint 1</summary>
#
# The gradient of a weight is the product of two tensors: the layer's input, and the gradient of its output.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Inputs d and h, output gradients h and d. GELU has no weights.
# </details>


# %%
def share(d: int, h: int) -> float:
    """What W needs, as a share of what F kept."""
    # solution
    return (d + h + h + d) / (d + 2 * h)
    # end solution


known = pp.grade("8.3", share)

# %% [markdown]
# More than 1! I frees GELU's input, but leaves two gradients of outputs. So a plan that puts W off holds more than its
# count of microbatches suggests, p for ZB-H1 and 2p − 1 for ZB-H2. Replayed with that share, and on real ranks with
# real I and W:


# %%
def for_w(share):
    """Bytes that W of each stage needs; on rank 0 again without the batch."""
    return [2 * ONE * share - edge, *[2 * ONE * share] * 3]


kept_for_w = for_w(share(WIDTH, HIDDEN) if known else 2 * (WIDTH + HIDDEN) / (WIDTH + 2 * HIDDEN))
for name in ("zb-h1", "zb-h2"):
    measured, expected = measure(name, 4).held_bytes, pp.in_flight_bytes(pp.build(name, 4, 8), stashed, kept_for_w)
    print(f"{name}: replayed", *(f"{n:.0f}" for n in expected), "  measured", *measured)
    assert all(0 <= a - b <= 4 * 8 for a, b in zip(measured, expected, strict=True))

# %% [markdown]
# To the byte again. And in a picture: what the last rank holds after each action of its row in ZB-H1, with W's real
# share, and as it would be if I freed everything.

# %%
_, axes = plt.subplots(figsize=(8, 2.8))
row = pp.build("zb-h1", 4, 8).rows[3]
for kept, style, label in ((kept_for_w[3], "-", "with what W needs"), (0, "--", "if I freed everything")):
    change = {"F": stashed[3], "I": kept - stashed[3], "W": -kept}
    axes.step(
        range(len(row)), [n / 1024 for n in accumulate(change[a.op] for a in row)], style, where="post", label=label
    )
axes.set_xticks(range(len(row)), [f"{a.op}{a.microbatch}" for a in row], fontsize=8)
axes.set(ylabel="KiB", title="rank 3, ZB-H1")
axes.legend()
plt.show()

# %% [markdown]
# 1F1B's last rank holds one microbatch; here W is put off, and what it needs piles up. How large the share is depends
# on the layer: what has no weights (dropout, softmax, activations) I frees. For PyTorch's `TransformerEncoderLayer`
# with dropout it is well below 1; for a block with fused attention and no dropout it is above 1. Measure yours.
#
# ## Embedding and head
#
# Real models are not equal layers. A small GPT: an embedding, six blocks and a head, with a vocabulary of 4096. What
# each kind of layer weighs, and what its F keeps for one microbatch of 64 tokens:

# %%
from ppcourse.runtime.models import gpt

VOCAB = 4096  # words
transformer = gpt(layers=6, width=64, vocab=VOCAB)
tokens, vectors = torch.randint(VOCAB, (1, 64)), torch.randn(1, 64, 64, requires_grad=True)
print("             parameters × 16    F keeps")
for name, number, given in (("embedding", 0, tokens), ("block", 1, vectors), ("head", 7, vectors)):
    weights = 16 * sum(w.numel() for w in transformer[number].parameters())
    print(f"{name:10} {weights / 1024:12.0f} KiB {saved(transformer[number], given) / 1024:7.1f} KiB")

# %% [markdown]
# The embedding is heavy and keeps nearly nothing. The head is as heavy, and makes logits: tokens · vocabulary numbers,
# which the loss keeps. On real ranks, two layers each:


# %%
def loss_fn(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


# %%
text = torch.randint(VOCAB, (8, 65))
run = pp.run("1f1b", transformer, text[:, :-1], text[:, 1:], loss_fn=loss_fn, p=4, m=8, memory=True)
assert run.held_bytes[3] > max(4 * 64 * VOCAB, run.held_bytes[0])

# %%
rows = {}
for rank, activations in enumerate(run.held_bytes):
    states = 16 * sum(weight.numel() for weight in transformer[2 * rank : 2 * rank + 2].parameters())
    rows[f"rank {rank}"] = activations / 1024, states / 1024
    print("rank {}: activations {:4.0f} KiB, parameter states {:4.0f} KiB".format(rank, *rows[f"rank {rank}"]))
bars(rows, "a small GPT in 1F1B, p = 4, m = 8")

# %% [markdown]
# Rank 3 holds one microbatch, and yet more than rank 0 with four: the logits. And both ends carry vocabulary-sized
# weights. So "rank 0 is the fullest" is a rule for equal layers; lesson 09 balances the rest.
#
# ## At full size
#
# `pp.ledger` does the same sums for a model that does not fit here: 32 layers as wide as a 7B model's, 4096 tokens a
# microbatch, bf16 with Adam at 18 bytes a parameter, attention scores not kept. Embedding and head are left out.

# %% tags=["nbval-check-output"]
from ppcourse.analysis.activations import layer_activations

width, tokens, heads, a_rank = 4096, 4096, 32, 4  # layers on each of eight ranks
layer_bytes = layer_activations(tokens, 1, width, heads, recompute="selective")
stage = pp.Sizes(parameters=a_rank * 12 * width**2, stashed=a_rank * layer_bytes, boundary=2 * tokens * width)
print(pp.ledger(pp.build("1f1b", p=8, m=32), stage))

# %% [markdown]
# One GPU without a pipeline would hold as much activation as rank 0, and eight times the rest:

# %% tags=["nbval-check-output"]
whole = pp.Sizes(parameters=8 * a_rank * 12 * width**2, stashed=8 * a_rank * layer_bytes)
print(pp.ledger(pp.build("1f1b", p=1, m=32), whole))

# %% [markdown]
# So here parameter states made the pipeline necessary, and with it activations are what fills rank 0. Recomputation, or
# tensor parallelism inside a rank, makes them smaller; a larger p does not.
#
# ## Say it in an interview
#
# *"Is the peak memory the same with and without pipeline parallelism?"* Aloud, with a clock.
#
# <details><summary>30 seconds</summary>
#
# Parameters, gradients and optimizer state shrink by p. Activations on the first rank do not: in 1F1B it holds p
# microbatches of L/p layers, L layers' worth, as one GPU working microbatch by microbatch. Later ranks hold less, the
# last one L/p. In GPipe every rank holds m microbatches, so its peak grows with m; 1F1B's is flat from m = p on.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add: compared with one GPU that takes the whole batch at once, a pipeline saves; compared with gradient accumulation,
# the first rank saves no activations. So p is chosen for parameter states, and recomputation or smaller microbatches
# for activations.
#
# What I would measure: max_memory_allocated after reset_peak_memory_stats, on each rank, warmed up, for two values of
# m. The slope tells how many microbatches are held. Reserved is higher, for freed blocks are kept; nvidia-smi adds
# context and NCCL.
#
# What makes the ends differ: embedding and head weights, logits on the last rank; sent outputs that are not freed, one
# boundary tensor a microbatch. Recomputation leaves one input a microbatch, and one in full inside B. Split backwards
# keep inputs and output gradients of linear layers until W, in an MLP more than F had kept.
# </details>
#
# ## Exit questions
#
# **1.** You go from p = 4 to p = 8, with m = 32, in 1F1B. On rank 0, what happens to activations and to optimizer
# state?
#
# <details><summary>Answer</summary>
#
# Activations stay: 8 microbatches of half as many layers. Optimizer state halves.
# </details>
#
# **2.** Rank 0's peak grows by one microbatch's activations each time you add one. Your code claims to be 1F1B, m > p.
# What do you suspect?
#
# <details><summary>Answer</summary>
#
# It holds all m, as GPipe does: the order is wrong, or something keeps each microbatch's graph or outputs alive.
# </details>
#
# **3.** nvidia-smi shows 38 GB, max_memory_allocated 24 GB. Is there a leak?
#
# <details><summary>Answer</summary>
#
# Not by itself: blocks that were freed stay reserved, and CUDA's context, NCCL's buffers and other processes count as
# well. Look at memory_reserved first.
# </details>
#
# ## Sources
#
# - Narayanan et al. 2021, *Efficient large-scale language model training on GPU clusters using Megatron-LM*, §2.2: what
#   1F1B holds. Megatron-LM's `schedules.py`: `deallocate_output_tensor`.
# - Korthikanti et al. 2022, §4.1 and §4.2.3: what a layer keeps; activations of the first stage in a pipeline.
# - Huang et al. 2019, *GPipe*, §2.3: recomputation.
# - Qi et al. 2024, *Zero bubble pipeline parallelism*, arXiv 2401.10241, §2: memory of ZB-H1 and ZB-H2.
