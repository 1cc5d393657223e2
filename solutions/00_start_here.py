# %% [markdown]
# # 00 · Start here
#
# After this lesson you can
#
# - **say** what your machine can run, and what carries the messages between ranks;
# - **write** a function that sends and receives on real ranks, and measure the link with it;
# - **provoke** a deadlock, read it as one sentence, and repair it.
#
# **You need** PyTorch, no GPU. **Time** 40 minutes.
#
# How a lesson works: you *predict* a number, *run* it, look at a picture, and *explain* it in your own words before you
# unfold an answer. Exercises check themselves: `○` not solved yet, `✗` and one sentence with the smallest case that
# fails, `✓` solved. Every cell runs, solved or not.

# %%
import os
import time

import torch
import torch.distributed as dist

import ppcourse as pp

# %% [markdown]
# ## What can this machine do?
#
# `pp.doctor()` looks around. **Link** is what carries messages between the p ranks of a `pp.run`. The last column says
# how far you may believe measured times: when more ranks than cores share a machine, they get into each other's way.

# %%
pp.doctor()

# %% [markdown]
# ## A rank is a process
#
# A **rank** is one process of a parallel program, and also the number of that process: with p ranks, 0 to p − 1. On a
# cluster each rank has a GPU. `pp.on_ranks` starts p processes, calls your function in each of them with the rank's
# number, and gives back what they return. What they print is shown rank by rank.


# %%
def who(rank: int) -> int:
    print(f"{dist.get_world_size()} ranks, and I am number {rank}")
    return os.getpid()


processes = pp.on_ranks(who, p=4)
print(f"{len(set(processes))} processes, and none of them is the notebook's: {os.getpid() not in processes}")
assert len({*processes, os.getpid()}) == 5

# %% [markdown]
# In a script you would start them with `torchrun --nproc-per-node 4 script.py`, and each of them would call
# `dist.init_process_group`. Here this is done already, and the ranks end with the call.
#
# ## Predict: what do ranks share?
#
# Below, a list is made in the notebook, and each of four ranks adds its number plus one to what is in it:
# 1, 2, 3 and 4. **What is `counter[0]` in the notebook afterwards?**

# %%
afterwards = 0  # solution
pp.predict("0.A", afterwards)

# %% tags=["nbval-check-output"]
counter = [0]


def add(rank: int) -> int:
    counter[0] += rank + 1
    return counter[0]


print("on the ranks   ", *pp.on_ranks(add, p=4))
print("in the notebook", counter[0], "- you predicted", pp.prediction("0.A"))

# %% [markdown]
# **Explain.** Where did the four additions go?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# Each process has memory of its own. The function travelled to the ranks with a *copy* of all that it refers to, here
# the list, and each rank added to its own copy. Ranks share nothing: what one of them is to know, another has to send.
# All of parallel training is about what is sent, when, and who waits for it.
# </details>
#
# ## Messages
#
# Your own messages go over *gloo*, a library that sends tensors from process to process. `dist.send(tensor, to)` sends,
# `dist.recv(tensor, from_)` fills a tensor that you have made: the receiver must know shape and dtype beforehand. Each
# send needs one receive on the other side.


# %% tags=["nbval-check-output"]
def hand_over(rank: int) -> list[float]:
    box = torch.zeros(3)
    if rank == 0:
        dist.send(torch.tensor([1.0, 2.0, 3.0]), 1)
    else:
        dist.recv(box, 0)
    return box.tolist()


print("the box on rank 0, on rank 1:", *pp.on_ranks(hand_over))

# %% [markdown]
# ### Exercise 0.1 · Ping-pong · ★ · 6 minutes
#
# Rank 0 has a ball, a tensor. In each round it sends the ball to rank 1; rank 1 adds 1 to it and sends it back. Both
# ranks return the ball at the end. Rank 1 is given a tensor of zeros as large as the ball, to receive into.
#
# ```
# rank 0   send ─┐          ┌─► recv   send ─┐  …
#                ▼          │                ▼
# rank 1        recv  + 1  send             recv  …
# ```
#
# <details><summary>Hint 1</summary>
#
# `if rank == 0:` two lines for a round, `else:` three. In what order does each rank send and receive?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `ball += 1` changes the tensor in place, so that you can receive into it again.
# </details>


# %%
def ping_pong(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    """Play `rounds` rounds between rank 0 and rank 1; returns the ball."""
    # solution
    for _ in range(rounds):
        if rank == 0:
            dist.send(ball, 1)
            dist.recv(ball, 1)
        else:
            dist.recv(ball, 0)
            ball += 1
            dist.send(ball, 0)
    return ball
    # end solution


played = pp.grade("0.1", ping_pong)

# %% [markdown]
# ## Measure the link with it
#
# A message is half a round. Your function measures how long one takes, for balls from one number to four million
# (16 MB). Noise only ever adds time, so the best of twenty counts.

# %%
SIZES = [4**n for n in range(12)]


def message_times(rank: int) -> list[float]:
    """Seconds for a message of each size."""
    balls, best = [torch.ones(size) for size in SIZES], [1.0] * len(SIZES)
    for _ in range(20):
        for n, ball in enumerate(balls):
            began = time.perf_counter()
            ping_pong(rank, ball, 2)
            best[n] = min(best[n], (time.perf_counter() - began) / 4)
    return best


# %%
if played:
    seconds = pp.on_ranks(message_times, timeout=25)[0]
    for size, took in list(zip(SIZES, seconds, strict=True))[1::2]:
        print(f"{4 * size:10,} bytes: {took * 1e6:8,.0f} µs")
    assert seconds[-1] > 3 * min(seconds)

# %% [markdown]
# The same as a picture, both axes logarithmic.

# %%
import matplotlib.pyplot as plt

if played:
    figure, axes = plt.subplots(figsize=(7, 3))
    axes.loglog([4 * size for size in SIZES], [took * 1e6 for took in seconds], "o-")
    axes.axhline(min(seconds) * 1e6, ls="--", color="gray", label="latency: what even a small message takes")
    axes.set(xlabel="bytes", ylabel="µs for a message", title="one message between two ranks (measured)")
    axes.legend()
    plt.show()

# %% [markdown]
# In words: up to some kilobytes all messages take about as long, and from then on the time grows with the bytes. Two
# numbers describe a link. **Latency** is what even the smallest message takes; **bandwidth** is how many bytes a second
# go through once messages are large.

# %%
if played:
    print(f"latency about {min(seconds) * 1e6:.0f} µs, bandwidth about {4 * SIZES[-1] / seconds[-1] / 1e9:.1f} GB/s")

# %% [markdown]
# (Your function also adds 1 to each number, so the link alone is a little faster. Between GPUs it is another world:
# NVLink carries hundreds of gigabytes a second.)
#
# ## When nobody comes
#
# `dist.send` over gloo returns only when the other rank has come to its receive. So two ranks can wait for each other
# for ever: a **deadlock**. Elsewhere you would see nothing for up to half an hour. Here a call has a time limit, and
# says in one sentence who stands where.
#
# ### Exercise 0.2 · Provoke one · ★ · 5 minutes
#
# Write a function with which both ranks wait for each other. Each may send one message and receive one, and **no
# message may lack its receive**: in another order, the same calls would end.
#
# <details><summary>Hint</summary>
#
# Both ranks may run the very same two lines, with `other = 1 - rank`.
# </details>


# %%
def deadlock(rank: int) -> None:
    """Two ranks that wait for each other for ever."""
    # solution
    other = 1 - rank
    dist.send(torch.ones(3), other)
    dist.recv(torch.zeros(3), other)
    # end solution


hangs = pp.grade("0.2", deadlock)

# %% [markdown]
# Now read it. Your function again, with two seconds to end:

# %%
try:
    pp.on_ranks(deadlock, timeout=2)
except pp.RankError as error:
    print(error)

# %% [markdown]
# **Explain.** Who waits for what? Why does a longer time limit not help?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# Each rank stands in its first call, which ends only when the other rank begins its second call; and that comes after
# its first. The waiting goes round in a circle, so no time is long enough. If both *send* first, the receives are there
# but never reached; if both *receive* first, nobody ever sends.
#
# NCCL, the library between GPUs, has the same rule: sends and receives that have to get on at the same time must be put
# into one group, or be ordered so that they match.
# </details>
#
# ### Exercise 0.3 · Repair it · ★★ · 6 minutes
#
# Two ranks exchange tensors: each has `mine`, and returns the other's. Neither may hang, and neither may lose what it
# has still to send.
#
# <details><summary>Hint: three ways</summary>
#
# Let rank 0 send first and rank 1 receive first. Or start the send with `job = dist.isend(...)`, which returns at once,
# and `job.wait()` after the receive. Or hand both to `dist.batch_isend_irecv([dist.P2POp(...), ...])` and wait for all
# that it returns.
# </details>


# %%
def exchange(rank: int, mine: torch.Tensor) -> torch.Tensor:
    """Give `mine` to the other rank; returns what that one had."""
    # solution
    other, theirs = 1 - rank, torch.empty_like(mine)
    sending = dist.isend(mine, other)
    dist.recv(theirs, other)
    sending.wait()
    return theirs
    # end solution


repaired = pp.grade("0.3", exchange)

# %% tags=["nbval-check-output"]
if repaired:
    swapped = pp.on_ranks(lambda rank: exchange(rank, torch.full((2,), float(rank))))
    print("rank 0 had 0s and has", swapped[0].tolist(), "- rank 1 had 1s and has", swapped[1].tolist())

# %% [markdown]
# ## Words and letters
#
# A pipeline is a plan for such messages. The words that all lessons use:
#
# | word | meaning |
# |---|---|
# | stage | one slice of the model, from 0 in the order in which data flow |
# | microbatch | one part of the batch, from 0 |
# | F, B | forward and backward of one microbatch through one stage |
# | `2F0` | stage 2, forward, microbatch 0 |
# | p, m, v | ranks in the pipeline, microbatches in a step, stages on each rank (1 until lesson 05) |
# | bubble | the time in which ranks wait |
#
# A plan says what each rank does, in which order; one row a rank. This one is called 1F1B (lesson 04):

# %% tags=["nbval-check-output"]
plan = pp.build("1f1b", p=2, m=4)
print(plan)

# %% [markdown]
# On rank 0, `0F0` makes what rank 1 needs for `1F0`: a message. `1B0` makes a gradient that rank 0 needs for `0B0`: a
# message back. The picture shows when each action runs if B takes twice as long as F. Its **makespan** is the time from
# the first start to the last end; the bubble beside it gets its two measures in lesson 03. The boxes leave the stage
# out, since here rank and stage are the same number.

# %%
pp.gantt(pp.simulate(plan))

# %% [markdown]
# What if each send waited for its receive, as yours did in 0.2? `pp.blocking` goes through the plan that way.

# %% tags=["nbval-check-output"]
print(pp.blocking(plan).message)

# %% [markdown]
# It is your deadlock, in a pipeline: both neighbours want to send. Real pipelines repair it as you did, with sends that
# do not wait, or with pairs of send and receive in one group. `pp.run` does so too. It runs any plan on real ranks, and
# the result is that of one process without a pipeline:

# %%
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
x, y = torch.randn(16, 8), torch.randn(16, 8)
task = {"model": model, "inputs": x, "targets": y, "loss_fn": torch.nn.functional.mse_loss}
pace = pp.Costs(forward=0.010, input_grad=0.010, weight_grad=0.010)
result, alone = pp.run(plan, **task, pace=pace), pp.reference_step(**task)
print(f"loss on two ranks {result.loss:.6f}, in one process {alone.loss:.6f}, {result.messages} messages")
assert abs(result.loss - alone.loss) < 1e-5

# %% [markdown]
# `pace=` made each F last 10 ms and each B 20 ms: an action does its work and sleeps for the rest of that time, so that
# you see a pipeline's true shape on any machine. Predicted above, measured below:

# %%
pp.gantt(pp.simulate(plan, pace), result.timeline, overlay=True)

# %% [markdown]
# In words: the same order, and waits that are a little longer, for real messages take time.
#
# And a plan that cannot work is refused before any process starts. Here rank 1 wants microbatch 1 first, which rank 0
# sends only after it has microbatch 0 back:

# %% tags=["nbval-check-output"]
wrong = pp.Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", name="wrong")
print(pp.validate(wrong)[0].message)

# %% [markdown]
# ## In three languages
#
# Interviews on this are held in English, 中文 and Русский. The words you will meet first; all others are in the
# [glossary](../docs/glossary.md), and what B, chunk or "bubble" mean in other people's code and papers is in
# [notation](../docs/notation.md).
#
# | English | 中文 | Русский |
# |---|---|---|
# | pipeline parallelism | 流水线并行 | конвейерный параллелизм |
# | rank | 进程编号（rank） | ранг (процесс) |
# | stage | 流水线阶段 | стадия конвейера |
# | microbatch | 微批次 | микробатч |
# | forward pass | 前向传播 | прямой проход |
# | backward pass | 反向传播 | обратный проход |
# | activation | 激活值 | активация |
# | gradient | 梯度 | градиент |
# | bubble | 气泡 | пузырь |
# | deadlock | 死锁 | взаимная блокировка |
# | latency | 延迟 | задержка |
# | bandwidth | 带宽 | пропускная способность |
#
# ## Say it in an interview
#
# *"Your two ranks exchange tensors and the job hangs. Why, and what do you do?"* Answer aloud, with a clock, before you
# unfold.
#
# <details><summary>30 seconds</summary>
#
# Most likely both ranks send first, or both receive first, and each call waits for its partner: a circle of waiting. I
# look where every rank stands, not only one. Then I either order the calls so that they match (one side sends first,
# the other receives first), or I post them without waiting (`isend`, `irecv`), or in one group
# (`batch_isend_irecv`), and wait for all of them afterwards.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add: the other causes. A message without a partner, since one rank took another branch or stopped with an error; then
# only *some* ranks wait, and the cause stands on the one that does not. A different number of microbatches on two
# ranks. A collective that not all ranks join. Shapes that differ give an error with gloo, and may hang with NCCL.
#
# Whether a send waits is up to the library. With gloo it waits for the receive. With NCCL the call returns at once, and
# the GPU's stream waits instead: the program hangs later, at the first synchronisation, which is harder to read.
#
# In a pipeline, 1F1B has neighbours that want to send to each other at the same moment, an activation down and a
# gradient up. So a runtime pairs the two, and a plan can be checked for circles before it runs.
# </details>
#
# ## Exit questions
#
# **1.** Eight ranks run `total += 1` for a global `total`. What is it on rank 3 afterwards, if it was 0?
#
# <details><summary>Answer</summary>
#
# 1\. Each process has its own. A sum over ranks is a message of its own (`dist.all_reduce`).
# </details>
#
# **2.** A thousand messages of 4 bytes, or one of 4,000: which is faster, and which number of the link says so?
#
# <details><summary>Answer</summary>
#
# The one: it pays the latency once instead of a thousand times. Bandwidth hardly matters at these sizes.
# </details>
#
# **3.** In a hang, rank 0 waits in `recv` from rank 1, and rank 1 has returned. Is this a deadlock?
#
# <details><summary>Answer</summary>
#
# No circle: nobody waits for rank 0. Rank 1 never sent; look for the branch it took instead.
# </details>
#
# ## Sources
#
# - PyTorch, *Distributed communication package*: `send`, `recv`, `isend`, `batch_isend_irecv`.
# - NVIDIA, *NCCL user guide*, "Point-to-point communication": calls that need to progress at the same time belong into
#   one group.
# - The plan's text form, `2F0`, is that of `torch.distributed.pipelining`.
