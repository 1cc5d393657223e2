"""Questions on the bubble."""

from ppcourse.analysis import formulas
from ppcourse.lab.drills.bank.computed import efficiency, makespan, overhead, percent, rate, speed_up
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="where-the-bubble-comes-from",
        lesson=3,
        level=1,
        asked=True,
        ask="Where does the bubble come from, how big is it, and how do you reduce it?",
        short="From filling and draining: the last rank waits for p − 1 forwards at first, and after its last "
        "backward p − 1 backwards still follow elsewhere. Idle over busy time is (p − 1)/m; of all time (p − 1)/(m + "
        "p − 1). Reduce it by more microbatches, interleaving, or splitting the backward.",
        long=f"p = 4, m = 8: {overhead(4, 8)} overhead or {rate(4, 8)} rate, the same bubble; I always say which. m = "
        f"32: {overhead(4, 32)}. Interleaving divides the overhead by v, at nearly v times the messages. Zero bubble "
        "splits the backward and puts weight gradients where ranks would wait. Fewer ranks help as well: p − 1 is in "
        "the formula. It holds for equal stages and free messages; an uneven stage or slow links add idle time that "
        "m does not cure.",
        rubric=(
            "fill and drain, p − 1 slots each",
            "(p − 1)/m, and says what it is divided by",
            "more microbatches",
            "interleaving and split backward",
            "names the assumptions",
        ),
        wrong=(
            ("1F1B reduces it.", "It has GPipe's bubble; it holds less, so that m can be larger."),
            ("It is the time lost to communication.", "It is there with free messages, too."),
        ),
        follow_ups=(
            ("Derive it.", "Last rank: (p − 1)t_f before, m(t_f + t_b) of work, (p − 1)t_b after."),
            ("Your m is fixed by the batch. Now?", "Interleave, split the backward, or fewer pipeline ranks."),
            ("Where is it on rank 0?", "Inside the step: in GPipe between its last forward and its first backward."),
        ),
        source="Narayanan et al. 2021, §2.2; Huang et al. 2019, §2.3",
    ),
    Question(
        name="derive-it",
        lesson=3,
        level=2,
        ask="Derive (p − 1)/m on the whiteboard.",
        short="Look at the last rank. Its first input arrives after p − 1 forwards. Then it has m forwards and m "
        "backwards without a gap. After its last backward the gradient still passes p − 1 ranks. Idle: (p − 1)(t_f + "
        "t_b). Work: m(t_f + t_b). The ratio is (p − 1)/m.",
        long="The step is (m + p − 1)(t_f + t_b); every rank has m(t_f + t_b) of work, so every rank has the same "
        f"idle time, only elsewhere. p = 4, m = 6, one slot for each F and B: {2 * (6 + 4 - 1)} slots, {2 * 6} of "
        f"work, {2 * (4 - 1)} idle on each rank. t_f and t_b cancel, so a backward of twice a forward changes "
        "nothing. Assumed: equal stages, free messages, a flush.",
        rubric=(
            "picks a rank that works without a gap",
            "p − 1 before and p − 1 after",
            "divides idle by busy, knowingly",
            "idle time is equal on all ranks",
            "assumptions",
        ),
        wrong=(
            ("Rank 0 idles at the end only.", "It ends the step; its idle slots lie inside."),
            ("It is p/m.", "With one rank there is no bubble: p − 1."),
        ),
        follow_ups=(
            ("t_b = 2 t_f: what changes?", "The step gets longer, the share stays."),
            ("And for m < p?", "The same formula; only then the overhead is 100% or more once m ≤ p − 1."),
        ),
        source="Narayanan et al. 2021, §2.2",
    ),
    Question(
        name="four-numbers",
        lesson=3,
        level=1,
        ask=f"One says the bubble is {overhead(4, 8)}, another {rate(4, 8)}, for p = 4 and m = 8. Who is right?",
        short=f"Both. {overhead(4, 8)} is idle over busy time, (p − 1)/m, Megatron's bubble time fraction. "
        f"{rate(4, 8)} is idle over all time, (p − 1)/(m + p − 1), as in GPipe and zero bubble. r = o/(1 + o).",
        long=f"Two more numbers are mixed up with them: the efficiency m/(m + p − 1), here {efficiency(4, 8)}, and "
        f"the speed-up p·m/(m + p − 1), here {speed_up(4, 8)}. A claim such as '27% to 19% by interleaving' compares "
        "a rate with an overhead. So whenever I hear a percentage I ask: of what? At m = 1 the overhead is p − 1 and "
        "grows without end; the rate is (p − 1)/p and stays below 1.",
        rubric=(
            "both, with both definitions",
            "converts one into the other",
            "efficiency is 1 − rate, not 1 − overhead",
            "speed-up is p times efficiency",
        ),
        wrong=(
            ("Efficiency is p·m/(p + m − 1).", "That is the speed-up; it exceeds 1."),
            (
                f"Then {percent(1 - formulas.bubble_overhead(4, 8))} of the time is used.",
                f"No, {efficiency(4, 8)}: 1 − rate.",
            ),
        ),
        follow_ups=(
            ("An overhead above 100%?", "Possible: more idle than busy, when m < p − 1."),
            (
                "Which would you report?",
                "The rate for how busy GPUs are, the overhead for how much longer a step takes.",
            ),
        ),
        source="Narayanan et al. 2021, §2.2; Huang et al. 2019, §2.3",
    ),
    Question(
        name="how-many-microbatches",
        lesson=3,
        level=2,
        ask="How many microbatches keep the bubble below 20% with four ranks?",
        short="Depends on the definition. Rate (p − 1)/(m + p − 1) ≤ 0.2: m ≥ (p − 1)(1/r − 1) = "
        f"{round(formulas.microbatches_for_rate(4, 0.2))}. Overhead (p − 1)/m ≤ 0.2: m ≥ {3 * 5}. As a rule of thumb "
        "one takes four times p.",
        long="m is bounded from above as well: it is the replica's batch over the microbatch size, so more "
        "data-parallel replicas mean fewer microbatches; and smaller microbatches make kernels slow. If m cannot "
        "grow, interleave: then v·m stands where m stood, if m is a multiple of p.",
        rubric=(
            "asks which bubble",
            "solves for m correctly",
            "says what limits m",
            "names a way out when m is limited",
        ),
        wrong=(
            ("16, for it is 4 p.", "A rule of thumb, not the least."),
            (
                "Twice the m halves the rate.",
                f"It halves the overhead; the rate goes from {rate(4, 8)} to {rate(4, 16)}.",
            ),
        ),
        follow_ups=(
            ("Global batch 512, 16 replicas, microbatch 2: m?", f"{512 // 16 // 2}."),
            ("Double p at equal m?", "The overhead a bit more than doubles: 2p − 1 over p − 1."),
        ),
        source="Huang et al. 2019, §2.3",
    ),
    Question(
        name="why-not-a-thousand",
        lesson=3,
        level=2,
        ask="If more microbatches mean less bubble, why not a thousand?",
        short="The batch limits m, since a microbatch has at least one sample. Small microbatches make thin matrices "
        "that fill a GPU badly. And there are more messages, each with its latency. The gain falls as 1/m while "
        "these costs grow; several times p is where it pays.",
        long=f"In numbers, p = 8: m = 8 gives {overhead(8, 8)}, 32 {overhead(8, 32)}, 64 {overhead(8, 64)}, 128 "
        f"{overhead(8, 128)}. If halving the microbatch makes kernels 10% slower, the last step does not pay. Bytes "
        "at a cut stay the same, only messages grow. With GPipe memory grows with m at a given microbatch size; with "
        "1F1B it does not. A larger global batch also changes the optimization.",
        rubric=(
            "kernel efficiency",
            "messages and latency",
            "the batch is finite, and shared with data parallelism",
            "diminishing returns with a number",
        ),
        wrong=(
            ("Memory grows with m.", "In GPipe; in 1F1B at most p microbatches are held."),
            ("More bytes are sent.", "More messages; the bytes are the same for the same batch."),
        ),
        follow_ups=(
            (
                "How would you find the best microbatch size?",
                "Time one layer for several sizes; put t(b) into (m + p − 1)·t.",
            ),
            ("Does m change convergence?", "No, as long as the batch is the same."),
        ),
        source="Narayanan et al. 2021, §3.4",
    ),
    Question(
        name="scale-p-and-m",
        lesson=3,
        level=3,
        ask="You double the GPUs by doubling p at the same global batch. What happens to throughput?",
        short="Less than double. The overhead goes from (p − 1)/m to (2p − 1)/m. With m = 32, from p = 8 to 16: "
        f"{overhead(8, 32)} to {overhead(16, 32)}. Speed-up over one rank: {speed_up(8, 32)} to {speed_up(16, 32)}.",
        long="If instead the batch doubles too, m doubles with it and the efficiency stays: weak scaling. Strong "
        "scaling at a fixed batch hits the bubble first, then stages so small that messages do not hide. Using the "
        "new GPUs for data parallelism is no free way out: m halves, and with p unchanged the overhead doubles just "
        f"the same, to {overhead(8, 16)}.",
        rubric=(
            "less than double, with the formula",
            "strong against weak scaling",
            "data parallelism halves m: also costs bubble",
            "a number",
        ),
        wrong=(
            ("Efficiency is independent of p.", "Only if m grows in proportion."),
            ("At m = 1 the rate grows linearly with p.", "The overhead does; the rate is (p − 1)/p."),
        ),
        follow_ups=(
            ("What else at 16 ranks?", "More stages to balance, and two or three layers a stage leave little choice."),
            ("And v?", f"v = 4 brings p = 16, m = 32 to {overhead(16, 32, 4)}, with many more messages."),
        ),
        source="Narayanan et al. 2021, §2.2 and §3",
    ),
    Question(
        name="assumptions-of-the-formula",
        lesson=3,
        level=3,
        ask="Your measured bubble is twice (p − 1)/m. What did the formula assume?",
        short="Equal stages, free messages, no jitter, and a step counted from first start to last end. One slow "
        "stage makes all others wait in every microbatch; hops add up in 1F1B; launch gaps and the optimizer may be "
        "in the measurement.",
        long=f"Examples with p = 4, m = 8, t_b = 2t_f, in t_f: ideal {makespan('1f1b', 4, 8)}; a hop of 0.1 makes it "
        f"{makespan('1f1b', 4, 8, hop=0.1)}; a last stage 1.5 times as long, by the head, "
        f"{makespan('1f1b', 4, 8, slow=1.5)}. I would lay the measured timeline over the simulated one: idle at the "
        "ends is fill and drain, idle between actions on all ranks but one is imbalance, small gaps everywhere are "
        "messages.",
        rubric=(
            "equal stages",
            "free messages",
            "what belongs to the step",
            "a way to tell causes apart on a timeline",
        ),
        wrong=(
            ("Increase m.", "That cures fill and drain only; imbalance stays in proportion."),
            ("The formula assumes t_f = t_b.", "It does not; they cancel."),
        ),
        follow_ups=(
            ("All ranks but the last wait. Why?", "It has the head and the loss: give it fewer layers."),
            ("Gaps everywhere?", "Latency, or launches by a busy CPU; look at whether the GPU waits for messages."),
        ),
        source="Narayanan et al. 2021, §2.2; lesson 03 of this course",
    ),
)
