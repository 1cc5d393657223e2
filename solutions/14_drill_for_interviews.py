# %% [markdown]
# # 14 · Drill for interviews
#
# After this lesson you can
#
# - **answer** the usual questions on pipelines in 30 seconds, and in two minutes;
# - **compute** their numbers with other values than you have seen, and notice when you gave another number than asked;
# - **rate** yourself by a rubric, and find what to practise next.
#
# **You need** the lessons that you will be asked about; no GPU. **Time** 50 minutes, then a mock interview of
# 45 minutes as often as you like.
#
# | what | how many | where from |
# |---|---|---|
# | questions, with follow-ups, rubric and common wrong answers | 70 at four levels | 13 *reported from an interview* |
# | kinds of cards with numbers | 34, drawn anew from a seed | every answer is computed |
# | mock interviews | as many as there are seeds | against a clock |

# %%
import ppcourse as pp
from ppcourse.lab import drills

# %% [markdown]
# ## Predict
#
# Interviewers rarely ask for a formula. They take numbers that you know, change one or two, and watch what you do.
#
# With p = 4 and m = 8 the bubble rate, idle ÷ all time, is 27.3%. They double both, p = 8 and m = 16, "so the ratio is
# the same". **What is the rate now, in per cent?** Do it by head.

# %%
rate = 30.4  # solution
pp.predict("14.A", rate)

# %% [markdown]
# ## Run it
#
# The simulator first, with t_b = 2·t_f.

# %% tags=["nbval-check-output"]
sizes = [(4, 8), (8, 16)]
predicted = [pp.simulate(pp.build("1f1b", p, m), pp.Costs(0.020, 0.020, 0.020)) for p, m in sizes]
print([f"{timeline.bubble_rate:.1%}" for timeline in predicted], "you predicted", pp.prediction("14.A"))

# %% [markdown]
# Then real ranks, four and eight of them, with real tensors and messages. The runs are **paced**: each F is made to
# last 20 ms and each B 40 ms, so that the shape is true on any machine, also on one with fewer cores than ranks. The
# better of two steps counts, for noise only adds time.

# %%
import torch
from torch import nn

torch.manual_seed(14)
model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(8)])
x, y = torch.randn(2, 64, 32)
task = {"model": model, "inputs": x, "targets": y, "loss_fn": nn.functional.mse_loss}
pace = pp.Costs(0.020, 0.020, 0.020)


# %%
def real_step(name, pace, **counts):
    """The better of two paced steps."""
    steps = [pp.run(name, pace=pace, **counts, **task).timeline for _ in range(2)]
    return min(steps, key=lambda step: step.makespan)


paced = [real_step("1f1b", pace, p=p, m=m) for p, m in sizes]
print("measured (paced):", *(f"{timeline.bubble_rate:.1%}" for timeline in paced))
assert all(0.95 < b.makespan / a.makespan < 4 for a, b in zip(predicted, paced, strict=True))

# %%
pp.gantt(*predicted)

# %% [markdown]
# **Explain.** Why did the rate not stay, in two sentences?
#
# *(double-click and write here)*
#
# <details><summary>One good answer</summary>
#
# In (p − 1) ÷ (m + p − 1) it is p − 1 that counts: it went from 3 to 7, more than double, while m just doubled. The
# rate is 7 ÷ 23 = 30.4%; only for large p does the ratio m ÷ p decide alone.
# </details>
#
# Measured rates are higher, by what messages and other programs take. That is how to answer: formula, number,
# what it assumes, what you would expect to measure.
#
# ## Cards
#
# A card is drawn from a seed: the same seed makes the same card on every machine, the next seed another one.

# %% tags=["nbval-check-output"]
card = drills.card("bubble-overhead", seed=1)
card

# %% [markdown]
# `drills.answer(card, value)` judges a number or a text such as `"12 %"` or `"3/8"`, and keeps the result. Wrong
# answers that people often give are recognised. To see that without a try being counted, ask the card itself. Say
# somebody answers with the bubble *rate*:

# %% tags=["nbval-check-output"]
p, m = card.given["p"], card.given["m"]
print(card.judge(pp.formulas.bubble_rate(p, m)).sentence)
print(card.judge(p / m).sentence)

# %% [markdown]
# How can the card know? Because the package computes both. Hold the card's answer against the simulator:

# %% tags=["nbval-check-output"]
simulated = pp.simulate(pp.build("1f1b", p, m))
print(f"card {card.shown}, simulator {simulated.bubble_overhead:.2%}. {card.worked}")

# %% [markdown]
# ### Exercise 14.1 · A hand of cards · ★★ · 12 minutes
#
# Six cards. On paper, two minutes each; Python only to divide.

# %% tags=["nbval-check-output"]
from ppcourse.lab.graders.lesson_14 import hand

print(*hand(), sep="\n\n")

# %% [markdown]
# <details><summary>Hint: which formula?</summary>
#
# In order: (p − 1) ÷ (m + p − 1) · min(m, p − rank) · 18 bytes a parameter · (p − 1) ÷ (v m) ·
# (p − 1)(t_f + t_i − t_w) · (p − 1)(t_f + t_b) + m · slow · (t_f + t_b)
# </details>
#
# <details><summary>Hint: where do I find them derived?</summary>
#
# Each card names its lesson.
# </details>

# %%
answers = ["11/23", 12, 30 * 18 / 4, 100 * 3 / 72, 7 * 15, 7 * 20 + 40 * 30]  # solution
dealt = pp.grade("14.1", answers)

# %% [markdown]
# More cards as a widget: Tab goes from control to control, Enter checks. *any* mixes all kinds.

# %%
drills.deck(seed=14)

# %% [markdown]
# ## Which number was that?
#
# *"Your efficiency is 291%?"* The worst slips are no slips in arithmetic: a right number for another question. Four
# numbers describe one bubble, and two people who quote different ones may both be right.
#
# ### Exercise 14.2 · Name the number · ★★ · 8 minutes
#
# Somebody says a value, as a share, for GPipe or 1F1B with p ranks and m microbatches. Which of the four is it?
# People round, so allow for 1%.
#
# <details><summary>Hint</summary>
#
# Compute all four, put them in a dict, and return the name of one that is near: `math.isclose(a, b, rel_tol=0.01)`.
# </details>


# %%
import math


def name(p: int, m: int, value: float) -> str | None:
    """ "overhead", "rate", "efficiency" or "speed-up"; None if it is none of them."""
    # solution
    slots = m + p - 1
    known = {"overhead": (p - 1) / m, "rate": (p - 1) / slots, "efficiency": m / slots, "speed-up": p * m / slots}
    return next((word for word, number in known.items() if math.isclose(number, value, rel_tol=0.01)), None)
    # end solution


named = pp.grade("14.2", name)

# %% [markdown]
# Try it on what you find in papers and posts. For p = 4 and m = 8, five values that people give:

# %%
if named:
    for value in (0.375, 0.273, 0.727, 2.91, 0.19):
        print(f"{value}: {name(4, 8, value)}")

# %% [markdown]
# The last one, 19%, is the *overhead* with v = 2; who sets it beside 27% compares two different things.
#
# The picture shows how far apart the two bubbles are, and where it hardly matters which one you mean:

# %%
import matplotlib.pyplot as plt

counts = range(1, 65)
figure, axes = plt.subplots(figsize=(9, 2.6))
axes.plot(counts, [pp.formulas.bubble_overhead(8, m) for m in counts], label="overhead, idle ÷ busy")
axes.plot(counts, [pp.formulas.bubble_rate(8, m) for m in counts], "--", label="rate, idle ÷ all")
axes.set(xlabel="microbatches, p = 8", ylabel="bubble", ylim=(0, 1.5), xlim=(1, 64))
axes.legend()
plt.show()

# %% tags=["nbval-check-output"]
for m in (4, 8, 16, 32, 64):
    print(f"m = {m:2}: overhead {pp.formulas.bubble_overhead(8, m):6.1%}, rate {pp.formulas.bubble_rate(8, m):5.1%}")

# %% [markdown]
# ## Two formulas at once
#
# The follow-up to *"how does interleaving shrink the bubble?"* is often *"so how much faster is my step?"* That joins
# two things you know, and many answer v.
#
# ### Exercise 14.3 · How much faster · ★★★ · 8 minutes
#
# The step time of 1F1B divided by that of interleaved 1F1B with v stages a rank; m a multiple of p, free hops.
#
# <details><summary>Hint</summary>
#
# The work is m in both, in units of t_f + t_b. Only the bubble, p − 1, is divided by v.
# </details>


# %%
def gain(p: int, m: int, v: int) -> float:
    """How many times faster a step of interleaved 1F1B is than one of 1F1B."""
    # solution
    return (m + p - 1) / (m + (p - 1) / v)
    # end solution


joined = pp.grade("14.3", gain)

# %% [markdown]
# On four real ranks, paced; a stage of half a rank's layers takes half as long:

# %%
half = pp.Costs(0.010, 0.010, 0.010)
plain = real_step("1f1b", pace, p=4, m=8)
woven = real_step("interleaved", half, p=4, m=8, v=2)
print(f"{plain.makespan / woven.makespan:.2f} times faster (paced)", f"{gain(4, 8, 2):.2f} computed" if joined else "")
assert woven.makespan > 0.99 * 28.5 * 0.020  # a busy machine makes it longer, nothing makes it shorter

# %%
pp.gantt(plain, woven)

# %% [markdown]
# In words: 1F1B in 33 slots of t_f, interleaved in 28.5; before its first backward rank 0 now waits 1.5 slots instead
# of 6. Real messages eat part of the gain: there are more than twice as many.
#
# ## Questions
#
# Questions have no single right answer, so you judge yourself, by a rubric: one point for each thing that an
# interviewer listens for. Say your answer aloud, with a clock, before you unfold.

# %%
drills.question("where-the-bubble-comes-from")

# %% [markdown]
# *Reported from an interview* stands on questions that people report from NVIDIA and from Chinese companies, or post
# on Nowcoder and 1point3acres; which of them asked which is not recorded, and we were not there. Here are all of them;
# `drills.pick(seed)` draws any question, `drills.questions(level=2)` gives a level, `drills.questions(lesson=5)` a
# lesson.

# %% tags=["nbval-check-output"]
for one in drills.questions(asked=True):
    print(f"{one.level}  {one.ask}")

# %% [markdown]
# How many points did your answer get? Be strict: a point is for what you *said*, not for what you knew. A number that
# you gave with its condition is worth more than three names of schedules. If somebody listens, let them hold the
# rubric: it is easy to give oneself one point too many. Write down the follow-up that you could not answer, and read
# the lesson that the card names. The last score that you give counts, so come back to it.

# %%
points = 4  # solution
if points is not ...:
    drills.score("where-the-bubble-comes-from", points)

# %% [markdown]
# ## A mock interview
#
# 45 minutes: six questions of 6 minutes and three cards of 3, from level 1 to 4. A question's 6 minutes are two for the
# answer, two or three for follow-ups, and the rest for what goes wrong; points given after the end do not count. It is
# best with a friend who holds the clock and asks the follow-ups; alone, speak aloud all the same. The clock starts with
# the first `next()`.

# %%
talk = drills.mock(seed=14)
talk.next()

# %% [markdown]
# The interviewer goes on:

# %%
talk.follow_up()

# %% [markdown]
# `reveal()` shows everything: run it when you have answered. Then give yourself points. For a card, call
# `talk.answer(...)` before you reveal. For the next one go back to a cell with `talk.next()`, and run these cells again
# until it says that all was asked or that time is up.

# %%
talk.reveal()

# %%
points = 4  # solution
if points is not ...:
    talk.score(points)

# %% [markdown]
# Afterwards the report, and the summary of all that you have done so far, with what to practise first:

# %%
talk.report()

# %%
drills.summary()

# %% [markdown]
# How to use the next two weeks: every day ten cards of one level and one question of a lesson that you know least,
# aloud; every third day a mock interview with a new seed. When `summary()` has no *again*, go up a level.
#
# ## Say it in an interview
#
# *"Tell me about pipeline parallelism."* The open question is the hardest: you choose where to go.
#
# <details><summary>30 seconds</summary>
#
# The model does not fit one GPU, so I cut its layers into p stages, one a rank. Then only one rank would work at a
# time, so I cut the batch into m microbatches that follow each other. What is left idle is the bubble, (p − 1)/m of the
# busy time. From there it is a trade between bubble, memory and messages: 1F1B for memory, interleaving or a split
# backward for the bubble.
# </details>
#
# <details><summary>2 minutes</summary>
#
# Give a number at once: p = 8, m = 32, overhead 21.9%, and rank 0 holds 8 microbatches in 1F1B, 32 in GPipe, with the
# same bubble. Interleaving with v = 4 makes the overhead 5.5% for a little more than 4 times the messages. Zero bubble
# splits the backward: nobody waits for weight gradients, so they fill gaps.
#
# Say what it assumes: equal stages, fast links. The head makes the last stage longer, and the slowest stage sets the
# pace: 1.5 times as long costs 45 instead of 33 with p = 4, m = 8.
#
# Place it: tensor parallelism inside a machine, the pipeline across machines, data parallelism outermost, which takes
# microbatches away. Then stop, and ask which of these they want to hear more about.
# </details>
#
# ## Exit questions
#
# **1.** You are asked for "the bubble" of p = 4, m = 8. What do you say first?
#
# <details><summary>Answer</summary>
#
# Which one: 37.5% of the busy time, 27.3% of all time. Then the assumptions: equal stages, free messages.
# </details>
#
# **2.** You do not know the answer. What now?
#
# <details><summary>Answer</summary>
#
# Say so, and derive what you can: draw a grid for p = 2 and m = 2, look at the last rank, test limits (m = 1, m large,
# p = 1). That is worth points in any rubric.
# </details>
#
# **3.** The interviewer says something that you think is wrong, such as "1F1B has a smaller bubble than GPipe".
#
# <details><summary>Answer</summary>
#
# Say what holds and under which condition: the same bubble at equal p and m with free messages; less memory, so m may
# be larger. It may have been a test, or a slip; a condition is polite in both cases.
# </details>
#
# ## Sources
#
# - Narayanan et al. 2021, §2.2: overhead, 1F1B, interleaving. Huang et al. 2019, §2.3: rate, microbatches.
# - Each card and each question names its own.
