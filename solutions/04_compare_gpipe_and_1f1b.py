# %% [markdown]
# # 04 · Compare GPipe and 1F1B
#
# After this lesson you can
#
# - **build** the 1F1B order of any rank, and run it on real ranks;
# - **explain** why it takes as long as GPipe, when it takes longer, and what it saves;
# - **choose** between GPipe, 1F1B and recomputation when memory is short.
#
# **You need** the bubble (lesson 03); no GPU. **Time** 55 minutes.
#
# | letter | meaning |
# |---|---|
# | p, m | ranks, each with one stage; microbatches in a step |
# | t_f, t_b | how long F (forward) and B (backward) of one microbatch take on one rank |
# | `2F3` | stage 2, forward, microbatch 3 |

# %%
import torch
from torch import nn

import ppcourse as pp

NAMES = ("gpipe", "1f1b")

# %% [markdown]
# ## Predict: the time
#
# Both schedules cut the batch into m microbatches, send them through p ranks, and update the weights once, when
# all gradients are there. They differ only in the order in which a rank works.
#
# - **GPipe**: all forwards, then all backwards.
# - **1F1B** (one forward, one backward): some forwards to begin with, then a forward and a backward in turn, then the
#   backwards that are left.
#
# With p = 4, m = 6, and one slot for each F and each B, GPipe takes 18 slots. **How many does 1F1B take?**

# %%
slots = 18  # solution
pp.predict("4.A", slots)

# %% [markdown]
# ## Run both in the simulator
#
# One column is one slot; `..` is a slot in which a rank waits.

# %% tags=["nbval-check-output"]
slot = pp.Costs(forward=1, input_grad=0.5, weight_grad=0.5)
grids = {name: pp.simulate(pp.build(name, p=4, m=6), slot) for name in NAMES}
print(*map(pp.gantt_text, grids.values()), sep="\n\n")
print(f"\n1F1B: {grids['1f1b'].makespan:g} slots; you predicted {pp.prediction('4.A')}")

# %%
pp.gantt(*grids.values())

# %% [markdown]
# **Explain.** In two or three sentences: why does the order not change the time? Look at rank 3 first.
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# Rank 3 gets its first input after p − 1 forwards, and from then on it never waits: m forwards and m backwards, in
# whichever order. After its last B, that gradient has p − 1 backwards to go. In both schedules this makes
# (p − 1)·t_f + m·(t_f + t_b) + (p − 1)·t_b = (m + p − 1)(t_f + t_b). On the other ranks the idle slots lie elsewhere,
# but there are as many.
# </details>
#
# Does this hold for more than one picture? The closed form against the simulator, with t_b = 2·t_f:

# %% tags=["nbval-check-output"]
cases = [(name, p, m) for name in NAMES for p in range(1, 7) for m in range(1, 13)]
agree = [pp.simulate(pp.build(name, p, m)).makespan == pp.formulas.step_time(p, m, 1, 2) for name, p, m in cases]
print(f"formula and simulator agree in {sum(agree)} of {len(cases)} plans")

# %% [markdown]
# The figure in the GPipe paper shows the backwards *reversed*, the last microbatch first. Here, as in PyTorch, they run
# in microbatch order. A plan is only rows of actions, so you can write the paper's order and compare:

# %% tags=["nbval-check-output"]
rows = [[f"{r}F{i}" for i in range(6)] + [f"{r}B{i}" for i in reversed(range(6))] for r in range(4)]
drawn = pp.simulate(pp.Schedule.from_rows(rows, name="gpipe as drawn"), slot)
print(f"as drawn {drawn.makespan:g} slots, in microbatch order {grids['gpipe'].makespan:g}")

# %% [markdown]
# ## Run both on real ranks
#
# Four processes, with real tensors, autograd and messages. The model is eight equal layers, two a rank, in double
# precision, so that equal gradients will show as equal.

# %%
torch.manual_seed(4)
layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8)]
model = nn.Sequential(*layers).double()
x, y = torch.randn(2, 64, 64).double()
task = {"model": model, "inputs": x, "targets": y, "loss_fn": nn.functional.mse_loss}

# %% [markdown]
# As in lesson 03 the runs are **paced**: each F lasts 20 ms and each B 40 ms, whatever your machine, and what we
# measure is when the messages really let each action start. Noise only adds time, so the better of two steps counts.


# %%
def real_step(name, pace):
    """The better of two paced steps."""
    steps = [pp.run(name, p=4, m=8, pace=pace, **task).timeline for _ in range(2)]
    return min(steps, key=lambda step: step.makespan)


pace = pp.Costs(forward=0.020, input_grad=0.020, weight_grad=0.020)
paced = {name: real_step(name, pace) for name in NAMES}
formula = pp.formulas.step_time(4, 8, 0.020, 0.040)
print(f"formula {formula:.2f} s; " + ", ".join(f"{name} {t.makespan:.2f} s (paced)" for name, t in paced.items()))
assert all(0.99 < t.makespan / formula < 4 for t in paced.values())

# %%
pp.gantt(*paced.values())

# %% [markdown]
# In words: in GPipe each rank turns from F to B once, and rank 0 waits in one piece. In 1F1B the ranks alternate, and
# rank 0 waits in several pieces. Both end a little after the formula: real messages take time, and other programs too.
#
# ### Exercise 4.1 · Build 1F1B · ★★ · 12 minutes
#
# Three loops make the order of a rank:
#
# 1. **Warm-up**, forwards only. The last rank needs none: it can run B0 right after F0. Each rank before it needs one
#    more than the next.
# 2. **Steady**, a forward and a backward, until there are no forwards left.
# 3. **Cool-down**, the backwards that are left.
#
# Write them. Your order runs on real ranks in the next cell.
#
# <details><summary>Hint 1: the warm-up</summary>
#
# In the grid above, how many forwards does each rank run before its first pair `F B`? Write that with p and rank.
# </details>
#
# <details><summary>Hint 2: the steady part</summary>
#
# After a warm-up of w forwards, pair number i is F of microbatch w + i, then B of microbatch i. How many pairs are
# there?
# </details>
#
# <details><summary>Hint 3: fewer microbatches than ranks</summary>
#
# With p = 4 and m = 1, rank 0 cannot warm up with three forwards.
# </details>


# %%
def order(rank: int, p: int, m: int) -> list[str]:
    """The actions of `rank` in 1F1B, as in ["0F0", "0F1", "0B0", "0B1"]."""
    # solution
    warm_up = min(m, p - 1 - rank)
    actions = [f"{rank}F{i}" for i in range(warm_up)]
    for i in range(m - warm_up):
        actions += [f"{rank}F{warm_up + i}", f"{rank}B{i}"]
    return actions + [f"{rank}B{i}" for i in range(m - warm_up, m)]
    # end solution


built = pp.grade("4.1", order)

# %% [markdown]
# Your order on four ranks, with m = 8, and with m = 2, fewer than ranks. The gradients must be those of one process
# without a pipeline. The ranks also count the microbatches that they hold: F done, B still to come.

# %%
right = pp.reference_step(**task).grads
for m in (8, 2) if built else ():
    mine = pp.run([order(rank, 4, m) for rank in range(4)], **task)
    assert all(torch.allclose(mine.grads[name], right[name]) for name in right)
    print(f"m = {m}: all {len(right)} gradients equal; held at most", *(f"{n:g}" for n in mine.peak_in_flight))

# %% [markdown]
# ## When messages take time
#
# So far messages took no time. Now a hop from rank to rank takes a while, though it keeps neither rank busy.
# In units of t_f, with t_b = 2·t_f, p = 4, m = 8:


# %% tags=["nbval-check-output"]
def step(name, hop, m=8):
    return pp.simulate(pp.build(name, p=4, m=m), pp.Costs(comm=hop))


for hop in (0, 0.1, 1):
    print(f"hop {hop:3}: " + ", ".join(f"{name} {step(name, hop).makespan:.1f}" for name in NAMES))

# %% [markdown]
# 1F1B is slower. With a hop of 1, new gaps appear between its forwards and backwards. Drag the hop to 0 and back,
# then drag m.

# %%
pp.explore("gpipe", "1f1b", p=4, m=8, costs=pp.Costs(comm=1))

# %% [markdown]
# What a small hop adds to the step, divided by that hop, is the number of hops that the step really waits for:

# %% tags=["nbval-check-output"]
for m in (8, 16, 32):
    waits = [(step(name, 0.1, m).makespan - step(name, 0, m).makespan) / 0.1 for name in NAMES]
    print(f"m = {m:2}: GPipe waits for {waits[0]:.0f} hops, 1F1B for {waits[1]:.0f}")

# %% [markdown]
# **Explain.** Why does GPipe's number stay, while 1F1B's grows with m?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# In GPipe, while a message is on its way, the receiver still works on the microbatch before, which was late by the same
# hop. So only the first one is waited for: p − 1 hops on the way there, p − 1 on the way back.
#
# In 1F1B, rank 0 starts microbatch i + p only when microbatch i has come back. So for every p microbatches more the
# step waits for one more round trip of 2·(p − 1) hops: in the table, 12 hops more for 8 microbatches more.
# </details>
#
# On real ranks, with a hop as long as an F, so that the difference stands out from the noise:

# %%
slow = pp.Costs(forward=0.020, input_grad=0.020, weight_grad=0.020, comm=0.020)
due = {name: 0.020 * step(name, 1).makespan for name in NAMES}
took = {name: real_step(name, slow).makespan for name in NAMES}
print(", ".join(f"{name} {took[name]:.2f} s, predicted {due[name]:.2f}" for name in NAMES))
assert all(0.99 < took[name] / due[name] < 4 for name in NAMES)

# %% [markdown]
# ## Predict: the memory
#
# If it is never faster, why does everybody use 1F1B? From its F to its B, a microbatch's activations stay on the rank.
# **With p = 4 and m = 8, how many microbatches does rank 0 hold at most: in GPipe, in 1F1B?** Type both: `[…, …]`.

# %%
most = [8, 4]  # solution
pp.predict("4.B", most)

# %% [markdown]
# Here is the grid from the start again, with m = 6: what rank 0 holds in each of the 18 slots, from the slot of F
# to the slot of B.


# %% tags=["nbval-check-output"]
def held(timeline, slot):
    """How many microbatches rank 0 holds in a slot."""
    row = timeline.by_rank[0]
    begun = sum(span.start <= slot for span in row if span.action.op == "F")
    return begun - sum(span.end <= slot for span in row if span.action.op == "B")


for name, timeline in grids.items():
    print(f"{name:6}", *(held(timeline, slot) for slot in range(18)))

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(9, 2.4))
for (name, timeline), style in zip(grids.items(), ("-", "--"), strict=True):
    axes.stairs([held(timeline, slot) for slot in range(18)], range(19), lw=2, ls=style, label=name)
axes.set(xlabel="slot", ylabel="microbatches", xlim=(0, 18), xticks=range(19), title="held by rank 0, p = 4, m = 6")
axes.legend()
plt.show()

# %% [markdown]
# GPipe climbs to m. 1F1B climbs to p and stays there, because each further F follows a B.
#
# ### Exercise 4.2 · What a rank holds · ★ · 4 minutes
#
# The most that any rank holds in 1F1B, for any p and m.
#
# <details><summary>Hint</summary>
#
# The warm-up, and the forward before the first backward; but never more than there are microbatches.
# </details>


# %%
def most_held(rank: int, p: int, m: int) -> int:
    """The most microbatches that `rank` holds at once in 1F1B."""
    # solution
    return min(m, p - rank)
    # end solution


counted = pp.grade("4.2", most_held)

# %% [markdown]
# Now real ranks, with p = 4 and m = 8. `held_bytes` is the most that was alive between two actions, without weights and
# their gradients.

# %%
metered = {name: pp.run(name, p=4, m=8, memory=True, **task) for name in NAMES}
for name, result in metered.items():
    held_now = " ".join(f"{n:g}" for n in result.peak_in_flight)
    print(f"{name:6} held {held_now} microbatches, {[b // 1024 for b in result.held_bytes]} KiB")

# %%
if counted:
    assert metered["1f1b"].peak_in_flight == tuple(most_held(rank, 4, 8) for rank in range(4))
ratio = metered["gpipe"].held_bytes[0] / metered["1f1b"].held_bytes[0]
print(f"on rank 0, GPipe held {ratio:.2f} times as many bytes as 1F1B")
assert 1.95 < ratio < 2.05

# %% [markdown]
# Formula, count and bytes agree. In GPipe all ranks hold the same number of microbatches; in 1F1B rank 0 holds most,
# the last rank least. (Per microbatch the ends differ a little: rank 0's input is the batch, which is there anyway, and
# the last rank also keeps what the loss needs.)
# A larger example, p = 8 and m = 32:

# %% tags=["nbval-check-output"]
print(f"formula bubble overhead {pp.formulas.bubble_overhead(8, 32):.1%}")
for plan in (pp.build(name, p=8, m=32) for name in NAMES):
    overhead, most_of_rank_0 = pp.simulate(plan).bubble_overhead, pp.in_flight(plan)[0]
    print(f"{plan.name:6} bubble overhead {overhead:.1%}, rank 0 holds {most_of_rank_0:.0f}")

# %% [markdown]
# **The same bubble, and memory that does not grow with m.** So with 1F1B you can afford a larger m, and *that*
# makes the bubble smaller. Drag m and p: on the left the bubble, which the two share; on the right what the fullest
# rank holds. The other schedules to tick are those of the next three lessons.

# %%
pp.explore_m(["gpipe", "1f1b"], p=8, m=32)

# %% [markdown]
# ## Break it
#
# What if the warm-ups are not p − 1 − rank? The three loops again, with any four warm-ups:


# %%
def with_warm_ups(warm_ups, m=8):
    rows = []
    for r, w in enumerate(warm_ups):
        pairs = [action for i in range(w, m) for action in (f"{r}F{i}", f"{r}B{i - w}")]
        rows.append([f"{r}F{i}" for i in range(w)] + pairs + [f"{r}B{i}" for i in range(m - w, m)])
    return pp.Schedule.from_rows(rows, name=f"warm-ups {warm_ups}")


# %% [markdown]
# ### Exercise 4.3 · Make it deadlock · ★★ · 6 minutes
#
# Find four warm-ups, each from 0 to 7, with which the ranks wait for each other for ever. If yours run, you see
# their timeline.
#
# <details><summary>Hint</summary>
#
# Rank 0 must stand and wait for a gradient, while rank 1 still waits for an F of rank 0.
# </details>

# %%
warm_ups = [0, 1, 2, 3]  # solution
stuck = pp.grade("4.3", warm_ups)

# %% [markdown]
# `pp.validate` finds a deadlock without running anything, and says who waits for whom. `pp.run` refuses such a plan
# before a process starts; elsewhere you would wait for a timeout.

# %%
if stuck:
    print(pp.validate(with_warm_ups(warm_ups))[0].message)

# %% [markdown]
# **Explain.** Follow the circle in that sentence. Which rule must warm-ups obey?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# A rank runs its warm-up and one more F, then waits for a gradient. The next rank sends one only after its own warm-up
# and one more F, all of which come from this rank. So no warm-up may be longer than that of the rank before.
#
# "Stage s warms up with s forwards", as one reads now and then, has it the wrong way round, and deadlocks.
# </details>
#
# That rule against all combinations of warm-ups from 0 to 3:

# %% tags=["nbval-check-output"]
from itertools import product

plans = {w: with_warm_ups(w) for w in product(range(4), repeat=4)}
spans = {w: pp.simulate(plan).makespan for w, plan in plans.items() if not pp.validate(plan)}
assert set(spans) == {w for w in plans if list(w) == sorted(w, reverse=True)}
best = min(spans.values())
fastest = [w for w in spans if spans[w] == best]
print(f"{len(spans)} of {len(plans)} run; the fastest, in {best:g} t_f:", *fastest)

# %% [markdown]
# Of these, only 1F1B's warm-ups lose no time. Longer warm-ups than these cost memory, and pay when messages are slow.
# With a hop of 1, they buy GPipe's time back:

# %% tags=["nbval-check-output"]
for w in [(3, 2, 1, 0), (6, 4, 2, 0)]:
    plan = with_warm_ups(w)
    print(f"{w}: {pp.simulate(plan, pp.Costs(comm=1)).makespan:g} t_f, rank 0 holds {pp.in_flight(plan)[0]:.0f}")

# %% [markdown]
# Now draw. The grid begins with the second of them, hops of 1 again: type in a row, or place action by action. What
# breaks a rule is marked, with its sentence; beside time, bubble and memory stands **par**: 1F1B, and ZB-H1 of lesson
# 06. Can you keep 39 t_f and hold fewer than 7? What is legal runs on real ranks at the press of a button. (Where no
# kernel runs, you see its chart.)

# %%
pp.draw_schedule(4, 8, rows=plan.to_text().splitlines(), costs=pp.Costs(comm=1))

# %% [markdown]
# ## The third answer: recompute
#
# GPipe as published does not keep all activations. Of each microbatch a rank keeps only the *input* of its stage, and
# runs F again at the start of B. This works with any schedule. On rank 1:

# %%
for name in NAMES:
    thin = pp.run(name, p=4, m=8, memory=True, recompute=True, **task).held_bytes[1]
    full = metered[name].held_bytes[1]
    print(f"{name:6} {full // 1024} KiB between two actions, with recomputation {thin // 1024} KiB")
    assert thin < full / 10

# %% [markdown]
# (On rank 0 it is 0: its input is the batch, which is there anyway.) The price is a second F for each B. Let each
# layer leave a mark in a file whenever it runs, on whichever rank:

# %%
import tempfile
from pathlib import Path

marks = Path(tempfile.mkdtemp(), "marks")


def mark(layer, inputs):
    with marks.open("a") as file:
        file.write("F")


# %%
probes = nn.Sequential(*[nn.Linear(64, 64).double() for _ in range(4)])
for layer in probes:
    layer.register_forward_pre_hook(mark)
once = {"batches": [(x, y)], "loss_fn": task["loss_fn"], "optimizer": torch.optim.SGD, "steps": 1, "progress": False}
for again in (False, True):
    marks.write_text("")
    pp.train("gpipe", probes, **once, p=4, m=8, recompute=again)
    print(f"recompute={again}: 4 layers ran {len(marks.read_text())} times for 8 microbatches")
    assert len(marks.read_text()) == (64 if again else 32)

# %% [markdown]
# ### Exercise 4.4 · What recomputation costs · ★★ · 6 minutes
#
# Step time and peak memory of GPipe with recomputation. The peak lies inside a B, where one microbatch is there in
# full again.
#
# <details><summary>Hint 1: time</summary>
#
# Take (m + p − 1)(t_f + t_b). How long is a B now?
# </details>
#
# <details><summary>Hint 2: memory</summary>
#
# In the first B: one microbatch in full, and the inputs of all the others.
# </details>


# %%
def recomputed(p: int, m: int, t_f: float, t_b: float, kept: float, full: float) -> tuple[float, float]:
    """Step time and the most memory that a rank holds, for GPipe with recomputation.

    kept  bytes of the stage's input for one microbatch
    full  bytes of all that the backward of one microbatch needs, that input included
    """
    # solution
    return (m + p - 1) * (t_f + t_f + t_b), (m - 1) * kept + full
    # end solution


priced = pp.grade("4.4", recomputed)

# %% [markdown]
# **Choose.** p = 8, m = 32, t_b = 2·t_f; on each rank, a microbatch in full takes 1.5 GB, and the input of the stage
# 0.1 GB. With your two functions:

# %%
if counted and priced:
    time = pp.formulas.step_time(8, 32, 1, 2)
    print(f"GPipe            {time:4.0f} t_f {pp.formulas.gpipe_in_flight(8, 32)[0] * 1.5:5.1f} GB")
    print(f"1F1B             {time:4.0f} t_f {most_held(0, 8, 32) * 1.5:5.1f} GB")
    print("GPipe recomputed {:4.0f} t_f {:5.1f} GB".format(*recomputed(8, 32, 1, 2, 0.1, 1.5)))

# %% [markdown]
# So: 1F1B if it fits, for it costs nothing but waiting for hops; if not, recompute, which works with 1F1B too.
# Plain GPipe only while m is small.
#
# ## Say it in an interview
#
# *"Compare GPipe and 1F1B."* Answer aloud, with a clock, before you unfold.
#
# <details><summary>30 seconds</summary>
#
# Both split the batch into m microbatches and flush at the end of a step, so both have the same bubble, an overhead of
# (p − 1)/m. They differ in order. GPipe runs all forwards first, so every rank holds m microbatches. 1F1B runs a
# backward as soon as one is possible, so rank r holds min(m, p − r). 1F1B does not shrink the bubble: it makes memory
# independent of m, so that I can afford a larger m, and that shrinks it.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add the order: rank r warms up with p − 1 − r forwards (at most m), alternates, and drains; warm-ups must not grow
# from rank to rank, or it deadlocks.
#
# Why the time is the same: the last rank works without a break for m·(t_f + t_b), and filling and draining add
# (p − 1)(t_f + t_b). This assumes equal stages and free messages. With latency 1F1B is slower: for every p further
# microbatches it waits for one more round trip of 2·(p − 1) hops, GPipe for one in all. Longer warm-ups buy that back
# with memory.
#
# Memory: with p = 8 and m = 32, the first rank holds 8 instead of 32, the last one 1. Recomputation is a choice of its
# own: GPipe as published keeps only stage inputs and runs F again, a third more time if t_b = 2·t_f.
#
# To shrink the bubble at the same m: interleave, or split the backward (lessons 05 and 06).
# </details>
#
# ## Exit questions
#
# **1.** "1F1B has a smaller bubble than GPipe." Right or wrong?
#
# <details><summary>Answer</summary>
#
# Wrong for equal p and m: with free messages it is the same, with latency it is larger. But in the same memory, 1F1B
# can take a larger m.
# </details>
#
# **2.** You double the batch and m with it. What happens to the activations on rank 0?
#
# <details><summary>Answer</summary>
#
# In GPipe they double. In 1F1B they stay at p microbatches, if m was at least p before.
# </details>
#
# **3.** A 1F1B that someone wrote hangs: rank 0 in its first backward, rank 1 in a forward. Where do you look?
#
# <details><summary>Answer</summary>
#
# At their warm-ups. Rank 1's is longer: it waits for an F that rank 0 will not run before it has a gradient.
# </details>
#
# ## Sources
#
# - Huang et al. 2019, *GPipe*, §2.3: microbatches, recomputation, bubble.
# - Narayanan et al. 2019, *PipeDream*, §3.3 of the 2018 preprint: one forward, one backward, there without a flush.
# - Narayanan et al. 2021, *Efficient large-scale language model training on GPU clusters using Megatron-LM*, §2.2: 1F1B
#   with a flush, its bubble and its memory.
