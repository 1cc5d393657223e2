"""Questions on building a simulator, and schedules of one's own."""

from ppcourse.lab.drills.bank.computed import makespan
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="design-a-simulator",
        lesson=13,
        level=3,
        ask="Design a simulator for pipeline schedules.",
        short="A schedule is data: for each rank a list of actions, and no times. An action starts when its rank is "
        "free and its inputs have arrived: F needs F of the stage before, B needs its own F and B of the stage "
        "after. Walk all rows, start what can start, note start and end. Everything else is computed from those "
        "spans.",
        long="Costs are apart from the schedule: time by stage and operation, time of a hop. It runs in linear time "
        "if each rank advances as far as it can and wakes the ranks that wait for it. If it stops before the end, it "
        "is a deadlock, and what each rank waits for is the message. Makespan, bubbles by either definition, what is "
        "held, a Gantt chart: functions of the spans. Test it with closed forms, with published numbers, and by "
        "conservation: busy plus idle is makespan on every rank. First check: 1F1B, p = 4, m = 8 gives "
        f"{makespan('1f1b', 4, 8)}.",
        rubric=(
            "schedule as data, without times",
            "the dependency rules, once",
            "deadlock is detected and explained",
            "results derived from spans",
            "how to test it",
        ),
        wrong=(
            ("Draw the grid by formula.", "Then it cannot show what the formula does not know."),
            ("Store idle slots in the schedule.", "They follow from costs; another cost, other slots."),
        ),
        follow_ups=(
            (
                "How do you add a link's bandwidth?",
                "Messages on a link queue: next start is the end of the one before.",
            ),
            ("What about a split backward?", "Two more kinds of action: I needs what B needs, W needs its I."),
        ),
        source="Lesson 13 of this course",
    ),
    Question(
        name="is-it-legal",
        lesson=13,
        level=3,
        ask="Someone hands you a schedule as rows of actions. How do you check it?",
        short="Every stage runs F and B (or I and W) of every microbatch exactly once, on the rank that holds it. "
        "Then replay it: if every action gets to run, there is no deadlock. Checking each stage alone is not enough: "
        "deadlocks are between ranks.",
        long="In that order, since a missing action looks like a deadlock. Report the first violation as a sentence: "
        "which rank, which action, what it waits for, where that is. Memory next: count along each row, plus one for "
        "an F, minus one for a B. And for a runtime whose sends block, replay again with that rule, for a legal plan "
        "can hang there.",
        rubric=(
            "complete, once, in place",
            "replay for deadlock",
            "errors say who waits for what",
            "memory along the row",
        ),
        wrong=(("Check that each stage's F come before its B.", "True in many plans that deadlock."),),
        follow_ups=(
            ("How long does it take?", "Linear in the number of actions."),
            (
                "A plan is legal and hangs on NCCL?",
                "Sends that block, or messages in an order the receiver does not expect.",
            ),
        ),
        source="Lesson 13 of this course",
    ),
    Question(
        name="beat-1f1b",
        lesson=13,
        level=4,
        ask="Find a schedule that beats 1F1B with the same memory. How do you go about it?",
        short="Ask where ranks wait, and what could run there. With whole backwards and one stage a rank nothing "
        "can: the last rank has no gap and the ends are forced. So change the pieces: split B, and W fits into "
        f"waits: ZB-H1, same p microbatches, {makespan('zb-h1', 4, 8)} instead of {makespan('1f1b', 4, 8)}.",
        long="Then a lower bound: all work of a rank, plus the earliest it can start, plus the least after its last. "
        "For the last rank with whole B: (p − 1)t_f + m(t_f + t_b) + (p − 1)t_b: 1F1B meets it, so no order beats "
        "it. With split B the tail is only (p − 1)t_i, and W can fill. A search that, at each free moment, prefers "
        "what another rank waits for, then F while memory allows, then W, gets near ZB-auto. Then validate, simulate "
        "with measured times, run.",
        rubric=(
            "shows that 1F1B is optimal for whole backwards",
            "changes the pieces: split or more stages",
            "a lower bound",
            "greedy rule with a memory cap",
            "validates",
        ),
        wrong=(("Try all orders.", "Their number explodes even for p = 2; bounds and greedy rules get far."),),
        follow_ups=(
            (
                "And what is the bound with a split B?",
                "The last rank starts after (p − 1)t_f, then has m(t_f + t_i + t_w): with unit times ZB-H1 meets that.",
            ),
            ("Would your schedule survive jitter?", "Simulate it with random delays before you claim a win."),
        ),
        source="Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2; lesson 13 of this course",
    ),
)
