"""Questions on microbatches, gradients and the flush."""

from ppcourse.lab.drills.bank.computed import efficiency, percent, speed_up
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="why-microbatches",
        lesson=2,
        level=1,
        asked=True,
        ask="Why microbatches at all?",
        short="Without them one rank works and p − 1 wait: a batch goes forward through all and back through all. "
        "With m microbatches rank 0 starts the second one while rank 1 does the first, so ranks overlap. Busy share: "
        f"1/p before, m/(m + p − 1) after: with p = 4 and m = 8, {percent(1 / 4)} becomes {efficiency(4, 8)}.",
        long="The result is the same: gradients of microbatches are summed and weighted so that they are the batch's "
        "mean; one optimizer step at the end. The price: more and smaller kernels and messages, and BatchNorm sees "
        "other statistics. Activations need not grow with m, if backwards come early, as in 1F1B. Too many "
        "microbatches make kernels inefficient; several times p is usual.",
        rubric=(
            "naive: one rank at a time",
            "microbatches let ranks overlap",
            "1/p against m/(m + p − 1)",
            "same gradients, one optimizer step",
            "a price: small kernels, more messages",
        ),
        wrong=(
            (
                "To save memory.",
                "That is gradient accumulation's reason; here it is overlap. 1F1B then saves memory, too.",
            ),
            ("They change the effective batch.", "The batch is the same; it is only cut in parts."),
        ),
        follow_ups=(
            ("Why not one sample a microbatch?", "Kernels become too small to fill a GPU, and latency adds up."),
            (
                "Is the gradient really equal?",
                "Up to rounding, if losses are weighted by their rows and no layer mixes rows.",
            ),
        ),
        source="Huang et al. 2019, §2.3",
    ),
    Question(
        name="naive-use",
        lesson=2,
        level=1,
        ask="Cut a model over four GPUs and just run it. How busy are they?",
        short=f"A quarter of the time each: {percent(1 / 4)}. Batches pass from GPU to GPU and back, and only one "
        "works at any moment. It runs the model, which may be all you wanted, but no faster than one GPU of enough "
        "memory.",
        long="In general 1/p. With m microbatches it becomes m/(m + p − 1). For p = 4 and m = 8 the speed-up over "
        f"one GPU is {speed_up(4, 8)} out of 4. Some say naive pipelining has no bubble, because nothing is "
        "pipelined; but idle is idle: its rate is (p − 1)/p, the worst there is.",
        rubric=(
            "1/p",
            "one at a time, since each waits for the one before",
            "microbatches as the remedy",
            "gives m/(m + p − 1)",
        ),
        wrong=(
            ("It uses all four, so it is four times as fast.", "They work one after the other."),
            ("The bubble is 0.", "It is the largest possible, (p − 1)/p of all time."),
        ),
        follow_ups=(
            (
                "And two batches one after the other?",
                "The same share, unless the second may start before the first is back.",
            ),
            ("When is naive fine?", "To infer with a model too large for one GPU, now and then."),
        ),
        source="Huang et al. 2019, §2.3",
    ),
    Question(
        name="same-gradients",
        lesson=2,
        level=2,
        ask="Are the gradients with microbatches the same as without?",
        short="Yes, up to rounding, under three conditions: the loss of each microbatch is weighted by its share of "
        "the batch (for a mean: rows, or tokens); no layer mixes the samples of a batch, as BatchNorm does; and "
        "random numbers such as dropout's are the same.",
        long="With equal parts and a mean, divide each loss by m. With unequal parts, say 3, 3 and 2 rows, dividing "
        "by m is wrong: weigh by 3/8, 3/8, 2/8. With a sum, do not divide. With token-weighted losses, count tokens "
        "that count. It is an easy test: run one step without a pipeline and compare every gradient in double "
        "precision.",
        rubric=(
            "yes, with conditions",
            "weights by rows or tokens, not blindly 1/m",
            "BatchNorm (and dropout) as exceptions",
            "how to test it: compare with one process",
        ),
        wrong=(
            ("Divide by m, always.", "Not for sums, and not for parts of unequal size."),
            ("It is an approximation.", "Synchronous pipelines are exact; asynchronous ones are not."),
        ),
        follow_ups=(
            ("Loss is summed by the model: what do you do?", "Nothing: sums of gradients are what the sum wants."),
            (
                "You see twice the expected gradient. First guess?",
                "Accumulated over steps, or divided on neither side.",
            ),
        ),
        source="Lesson 02 of this course; Huang et al. 2019, §2.3",
    ),
    Question(
        name="accumulation-or-microbatches",
        lesson=2,
        level=2,
        ask="What is the difference between gradient accumulation and microbatches of a pipeline?",
        short="The arithmetic is the same: split, sum gradients, step once. Accumulation does the parts one after "
        "the other to save memory. A pipeline has several in flight at a time to keep ranks busy. Many frameworks "
        "even use one number for both.",
        long="With accumulation one part's activations live at a time; in a pipeline up to p on the first rank with "
        "1F1B, all m with GPipe. And if you accumulate over k pipeline steps with a flush after each, you pay k "
        "bubbles; better one step with k·m microbatches. No further buffer is needed in either: gradients add in "
        "place.",
        rubric=(
            "same arithmetic",
            "different aim: memory against overlap",
            "several in flight at once",
            "one flush with more microbatches beats several flushes",
        ),
        wrong=(
            ("Microbatches need m gradient buffers.", "One: they add into it."),
            ("You update after each microbatch.", "Then weights would differ between microbatches of a step."),
        ),
        follow_ups=(
            (
                "Accumulate 4 times with m = 8, or m = 32?",
                "m = 32: one bubble instead of four, and no more memory in 1F1B.",
            ),
            (
                "Then why does anybody accumulate over pipeline steps?",
                "With GPipe, whose memory grows with m; or where a framework takes no larger m.",
            ),
        ),
        source="Huang et al. 2019, §2.3; Narayanan et al. 2021, §2.2",
    ),
    Question(
        name="flush-or-not",
        lesson=2,
        level=3,
        ask="What is a pipeline flush, and what if you leave it out?",
        short="At the end of a step the pipeline drains, then all ranks update, so every microbatch saw the same "
        "weights. PipeDream leaves it out: no bubble in the steady state, but weights are stale, and a rank keeps "
        "several versions so that forward and backward of a microbatch use the same one.",
        long="PipeDream's first rank needs up to p versions. PipeDream-2BW keeps two and accepts a delay of one. "
        "Large-model training nearly always flushes: results equal those of one device, and the bubble is made small "
        "by m, interleaving or a split backward. Note what is new when: one forward, one backward comes from "
        "PipeDream without a flush; Megatron-LM uses the order with one.",
        rubric=(
            "flush: drain, then one update everywhere",
            "without: stale weights",
            "weight stashing, several versions",
            "why training of large models flushes",
        ),
        wrong=(
            ("PipeDream is the naive pipeline with a flush.", "It is asynchronous 1F1B with several weight versions."),
            ("Flushing costs a synchronisation only.", "It costs the bubble: filling and draining in each step."),
        ),
        follow_ups=(
            ("Does stashing make it equal to SGD?", "Consistent within a microbatch, but with old weights."),
            (
                "Could zero bubble do without a flush?",
                "It keeps the result: ranks start the next step without waiting, and roll back if they must.",
            ),
        ),
        source="Narayanan et al. 2019 (PipeDream), §3.3 of the 2018 preprint; Narayanan et al. 2021, §2.2",
    ),
)
