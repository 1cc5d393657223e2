# %% [markdown]
# # 06 · Split the backward
#
# After this lesson you can
#
# - **split** a backward into I and W, and show that no work is done twice;
# - **place** W where ranks would wait: ZB-H1, ZB-H2, and a plan for your memory;
# - **explain** why there are two makespans, and how the optimizer step stops waiting.
#
# **You need** 1F1B (lesson 04); no GPU. **Time** 60 minutes.
#
# | letter | meaning |
# |---|---|
# | p, m | ranks, each with one stage; microbatches in a step |
# | F, t_f | forward, and how long it takes |
# | I, t_i | gradient of the stage's **input** only |
# | W, t_w | gradient of its **weights** only; B is I, then W |
#
# The Zero Bubble paper writes B for our I. PyTorch's letters are ours.

# %%
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ppcourse as pp

# %% [markdown]
# ## Predict
#
# A backward makes two things. The gradient of the stage's input is awaited by the rank before. The gradient of the
# weights is awaited by nobody, until the optimizer step. So far every B made both, and the rank before waited for
# both.
#
# p = 4, m = 8, and F, I and W take one slot each. 1F1B, with B = I + W, takes 33 slots: 24 of work and 9 of bubble.
# Now W may run later, when its rank has nothing else to do. **How many slots does a step take at best, if no rank
# holds more microbatches than rank 0 does in 1F1B?**

# %%
slots = 27  # solution
pp.predict("6.A", slots)

# %% [markdown]
# ## Two products
#
# A Linear layer makes `y = x @ weight.T`: x is [rows, in], weight [out, in]. Its backward gets `grad`, the gradient
# of y, and makes two matrix products.
#
# ### Exercise 6.1 · I and W of a Linear · ★★ · 8 minutes
#
# Write both products, one line each.
#
# <details><summary>Hint 1</summary>
#
# The shapes leave little choice: the first result is like x, the second like weight. Only one product of the two
# given matrices fits, with one of them transposed or not.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `y[r, o]` contains `x[r, i] * weight[o, i]`. So x's gradient sums over o, and weight's gradient sums over rows r.
# </details>


# %%
def input_grad(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """I: the gradient of x, [rows, in]."""
    # solution
    return grad @ weight
    # end solution


def weight_grad(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """W: the gradient of weight, [out, in]."""
    # solution
    return grad.T @ x
    # end solution


halves = pp.grade("6.1", [input_grad, weight_grad])

# %% [markdown]
# Is anything done twice, or by neither? Count floating-point operations: those of F, of autograd's whole backward,
# and of your halves.


# %%
def operations(work):
    """How many floating-point operations work() takes."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


# %% tags=["nbval-check-output"]
x, weight, grad = torch.randn(32, 64), torch.randn(128, 64), torch.randn(32, 128)
leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
y = nn.functional.linear(*leaves)
print("F", operations(lambda: nn.functional.linear(x, weight)))
print("B", operations(lambda: torch.autograd.grad(y, leaves, grad)))
if halves:
    print("I", operations(lambda: input_grad(grad, weight)))
    print("W", operations(lambda: weight_grad(grad, x)))

# %% [markdown]
# I + W = B, and each is one F. Note what W needs: `grad` and `x`. So from F to W a rank has to keep x, and from I to
# W the gradient too.
#
# Your halves on two real ranks, a layer each, with a batch and a target:

# %%
torch.manual_seed(6)
given, target, w0, w1 = (torch.randn(shape).double() for shape in ((8, 16), (8, 16), (16, 16), (16, 16)))

# %% [markdown]
# Rank 1 sends the gradient *before* it makes its own weight gradient: that is all there is to zero bubble. Rank 0
# needs no I, for nobody wants the gradient of the batch. Its W is the only thing left to do.


# %%
def by_hand(rank):
    """F, I and W on two ranks; the gradient of this rank's weight."""
    hop = torch.empty_like(given)
    if rank == 0:
        torch.distributed.send(given @ w0.T, 1)
        torch.distributed.recv(hop, 1)
        return weight_grad(hop, given)
    torch.distributed.recv(hop, 0)
    grad = 2 * (hop @ w1.T - target) / target.numel()
    torch.distributed.send(input_grad(grad, w1), 0)
    return weight_grad(grad, hop)


# %%
if halves:
    mine = pp.on_ranks(by_hand, p=2)
    leaves = w0.clone().requires_grad_(), w1.clone().requires_grad_()
    nn.functional.mse_loss(given @ leaves[0].T @ leaves[1].T, target).backward()
    assert all(torch.allclose(one, leaf.grad) for one, leaf in zip(mine, leaves, strict=True))
    print("two ranks, two weight gradients: equal to autograd's")

# %% [markdown]
# Swap the last two lines of `by_hand`, and the results are the same: only rank 0 waits longer. That is why a schedule
# may place W as it likes.
#
# ## Run it in the simulator
#
# ZB-H1 has 1F1B's warm-up, with I in the place of B. W follows where it stands in nobody's way.

# %% tags=["nbval-check-output"]
plain, h1 = pp.simulate(pp.build("1f1b", p=4, m=8)), pp.simulate(pp.build("zb-h1", p=4, m=8))
print(pp.gantt_text(h1))
print(f"\n1F1B {plain.makespan:g} slots, ZB-H1 {h1.makespan:g}; you predicted {pp.prediction('6.A')}")

# %%
pp.gantt(plain, h1)

# %% [markdown]
# **Explain.** Where did two thirds of the bubble go? Look at rank 0 after its warm-up, and at rank 3 at the end.
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# After its warm-up rank 0 waits for the first gradient. It passes p − 1 ranks, each of which now runs only I before
# it sends: p − 1 slots less. At the end rank 3 still has W's to do, while the last gradients go back; in 1F1B it had
# nothing left. What remains is p − 1 slots: the forwards before rank 3's first one. Generally (p − 1)(t_f + t_i −
# t_w).
# </details>
#
# ### Exercise 6.2 · Build ZB-H1 · ★★★ · 12 minutes
#
# Write the row of a rank. It must be as fast as ZB-H1, and no rank may hold more than min(p, m) microbatches; from F
# to W a microbatch counts.
#
# <details><summary>Hint 1: F and I</summary>
#
# The three loops of 1F1B, with I in the place of B: a warm-up of p − 1 − rank forwards, at most m.
# </details>
#
# <details><summary>Hint 2: W</summary>
#
# On rank 0 each W follows its I at once: its memory is full. Each further rank has a shorter warm-up, so there is
# room for one more microbatch whose W is owed. Rank r pays when it owes more than r.
# </details>
#
# <details><summary>Hint 3: the end</summary>
#
# After the last I, the W's that are left, oldest first.
# </details>


# %%
def order(rank: int, p: int, m: int) -> list[str]:
    """The actions of `rank` in ZB-H1, as in ["0F0", "0I0", "0W0"]."""
    # solution
    warm_up = min(m, p - 1 - rank)
    actions = [f"{rank}F{i}" for i in range(warm_up)]
    for i in range(m):
        if warm_up + i < m:
            actions.append(f"{rank}F{warm_up + i}")
        actions.append(f"{rank}I{i}")
        if i >= rank:
            actions.append(f"{rank}W{i - rank}")
    return actions + [f"{rank}W{i}" for i in range(max(0, m - rank), m)]
    # end solution


built = pp.grade("6.2", order)

# %% [markdown]
# Your rows on four real ranks. There PyTorch's own autograd is split: the graph of a stage is cut wherever a call
# mixes data with weights. Gradients must equal those of one process.

# %%
layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
x, y = torch.randn(2, 64, 64).double()
task = {"model": nn.Sequential(*layers).double(), "inputs": x, "targets": y, "loss_fn": nn.functional.mse_loss}
right = pp.reference_step(**task).grads
if built:
    run = pp.run([order(rank, 4, 8) for rank in range(4)], **task)
    assert all(torch.allclose(run.grads[name], right[name]) for name in right)
    print(f"all {len(right)} gradients equal; held at most", *(f"{n:g}" for n in run.peak_in_flight))

# %% [markdown]
# ## Two makespans
#
# ZB-H2 doubles the warm-up: rank r runs 2·(p − 1 − r) forwards first. The formulas, the simulator, and real ranks
# (paced: 30 ms a slot, the best of two steps). The **makespan** counts from the first start on any rank to the last
# end on any; the **longest stage time** is the most that any one rank spends between its own first start and its own
# last end.

# %%
pace = pp.Costs(0.030, 0.030, 0.030)
real = {}
for name in ("1f1b", "zb-h1", "zb-h2"):
    steps = [pp.run(name, p=4, m=8, pace=pace, **task) for _ in range(2)]
    real[name] = min(steps, key=lambda step: step.timeline.longest_stage_time)

# %%
print("       makespan, paced   longest stage, paced   holds")
for name, result in real.items():
    plan, ran = pp.build(name, p=4, m=8), result.timeline
    t, most = pp.simulate(plan, pace), max(pp.in_flight(plan))
    both = f"{t.makespan:.2f}   {ran.makespan:.2f}   {t.longest_stage_time:13.2f}   {ran.longest_stage_time:.2f}"
    print(f"{name:8} {both} {most:12g}")
    assert 0.99 < ran.longest_stage_time / t.longest_stage_time < 4
    assert max(result.peak_in_flight) == most

# %% [markdown]
# Simulated, in seconds, beside what four processes measured; and the most microbatches that a rank held. Here is
# ZB-H2, above as predicted, below as it ran. Its last rank puts off 2·(p − 1) W's, and pays for them at the end,
# where in 1F1B it had nothing left to do:

# %%
pp.gantt(pp.simulate(pp.build("zb-h2", p=4, m=8), pace), real["zb-h2"].timeline, overlay=True)

# %% [markdown]
# **Explain.** ZB-H2 holds 2p − 1 microbatches instead of p. Why does its makespan not fall below ZB-H1's?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# Rank 3 cannot start before p − 1 forwards, and has m·(t_f + t_i + t_w) to do: 3 + 24 = 27, whatever the order. What
# ZB-H2 removes is all waiting *between* a rank's first action and its last: each rank works for 24 slots in one
# piece, one slot later than the rank before. If the next step starts on rank 0 as soon as rank 0 is done, a step
# costs 24.
# </details>
#
# Whether it may start is a question to the optimizer, further down. "Zero bubble" is a statement about the longest
# stage time only.
#
# ## The formulas, and where they are false
#
# In the longest stage time, with free hops, the papers' bubbles are
#
# - ZB-H1: (p − 1)(t_f + t_i − t_w)
# - ZB-H2: (p − 1)(t_f + t_i − 2·t_w)


# %%
def bubbles(p, m, t_f, t_i, t_w):
    """Simulated and by formula, for both schedules."""
    found = []
    for name, formula in (("zb-h1", pp.formulas.zb_h1_bubble_time), ("zb-h2", pp.formulas.zb_h2_bubble_time)):
        t = pp.simulate(pp.build(name, p=p, m=m), pp.Costs(t_f, t_i, t_w))
        found.append((t.longest_stage_time - m * (t_f + t_i + t_w), formula(p, t_f, t_i, t_w)))
    return found


# %% tags=["nbval-check-output"]
for case in [(4, 8, 1, 1, 1), (4, 8, 5, 6, 3), (8, 16, 9, 9, 4)]:
    (h1_is, h1_formula), (h2_is, h2_formula) = bubbles(*case)
    print(f"{case}: ZB-H1 {h1_is:g}, formula {h1_formula:g}; ZB-H2 {h2_is:g}, formula {h2_formula:g}")

# %% [markdown]
# ### Exercise 6.3 · Break them · ★★ · 6 minutes
#
# Find p, m, t_f, t_i, t_w for which a formula is false. Any numbers above 0.
#
# <details><summary>Hint</summary>
#
# W fills holes that an F or an I leaves. What if W is longer than the hole? Or if there are too few microbatches to
# fill the warm-up?
# </details>

# %%
case = (4, 9, 6, 9, 7)  # solution
broken = pp.grade("6.3", case)
if broken:
    for name, (simulated, formula) in zip(("ZB-H1", "ZB-H2"), bubbles(*case), strict=True):
        print(f"{name} with {case}: simulated {simulated:g}, formula {formula:g}")

# %% [markdown]
# One such case in a picture: p = 4, m = 9, t_f = 6, t_i = 9, t_w = 7. Look at rank 0 before its I0. Its first
# gradient is there after p·t_f + (p − 1)·t_i = 51. In ZB-H1 it has run p forwards by then, in ZB-H2 2p − 1 of them.
# For the rest, 27 and 9, it can only wait, for it owes no W yet. The formulas promise 24 and 3: for t_w > t_f they
# promise too much.

# %%
pp.gantt(*(pp.simulate(pp.build(name, p=4, m=9), pp.Costs(6, 9, 7)) for name in ("zb-h1", "zb-h2")))

# %% [markdown]
# The conditions are t_w ≤ min(t_f, t_i) and m ≥ 2p. All small cases, inside and outside:

# %% tags=["nbval-check-output"]
from itertools import product

agree = {True: [], False: []}
for p, m, *times in product((2, 3, 4), range(1, 11), (1, 2, 3), (1, 2, 3), (1, 2, 3)):
    inside = times[2] <= min(times[:2]) and m >= 2 * p
    agree[inside].append(all(simulated == formula for simulated, formula in bubbles(p, m, *times)))
print(f"inside the conditions right in {sum(agree[True])} of {len(agree[True])}")
print(f"outside them in {sum(agree[False])} of {len(agree[False])}")
assert all(agree[True])
print(f"(4, 9, 6, 9, 7): {[simulated for simulated, _ in bubbles(4, 9, 6, 9, 7)]}, not (24, 3)")

# %% [markdown]
# A formula without its conditions is a rumour. Outside them, ask the simulator.
#
# ## The published table
#
# The paper's table of bubble rates comes from profiled times of GPT-like models with 1.5 to 28.3 billion parameters,
# hops included. We simulate it again: rates of the makespan for 1F1B, 1F1B-I (interleaved) and ZB-H1, of the longest
# stage time for ZB-H2.

# %% tags=["nbval-check-output"]
from ppcourse.lab.published import zero_bubble_table

table = zero_bubble_table()
print("model   p    m   1F1B  ZB-H1  ZB-H2")
for row in table:
    one, first, second = (pp.simulate(pp.build(name, row.p, row.m), row.costs) for name in ("1f1b", "zb-h1", "zb-h2"))
    rates = {"1F1B": one.bubble_rate, "ZB-H1": first.bubble_rate, "ZB-H2": second.stage_bubble_rate}
    print(f"{row.model:5} {row.p:3} {row.m:4}", *(f"{rate:6.2%}" for rate in rates.values()))
    assert all(round(rates[name], 4) == row.bubble_rate[name] for name in rates)

# %% [markdown]
# All 36 to the last published digit. The column 1F1B-I is another matter:


# %%
def chunked(row):
    """The costs of one of v stages a rank."""
    stage = (time / row.v for time in (row.costs.forward, row.costs.input_grad, row.costs.weight_grad))
    return pp.Costs(*stage, comm=row.costs.comm)


# %% tags=["nbval-check-output"]
for row in table[::3]:
    t = pp.simulate(pp.build("interleaved", row.p, row.m, row.v), chunked(row))
    hops = (t.makespan - row.interleaved) / row.costs.comm
    shown = f"{t.bubble_rate:.2%}, paper {row.bubble_rate['1F1B-I']:.2%}"
    print(f"{row.model:5} p = {row.p:2}: {shown}; {hops:.3f} hops longer")
    assert round(hops, 6) == row.p

# %% [markdown]
# Ours is longer, each time by exactly p hops. In the authors' program a rank waits for a message that wraps around,
# from the last rank to the first or back, only at the first microbatch of each group of p. The order is the same, so
# the other messages mostly come in time even so, but not all of them do. The paper is a little too kind to its
# competitor; one finds that out only by computing the column.
#
# ## A plan for your memory
#
# ZB-H1 and ZB-H2 are fixed orders for p and 2p − 1 microbatches. **zb-auto** plans for given costs and a memory
# limit. I frees most activations, and only the share `kept_for_w` stays until W. The paper's heuristic, for p and 2p
# microbatches, is in the table as ZB-1p and ZB-2p. Ours first computes a bound that no plan can beat, then tries many
# quick plans, then repairs the best of them along its critical path, and stops if it reaches the bound:


# %%
def planned(row, p, m, limit):
    given = {"costs": row.costs, "kept_for_w": row.kept_for_w}
    return pp.simulate(pp.build("zb-auto", p=p, m=m, memory_limit=limit, **given), row.costs)


# %% tags=["nbval-check-output"]
for row in table[:6]:
    ours = [planned(row, row.p, row.m, share * row.p).stage_bubble_rate for share in (1, 2)]
    theirs = [row.bubble_rate[name] for name in ("ZB-1p", "ZB-2p")]
    print(
        f"{row.model} m = {row.m}: " + ", ".join(f"{a:.2%} (paper {b:.2%})" for a, b in zip(ours, theirs, strict=True))
    )
    assert all(a < b + 5e-5 for a, b in zip(ours, theirs, strict=True))

# %% [markdown]
# Between and below these limits, for the first row's costs, with p = 4 and m = 12:

# %% tags=["nbval-check-output"]
limits = range(2, 10)
auto = {limit: planned(table[0], 4, 12, limit) for limit in limits}
for limit, t in auto.items():
    shown = f"{t.stage_bubble_rate:5.1%} of the longest stage time, {t.bubble_rate:5.1%} of the makespan"
    print(f"limit {limit}: bubble {shown}")

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(9, 2.6))
axes.plot(limits, [100 * t.stage_bubble_rate for t in auto.values()], "o-", label="of the longest stage time")
axes.plot(limits, [100 * t.bubble_rate for t in auto.values()], "s--", label="of the makespan")
axes.set(xlabel="memory limit, microbatches", ylabel="bubble, %", ylim=(0, None), title="zb-auto, p = 4, m = 12")
axes.legend()
plt.show()

# %% [markdown]
# Below p the pipeline starves, as ranks may not run far enough ahead. From p to 2p − 1 memory buys bubble, most of
# all in the longest stage time. Beyond that it buys nothing. (A GPU with room for 2p − 1 microbatches is rare for large
# models, so the first half of this curve is the one that you would live on.) Three of these plans; look at where the
# green W's go:

# %%
pp.gantt(*(auto[limit] for limit in (3, 4, 7)), title="memory limits 3, 4 and 7; times in µs")

# %% [markdown]
# ## The optimizer must not wait
#
# So a rank should go on to its next step when *it* is done. But before an optimizer step one asks all ranks: is a
# gradient NaN, is the global norm above the clipping threshold? An all-reduce answers when the last rank is done, and
# all ranks end together again. **Post-validation**: each rank steps with what it knows by then, the norm of the ranks
# before it. The whole norm comes back during the next warm-up. It is nearly always as hoped; if not, the step is
# undone.
#
# ### Exercise 6.4 · Undo a step · ★★ · 6 minutes
#
# SGD with momentum does `buffer = momentum * buffer + grad`, then `weight = weight - lr * buffer`. Go back.
#
# <details><summary>Hint</summary>
#
# In reverse: first the weight, with the buffer as it is now. Then solve the first line for the old buffer.
# </details>


# %%
def undo(weight, buffer, grad, lr: float, momentum: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and buffer as they were before the step that `grad` led to."""
    # solution
    return weight + lr * buffer, (buffer - grad) / momentum
    # end solution


undone = pp.grade("6.4", undo)

# %% [markdown]
# In 32-bit numbers, what do a thousand weights look like after a step there and back?

# %%
if undone:
    weight = nn.Parameter(torch.randn(1000))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for _ in range(2):
        before = weight.detach().clone()
        weight.grad = torch.randn(1000)
        optimizer.step()

# %%
if undone:
    after, _ = undo(weight.detach(), optimizer.state[weight]["momentum_buffer"], weight.grad, 0.1, 0.9)
    print(f"{(after != before).sum()} of 1000 differ, the worst by {(after - before).abs().max():.0e}")
    assert 0 < (after - before).abs().max() < 1e-5

# %% [markdown]
# Undoing by arithmetic needs no memory, and leaves rounding errors. The package's `PostValidation` keeps a copy from
# step to verdict instead, and undoes any optimizer's step exactly.
#
# Here it is on three real ranks, each with a layer and an optimizer of its own:


# %%
def fresh(rank, kind):
    torch.manual_seed(rank)
    layer = nn.Linear(8, 8)
    options = {"AdamW": {"lr": 0.01}, "SGD": {"lr": 0.01, "momentum": 0.9}}[kind]
    return layer, getattr(torch.optim, kind)(layer.parameters(), **options)


# %% [markdown]
# Four steps. In step 1 a gradient on rank 1 becomes NaN; in step 2 gradients are large, and their norm exceeds the
# limit somewhere on its way down.


# %%
def gradient(layer, rank, step):
    """A real backward, with what may happen to it."""
    torch.manual_seed(10 * step + rank)
    layer(torch.randn(32, 8)).square().mean().mul(5 if step == 2 else 1).backward()
    if (step, rank) == (1, 1):
        layer.weight.grad[0, 0] = float("nan")


# %%
from ppcourse.runtime.post_validation import PostValidation

dist, LIMIT = torch.distributed, 3.5


def travel(squares, check, rank):
    """The sum of squares down the ranks, each stepping on the way, and the whole back up."""
    if rank > 0:
        dist.recv(squares, rank - 1)
    squares.fill_(check.step(squares.item()))  # the optimizer's step is made here, or not
    if rank < 2:
        dist.send(squares, rank + 1)
        dist.recv(squares, rank + 1)
    if rank > 0:
        dist.send(squares, rank - 1)


# %% [markdown]
# Between `step` and `settle` lies, in a real pipeline, the next warm-up.


# %%
def without_waiting(rank, kind):
    """Four steps of a rank: what became of each, and the weight."""
    layer, optimizer = fresh(rank, kind)
    check, told = PostValidation(layer.parameters(), optimizer, clip_norm=LIMIT), []
    for step in range(4):
        gradient(layer, rank, step)
        squares = torch.zeros(1).double()
        travel(squares, check, rank)
        told.append(str(check.settle(squares.item())))
    return told, layer.weight.detach()


# %% [markdown]
# And the oracle: one process that knows every norm before it steps, and never undoes anything.


# %%
def with_waiting(kind):
    ranks = [fresh(rank, kind) for rank in range(3)]
    for step in range(4):
        for rank, (layer, _) in enumerate(ranks):
            gradient(layer, rank, step)
        grads = [weight.grad for layer, _ in ranks for weight in layer.parameters()]
        norm = sum(float(grad.double().pow(2).sum()) for grad in grads) ** 0.5
        for layer, optimizer in ranks if norm == norm else ():  # NaN equals nothing
            for weight in layer.parameters():
                weight.grad.mul_(min(1.0, LIMIT / norm))
            optimizer.step()
        for grad in grads:
            grad.zero_()
    return [layer.weight.detach() for layer, _ in ranks]


# %%
kinds = ("AdamW", "SGD")
answers = pp.on_ranks(lambda rank: [without_waiting(rank, kind) for kind in kinds], p=3, timeout=60)
for n, kind in enumerate(kinds):
    assert all(torch.equal(mine[n][1], weight) for mine, weight in zip(answers, with_waiting(kind), strict=True))
    print(f"{kind}: all weights equal, to the last bit")
    for rank, mine in enumerate(answers):
        print(f"  rank {rank}: {', '.join(mine[n][0])}")

# %% [markdown]
# Read step 1 downwards. Rank 0 stepped, then learned of the NaN, and undid it. Ranks 1 and 2 knew, and never stepped.
# In step 2 the norm exceeds the limit at rank 2, which waits for the whole norm, and steps *late*; the ranks above had
# stepped unclipped, so their step is *redone*. Forwards run meanwhile on undone weights have to be run again, so this
# pays only because it is rare.
#
# ## Say it in an interview
#
# *"How does zero bubble work?"* Aloud, with a clock, before you unfold.
#
# <details><summary>30 seconds</summary>
#
# A backward makes the gradient of the input, which the rank before waits for, and that of the weights, which nobody
# waits for. Split them, send the first at once, and put the second where a rank would idle. ZB-H1 does that in 1F1B's
# memory and has a third of its bubble, if F, I and W take equally long. ZB-H2 holds 2p − 1 microbatches, and no rank
# waits between its first action and its last; to gain from that, the optimizer must not synchronise the ranks.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Add the formulas with their conditions: (p − 1)(t_f + t_i − t_w) and (p − 1)(t_f + t_i − 2·t_w), of the longest
# stage time, with equal stages, free hops, t_w ≤ min(t_f, t_i), m ≥ 2p. Elsewhere simulate, or plan for measured
# costs and a memory limit, as zb-auto does.
#
# Two makespans, with p = 4, m = 8 and unit costs: 1F1B 33; ZB-H1 27; ZB-H2 still 27 from the first start to the last
# end, but 24 on each rank. A step costs 24 only if the next one may start at once. Clipping and NaN checks want a
# global norm first. Post-validation: step with what is known, pass the norm on, validate during the next warm-up,
# roll back in the rare case.
#
# What it costs: memory, because W needs the inputs and the output gradients; the split itself, because I and W as two
# passes may be less efficient than one; complexity.
# </details>
#
# ## Exit questions
#
# **1.** "ZB-H1 removes the bubble." Right or wrong?
#
# <details><summary>Answer</summary>
#
# Wrong: (p − 1)(t_f + t_i − t_w) is left, a third of 1F1B's at unit costs. And no schedule removes what the last rank
# waits for its first input, if you count from the first start to the last end.
# </details>
#
# **2.** Does W need the stage's activations?
#
# <details><summary>Answer</summary>
#
# Of each Linear the input, and the gradient of its output. What only I needs (a GELU's input) is free after I. So
# between I and W a microbatch takes less: `kept_for_w`.
# </details>
#
# **3.** A rank has NaN in its own gradients. Does it ever have to undo its step?
#
# <details><summary>Answer</summary>
#
# No: it knows, and does not step. Only ranks before it in the chain step and undo, and theirs are finite.
# </details>
#
# ## Sources
#
# - Qi et al. 2024, *Zero bubble pipeline parallelism*, arXiv 2401.10241, §2: I and W (there B and W), ZB-H1, ZB-H2; §4:
#   the optimizer. The table's times and rates: the authors' program, named in the package's `zero_bubble.json`.
# - Narayanan et al. 2021, *Efficient large-scale language model training on GPU clusters using Megatron-LM*, §2.2: 1F1B
#   and its interleaved form.
