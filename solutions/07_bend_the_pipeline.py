# %% [markdown]
# # 07 · Bend the pipeline
#
# After this lesson you can
#
# - **place** stages on a V, and say what that buys: memory alike on all ranks, a choice of how much of it;
# - **explain** DualPipe: both streams, two copies, PP + 1, and where − 3W comes from;
# - **decide** from F&B whether DualPipe wins, and when its published formula may be trusted.
#
# **You need** F, B, I and W (lesson 06) and interleaving (lesson 05); no GPU. **Time** 60 minutes.
#
# | letter | meaning |
# |---|---|
# | p, m | ranks (DeepSeek's PP), microbatches in a step (in DualPipe, of both streams together) |
# | t_f, t_i, t_w | how long F, I and W of one microbatch take on one rank; B is I and W |
# | F&B | how long a joined pair takes: F of one microbatch and B of another |
# | chunk | one of the two stages of a rank; it takes half of the rank's time |

# %%
from itertools import accumulate, permutations, product

import torch
from torch import nn

import ppcourse as pp

torch.manual_seed(7)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)]).double()
x, y = torch.randn(2, 64, 64).double()
task = {"model": model, "inputs": x, "targets": y, "loss_fn": nn.functional.mse_loss}
right = pp.reference_step(**task).grads

# %% [markdown]
# ## Place the stages on a V
#
# Interleaving deals the stages round: with p = 4 and two stages a rank, rank 0 holds stages 0 and 4. A **V** goes
# down the ranks and up again. Rank p − 1, at the bottom, holds two neighbouring stages.
#
# ### Exercise 7.1 · Where does a stage live? · ★ · 4 minutes
#
# There are 2p stages. Which rank holds one of them? Your function then places the stages of a real run.
#
# <details><summary>Hint</summary>
#
# On the way down it is `stage`. On the way up, stage and rank together are always 2p − 1.
# </details>


# %%
def home(stage: int, p: int) -> int:
    """The rank that holds `stage`, of 2p stages on a V."""
    # solution
    return min(stage, 2 * p - 1 - stage)
    # end solution


placed = pp.grade("7.1", home)

# %% [markdown]
# All forwards, stage by stage, then all backwards: a legal order wherever the stages live. We run it on four real
# ranks, once dealt round and once with your V, and count messages.


# %%
def all_forwards(home, p=4, m=8):
    """GPipe's order for 2p stages that live where `home` says."""
    down, up = range(2 * p), range(2 * p - 1, -1, -1)
    work = [f"{s}F{i}" for s in down for i in range(m)] + [f"{s}B{i}" for s in up for i in range(m)]
    return [[a for a in work if home(int(a[0]), p) == rank] for rank in range(p)]


for name, where in {"round": lambda stage, p: stage % p, "on a V": home if placed else None}.items():
    if where:
        run = pp.run(all_forwards(where), **task)
        same = all(torch.allclose(run.grads[key], right[key]) for key in right)
        print(f"{name:7} gradients equal: {same}, {run.messages} messages, rank 0 holds stage 0 and", end=" ")
        print(next(stage for stage in range(7, 0, -1) if where(stage, 4) == 0))

# %% [markdown]
# At the tip of the V nothing is sent: 2p − 2 hops in each direction instead of 2p − 1. And rank 0 holds
# **the first and the last stage**: batch, targets and loss are in one place, and so are embedding and head, which
# helps if they share weights.
#
# ## Predict
#
# Qi et al. fill a V as in lesson 06: I first, W where a rank would wait. Let each F, I and W of a chunk take one
# slot; with p = 4 and m = 8 a rank works for 6 · 8 = 48 slots. In **ZB-V**, how many slots does the busiest
# rank spend from its own first action to its own last?

# %%
slots = 48  # solution
pp.predict("7.A", slots)

# %% [markdown]
# ## Run it: three V schedules
#
# They differ in how long a rank keeps a chunk, from its F to its W. **ZB-V** keeps it longest, **V-Min** as briefly
# as the way down and up allows. The longer, the more is underway, and the more there is to do for a rank that would
# else wait.

# %% tags=["nbval-check-output"]
chunk = pp.Costs(1, 1, 1)
vees = {name: pp.simulate(pp.build(name, 4, 8), chunk) for name in ("zb-v", "v-half", "v-min")}
formula = {"zb-v": lambda p: p, "v-half": lambda p: (p + 2) // 2, "v-min": lambda p: (p + 4) // 3}
print("        own first to last  makespan  held: formula  simulated")
for name, t in vees.items():
    held = max(pp.in_flight(pp.build(name, 4, 8)))
    print(f"{name:7} {t.longest_stage_time:18g} {t.makespan:9g} {formula[name](4):14} {held:10g}")

# %%
pp.gantt(*vees.values(), title="p = 4, m = 8")

# %% [markdown]
# Read rank 0. In ZB-V it never waits between its first action and its last. In V-Min it waits after two forwards, until
# microbatch 0 has been down and up, and again near the end. What they hold is counted in microbatches of a rank's full
# activation; 1F1B's first rank holds 4. Does the closed form hold for other p, and what does the saving cost?

# %% tags=["nbval-check-output"]
for name, most in formula.items():
    plans = {p: pp.build(name, p, 3 * p) for p in range(2, 13)}
    assert all(max(pp.in_flight(plan)) == most(p) for p, plan in plans.items())
    bubbles = {p: pp.simulate(plan).longest_stage_time - 18 * p for p, plan in plans.items() if p in (4, 8, 12)}
    print(f"{name:6} holds what the formula says for p = 2 … 12; bubble in slots:", bubbles)

# %% [markdown]
# **Explain.** In 1F1B rank 0 holds p microbatches and the last rank one. Why does a V hold as much on every rank?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# A chunk is kept from its F until its gradient comes back. An early stage waits long, a late one briefly. On a V each
# rank has an early and a late one: the earlier the first, the later the second, so their sum is the same.
# </details>
#
# On real ranks, with I and W of real autograd. `peak_in_flight` is counted by each rank while it runs.

# %%
for name, most in formula.items():
    run = pp.run(name, p=4, m=8, **task)
    assert all(torch.allclose(run.grads[key], right[key]) for key in right)
    assert max(run.peak_in_flight) == most(4)
    print(f"{name:6} gradients equal; held at most", *(f"{n:g}" for n in run.peak_in_flight))

# %% [markdown]
# And its time: each F, I and W of a chunk paced to 20 ms. Noise only ever adds time, so the best of three steps counts.
# Predicted above, measured below.

# %%
pace = pp.Costs(0.020, 0.020, 0.020)


def real_step(plan):
    """The best of three paced steps."""
    return min((pp.run(plan, pace=pace, **task).timeline for _ in range(3)), key=lambda step: step.makespan)


# %%
zb_v = pp.build("zb-v", p=4, m=8)
ideal, bend = pp.simulate(zb_v, pace), real_step(zb_v)
print(
    f"longest stage time: predicted {ideal.longest_stage_time:.2f} s, measured {bend.longest_stage_time:.2f} s (paced)"
)
assert 0.99 < bend.longest_stage_time / ideal.longest_stage_time < 4

# %%
pp.gantt(ideal, bend, overlay=True)

# %% [markdown]
# So under a memory limit you choose: ZB-V if p microbatches fit, V-Half at about half, V-Min at about a third.
#
# ## Cross a forward with a backward
#
# In a mixture of experts (MoE) a stage is not all computing. Each token travels to the GPUs of its experts and back,
# two all-to-alls:
#
# ```
# F:  attention → dispatch → experts → combine      B:  combine → experts → dispatch → attention
#     compute     network    compute   network          network   compute   network    compute
# ```
#
# While the network works, the compute units wait, and the other way round. But the F of one microbatch and the B of
# **another** need nothing of each other. So let them cross. Model it with what you have: four "stages", attention and
# experts on rank 0 (compute), dispatch and combine on rank 1 (the network). Each part takes 1, a backward of compute 2.


# %%
def moe(compute, network, name):
    """Microbatch 0 has done its F; then what is given; then the B of microbatch 1."""
    rows = [["0F0", "2F0", *compute, "2B1", "0B1"], ["1F0", "3F0", *network, "3B1", "1B1"]]
    return pp.Schedule.from_rows(rows, name=name)


parts = pp.Costs(1, input_grad=1, weight_grad=[1, 0, 1, 0])
turns = moe(["2B0", "0B0", "0F1", "2F1"], ["3B0", "1B0", "1F1", "3F1"], "in turn")
print(pp.gantt_text(pp.simulate(turns, parts)))

# %% [markdown]
# ### Exercise 7.2 · Cross them · ★★ · 8 minutes
#
# Order the B of microbatch 0 and the F of microbatch 1 so that all is done as early as possible. Both ranks keep each
# microbatch's own order. Your order runs on real ranks next.
#
# <details><summary>Hint 1</summary>
#
# The network begins with `3B0`: what can compute do at that moment?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Take turns. While one microbatch is on the network, the other computes.
# </details>

# %%
compute = ["0F1", "2B0", "2F1", "0B0"]  # solution
network = ["3B0", "1F1", "1B0", "3F1"]  # solution
crossed = pp.grade("7.2", [compute, network])

# %%
if crossed:
    plan, seconds = moe(compute, network, "crossed"), pp.Costs(0.020, 0.020, [0.020, 0, 0.020, 0])
    run = pp.run(plan, [nn.Linear(64, 64).double() for _ in range(4)], x, y, loss_fn=task["loss_fn"], pace=seconds)
    print(f"predicted {pp.simulate(plan, seconds).makespan:.2f} s, measured {run.timeline.makespan:.2f} s (paced)")
    assert 0.99 < run.timeline.makespan / pp.simulate(plan, seconds).makespan < 4

# %% [markdown]
# Of all ways to merge the two, how many are as good, and how many never end?


# %% tags=["nbval-check-output"]
def merges(one, other):
    """All orders of both that keep the order of each."""
    every = map(list, permutations(one + other))
    return [m for m in every if m.index(one[0]) < m.index(one[1]) and m.index(other[0]) < m.index(other[1])]


both = product(merges(["0F1", "2F1"], ["2B0", "0B0"]), merges(["1F1", "3F1"], ["3B0", "1B0"]))
plans = [moe(c, n, "merged") for c, n in both]
steps = sorted(pp.simulate(plan, parts).makespan for plan in plans if not pp.validate(plan))
print(f"{len(plans)} ways, {len(plans) - len(steps)} never end; the others last", *(f"{t:g}" for t in steps))

# %% [markdown]
# One way is best. Make it a habit, pair after pair, and see what one more pair costs:


# %%
def pairs(n):
    compute = [a for i in range(n) for a in (f"0F{i + 1}", f"2B{i}", f"2F{i + 1}", f"0B{i}")]
    network = [a for i in range(n) for a in (f"3B{i}", f"1F{i + 1}", f"1B{i}", f"3F{i + 1}")]
    rows = [["0F0", "2F0", *compute, f"2B{n}", f"0B{n}"], ["1F0", "3F0", *network, f"3B{n}", f"1B{n}"]]
    return pp.simulate(pp.Schedule.from_rows(rows, name=f"{n} pairs"), parts)


print(f"F takes 4 and B 6, together 10; in pairs F&B takes {pairs(5).makespan - pairs(4).makespan:g}")
pp.gantt(pp.simulate(turns, parts), pairs(3), title="rank 0: compute, rank 1: network")

# %% [markdown]
# Six is what compute needs alone: the network is hidden completely. Messages between pipeline ranks hide in the same
# way. (On a GPU, some of its multiprocessors are set aside to drive the network.)
#
# ## DualPipe: fed from both ends
#
# For such pairs each rank needs, at the same moment, an F and a B of two different microbatches, all the time. So
# DualPipe sends half of the microbatches down the ranks from rank 0, the others up from rank p − 1. Each stage must
# then be at two places: stage s on rank s and on rank p − 1 − s.
#
# **How many microbatches does a rank hold at most, with p = 4?** (1F1B: 4 on rank 0.)

# %%
most = 5  # solution
pp.predict("7.B", most)

# %%
dual = pp.build("dualpipe", p=4, m=8)
pp.gantt(pp.simulate(dual))

# %% [markdown]
# Microbatches 0 to 3 enter at rank 0, 4 to 7 at rank 3. A box that is halved is a pair: it starts when both may, and
# ends as one. (Here F&B = F + B: nothing is hidden yet.) What each rank holds of each stream:


# %% tags=["nbval-check-output"]
def held(row, stream):
    """The most that a rank holds of the microbatches in `stream`."""
    changes = {"F": 1, "I": 0, "B": -1, "W": -1}
    return max(accumulate(changes[a.op] for a in row if a.microbatch in stream))


print("rank  stages  from rank 0  from rank 3  together")
for rank, row in enumerate(dual.rows):
    down, up = held(row, range(4)), held(row, range(4, 8))
    print(f"{rank:4}  {dual.placement.stages_of(rank)}  {down:11}  {up:11}  {pp.in_flight(dual)[rank]:8g}")

# %% [markdown]
# **Explain.** Why p + 1? Why two copies of the parameters? Which ranks hold the first and the last layers?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# Each stream fills like a 1F1B of its own: rank r is p − r ranks from the end of one and r + 1 from the end of the
# other, and holds as many microbatches of each. Together (p − r) + (r + 1) = **p + 1**, on every rank.
#
# **Two copies**, because both streams need all p stages and flow in opposite directions: rank r computes stage r for
# one and stage p − 1 − r for the other. Their gradients are added before the optimizer steps.
#
# Ranks 0 and p − 1 both hold the first **and** the last layers. On a V only rank 0 does.
# </details>
#
# Real ranks: does adding both copies' gradients give the right ones, and what do ranks hold?

# %%
run = pp.run(dual, **task)
print("gradients equal:", all(torch.allclose(run.grads[key], right[key]) for key in right))
print("held at most:", *(f"{n:g}" for n in run.peak_in_flight))
assert run.peak_in_flight == pp.in_flight(dual) == (5, 5, 5, 5)

# %% [markdown]
# ## What does B mean?
#
# | | full backward | gradient of the input | gradient of the weights |
# |---|---|---|---|
# | here, PyTorch | B | I | W |
# | zero-bubble papers | B + W | B | W |
# | DeepSeek-V3 report | B | B − W | W |
#
# The report gives DualPipe's bubble as **(PP/2 − 1)(F&B + B − 3W)**.
#
# ### Exercise 7.3 · Translate · ★★ · 6 minutes
#
# Write it with t_i and t_w. Ask of each letter whose it is.
#
# <details><summary>Hint</summary>
#
# Their B is the full backward: t_i + t_w.
# </details>


# %%
def bubble(p: int, t_i: float, t_w: float, pair: float) -> float:
    """DualPipe's bubble by the published formula; `pair` is F&B."""
    # solution
    return (p / 2 - 1) * (pair + t_i - 2 * t_w)
    # end solution


translated = pp.grade("7.3", bubble)

# %% [markdown]
# Three ways, with F = I = W = 20 ms and p = 4. Nothing is hidden here: our ranks run the two of a pair one after the
# other, so F&B = F + B. The pair starts when both may and ends as one, as the formula assumes; what F makes leaves
# only then. The fourth line takes the pairs apart: F's result leaves as soon as it is there.

# %%
closed = bubble(4, 20, 20, 60) if translated else pp.formulas.dualpipe_bubble_time(4, 40, 20, 60)
apart = pp.Schedule.from_rows(dual.rows, name="dualpipe, pairs apart")
real = real_step(dual)
print(f"formula {closed:.0f} ms, simulated {1e3 * max(pp.simulate(dual, pace).idle):.0f} ms")
print(f"measured {1e3 * max(real.idle):.0f} ms (paced)")
print(f"pairs apart: simulated {1e3 * max(pp.simulate(apart, pace).idle):.0f} ms")
assert 0.99 < real.makespan / pp.simulate(dual, pace).makespan < 4

# %% [markdown]
# ### Where does − 3W come from?
#
# Put I and W together again, in the first half of each row or in the second, and see what those splits had saved. All
# costs are 1:


# %% tags=["nbval-check-output"]
def whole(plan, half):
    """`plan` with each I and its W as one B, in the first (0) or second (1) half of the rows."""
    rows = []
    for cells in map(str.split, plan.to_text().splitlines()):
        here = [cell for n, cell in enumerate(cells) if "I" in cell and 2 * n // len(cells) == half]
        left = [cell for cell in cells if cell.replace("W", "I") not in here or cell in here]
        rows.append([cell.replace("I", "B") if cell in here else cell for cell in left])
    return pp.Schedule.from_rows(rows, name="dualpipe")


for p in (4, 8, 12):
    plans = {"as it is": pp.build("dualpipe", p, 2 * p)}
    plans |= {f"{name} unsplit": whole(plans["as it is"], half) for half, name in enumerate(("start", "end"))}
    unit = {name: max(pp.simulate(plan).idle) / (p / 2 - 1) for name, plan in plans.items()}
    print(f"p = {p:2}, bubble ÷ (p/2 − 1):", ", ".join(f"{name} {idle:.2f}" for name, idle in unit.items()))

# %% [markdown]
# Without any split, a step towards the middle costs nearly F&B + B = 5: a pair, then a gradient. The splits at the end
# save exactly **2W**: I goes on ahead of its W, and the W put off fills a slot in which the rank would wait. Those at
# the start save **up to 1W**: the first gradients of the other stream go on ahead. (Less for small p, where fewer ranks
# wait in line.)
#
# ### When is the formula right?
#
# For all costs from 1 to 4, and F&B from its least, the longer of F and B, to F + B:

# %% tags=["nbval-check-output"]
from collections import Counter

plan = pp.build("dualpipe", p=6, m=12)
verdicts = Counter()
for f, i, w, share in product(range(1, 5), range(1, 5), range(1, 5), (0, 1)):
    pair = f + i + w if share else max(f, i + w)
    idle = max(pp.simulate(plan, pp.Costs(f, i, w, overlap=pair)).idle)
    closed = pp.formulas.dualpipe_bubble_time(6, i + w, w, pair)
    costs = "F = I = W" if f == i == w else "else F, W ≤ I" if max(f, w) <= i else "else"
    verdicts[costs, "exact" if idle == closed else "too high" if idle < closed else "too low"] += 1
for (costs, verdict), count in sorted(verdicts.items()):
    print(f"{costs:14} {verdict:8} {count:3}")

# %% [markdown]
# **Exact** when F = B − W = W. An **upper bound** when neither F nor W is longer than I. Elsewhere it can be **too
# low**: then nothing but the simulator tells. Try it: the sliders obey the mouse and the arrow keys. Find costs for
# which the formula is too low, and the F&B at which DualPipe passes ZB-V.

# %%
pp.explore_overlap(beside="zb-v", p=4, m=8, break_even=False)

# %% [markdown]
# ## When does DualPipe win?
#
# Between the ends a rank does nothing but pairs. So a short F&B shortens the whole step, not only the bubble.
#
# ### Exercise 7.4 · Break even · ★★★ · 8 minutes
#
# F = I = W = 1 on each rank, so F + B = 3. Find the longest F&B, to 0.01, with which DualPipe's makespan is no longer
# than ZB-V's. `step` does the simulating.
#
# <details><summary>Hint</summary>
#
# Begin with F&B = 3 and make it shorter by 0.01 until DualPipe is fast enough.
# </details>


# %%
def step(name, p, m, pair=None):
    """The makespan with F = I = W = 1 on a rank; `pair` is DualPipe's F&B."""
    plan = pp.build(name, p, m)
    part = 1 / (1 if name == "dualpipe" else plan.stages_per_rank)  # a chunk is half of a rank's work
    return pp.simulate(plan, pp.Costs(part, part, part, overlap=pair)).makespan


def break_even(p: int, m: int) -> float:
    """The longest F&B with which DualPipe is as fast as ZB-V."""
    # solution
    rival, pair = step("zb-v", p, m), 3.0
    while step("dualpipe", p, m, pair) > rival:
        pair -= 0.01
    return pair
    # end solution


found = pp.grade("7.4", break_even)

# %%
for p, m in [(4, 8), (8, 16), (8, 32)] if found else ():
    pair = break_even(p, m)
    print(f"p = {p}, m = {m:2}: F&B at most {pair:.2f}, {pair / 3:.0%} of F + B")

# %% [markdown]
# So joined pairs must hide something, though not much. If there is nothing to hide, take them apart:

# %% tags=["nbval-check-output"]
for p, m in [(4, 8), (8, 16), (8, 32)]:
    apart = pp.simulate(pp.Schedule.from_rows(pp.build("dualpipe", p, m).rows)).makespan
    bent, usual = step("zb-v", p, m), step("1f1b", p, m)
    print(f"p = {p}, m = {m:2}: DualPipe with pairs apart {apart:g}, ZB-V {bent:g}, 1F1B {usual:g}")

# %% [markdown]
# A tie with ZB-V, at the price of a second copy; 1F1B is behind both. Now the MoE layer from above: F = 4, I = 4,
# W = 2, and F&B = 6 if crossed, 10 if not.

# %% tags=["nbval-check-output"]
print("p = 8, m = 32        step  most held  copies of the parameters")
rank_costs = {"1f1b": (1, None), "zb-v": (2, None), "dualpipe": (1, 10), "dualpipe, crossed": (1, 6)}
for name, (v, pair) in rank_costs.items():
    plan = pp.build(name.partition(",")[0], 8, 32)
    t = pp.simulate(plan, pp.Costs(4 / v, 4 / v, 2 / v, overlap=pair))
    copies = 2 if plan.placement.opposite else 1
    print(f"{name:18} {t.makespan:6g} {max(pp.in_flight(plan)):10g} {copies:3}")

# %% [markdown]
# The second copy buys only direction. **DualPipeV** folds the ranks in the middle: a V, one copy, and the two streams
# become the way down and the way up. For PP stages it needs PP/2 ranks, with the same bubble:

# %% tags=["nbval-check-output"]
for name, p in (("dualpipe", 8), ("dualpipe-v", 4)):
    plan = pp.build(name, p, 16)
    most, idle = max(len(row) for row in [plan.placement.stages_of(r) for r in range(p)]), max(pp.simulate(plan).idle)
    chunks = max(pp.in_flight(plan)) * plan.num_stages / p
    print(f"{name:10} {p} ranks, {most} of 8 stages on each; bubble {idle:g}, holds {chunks:g} stages' activations")

# %% [markdown]
# ## Say it in an interview
#
# *"Explain DualPipe. What does it cost, and when is it worth it?"* Aloud, with a clock.
#
# <details><summary>30 seconds</summary>
#
# Microbatches enter at both ends of the pipeline. So a rank always has a forward of one stream and a backward of the
# other, and runs them across each other: while one is in an all-to-all, the other computes. That hides the
# communication of an MoE. The price is two copies of the parameters and PP + 1 microbatches of activations. The bubble
# is (PP/2 − 1)(F&B + B − 3W).
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add: B is the full backward there. The formula is exact if F = B − W = W, an upper bound if neither F nor W is longer
# than the input gradient, and can be too low elsewhere. F&B must be below F + B, or a zero-bubble V is as fast with
# one copy.
#
# Why +1: p − r of one stream and r + 1 of the other. Why two copies: both streams need all stages, in opposite order;
# ranks r and p − 1 − r hold the same two and add their gradients. First and last layers are on both end ranks. With
# experts spread over many GPUs, the second copy is small.
#
# The other bend is a V: stages r and 2p − 1 − r on a rank, first and last on rank 0, memory alike on all ranks. ZB-V
# holds p microbatches, V-Half about p/2, V-Min about p/3, at the price of a bubble. DualPipeV is DualPipe on a V.
# </details>
#
# ## Exit questions
#
# **1.** Which of p = 8 ranks hold the embedding: in 1F1B, ZB-V, DualPipe?
#
# <details><summary>Answer</summary>
#
# Rank 0; rank 0, together with the head; ranks 0 and 7, both together with the head.
# </details>
#
# **2.** A colleague computes DualPipe's bubble with B = 1, W = 1 from a zero-bubble paper. What goes wrong?
#
# <details><summary>Answer</summary>
#
# That B is the input gradient. DeepSeek's is the full backward, 2 here; with 1 the bubble comes out too small by
# PP/2 − 1.
# </details>
#
# **3.** A dense model, fast links, F&B ≈ F + B. DualPipe or a V?
#
# <details><summary>Answer</summary>
#
# A V: DualPipe has nothing to hide, is no faster, and costs a second copy of the parameters.
# </details>
#
# ## Sources
#
# - Qi et al. 2024, *Zero bubble pipeline parallelism*, arXiv 2401.10241, §6: ZB-V.
# - Qi et al. 2024, *Pipeline parallelism with controllable memory*, arXiv 2405.15362: V-Half, V-Min, building blocks.
# - DeepSeek-V3 technical report, §3.2.1 and Table 2: DualPipe, its bubble, PP + 1, two copies.
