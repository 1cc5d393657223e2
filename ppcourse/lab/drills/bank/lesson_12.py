"""Questions that are claims: right or wrong, and why."""

from ppcourse.lab.drills.bank.computed import efficiency, makespan, overhead, rate, speed_up
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="claim-27-to-19",
        lesson=12,
        level=3,
        ask='"With p = 4, m = 8, interleaving with v = 2 cuts the bubble from 27% to 19%." Right?',
        short=f"Two definitions mixed. By rate it goes from {rate(4, 8)} to {rate(4, 8, 2)}; by overhead from "
        f"{overhead(4, 8)} to {overhead(4, 8, 2)}. The claim starts with a rate and ends with an overhead.",
        long="Only the overhead is divided by v. The rate is (p − 1)/(v·m + p − 1), which falls by less. The quick "
        "check: convert one to the other by o = r/(1 − r). Slips like this make interleaving look worse, or better, "
        f"than it is, so ask for the definition or for the step time: {makespan('1f1b', 4, 8)} against "
        f"{makespan('interleaved', 4, 8, 2)}.",
        rubric=(
            "names the mixture",
            "both pairs of numbers",
            "what v divides",
        ),
        wrong=(("It halves: 27% to 13.7%.", "v halves the overhead, not the rate."),),
        follow_ups=(
            ("And what would settle it?", "Step times: they need no definition."),
            (
                "The same two pairs for m = 16?",
                f"Rate {rate(4, 16)} to {rate(4, 16, 2)}, overhead {overhead(4, 16)} to {overhead(4, 16, 2)}.",
            ),
        ),
        source="Narayanan et al. 2021, §2.2; lesson 12 of this course",
    ),
    Question(
        name="claim-all-pass-gpu-1",
        lesson=12,
        level=2,
        ask='"All microbatches pass GPU 1, then all pass GPU 2, and so on." Is that a pipeline?',
        short="No: that has no overlap. GPU 2 should start microbatch 0 as soon as GPU 1 is done with it, while GPU "
        f"1 does microbatch 1. p = 4, m = 8, 10 ms each way: {4 * 8 * 20} ms as described, {(8 + 3) * 20} ms as a "
        "pipeline.",
        long="The description is right for what each GPU does in GPipe, all forwards and then all backwards, and "
        "wrong for when. An interviewer may say it to see whether you object. Draw a grid with time to the right and "
        "ranks downward: a pipeline makes a slanted block.",
        rubric=(
            "no overlap as described",
            "says when GPU 2 starts",
            "a number or a drawing",
        ),
        wrong=(("Yes, that is GPipe.", "GPipe orders a rank's work so, but ranks overlap."),),
        follow_ups=(
            ("And the speed-up over one GPU?", f"None as described; {speed_up(4, 8)} as a pipeline."),
            ("What has to change, at least?", "When GPU 2 starts: with the first microbatch, and not after the last."),
        ),
        source="Huang et al. 2019, §2.3; lesson 12 of this course",
    ),
    Question(
        name="claim-efficiency",
        lesson=12,
        level=2,
        ask='"Pipeline efficiency is p·m/(p + m − 1)." Right?',
        short=f"That is the speed-up; it can exceed 1: {speed_up(4, 8)} for p = 4, m = 8. Efficiency is that over p: "
        f"m/(p + m − 1), {efficiency(4, 8)}.",
        long="Check by limits: with m large, efficiency must go to 1 and speed-up to p; with m = 1, efficiency is "
        "1/p and speed-up 1. Testing a formula at its ends is quicker than deriving it, and shows the interviewer "
        "how you think. The slip is common because both stand beside each other in most texts.",
        rubric=(
            "recognises the speed-up",
            "gives the efficiency",
            "checks by limits",
        ),
        wrong=(("Right.", "An efficiency above 1 should have made you stop."),),
        follow_ups=(
            ("How would you measure it?", "Busy time of all ranks, over p times the step: never above 1."),
            ("Symmetric in p and m. Does that make sense?", "For the speed-up yes; efficiency is not symmetric."),
        ),
        source="Huang et al. 2019, §2.3; lesson 12 of this course",
    ),
    Question(
        name="claim-fold-the-hop",
        lesson=12,
        level=4,
        ask='"Put the message time into t_f and t_b; then the formula holds." Right?',
        short=f"No. Folding a hop of 0.1 into both gives {(8 + 3) * (3 + 0.2):.1f} for p = 4, m = 8, t_b = 2t_f; "
        f"truly it is {makespan('gpipe', 4, 8, hop=0.1)} for GPipe and {makespan('1f1b', 4, 8, hop=0.1)} for 1F1B.",
        long="A hop delays the receiver, but does not keep the sender busy, so later hops hide. It is right only if "
        "sends block the rank for that time. GPipe pays 2(p − 1) hops once; 1F1B again and again, but not 2·m; "
        "interleaved more. So one must simulate, or know which dependencies are on the critical path.",
        rubric=(
            "latency does not occupy a rank",
            "folded is too high",
            "depends on the schedule",
            "blocking sends as the exception",
        ),
        wrong=(("Close enough.", "With larger hops it is far off, and it ranks schedules wrongly."),),
        follow_ups=(
            ("When is it right?", "If a send blocks its rank for the whole time."),
            (
                "How far off is it with a hop as long as a forward?",
                f"{(8 + 3) * (3 + 2)} folded; {makespan('gpipe', 4, 8, hop=1)} for GPipe and "
                f"{makespan('1f1b', 4, 8, hop=1)} for 1F1B.",
            ),
        ),
        source="Lesson 12 of this course (simulator)",
    ),
)
