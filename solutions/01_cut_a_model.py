# %% [markdown]
# # 01 · Cut a model
#
# After this lesson you can
#
# - **count** what training needs in memory, and say when a model no longer fits on one GPU;
# - **cut** a model into two stages by hand, and train it on two ranks;
# - **compare** what pipeline, data and tensor parallelism send, in bytes.
#
# **You need** lesson 00 (`send`, `recv`, `pp.on_ranks`) and autograd; no GPU. **Time** 55 minutes.
#
# | letter | meaning |
# |---|---|
# | L | layers of the model |
# | p | ranks in a pipeline; each holds one stage, a slice of the layers |
# | d, t | ranks in data parallelism, in tensor parallelism |

# %%
import copy

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import ppcourse as pp

# %% [markdown]
# ## Predict: one parameter
#
# Large models compute in bf16 (2 bytes a number), and keep what must not lose precision in fp32 (4 bytes). Adam
# remembers two numbers for each parameter. **How many bytes of memory does one parameter need while training?** Count
# weights, gradients and the optimizer; leave activations out.

# %%
bytes_each = 18  # solution
pp.predict("1.A", bytes_each)

# %% [markdown]
# One step of mixed precision by hand, on a layer of 10,000 parameters. The bf16 copy computes, its gradient is kept in
# fp32, and Adam updates fp32 weights, from which the copy is made anew.

# %%
master = nn.Parameter(torch.randn(100, 100))
adam = torch.optim.AdamW([master])
work = master.detach().bfloat16().requires_grad_()
F.linear(torch.randn(8, 100).bfloat16(), work).sum().backward()
master.grad = work.grad.float()
adam.step()

# %% tags=["nbval-check-output"]
state = adam.state[master]
kinds = {"bf16 weights": work, "fp32 gradients": master.grad, "fp32 weights": master}
kinds |= {"Adam's mean": state["exp_avg"], "Adam's square": state["exp_avg_sq"]}
each = {name: tensor.nbytes // master.numel() for name, tensor in kinds.items()}
print(" + ".join(f"{name} {size}" for name, size in each.items()), "=", sum(each.values()))
print("you predicted", pp.prediction("1.A"))

# %% [markdown]
# Megatron-LM counts the same 18 bytes for bf16 weights with fp32 gradients. Other choices give 16 or 20, so say which
# one you mean.
#
# ## Activations
#
# From its forward to its backward, a layer keeps what the backward needs. How much? Autograd can tell: it calls the
# hook below for each tensor that it saves. We measure one block of a GPT and divide by the size of its input.

# %%
from ppcourse.runtime.models import Block, Embedding, Head


def kept_bytes(module: nn.Module, x: torch.Tensor) -> int:
    """What autograd keeps of a forward pass, weights left out."""
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    saved = {}

    def keep(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x)
    return sum(tensor.untyped_storage().nbytes() for at, tensor in saved.items() if at not in weights)


# %%
for rows, width in [(64, 256), (256, 256), (64, 512)]:
    x = torch.randn(1, rows, width).bfloat16().requires_grad_()
    ratio = kept_bytes(Block(width, width // 128).bfloat16(), x) / x.numel()
    print(f"{rows:3} tokens, width {width}: {ratio:.1f} bytes for each number of the input")
assert 25 < ratio < 60

# %% [markdown]
# The ratio hardly depends on tokens or width, so we may scale it up: a model of the usual "7B" shape, L = 32 layers of
# width 4096, with one sequence of 4096 tokens in flight. (The `meta` device has shapes but no memory.)

# %%
with torch.device("meta"):
    parts = [Block(4096, 32)] * 32 + [Embedding(32000, 4096, 4096), Head(4096, 32000)]
parameters = sum(weight.numel() for part in parts for weight in part.parameters())
activations = ratio * 4096 * 4096 * 32 / 1e9
print(f"{parameters / 1e9:.2f} billion parameters: {sum(each.values()) * parameters / 1e9:.0f} GB")
print(f"activations of one sequence: {activations:.0f} GB")

# %% [markdown]
# More than a GPU of 80 GB holds, so it must be divided. What is left on one rank of a pipeline with p stages? (The
# activations of the first rank do not get less: with the usual schedule it holds p sequences, of L ÷ p layers each.
# Lesson 08 measures that.)

# %%
figure, axes = plt.subplots(figsize=(7, 3.2))
below = [0.0] * 4
colors = ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "lightgray"]
hatches = ["", "//", "..", "xx", "--", "\\\\"]
for (name, size), color, hatch in zip([*each.items(), ("activations", None)], colors, hatches, strict=True):
    high = [activations if size is None else size * parameters / p / 1e9 for p in (1, 2, 4, 8)]
    axes.bar(["p = 1", "p = 2", "p = 4", "p = 8"], high, bottom=below, label=name, color=color, hatch=hatch)
    below = [low + more for low, more in zip(below, high, strict=True)]
axes.axhline(80, color="black", ls="--")
axes.set(ylabel="GB on the first rank", title="7B shape, Adam in mixed precision; dashed: a GPU of 80 GB")
axes.legend(fontsize=7)
plt.show()

# %%
for p, top in zip((1, 2, 4, 8), below, strict=True):
    print(f"p = {p}: {top:4.0f} GB on the first rank, {'fits' if top < 80 else 'does not fit'} into 80 GB")

# %% [markdown]
# **Explain.** In two sentences: which part of the bar shrinks with p, which does not, and why?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# Weights, gradients and the optimizer's numbers belong to layers, and each rank has L ÷ p of them: they shrink with p.
# The first rank's activations do not: it has fewer layers, but more sequences underway, and of each it keeps what the
# backward will need until the gradient comes back.
# </details>
#
# ## Three ways to divide
#
# | | what is divided | what is sent | when |
# |---|---|---|---|
# | **data** parallelism | the batch; each rank has the whole model | all gradients, summed over d ranks | once a step |
# | **tensor** parallelism | each layer's matrices | activations, summed over t ranks | several times a layer |
# | **pipeline** parallelism | the layers, into p stages | activations at a cut, and their gradients | each microbatch |
#
# A pipeline usually sends least, and between two neighbours only. In return its ranks wait for each other, which is
# what this course is about.
#
# ### Exercise 1.1 · Cut · ★ · 5 minutes
#
# Which layers does each of p stages get? Stages are runs of neighbouring layers, as equal as possible; if L is no
# multiple of p, the earliest stages get one layer more. L = 32 and p = 4 gives 8 each.
#
# <details><summary>Hint</summary>
#
# `divmod(L, p)` gives what each stage gets, and how many stages get one more. Then walk along.
# </details>


# %%
def cut(num_layers: int, p: int) -> list[range]:
    """The numbers of the layers of each stage, as in [range(0, 2), range(2, 3)] for 3 layers and 2 stages."""
    # solution
    least, more = divmod(num_layers, p)
    stages, first = [], 0
    for stage in range(p):
        after = first + least + (stage < more)
        stages.append(range(first, after))
        first = after
    return stages
    # end solution


can_cut = pp.grade("1.1", cut)

# %% tags=["nbval-check-output"]
if can_cut:
    for num_layers, p in [(32, 4), (30, 4)]:
        print(f"L = {num_layers}, p = {p}:", *(f"{part[0]}–{part[-1]}" for part in cut(num_layers, p)))

# %% [markdown]
# ## What is lost at a cut
#
# A model of five layers, cut behind the third. First in one process: what would travel to another rank is only the
# *numbers* of `h`, without the graph that made them. We imitate that with `detach().clone()`.

# %%
torch.manual_seed(1)
WIDTH = 32
model = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
first, second = model[:3], model[3:]
x = torch.randn(64, 8)
y = torch.stack([x[:, 0] * x[:, 1], x.norm(dim=1)], dim=1)

# %% tags=["nbval-check-output"]
numbers = first(x).detach().clone()
loss = F.mse_loss(second(numbers), y)
loss.backward()
print("the loss is right:", bool(loss == F.mse_loss(model(x), y)))
print("second part has a gradient:", second[1].weight.grad is not None)
print("first part has a gradient:", first[0].weight.grad is not None, "- for it:", numbers.grad)

# %% [markdown]
# No error, a correct loss, and half of the model never learns. It is the most frequent mistake at a cut.
#
# ### Exercise 1.2 · The gradient that does not come back · ★ · 4 minutes
#
# What must the receiving rank do with the numbers, so that after its backward there is a gradient to send back, in
# `.grad` of what you return?
#
# <details><summary>Hint</summary>
#
# Autograd fills `.grad` of a *leaf* that requires a gradient. What arrives from outside does not require one by itself.
# </details>


# %%
def receive(numbers: torch.Tensor) -> torch.Tensor:
    """What arrived, ready for this stage's forward."""
    # solution
    return numbers.requires_grad_()
    # end solution


repaired = pp.grade("1.2", receive)

# %% [markdown]
# With it the chain rule passes the cut: the sender continues its own backward with `h.backward(gradient)`, which begins
# with that gradient instead of 1. Whole and cut, the same gradient of the very first weight?

# %% tags=["nbval-check-output"]
if repaired:
    model.zero_grad()
    h = first(x)
    arrived = receive(h.detach().clone())
    F.mse_loss(second(arrived), y).backward()
    h.backward(arrived.grad)
    whole = pp.reference_step(model, x, y, loss_fn=F.mse_loss).grads["0.weight"]
    print("equal:", torch.allclose(first[0].weight.grad, whole))

# %% [markdown]
# ### Exercise 1.3 · A step on two ranks · ★★★ · 12 minutes
#
# Now with two processes. Rank 0 holds the first stage and knows x, rank 1 holds the second and knows y. `h`, what
# crosses the cut, has `len(x)` rows and `WIDTH` columns.
#
# ```
# rank 0   h = stage(x) ── h ──┐                      ┌─► h.backward(gradient)
#                              ▼                      │
# rank 1                     stage, loss, backward ── gradient of h
# ```
#
# Gradients stay where they arise, in the parameters of `stage`. Rank 1 returns the loss as a number, rank 0 nothing.
#
# <details><summary>Hint 1: rank 0</summary>
#
# Four steps: forward, `dist.send(h.detach(), 1)`, receive into a tensor like h, `h.backward(gradient)`.
# </details>
#
# <details><summary>Hint 2: rank 1</summary>
#
# Receive into `torch.empty(len(x), WIDTH)`, make it ready as in 1.2, forward, loss, `loss.backward()`, send `.grad`.
# </details>


# %%
def step(rank: int, stage: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float | None:
    """Forward and backward of the stage of this rank; returns the loss on rank 1."""
    # solution
    if rank == 0:
        h = stage(x)
        dist.send(h.detach(), 1)
        gradient = torch.empty(len(x), WIDTH)
        dist.recv(gradient, 1)
        h.backward(gradient)
        return None
    h = torch.empty(len(x), WIDTH)
    dist.recv(h, 0)
    h.requires_grad_()
    loss = F.mse_loss(stage(h), y)
    loss.backward()
    dist.send(h.grad, 0)
    return loss.item()
    # end solution


trained = pp.grade("1.3", step)

# %% [markdown]
# Your step trains. Each rank updates its own parameters, here by plain gradient descent; nobody needs all of them.


# %%
def update(part: nn.Module, rate: float = 0.1) -> None:
    for weight in part.parameters():
        weight.data -= rate * weight.grad
        weight.grad = None


def train(rank: int) -> list[float | None]:
    """The losses of a hundred steps."""
    stage, losses = copy.deepcopy([first, second][rank]), []
    stage.zero_grad()
    for _ in range(100):
        losses.append(step(rank, stage, x, y))
        update(stage)
    return losses


# %%
def train_alone() -> list[float]:
    """The same in one process."""
    whole, losses = copy.deepcopy(model), []
    whole.zero_grad()
    for _ in range(100):
        loss = F.mse_loss(whole(x), y)
        loss.backward()
        losses.append(loss.item())
        update(whole)
    return losses


# %%
alone = train_alone()
if trained:
    mine = pp.on_ranks(train, timeout=25)[1]
    print(f"loss on two ranks {mine[0]:.3f} → {mine[-1]:.3f}, in one process {alone[0]:.3f} → {alone[-1]:.3f}")
    assert torch.allclose(torch.tensor(mine), torch.tensor(alone), rtol=0.01)

# %%
figure, axes = plt.subplots(figsize=(7, 2.8))
axes.semilogy(alone, lw=5, color="lightgray", label="one process")
if trained:
    axes.semilogy(mine, "k--", label="two ranks, your step")
axes.set(xlabel="step", ylabel="loss", title="the same training, cut or whole")
axes.legend()
plt.show()

# %% [markdown]
# The two curves lie on each other: **cutting a model changes where it is computed, not what**.
#
# `pp.run` does all of this for any number of stages. With one microbatch and your cut, the same gradients:

# %%
by_package = pp.run("gpipe", model, x, y, loss_fn=F.mse_loss, p=2, m=1, partition=(3, 2))
whole = pp.reference_step(model, x, y, loss_fn=F.mse_loss)
same = [torch.allclose(by_package.grads[name], whole.grads[name], atol=1e-6) for name in whole.grads]
print(f"{sum(same)} of {len(same)} gradients equal; {by_package.messages} messages between the ranks")
assert all(same)

# %% [markdown]
# When do the two ranks work? In numbers that any machine can show, F 20 ms and B 40 ms:

# %%
pace = pp.Costs(forward=0.020, input_grad=0.020, weight_grad=0.020)
paced = pp.run("gpipe", model, x, y, loss_fn=F.mse_loss, p=2, m=1, partition=(3, 2), pace=pace).timeline
pp.gantt(paced)

# %% [markdown]
# In words: rank 0 runs F, rank 1 F and B, rank 0 B; never two at a time. So far two GPUs give us room, but no speed.
# Lesson 02 changes that.
#
# ## How many bytes cross?
#
# The sum over ranks that data parallelism needs is an **all-reduce**. The usual way is a ring: the data are cut into d
# parts, and in each of 2·(d − 1) turns every rank sends one part to its neighbour. First the parts are summed up while
# they travel, then the sums go round. Here it is, on four ranks, counting what it sends.


# %%
def ring(rank: int) -> tuple[float, int]:
    """Sum 4000 numbers over all ranks; returns the total and the bytes that this rank sent."""
    d, sent = dist.get_world_size(), 0
    parts = list(torch.full((4000,), rank + 1.0).chunk(d))
    for turn in range(2 * (d - 1)):
        out, back = (rank - turn) % d, (rank - turn - 1) % d
        arrived = torch.empty_like(parts[back])
        sending = dist.isend(parts[out], (rank + 1) % d)
        dist.recv(arrived, (rank - 1) % d)
        sending.wait()
        sent += parts[out].nbytes
        parts[back] = parts[back] + arrived if turn < d - 1 else arrived
    return float(torch.cat(parts).sum()), sent


# %% tags=["nbval-check-output"]
for total, sent in pp.on_ranks(ring, p=4):
    print(f"sum {total:.0f}, sent {sent} bytes: {sent / (4 * 4000):g} times the data")
    assert total == 4000 * (1 + 2 + 3 + 4)

# %% [markdown]
# ### Exercise 1.4 · A cut against an all-reduce · ★★ · 6 minutes
#
# Two numbers of bytes. First, what crosses **one cut** in one step: activations of `rows × width` numbers down, their
# gradients back. Second, what **each of d ranks sends** to all-reduce all gradients in a ring. A number has `size`
# bytes here and there.
#
# <details><summary>Hint</summary>
#
# How many turns has the ring, and what part of the data goes in each? Check it with the output above.
# </details>


# %%
def traffic(rows: int, width: int, parameters: int, d: int, size: int) -> tuple[float, float]:
    """Bytes in a step: across one cut, both directions together; sent by each rank of a ring all-reduce."""
    # solution
    return 2 * rows * width * size, 2 * (d - 1) * parameters / d * size
    # end solution


counted = pp.grade("1.4", traffic)

# %% [markdown]
# Measured: the message bytes of your pipeline step above. What is more than the formula says are headers.

# %%
if counted:
    tensors, _ = traffic(len(x), WIDTH, 0, 1, 4)
    print(f"formula {tensors} bytes, measured {by_package.message_bytes} in {by_package.messages} messages")
    assert 0 <= by_package.message_bytes - tensors < 2000

# %% [markdown]
# Now the 7B shape on 4 GPUs, with 32 sequences of 4096 tokens a step, all numbers in bf16. Tensor parallelism
# all-reduces the activations of each layer twice in the forward and twice in the backward.

# %%
if counted:
    tokens = 32 * 4096
    across, gradients = traffic(tokens, 4096, parameters, 4, 2)
    layerwise = 4 * 32 * traffic(0, 0, tokens * 4096, 4, 2)[1]
    sends = {"pipeline: one cut": across, "data: each rank": gradients, "tensor: each rank": layerwise}
    print(*(f"{name} {size / 1e9:.1f} GB" for name, size in sends.items()), sep="\n")
    plt.figure(figsize=(7, 1.8))
    plt.bar_label(plt.barh(list(sends), [size / 1e9 for size in sends.values()]), fmt=" %.1f")
    plt.xlabel("GB in a step")
    plt.margins(x=0.1)
    plt.show()

# %% [markdown]
# So tensor parallelism stays inside a machine, where links are fastest, and pipelines go between machines. But look at
# what each grows with: a cut with the **tokens**, data parallelism with the **parameters**. And a pipeline's messages
# lie between two actions that wait for them, while an all-reduce of gradients can run behind the backward.
#
# ## Say it in an interview
#
# *"A 7B model does not fit on one 80 GB GPU. Why not, and what do you do?"* Answer aloud, with a clock, before you
# unfold.
#
# <details><summary>30 seconds</summary>
#
# With Adam in mixed precision a parameter needs 18 bytes: 2 for the bf16 weight, 4 for the gradient, 12 for the fp32
# weight and Adam's two moments. 7 billion times 18 is about 126 GB, before activations. I can divide the layers
# (pipeline), each layer (tensor), or the optimizer state and more over data-parallel ranks (ZeRO). A pipeline
# usually sends least: at each cut the activations of a microbatch and, on the way back, their gradient.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add activations: what a layer keeps from forward to backward grows with tokens × width, about 32 bytes for each number
# of the input in a plain GPT block, unless recomputed. A pipeline divides weights, gradients and optimizer by p; on the
# first rank the activations of 1F1B stay about those of the whole model for one microbatch.
#
# What moves: data parallelism all-reduces gradients once a step, 2·(d − 1)/d of their bytes from each rank. Tensor
# parallelism all-reduces activations four times a layer, for each microbatch, so it needs the fastest link. A pipeline
# sends point to point, 2 × rows × width numbers at each cut.
#
# At a cut by hand: the sender sends detached numbers; the receiver must set requires_grad on what arrives, run
# backward, and send `.grad` back; the sender calls `h.backward(gradient)`. Forget requires_grad and nothing fails, but
# the earlier stages never learn.
# </details>
#
# ## Exit questions
#
# **1.** Training runs, the loss is right at step 1 and then falls far too slowly; the first stage's weights never
# change. Where do you look?
#
# <details><summary>Answer</summary>
#
# At the cut: the received activation does not require a gradient, so none came back (or zeros were sent).
# </details>
#
# **2.** You double the batch. What happens to the bytes at a cut, and to those of the gradients' all-reduce?
#
# <details><summary>Answer</summary>
#
# At a cut they double; the all-reduce stays as it is.
# </details>
#
# **3.** Which of the 18 bytes does ZeRO stage 1 divide over data-parallel ranks?
#
# <details><summary>Answer</summary>
#
# The 12 of the optimizer: fp32 weights and both moments. Then a parameter needs 6 + 12/d bytes on each rank.
# </details>
#
# ## Sources
#
# - NVIDIA, *Megatron Core user guide*, "Distributed optimizer": 18 bytes a parameter for bf16 weights and fp32
#   gradients, 6 + 12/d when the optimizer is divided over d ranks.
# - Narayanan et al. 2021, *Efficient large-scale language model training on GPU clusters using Megatron-LM*, §2.3 and
#   §3.2: tensor parallelism, and what both send.
# - NVIDIA, *nccl-tests*, PERFORMANCE.md: the factor 2·(n − 1)/n of an all-reduce.
