"""Questions on the split backward and zero bubble."""

from ppcourse.analysis import formulas
from ppcourse.lab.drills.bank.computed import bubble, held, makespan, stage_time
from ppcourse.lab.drills.question import Question

UNEVEN = (6, 9, 7)  # t_f, t_i, t_w with m = 9 on 4 ranks: outside the conditions of the closed forms

QUESTIONS = (
    Question(
        name="how-zero-bubble-works",
        lesson=6,
        level=2,
        asked=True,
        ask="How does zero bubble work?",
        short="It splits the backward. I computes the gradient of a stage's input: the rank before waits for it. W "
        "computes the gradients of the weights: nobody waits for that until the optimizer. So send I's result on at "
        "once, and put W where the rank would be idle.",
        long="ZB-H1 keeps 1F1B's warm-up and memory of p; its bubble is (p − 1)(t_f + t_i − t_w). p = 4, m = 8, F = "
        f"I = W = 1: {makespan('1f1b', 4, 8)} becomes {makespan('zb-h1', 4, 8)}. ZB-H2 warms up twice as long, holds "
        "2p − 1, and leaves (p − 1)(t_f + t_i − 2t_w) of the longest stage time: nothing here. But ranks then start "
        "and end one after the other, so the last gap closes only if the optimizer does not wait for all: that is "
        "the second idea, to check gradients afterwards and roll back if need be.",
        rubric=(
            "B = I then W; who waits for each",
            "W fills idle slots",
            "H1 against H2: bubble and memory",
            "optimizer synchronisation and rollback",
            "conditions on t_f, t_i, t_w",
        ),
        wrong=(
            ("ZB-H1 fills all bubbles.", "A third remains if F, I and W last alike."),
            (
                "It makes the backward cheaper.",
                "The same work, in another order, with slightly less efficient kernels.",
            ),
        ),
        follow_ups=(
            ("What must be kept for W?", "Inputs of the linear layers, and gradients of their outputs."),
            ("Write I and W of a linear layer.", "dx = dy·W, and dW = dyᵀ·x: neither needs the other."),
            ("Does it work with 1F1B's interleaving?", "The idea is independent of placement; ZB-V is such a case."),
        ),
        source="Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2",
    ),
    Question(
        name="h1-against-h2",
        lesson=6,
        level=3,
        ask="ZB-H1 or ZB-H2: what do you pay, what do you get?",
        short="H1: p microbatches, bubble (p − 1)(t_f + t_i − t_w). H2: 2p − 1 microbatches, (p − 1)(t_f + t_i − "
        f"2t_w) of the longest stage time. p = 4, m = 8, unit times: H1 {stage_time('zb-h1', 4, 8)}, H2 "
        f"{stage_time('zb-h2', 4, 8)}, work {8 * 3}.",
        long=f"H2's makespan is still {makespan('zb-h2', 4, 8)}: its ranks start and end one after the other. It only "
        f"pays if a rank may begin the next step without waiting for the others. Memory: {held('zb-h2', 4, 8)} "
        f"against {held('zb-h1', 4, 8)}, and on every rank if all is kept until W; 1F1B's last rank holds "
        f"{held('1f1b', 4, 8, 3)}. In between lies ZB-auto: give it a memory limit and measured times, and it "
        "searches.",
        rubric=(
            "both bubbles",
            "p against 2p − 1",
            "H2 helps the longest stage time, not the makespan",
            "what must change in the optimizer",
        ),
        wrong=(
            ("H2 ends a step earlier.", "Not by the makespan."),
            ("H2 has no bubble.", "Only if t_f + t_i = 2t_w."),
        ),
        follow_ups=(
            ("You have half a microbatch of memory to spare. Now?", "A limit between the two, ZB-auto; or interleave."),
            ("H1's last rank: why p as well?", "W is put off there, and its tensors stay."),
        ),
        source="Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2",
    ),
    Question(
        name="two-makespans",
        lesson=6,
        level=4,
        ask="The zero-bubble paper reports less bubble for ZB-H2 than its makespan has. Is that fair?",
        short="It depends on what ends a step. Makespan: first start to last end over all ranks. Longest stage time: "
        "the most that one rank takes from its own first to its own last action. If ranks need not wait for each "
        "other at the optimizer, steps overlap like shifted tiles, and the second is what a step costs.",
        long="Normally all wait: clipping needs a global gradient norm, mixed precision a global check for NaN or "
        "infinity. The paper's post-validation lets each rank step with what it knows so far, passes the norm along, "
        "and if the step should not have been done so, rolls it back and redoes it. Clipping and NaN are rare, so it "
        "seldom costs. The update must be invertible, or a copy kept. I would always report both numbers.",
        rubric=(
            "defines both",
            "optimizer synchronisation is what separates them",
            "post-validation and rollback",
            "says that both belong in a report",
        ),
        wrong=(
            ("It ignores the fill.", "Over many steps the fill is paid once, if ranks never wait."),
            ("So clipping is dropped.", "It is checked afterwards; results stay the same."),
        ),
        follow_ups=(
            ("What if a NaN appears?", "All ranks learn it with the norm, restore, and skip the step."),
            (
                "Which schedules use which?",
                "H2, auto and ZB-V the longest stage time; 1F1B and H1 are the same in both.",
            ),
        ),
        source="Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2 and §4",
    ),
    Question(
        name="what-w-holds",
        lesson=6,
        level=3,
        ask="After I, how much of a microbatch's memory is still held for W?",
        short="For each linear layer W needs its input x and the gradient of its output dy. Scores, masks and "
        "outputs of activations can go after I. So a share stays, and dy is new. Measure it: it may be a third, and "
        "it may even exceed what F stored.",
        long="With share k, ZB-H2, p = 4, m = 8: if nothing stayed, rank 3 would hold 1 microbatch; if all stays, "
        f"{held('zb-h2', 4, 8, 3)}. That is why the paper's memory columns depend on the model, and why a planner "
        "must be told k. Delaying W on late ranks costs memory that 1F1B does not use there, so up to p it is free "
        "in a sense: the first rank has it anyway.",
        rubric=(
            "x and dy of linear layers",
            "what can be freed after I",
            "the peak moves to later ranks",
            "would measure, not guess",
        ),
        wrong=(
            ("Nothing, I frees all.", "dW = dyᵀ·x needs both."),
            ("W can be delayed without limit.", "Each delayed W holds its tensors."),
        ),
        follow_ups=(
            ("With recomputation?", "Recompute once for I and keep for W, or twice; the first holds more."),
            ("A stage without weights?", "Then W has nothing to do."),
        ),
        source="Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2; lesson 06 of this course",
    ),
    Question(
        name="when-the-formula-fails",
        lesson=6,
        level=4,
        ask="When is (p − 1)(t_f + t_i − t_w) for ZB-H1 wrong?",
        short="It holds for equal stages, free hops, t_w ≤ min(t_f, t_i) and m ≥ 2p. Outside, the fixed order waits "
        "in other places. p = 4, m = 9, t_f = 6, t_i = 9, t_w = 7: the formula says "
        f"{formulas.zb_h1_bubble_time(4, *UNEVEN):g}, the simulator {bubble('zb-h1', 4, 9, UNEVEN)}.",
        long=f"For ZB-H2 in the same case {formulas.zb_h2_bubble_time(4, *UNEVEN):g} against "
        f"{bubble('zb-h2', 4, 9, UNEVEN)}. Why: rank 0's first gradient is there after p F's and p − 1 I's. In ZB-H1 "
        "it has run p F's by then and owes no W yet, so it waits (p − 1)·t_i, more than the formula as soon as t_w > "
        "t_f. Real times differ, attention costs in I and not in W, so the paper adds a scheduler that plans with "
        "measured times. I would use the formula to think and the simulator to decide.",
        rubric=(
            "states conditions",
            "knows a case outside them",
            "why: a wait that no W can fill",
            "automatic scheduling with measured times",
        ),
        wrong=(
            (
                "It holds for any times.",
                "Only under its conditions; in this case it is too low.",
            ),
            ("T_B in the paper is the full backward.", "There it is the gradient of the input only."),
        ),
        follow_ups=(
            ("Is t_i = t_w in a transformer?", "For linear layers in FLOPs; attention scores have an I and no W."),
            ("How would you measure t_w?", "Time the split backward of one stage, warm, many times, the median."),
        ),
        source="Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2; the simulator of this course",
    ),
)
