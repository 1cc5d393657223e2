# %% [markdown]
# # 05 · Interleave
#
# After this lesson you can
#
# - **build** the interleaved order of any rank, and run it on real ranks;
# - **derive** what it saves in bubble, and what it costs in messages and memory;
# - **choose** the number of stages a rank, and find the link on which interleaving loses.
#
# **You need** the bubble (lesson 03) and 1F1B (lesson 04); no GPU. **Time** 60 minutes.
#
# | letter | meaning |
# |---|---|
# | p, m | ranks; microbatches in a step |
# | v | stages a rank. A rank's stages are its *chunks* 0 … v − 1 |
# | t_f, t_b | how long F and B of one microbatch take for **all** layers of a rank |
# | `2F3` | stage 2, forward, microbatch 3; there are p·v stages, in the order of the data |

# %%
import torch
from torch import nn

import ppcourse as pp

# %% [markdown]
# ## Predict
#
# With p = 4, m = 8 and t_b = 2·t_f, a step of 1F1B takes 33 t_f: 24 of work and 9 of bubble.
#
# Now each rank's layers are cut in two halves, and the halves lie apart: rank 0 gets stages 0 and 4, rank 1 stages 1
# and 5, and so on. A microbatch comes round twice. All work stays, in twice as many actions of half the length. **How
# long does the step take, in t_f?**

# %%
took = 28.5  # solution
pp.predict("5.A", took)

# %% [markdown]
# ## Who holds what
#
# Stage s lives on rank s mod p: stages are dealt round the ranks, v times.
#
# ### Exercise 5.1 · Deal the layers · ★ · 5 minutes
#
# Which layers does a rank hold? Layers are numbered from 1, and each stage has equally many, neighbours in the model.
#
# <details><summary>Hint</summary>
#
# There are p·v stages of num_layers ÷ (p·v) layers. Rank r holds stages r, p + r, 2p + r, …
# </details>


# %%
def layers_of(rank: int, p: int, v: int, num_layers: int) -> list[int]:
    """The numbers of the layers that `rank` holds, counted from 1."""
    # solution
    each = num_layers // (p * v)
    stages = [chunk * p + rank for chunk in range(v)]
    return [stage * each + n for stage in stages for n in range(1, each + 1)]
    # end solution


dealt = pp.grade("5.1", layers_of)

# %% [markdown]
# Now ask real ranks. Each of 24 layers stamps what passes through it with the number of its rank, as in a passport,
# and hands it on; p = 3, v = 2.


# %%
class Stamp(nn.Module):
    def forward(self, passport):
        stamp = torch.full((len(passport), 1), torch.distributed.get_rank())
        return torch.cat([passport, stamp], dim=1)


# %%
passports = pp.evaluate("interleaved", [Stamp() for _ in range(24)], torch.zeros(3, 0), p=3, m=3, v=2).outputs
print("a passport:", *passports[0].int().tolist())
for rank in range(3):
    there = [layer for layer, home in enumerate(passports[0], start=1) if home == rank]
    print(f"rank {rank} ran layers {there}")
    assert not dealt or there == sorted(layers_of(rank, 3, 2, 24))

# %% [markdown]
# ## Run it in the simulator
#
# Costs are per *stage*, so to compare different v, divide by v.


# %% tags=["nbval-check-output"]
def costs(v, hop=0.0, t=1.0):
    """F of a rank takes t, B twice as long; shared among v stages."""
    return pp.Costs(t / v, t / v, t / v, comm=hop)


def step(name, p=4, m=8, v=1, hop=0.0):
    plan = pp.build(name, p=p, m=m, v=v)
    return pp.simulate(plan, costs(v, hop))


plain, twice = step("1f1b"), step("interleaved", v=2)
print(f"1F1B {plain.makespan:g}, v = 2: {twice.makespan:g}; you predicted {pp.prediction('5.A')}")

# %%
pp.gantt(plain, twice)

# %% [markdown]
# In words: rank 3 gets its first input after 1.5 instead of 3 t_f. Each rank first runs its earlier chunk for four
# microbatches, then its later chunk (lighter) for the same four. The grey halves.
#
# **Explain.** Why does it halve, though the work is the same? Look at both ends of rank 3's row.
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# At the start rank 3 waits while microbatch 0 passes p − 1 *stages*, and a stage is now 1/v as long. At the end the
# same holds for the last gradient. In between it has always something to do, because while one microbatch goes round,
# p − 1 others keep the ranks busy. So the bubble is (p − 1)(t_f + t_b)/v, and the overhead (p − 1)/(v·m).
# </details>
#
# The formula three ways. Closed form against simulator, for stages that take equally long, free hops, and m a
# multiple of p:

# %% tags=["nbval-check-output"]
for p, m, v in [(4, 8, 1), (4, 8, 2), (4, 8, 4), (8, 32, 4)]:
    simulated = step("interleaved", p, m, v).bubble_overhead if v > 1 else step("1f1b", p, m).bubble_overhead
    print(f"p = {p}, m = {m:2}, v = {v}: formula {pp.formulas.bubble_overhead(p, m, v):.1%}, simulated {simulated:.1%}")

# %% [markdown]
# And real ranks: 16 layers, in double precision, on four processes. The runs are **paced** as in lesson 03, with t_f
# = 40 ms, and noise only adds time, so the best of two steps counts.

# %%
torch.manual_seed(5)
blocks = [nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(16)]
x, y = torch.randn(2, 64, 64).double()
task = {"model": nn.Sequential(*blocks).double(), "inputs": x, "targets": y, "loss_fn": nn.functional.mse_loss}


def paced(name, v=1, hop=0.0, t=0.040):
    """The best of two steps; hop in t_f, which is t seconds."""
    pace = costs(v, t * hop, t=t)
    return min((pp.run(name, p=4, m=8, v=v, pace=pace, **task).timeline for _ in range(2)), key=lambda t: t.makespan)


# %%
real = {v: paced("interleaved" if v > 1 else "1f1b", v) for v in (1, 2, 4)}
for v, timeline in real.items():
    formula = pp.formulas.step_time(4, 8, 0.040, 0.080, v)
    print(f"v = {v}: formula {formula:.3f} s, paced {timeline.makespan:.3f} s")
    assert 0.99 < timeline.makespan / formula < 4

# %%
predicted = pp.simulate(pp.build("interleaved", p=4, m=8, v=2), costs(2, t=0.040))
pp.gantt(predicted, real[2], overlay=True)

# %% [markdown]
# ## Build the order
#
# ### Exercise 5.2 · Interleaved 1F1B · ★★★ · 15 minutes
#
# The three loops of 1F1B once more: warm-up, pairs, cool-down. What is new is *which* forward or backward comes next.
#
# - Forwards go in groups of p microbatches. The group passes chunk 0, then chunk 1, … Only then the next group begins.
# - Backwards go in the same groups, the **last** chunk first.
# - The warm-up is 2·(p − 1 − rank) + (v − 1)·p forwards, or all of them if there are not so many.
#
# m is a multiple of p.
#
# <details><summary>Hint 1: two lists</summary>
#
# First make the list of all forwards of the rank and the list of all its backwards, each in its order. Three nested
# loops do it: groups, chunks, the p microbatches of a group.
# </details>
#
# <details><summary>Hint 2: from two lists to one row</summary>
#
# The row begins with the warm-up, cut off the list of forwards. Then take one from each list in turn until there are
# no forwards left; then the backwards that are left.
# </details>
#
# <details><summary>Why is the warm-up so long?</summary>
#
# Rank p − 1 can run its first B once a microbatch has passed all v chunks there: (v − 1)·p forwards of the group in
# the earlier chunks, then one more. Each rank before it hears of that two actions later: one for the way down, one
# for the way up.
# </details>


# %%
def order(rank: int, p: int, m: int, v: int) -> list[str]:
    """The actions of `rank`, as in ["0F0", "0F1", "2F0", …]."""
    # solution
    groups = range(0, m, p)
    down = [f"{c * p + rank}F{g + i}" for g in groups for c in range(v) for i in range(p)]
    back = [f"{c * p + rank}B{g + i}" for g in groups for c in reversed(range(v)) for i in range(p)]
    w = min(m * v, 2 * (p - 1 - rank) + (v - 1) * p)
    pairs = [action for pair in zip(down[w:], back, strict=False) for action in pair]
    return down[:w] + pairs + back[m * v - w :]
    # end solution


built = pp.grade("5.2", order)

# %% [markdown]
# Your order on four real ranks, with two and with four chunks. The gradients must be those of one process without a
# pipeline.

# %%
right = pp.reference_step(**task).grads
for v in (2, 4) if built else ():
    mine = pp.run([order(rank, 4, 8, v) for rank in range(4)], **task)
    assert all(torch.allclose(mine.grads[name], right[name]) for name in right)
    print(f"v = {v}: all {len(right)} gradients equal; held at most", *(f"{n:g}" for n in mine.peak_in_flight))

# %% [markdown]
# ## Predict: the price
#
# In a step of 1F1B with p = 4 and m = 8, each microbatch crosses 3 cuts, there as an activation and back as a
# gradient: 48 messages, all of the same size. **How many with v = 2?**

# %%
sent = 112  # solution
pp.predict("5.B", sent)

# %% [markdown]
# ### Exercise 5.3 · Messages and memory · ★★ · 6 minutes
#
# Write how many messages a step has, and how many microbatches rank 0 holds at most, counted in microbatches of *all*
# its layers: one chunk of a microbatch counts 1/v. m is a multiple of p, and at least 2p.
#
# <details><summary>Hint 1: messages</summary>
#
# How many stages are there, and how many cuts between them? Every cut lies between two ranks, also that between
# stages p − 1 and p.
# </details>
#
# <details><summary>Hint 2: memory</summary>
#
# As in 1F1B: the warm-up, and one forward more before the first backward. These are chunks of microbatches.
# </details>


# %%
def price(p: int, m: int, v: int) -> tuple[float, float]:
    """Messages in a step, and the most microbatches that rank 0 holds."""
    # solution
    return 2 * (p * v - 1) * m, (2 * (p - 1) + (v - 1) * p + 1) / v
    # end solution


priced = pp.grade("5.3", price)

# %% [markdown]
# Your numbers (the package's until 5.3 is solved) beside what four real ranks sent and held. With `memory=True` they
# also count bytes between two actions; we read rank 1, whose input is a message and not the batch.

# %%
metered = {v: pp.run("interleaved", p=4, m=8, v=v, memory=True, **task) for v in (2, 4)}
metered[1] = pp.run("1f1b", p=4, m=8, memory=True, **task)
for v in (1, 2, 4):
    run, held = metered[v], pp.in_flight(pp.build("interleaved" if v > 1 else "1f1b", p=4, m=8, v=v))[0]
    expected = tuple(price(4, 8, v)) if priced and v > 1 else (2 * (4 * v - 1) * 8, held)
    ratio = run.held_bytes[1] / metered[1].held_bytes[1]
    print(f"v = {v}: {run.messages:3} messages, rank 0 holds {run.peak_in_flight[0]:g}; bytes on rank 1 × {ratio:.2f}")
    assert (run.messages, run.peak_in_flight[0]) == expected

# %% [markdown]
# - **Messages** go from p − 1 to p·v − 1 a microbatch and direction. "v times as many" is nearly right.
# - **Memory** goes from p microbatches to 1 + (p − 1)/(p·v) times that. v = 2 costs most; a large v costs less memory
#   and more messages.
#
# A larger example, p = 8 and m = 32:

# %% tags=["nbval-check-output"]
for v in (1, 2, 4):
    plan = pp.build("interleaved" if v > 1 else "1f1b", p=8, m=32, v=v)
    t, held = pp.simulate(plan, costs(v)), pp.in_flight(plan)[0]
    said = f"messages × {(8 * v - 1) / 7:.2f}, rank 0 holds {held:g} (× {held / 8:.2f})"
    print(f"v = {v}: overhead {t.bubble_overhead:5.1%}, {said}")

# %% [markdown]
# ## When messages take time
#
# Every message costs its latency, and now there are more of them. In t_f, for p = 4 and m = 8:

# %%
import matplotlib.pyplot as plt

hops = [n / 20 for n in range(41)]
figure, axes = plt.subplots(figsize=(9, 3))
for (name, v), style in zip([("1f1b", 1), ("interleaved", 2), ("interleaved", 4)], ("-", "--", ":"), strict=True):
    axes.plot(hops, [step(name, v=v, hop=hop).makespan for hop in hops], style, lw=2, label=f"{name}, v = {v}")
axes.set(xlabel="a hop, in t_f", ylabel="step, in t_f", xlim=(0, 2), ylim=(20, 80), title="p = 4, m = 8, t_b = 2 t_f")
axes.legend()
plt.show()

# %% tags=["nbval-check-output"]
for hop in (0, 0.1, 0.5, 1, 1.2, 1.4):
    steps = [step("1f1b", hop=hop), step("interleaved", v=2, hop=hop), step("interleaved", v=4, hop=hop)]
    print(f"hop {hop:3}: 1F1B {steps[0].makespan:5.2f}, v = 2 {steps[1].makespan:5.2f}, v = 4 {steps[2].makespan:5.2f}")

# %% [markdown]
# ### Exercise 5.4 · Where it loses · ★★ · 8 minutes
#
# Find the hop, in t_f, from which on interleaving is slower than 1F1B; to ± 0.01, for any p, m and v. Below it
# interleaving wins, above it loses, so you can halve an interval again and again. `step` above simulates both.
#
# <details><summary>Hint</summary>
#
# Begin with low = 0 and high = 100. Look at the middle: if interleaving is not slower there, the crossing lies above,
# else below. Twenty halvings are plenty.
# </details>


# %%
def crossing(p: int, m: int, v: int) -> float:
    """The hop, in t_f, at which interleaved 1F1B takes as long as 1F1B."""
    # solution
    low, high = 0.0, 100.0
    for _ in range(20):
        middle = (low + high) / 2
        if step("interleaved", p, m, v, middle).makespan <= step("1f1b", p, m, 1, middle).makespan:
            low = middle
        else:
            high = middle
    return low
    # end solution


found = pp.grade("5.4", crossing)

# %% tags=["nbval-check-output"]
if found:
    for p, m, v in [(4, 8, 2), (4, 8, 4), (4, 16, 2), (8, 32, 4)]:
        print(f"p = {p}, m = {m:2}, v = {v}: interleaving loses from a hop of {crossing(p, m, v):.2f} t_f on")

# %% [markdown]
# More chunks lose earlier. A larger m loses later, for 1F1B with its short warm-up also pays for every round trip
# (lesson 04). On real ranks, on both sides of the crossing, paced:

# %%
for hop in (0.5, 2.5):
    for name, v in (("1f1b", 1), ("interleaved", 2)):
        expected, took = 0.030 * step(name, v=v, hop=hop).makespan, paced(name, v, hop, t=0.030).makespan
        print(f"hop {hop}, {name:11}: {took:.2f} s, {expected:.2f} predicted")
        assert 0.99 < took / expected < 4

# %% [markdown]
# ## In bytes and bandwidth
#
# How long *is* a hop? A message of n tokens has 2·n·h bytes (16-bit, hidden size h), whatever v is. Per layer, F
# takes about 24·n·h² operations in products with weights. So a message lasts, in t_f,
#
# operations per second ÷ (12 · h · layers of a rank · bytes per second).
#
# The number of tokens cancels. Wide layers, and many of them on a rank, hide slow links. An A100 at 140 of its 312
# TFLOP/s, one rank = one GPU with 4 layers, h = 4096; bandwidth in each direction. While a message is sent the way is
# taken, and the next one queues: that is what `bandwidth` adds to `comm`.

# %% tags=["nbval-check-output"]
GB = 1e9
links = {"NVLink 3": 300 * GB, "InfiniBand HDR": 25 * GB, "10 Gb Ethernet": 1.25 * GB, "1 Gb Ethernet": 0.125 * GB}
for link, bandwidth in links.items():
    hop = 140e12 / (12 * 4096 * 4 * bandwidth)
    steps = {}
    for v in (1, 2, 4):
        plan = pp.build("interleaved" if v > 1 else "1f1b", p=4, m=8, v=v)
        steps[v] = pp.simulate(plan, pp.Costs(1 / v, 1 / v, 1 / v, size=hop, bandwidth=1)).makespan
    said = ", ".join(f"v = {v}: {steps[v]:5.1f}" for v in steps)
    print(f"{link:15} a message takes {hop:.3f} t_f; step {said}; best v = {min(steps, key=steps.get)}")

# %% [markdown]
# **Choosing v.** It must divide the layers of a rank. Within a node, or over InfiniBand, take it as large as they
# allow; the slower the link, the smaller v, down to 1. Then see whether 1 + (p − 1)/(p·v) times the activations still
# fit. What other projects call it:

# %% tags=["nbval-check-output"]
from ppcourse.schedules.names import elsewhere

for project, asked in elsewhere("interleaved").items():
    print(f"{project.partition(',')[0]}: {asked}")

# %% [markdown]
# In Megatron-LM, then, 24 layers on P = 3 with V = 2 make stages of 4 layers; older versions ask for those 4 instead.
#
# ## When m is no multiple of p
#
# Narayanan et al. require a multiple. Here the plan is that of the next multiple, without the microbatches that are
# not there. It is legal, but look at the bubble:

# %% tags=["nbval-check-output"]
print(" m  1F1B   v = 2  (p − 1)/(v m)  breadth-first, v = 2")
for m in (8, 9, 10, 11, 12):
    shown = [step("1f1b", m=m), step("interleaved", m=m, v=2), step("breadth-first", m=m, v=2)]
    overheads = [f"{t.bubble_overhead:.1%}" for t in shown]
    print(f"{m:2}  {overheads[0]}  {overheads[1]}  {pp.formulas.bubble_overhead(4, m, 2):13.1%}  {overheads[2]}")

# %% [markdown]
# A last group of 1 leaves the ranks without work while that microbatch goes round. **Breadth-first** does not mind:
# all m microbatches pass chunk 0 before chunk 1 begins. Interleaved 1F1B is *depth-first*: it sends p microbatches as
# deep as it can. What each of them costs, m = 8, v = 2:

# %% tags=["nbval-check-output"]
for name in ("interleaved", "breadth-first"):
    times = ", ".join(f"hop {hop}: {step(name, v=2, hop=hop).makespan:.1f}" for hop in (0, 0.1, 1))
    print(f"{name:13} {times}; rank 0 holds {pp.in_flight(pp.build(name, p=4, m=8, v=2))[0]:g}")

# %%
pp.gantt(step("interleaved", v=2, hop=0.5), step("breadth-first", v=2, hop=0.5), title="a hop of 0.5 t_f")

# %% [markdown]
# Breadth-first hides hops: while m − 1 other microbatches pass, a message has time to come round. But it holds all m
# microbatches, as GPipe does. It pays when the weights are sharded: a chunk's weights are needed, and its gradients
# ready, in one stretch.
#
# ## Say it in an interview
#
# *"How does interleaving shrink the bubble, and at what cost?"* Aloud, with a clock, before you unfold.
#
# <details><summary>30 seconds</summary>
#
# Each rank holds v small stages instead of one large one, dealt round-robin. Filling and draining then take p − 1
# small stages, so the overhead falls from (p − 1)/m to (p − 1)/(v·m). The cost: about v times as many messages (p·v −
# 1, not p − 1, a microbatch and direction), and 1 + (p − 1)/(p·v) times the activations. On a slow link it loses.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add an example: p = 8, m = 32, v = 4. Overhead 7/32 = 21.9% falls to 7/128 = 5.5%; messages × 31/7 = 4.4; rank 0
# holds 9.75 instead of 8 microbatches.
#
# The order: groups of p microbatches, chunk after chunk; backward from the last chunk; a warm-up of 2·(p − 1 − r) +
# (v − 1)·p forwards. So m should be a multiple of p.
#
# When it loses: with p = 4, m = 8, v = 2, from a hop of 1.4 t_f on. In bytes, a message takes FLOP/s ÷ (12 · h ·
# layers of a rank · bandwidth) of a forward: a few per cent on InfiniBand, so there only the layers limit v. On
# Ethernet, a small v or none. Breadth-first hides hops and any m, but holds all m microbatches.
# </details>
#
# ## Exit questions
#
# **1.** p = 4, m = 8: "v = 2 brings the bubble from 27.3% to 18.75%." What went wrong?
#
# <details><summary>Answer</summary>
#
# Two definitions. The overhead goes from 37.5% to 18.75%, the rate from 27.3% to 15.8%: it does not halve.
# </details>
#
# **2.** Somebody gives rank 0 layers 1–8 of 24 (p = 3) as two chunks, 1–4 and 5–8. What is the bubble?
#
# <details><summary>Answer</summary>
#
# That of v = 1, at best: a microbatch still visits each rank once, and needs all 8 layers of a rank before the next
# one can begin.
# </details>
#
# **3.** Which v needs most memory?
#
# <details><summary>Answer</summary>
#
# v = 2, among v > 1: 1 + (p − 1)/(p·v) falls with v.
# </details>
#
# ## Sources
#
# - Narayanan et al. 2021, *Efficient large-scale language model training on GPU clusters using Megatron-LM*, §2.2: the
#   interleaved schedule, its bubble, m a multiple of p.
# - Korthikanti et al. 2022, *Reducing activation recomputation in large transformer models*, §4.2.3: its memory.
# - Lamy-Poirier 2023, *Breadth-first pipeline parallelism*.
# - Megatron-LM, `arguments.py`, for the flags; bandwidths and 312 TFLOP/s from the makers' data sheets.
