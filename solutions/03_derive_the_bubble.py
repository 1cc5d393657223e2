# %% [markdown]
# # 03 · Derive the bubble
#
# After this lesson you can
#
# - **find** the idle time of any rank on any timeline, and say what the rank waits for;
# - **derive** how long a step takes, and from it the four numbers that people mix up;
# - **choose** the number of microbatches, and say what stops you from taking more.
#
# **You need** PyTorch, no GPU, and one idea: a *microbatch* is a part of the batch. The gradients of all microbatches
# are added up before one optimizer step, so that the result is that of the whole batch. **Time** 55 minutes.
#
# | letter | meaning |
# |---|---|
# | p | ranks; each holds one stage of the model |
# | m | microbatches in a step |
# | t_f, t_b | how long F (forward) and B (backward) of one microbatch take on one rank |
#
# All formulas here are for stages that take equally long and messages that take no time.

# %%
import ppcourse as pp

# %% [markdown]
# ## Predict
#
# GPipe runs all forwards, then all backwards. Take p = 4 and m = 6, and let F and B take one slot each.
#
# ```
# rank 0  F0 F1 F2 F3 F4 F5 …
# rank 1  .. F0 F1 …
# rank 2  …
# rank 3  …
# ```
#
# **How many slots pass from the first start to the last end?** Finish the drawing on paper if you like.
# Then type the number: you remember a correction better if you wrote your guess down.

# %%
slots = 18  # solution
pp.predict("3.A", slots)

# %% [markdown]
# ## Run it in the simulator
#
# `pp.Costs` says how long actions last. B is given in two halves, the gradient of the input and the gradient
# of the weights; lesson 06 takes them apart. `pp.simulate` starts each action as soon as its rank is free and
# its input is there. One column is one slot; `..` is a slot in which a rank does nothing.

# %% tags=["nbval-check-output"]
slot = pp.Costs(forward=1, input_grad=0.5, weight_grad=0.5)
gpipe = pp.simulate(pp.build("gpipe", p=4, m=6), slot)
print(pp.gantt_text(gpipe))
print(f"\n{gpipe.makespan:g} slots; you predicted {pp.prediction('3.A')}")

# %% [markdown]
# The same as a picture. The grey is the **bubble**: time in which a rank waits. Look along one row at a time.
# Is there as much grey in each of them? Is it in the same place?

# %%
pp.gantt(gpipe)

# %% [markdown]
# ### Exercise 3.1 · Where is it? · ★★ · 8 minutes
#
# Split a rank's idle time into three parts: before its first action, between its actions, after its last.
# A timeline knows its `start` and `end` and `idle[rank]`; `by_rank[rank]` holds the rank's spans in order,
# each with a `start` and an `end`. A timeline need not start at 0. Your function will then read measured ones too.
#
# <details><summary>Hint 1</summary>
#
# The first span of the row ends the first part, and the last span begins the third.
# </details>
#
# <details><summary>Hint 2</summary>
#
# You need no loop for the middle: you know all idle time, and two of its three parts.
# </details>


# %%
def idle_parts(timeline: pp.Timeline, rank: int) -> tuple[float, float, float]:
    """Idle time of `rank` before its first action, between its actions, and after its last."""
    # solution
    row = timeline.by_rank[rank]
    before, after = row[0].start - timeline.start, timeline.end - row[-1].end
    return before, timeline.idle[rank] - before - after, after
    # end solution


located = pp.grade("3.1", idle_parts)

# %% [markdown]
# Your function on the timeline above, in slots. Read the last row first.

# %% tags=["nbval-check-output"]
if located:
    print("rank  before  between  after   sum")
    for rank in range(4):
        before, between, after = idle_parts(gpipe, rank)
        print(f"{rank:4} {before:7g} {between:8g} {after:6g} {gpipe.idle[rank]:5g} of {gpipe.makespan:g}")

# %% [markdown]
# **Explain.** In two or three sentences of your own: what does the last rank wait for at each end? What does
# rank 0 wait for in the middle? Why is the sum the same on every rank?
#
# *(double-click and write here)*

# %% [markdown]
# <details><summary>One good answer</summary>
#
# The last rank waits while microbatch 0 passes the p − 1 ranks before it: (p − 1)·t_f. After its last B it has
# nothing left to do, while that gradient passes the same ranks on its way back: (p − 1)·t_b. Rank 0 begins the
# step and ends it, so all its idle time lies inside: after its last F it waits until that microbatch has
# reached the last rank and the first gradient has come back. The sum is the same because every rank does the
# same work, m·(t_f + t_b), in the same makespan.
# </details>

# %% [markdown]
# ## Run it on real ranks
#
# Now four processes, each with a layer of a real model. You may not have four idle cores, so the runs are
# **paced**: an action does its work (tensors, autograd, messages) and then sleeps until its nominal time is
# over. Noise only ever adds time, so we keep the best of three steps.

# %%
import torch
from torch import nn

layers = [nn.Linear(256, 256) for _ in range(4)]
x, y = torch.randn(64, 256), torch.randn(64, 256)


def real_step(p: int, m: int, pace: pp.Costs) -> pp.Timeline:
    """The best of three GPipe steps on p processes."""
    options = {"loss_fn": nn.functional.mse_loss, "p": p, "m": m, "pace": pace}
    steps = [pp.run("gpipe", layers, x, y, **options).timeline for _ in range(3)]
    return min(steps, key=lambda step: step.makespan)


# %% [markdown]
# This time m = 8, and B takes twice as long as F: 10 and 20 ms. Nothing in your explanation needed them to be
# equal. The measured step is a little longer than the predicted one, because real messages take time.

# %%
costs = pp.Costs(forward=0.010, input_grad=0.010, weight_grad=0.010)
predicted = pp.simulate(pp.build("gpipe", p=4, m=8), costs)
measured = real_step(4, 8, costs)
print(f"predicted {predicted.makespan * 1e3:.0f} ms, measured {measured.makespan * 1e3:.0f} ms (paced)")
assert measured.makespan > 0.99 * predicted.makespan

# %% [markdown]
# Predicted above, measured below, on one time axis. Both rows of each rank show the same pattern, if your
# machine is not too busy: a long wait on the left and on the right of rank 3, one wait in the middle of rank 0.

# %%
pp.gantt(predicted, measured, overlay=True)

# %% [markdown]
# Idle time on each rank, in ms: the closed form (p − 1)(t_f + t_b), the simulator's, and the measured one.
# Then your function on the **measured** row of the last rank: (p − 1)·t_f before, (p − 1)·t_b after.

# %%
print(f"formula   {pp.formulas.bubble_time(4, 10, 20):.0f} on every rank")
print("simulated", *[f"{1e3 * idle:.0f}" for idle in predicted.idle])
print("measured ", *[f"{1e3 * idle:.0f}" for idle in measured.idle], "(paced)")
if located:
    print("rank 3: before, between, after", *[f"{1e3 * part:.0f}" for part in idle_parts(measured, 3)])

# %% [markdown]
# ### Exercise 3.2 · How long is a step? · ★★ · 8 minutes
#
# Walk along the last rank. Its row has four pieces, and it never waits inside the middle two. Add them up.
#
# ```
#              ?             F F F … F       B B B … B             ?
#        |-----------------|-----------|-------------------|-----------------|
# ```
#
# <details><summary>Hint</summary>
#
# Set m = 1. The microbatch visits p ranks on its way there and p ranks on its way back: p·t_f + p·t_b. Each
# further microbatch adds one F and one B on the last rank.
# </details>


# %%
def step_time(p: int, m: int, t_f: float, t_b: float) -> float:
    """The time of a GPipe step, from the first start to the last end."""
    # solution
    return (p - 1) * t_f + m * t_f + m * t_b + (p - 1) * t_b
    # end solution


derived = pp.grade("3.2", step_time)

# %% [markdown]
# <details><summary>The formula, and when it holds</summary>
#
# ```
#           (p − 1)·t_f     m·t_f           m·t_b            (p − 1)·t_b
#        |-----------------|-----------|-------------------|-----------------|
# ```
#
# Together (m + p − 1)(t_f + t_b): m slots of work and p − 1 of bubble, each one F and one B long. It is exact
# for equal stages and free messages, and 1F1B has the same step time under the same conditions (lesson 04).
# </details>
#
# A table that textbooks print, with t_f = t_b = 10 ms. The first column of times comes from your formula (from
# the package's until 3.2 is solved), the second from the simulator. Efficiency is the share of time at work.

# %% tags=["nbval-check-output"]
formula = step_time if derived else pp.formulas.step_time
sizes = [(2, 1), (2, 4), (4, 1), (4, 8), (4, 16)]
print("p  m  formula  simulated  efficiency")
for p, m in sizes:
    t = pp.simulate(pp.build("gpipe", p=p, m=m), pp.Costs(10, 5, 5))
    print(f"{p} {m:2} {formula(p, m, 10, 10):5.0f} ms {t.makespan:7.0f} ms {1 - t.bubble_rate:10.1%}")

# %% [markdown]
# The third way: the same five steps on real ranks, paced, and how far each is from the formula. If yours are
# far off, something else keeps the cores busy.

# %%
ten = pp.Costs(forward=0.010, input_grad=0.005, weight_grad=0.005)
for p, m in sizes:
    ms = 1e3 * real_step(p, m, ten).makespan
    print(f"p = {p}, m = {m:2}: {ms:4.0f} ms, {ms / formula(p, m, 10, 10) - 1:+5.1%}")
    assert ms > 0.99 * formula(p, m, 10, 10)

# %% [markdown]
# ## Four numbers that people mix up
#
# | number | what it divides | other names |
# |---|---|---|
# | bubble **overhead** | idle ÷ busy | Megatron-LM: "bubble time fraction" |
# | bubble **rate** | idle ÷ all | GPipe: "bubble overhead" (!) |
# | **speed-up** | time of one rank that does everything ÷ time of the pipeline | |
# | **efficiency** | busy ÷ all | utilisation |
#
# ### Exercise 3.3 · Tell them apart · ★★ · 6 minutes
#
# Write all four in p and m alone, as fractions, not per cent.
#
# <details><summary>Hint</summary>
#
# Take your step time with t_f + t_b = 1. Busy is m, idle p − 1, all m + p − 1. One rank alone needs p·m.
# </details>


# %%
def four_numbers(p: int, m: int) -> tuple[float, float, float, float]:
    """Bubble overhead, bubble rate, speed-up, efficiency."""
    # solution
    slots = m + p - 1
    return (p - 1) / m, (p - 1) / slots, p * m / slots, m / slots
    # end solution


pp.grade("3.3", four_numbers)

# %% [markdown]
# The simulator's, counted from its spans and not from a formula. In the row p = 4, m = 8, 37.5% and 27.3% are
# **one bubble**: the overhead compares it with the work, the rate with everything. One gives the other:
# rate = overhead ÷ (1 + overhead). So before you compare two numbers, ask which one each of them is.

# %% tags=["nbval-check-output"]
print("p  m  overhead  rate   speed-up  efficiency")
for p, m in [(4, 4), (4, 6), (4, 8), (4, 16), (8, 8)]:
    t = pp.simulate(pp.build("gpipe", p=p, m=m), slot)
    busy = sum(t.busy) / t.makespan  # ranks at work, on average; one rank alone would take sum(t.busy)
    print(f"{p} {m:2} {t.bubble_overhead:8.1%} {t.bubble_rate:6.1%} {busy:8.2f} {busy / p:10.1%}")

# %% [markdown]
# And from the real step of p = 4, m = 8 that you measured above. It lies a little over the formula.

# %%
print(f"measured (paced): overhead {measured.bubble_overhead:.1%}, rate {measured.bubble_rate:.1%}")
assert measured.bubble_rate > 0.99 * pp.formulas.bubble_rate(4, 8)

# %% [markdown]
# ## How long is B really?
#
# t_f and t_b are in none of the four: both idle and busy time are a multiple of t_f + t_b, which cancels. A
# longer B makes the bubble longer in seconds and leaves its share as it is.

# %% tags=["nbval-check-output"]
plan = pp.build("gpipe", p=4, m=8)
longer = [pp.simulate(plan, pp.Costs(1, t_b / 2, t_b / 2)) for t_b in (1, 2, 3)]
for t_b, t in enumerate(longer, 1):
    print(f"t_b = {t_b} t_f: each rank idles {t.idle[0]:2g} t_f, rate {t.bubble_rate:.1%}")

# %% [markdown]
# Drag I and W, the two halves of B (or Tab to a slider and press the arrow keys): the picture grows, the rate stays.

# %%
pp.explore("gpipe", p=4, m=8)

# %% [markdown]
# Still, a drawing should have the right proportions. For each matrix product of the forward, the backward has
# two: one for the gradient of the input, one for that of the weights. Count the floating-point operations of
# an MLP block (its input needs a gradient, like that of every stage but the first).

# %% tags=["nbval-check-output"]
from torch.utils.flop_counter import FlopCounterMode

mlp = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
with FlopCounterMode(display=False) as forward:
    out = mlp(torch.randn(256, 512, requires_grad=True))
with FlopCounterMode(display=False) as backward:
    out.sum().backward()
print(f"B needs {backward.get_total_flops() / forward.get_total_flops():g} times the operations of F")

# %% [markdown]
# Operations are not seconds, so measure, on one core. `process_time` stands still while other programs have the
# core, and the shortest of five counts, so a busy machine disturbs little. We use the function again below.

# %%
import time

torch.set_num_threads(1)


def seconds(rows: int) -> tuple[float, float]:
    """How long F and B of the MLP take for so many rows."""
    forward, backward = [], []
    for _ in range(5):
        began = time.process_time()
        out = mlp(torch.ones(rows, 512, requires_grad=True))
        middle = time.process_time()
        out.backward(torch.ones_like(out))
        forward.append(middle - began)
        backward.append(time.process_time() - middle)
    return min(forward), min(backward)


# %%
t_f, t_b = seconds(256)
print(f"F {t_f * 1e3:.1f} ms, B {t_b * 1e3:.1f} ms: t_b is {t_b / t_f:.1f} times t_f")
assert 1 < t_b / t_f < 8

# %% [markdown]
# ## How many microbatches?
#
# ### Exercise 3.4 · Enough, and no more · ★★ · 6 minutes
#
# Your lead wants a bubble **rate** of at most 20% on 4 ranks. Find the fewest microbatches that do it, for any
# p and any target rate.
#
# <details><summary>Hint</summary>
#
# Solve (p − 1) ÷ (m + p − 1) ≤ rate for m, then round up, and never below 1. Or count up from 1 in a loop.
# </details>


# %%
def fewest(p: int, rate: float) -> int:
    """The fewest microbatches with which the bubble rate is at most `rate`."""
    # solution
    m = 1
    while (p - 1) / (m + p - 1) > rate:
        m += 1
    return m
    # end solution


if pp.grade("3.4", fewest):
    print(f"p = 4, at most 20%: m = {fewest(4, 0.20)}; p = 8: m = {fewest(8, 0.20)}")

# %% [markdown]
# Solved for m: m ≥ (p − 1)(1 ÷ rate − 1). For 20% that is 4·(p − 1), a little less than GPipe's advice, 4p: in
# practice, **take m several times p**. The batch sets a limit: m = batch ÷ (data-parallel copies × rows of a
# microbatch).
#
# ## Predict: the price
#
# So why not m = 1000? Think of messages first. A batch is cut into 16 microbatches instead of 4; it stays the
# same batch.
# **How many times as many bytes cross between ranks?**

# %%
times_as_many = 1  # solution
pp.predict("3.B", times_as_many)

# %% [markdown]
# Each microbatch crosses each of the p − 1 cuts twice, as an activation and as a gradient: 2·(p − 1)·m messages.
# We compare with what the plan says and with what four real ranks sent. The tensors of all messages together
# are 2·(p − 1) times the batch, whatever m is; what is more than that are headers, some bytes a message.

# %%
from ppcourse.schedules.channels import channels

tensors = 2 * (4 - 1) * x.nbytes
print(" m  formula  plan  sent  tensor bytes  header bytes")
for m in (1, 4, 16):
    planned = sum(len(channel.sent) for channel in channels(pp.build("gpipe", p=4, m=m)).values())
    run = pp.run("gpipe", layers, x, y, loss_fn=nn.functional.mse_loss, p=4, m=m)
    print(f"{m:2} {2 * 3 * m:8} {planned:5} {run.messages:5} {tensors:13} {run.message_bytes - tensors:13}")
    assert run.messages == planned == 2 * 3 * m
    assert 0 <= run.message_bytes - tensors < 1000 * run.messages

# %% [markdown]
# More messages, the same tensors: the answer is **1**. Bandwidth does not mind; each message's latency is paid once
# more.
#
# The dearer price is inside the ranks. A matrix product over few rows uses the machine badly, so many small ones
# take longer than one large one. Below, one batch of 1024 rows is cut into m parts, with your machine's own
# t_f and t_b for each size; `all F` is what a rank spends on the forwards of the whole batch. The step on
# p = 4 follows from your formula.

# %%
times = {m: seconds(1024 // m) for m in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
steps = {m: formula(4, m, *times[m]) for m in times}
print("  m  rows  all F (ms)   rate  step (ms)")
for m, (t_f, _) in times.items():
    rate = pp.formulas.bubble_rate(4, m)
    print(f"{m:3} {1024 // m:5} {m * t_f * 1e3:11.1f} {rate:6.1%} {steps[m] * 1e3:10.0f}")
assert 256 * times[256][0] > times[1][0]
assert min(steps.values()) < min(steps[1], steps[256])

# %% [markdown]
# The rate falls all the way down; the step gets shorter, then longer again. **The lowest bubble is not the
# fastest step.** Where the best m lies depends on the rows: in a language model a row is a token, and one
# sequence brings thousands, so many microbatches stay efficient.
#
# Three of these steps on one time axis, from your machine's times: one microbatch, the best of the table, 256.
# Grey is waiting, colour is work: at the top the waiting costs most, at the bottom the work does.

# %%
best = min(steps, key=steps.get)
ms = {m: [1e3 * t_f, 1e3 * t_b / 2, 1e3 * t_b / 2] for m, (t_f, t_b) in times.items()}
three = [pp.simulate(pp.build("gpipe", p=4, m=m), pp.Costs(*ms[m])) for m in (1, best, 256)]
pp.gantt(*three, title=f"m = 1, {best} and 256; times in ms")

# %% [markdown]
# ## Say it in an interview
#
# *"Where does the pipeline bubble come from, how big is it, and how do you make it smaller?"* Answer aloud, with
# a clock, before you unfold.
#
# <details><summary>30 seconds</summary>
#
# A rank cannot start before the first microbatch has come through the ranks before it, and at the end gradients
# have to go all the way back. The last rank waits p − 1 forwards at the start and p − 1 backwards at the end,
# and every other rank waits as long in sum. The work is m forwards and backwards, so the overhead is
# (p − 1)/m, and the share of all time (p − 1)/(m + p − 1). More microbatches make it smaller, until they
# are too small to use the GPU well.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add: the assumptions (equal stages, free messages). The step takes (m + p − 1)(t_f + t_b); t_b is about
# 2 t_f, but both cancel. An example with both names: 4 ranks and 8 microbatches, overhead 3/8, rate 3/11,
# efficiency 8/11, speed-up 32/11 instead of 4. For a rate of at most 1/5, m must reach 4·(p − 1).
#
# What limits m: the global batch, since m = batch ÷ (data-parallel copies × microbatch rows); kernels on few
# rows; the latency of 2·(p − 1)·m messages, though not their bytes; and in GPipe memory, as all m microbatches
# are held at once.
#
# Other ways to shrink it: 1F1B does not, at equal m, but holds fewer microbatches, so that m can grow.
# Interleaving divides the overhead by v and pays in messages. Splitting the backward fills idle slots with
# weight gradients. Uneven stages come on top of all this.
# </details>
#
# ## Exit questions
#
# **1.** One colleague says that 4 ranks and 8 microbatches lose 27.3%, another says 37.5%. Who is right?
#
# <details><summary>Answer</summary>
#
# Both. The first divides idle time by all time (rate), the second by busy time (overhead). r = o ÷ (1 + o).
# </details>
#
# **2.** A post says: "efficiency = p·m ÷ (m + p − 1)". How do you see at a glance that this is wrong?
#
# <details><summary>Answer</summary>
#
# For p = 4, m = 8 it is 2.91, and an efficiency cannot exceed 1. It is the speed-up; divide by p.
# </details>
#
# **3.** You go from 4 to 8 ranks and stay at 8 microbatches. What happens to overhead and speed-up, and what
# would have kept the overhead?
#
# <details><summary>Answer</summary>
#
# The overhead goes from 3/8 to 7/8, the speed-up only from 2.91 to 4.27 (last row of the table of 3.3). The
# overhead stays if m grows in proportion to p − 1; then the batch grows too, or the microbatches shrink.
# </details>
#
# ## Sources
#
# - Huang et al. 2019, *GPipe*, §2.3: the bubble as a share of all time, negligible once M ≥ 4K (their m and p).
# - Narayanan et al. 2021, *Efficient large-scale language model training on GPU clusters using Megatron-LM*,
#   §2.2: bubble time (p − 1)(t_f + t_b) and "bubble time fraction" (p − 1)/m; §3.4: the microbatch size that
#   minimises (m + p − 1)(t_f + t_b) when both times depend on it, which is the last table of this lesson.
# - Qi et al. 2024, *Zero bubble pipeline parallelism*, arXiv 2401.10241, §2: why B can be split.
