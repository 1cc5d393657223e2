"""Questions on GPipe and 1F1B."""

from ppcourse.lab.drills.bank.computed import held, makespan, overhead
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="gpipe-against-1f1b",
        lesson=4,
        level=1,
        asked=True,
        ask="GPipe against 1F1B: what is different?",
        short="Not the bubble: both flush, both have an overhead of (p − 1)/m. The order is different. GPipe runs "
        "all forwards, then all backwards, so each rank holds m microbatches. 1F1B runs a backward as soon as one "
        "can, so rank r holds min(m, p − r). Memory no longer grows with m, so m can grow, and that shrinks the "
        "bubble.",
        long=f"p = 8, m = 32: {overhead(8, 32)} for both; rank 0 holds {held('gpipe', 8, 32)} against "
        f"{held('1f1b', 8, 32)}, the last rank {held('gpipe', 8, 32, 7)} against {held('1f1b', 8, 32, 7)}. GPipe as "
        "published recomputes, keeping only stage inputs: less memory, a third more time if t_b = 2t_f. With hops "
        f"that take time 1F1B is a little slower: p = 4, m = 8, hop 0.1 t_f: {makespan('gpipe', 4, 8, hop=0.1)} "
        f"against {makespan('1f1b', 4, 8, hop=0.1)}.",
        rubric=(
            "same bubble at equal p and m",
            "m held against min(m, p − rank)",
            "why it matters: m can grow",
            "recomputation is a choice of its own",
            "slightly slower with latency",
        ),
        wrong=(
            ("1F1B has a smaller bubble.", "The same; larger with latency. But it affords a larger m."),
            ("1F1B holds 1/p of GPipe's memory.", "p against m on rank 0; the ratio is p/m."),
        ),
        follow_ups=(
            ("m = 4 and p = 8: who holds less?", "On the first ranks nobody: min(m, p − r) is m there."),
            ("When would you still use GPipe?", "Few microbatches, or slow links and memory to spare."),
            (
                "Show me both on the whiteboard.",
                f"p = 4, m = 6, one slot an action: both end at slot {2 * (6 + 4 - 1)}.",
            ),
        ),
        source="Narayanan et al. 2021, §2.2; Huang et al. 2019, §2.3",
    ),
    Question(
        name="explain-1f1b",
        lesson=4,
        level=2,
        asked=True,
        ask="Explain 1F1B: its phases, and how many forwards each rank warms up with.",
        short="Three phases. Warm-up: rank r runs p − 1 − r forwards, at most m. Steady: one forward, one backward, "
        "until forwards run out. Cool-down: the backwards that are left. The last rank has no warm-up: it alternates "
        "from the start. At its peak rank r holds its warm-up and one more.",
        long="Why these numbers: microbatch 0 needs p − 1 − r forwards below rank r and as many backwards to come "
        "back, and meanwhile the rank can put p − 1 − r further forwards in. Fewer would leave it idle; more would "
        "cost memory and save no time while messages are free. A rank's warm-up must not be longer than that of the "
        "rank before, or both wait for ever. It flushes, so results are those of one device.",
        rubric=(
            "three phases",
            "warm-up p − 1 − rank, and at most m",
            "last rank alternates at once",
            "peak p − rank",
            "same bubble as GPipe",
        ),
        wrong=(
            ("Stage s warms up with s forwards.", "The wrong way round, and it deadlocks."),
            ("Rank 0 runs its first backward early.", "Last of all: the gradient comes from the far end."),
        ),
        follow_ups=(
            ("Why min with m?", "With m < p there are not so many microbatches."),
            (
                "What if rank 1 warms up longer than rank 0?",
                "It waits for a forward that rank 0 runs only after a gradient.",
            ),
            ("Write the loop.", "Three loops say it better than one with phase tests inside."),
        ),
        source="Narayanan et al. 2021, §2.2; Narayanan et al. 2019 (PipeDream), §3.3 of the 2018 preprint",
    ),
    Question(
        name="1f1b-with-slow-hops",
        lesson=4,
        level=3,
        ask="Why is 1F1B slower than GPipe when messages take time?",
        short="In GPipe later messages hide: while one is on its way, the receiver works on the microbatch before. "
        "In 1F1B a rank that alternates waits for a gradient before each new forward, and so again and again for a "
        "round trip.",
        long=f"p = 4, m = 8, t_b = 2t_f, hop 0.1 t_f: GPipe {makespan('gpipe', 4, 8, hop=0.1)}, 1F1B "
        f"{makespan('1f1b', 4, 8, hop=0.1)}, from {makespan('1f1b', 4, 8)} with free hops. GPipe waits for 2(p − 1) "
        "hops in all; 1F1B for one more such round trip for every p further microbatches. A longer warm-up buys it "
        f"back with memory. One cannot fold a hop into t_f and t_b either: that gives {(8 + 3) * (3 + 0.2):.1f}.",
        rubric=(
            "GPipe: only first messages are waited for",
            "1F1B: a round trip in the steady state",
            "grows with m",
            "longer warm-up as a remedy, at the price of memory",
        ),
        wrong=(
            ("1F1B sends more.", "The same messages; they only hide less well."),
            ("Asynchronous sends solve it.", "The receiver still lacks the data."),
        ),
        follow_ups=(
            ("Does interleaving help?", "It adds hops: good with fast links, bad with slow ones."),
            (
                "How much longer a warm-up?",
                "Until the round trip fits; twice the usual hides a hop as long as a forward.",
            ),
        ),
        source="Lesson 04 of this course (simulator and real ranks)",
    ),
    Question(
        name="deadlock-in-1f1b",
        lesson=4,
        level=3,
        ask="Your own 1F1B hangs at step 0: rank 0 in its first backward, rank 1 in a forward. Find it.",
        short="Rank 1's warm-up is longer than rank 0's. Rank 1 waits for another forward of rank 0; rank 0 runs it "
        "only after a gradient from rank 1. A circle. Warm-ups must not grow from rank to rank.",
        long="I would print each rank's row and the action it stands at, then follow who waits for whom; a circle is "
        "a deadlock in the plan, no circle points to messages in a wrong order or a shape that does not fit. Better "
        "is a replay of the rows before the run: start every action whose inputs are there; if it stops before the "
        "end, what is left names the circle.",
        rubric=(
            "sees the circle",
            "blames the warm-up",
            "states the rule",
            "a method: what does each rank wait for",
        ),
        wrong=(
            ("Increase the NCCL timeout.", "It would only hang longer."),
            ("The ranks are out of sync: add a barrier.", "No rank would reach it."),
        ),
        follow_ups=(
            ("It hangs only with m < p. Why?", "A warm-up not limited by m waits for microbatches that do not exist."),
            ("It hangs after 40 steps?", "Not the plan, then: one rank failed, or shapes changed. Look for its error."),
        ),
        source="Lesson 04 of this course, exercise 4.3",
    ),
    Question(
        name="recomputation",
        lesson=4,
        level=2,
        ask="What does activation recomputation cost and save in a pipeline?",
        short="A rank keeps only its stage's input for each microbatch and runs the forward again before the "
        "backward. Between actions memory falls to the inputs; within a backward one microbatch is there in full. "
        f"Time: a forward more, a third if t_b = 2t_f: p = 8, m = 32 takes {(32 + 7) * 4} t_f instead of "
        f"{makespan('gpipe', 8, 32)}.",
        long="It works with any schedule. Memory on rank 0 is then m inputs plus one full microbatch with GPipe, p "
        "with 1F1B. Selective recomputation redoes only what is cheap to compute and large to keep, the attention "
        "scores; with fused attention most of that is gone anyway. Two traps: dropout must draw the same mask again, "
        "and with a split backward it should run once, not for I and again for W.",
        rubric=(
            "keeps stage inputs only",
            "one forward more: a third of a step",
            "peak is inside a backward",
            "independent of the schedule; selective variant",
        ),
        wrong=(
            ("It doubles the time.", "Only the forward is repeated, not the backward."),
            ("It shrinks the bubble's share.", "The share stays (p − 1)/m; the whole step is longer."),
        ),
        follow_ups=(
            ("1F1B or recomputation first?", "1F1B, for it is free; then recompute what is still too much."),
            ("In which layers?", "Where bytes saved by second of work are most."),
        ),
        source="Huang et al. 2019, §2.3; Korthikanti et al. 2022",
    ),
)
