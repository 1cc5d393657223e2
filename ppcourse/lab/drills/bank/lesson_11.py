"""Questions on composing parallelisms and on checkpoints."""

from ppcourse.lab.drills.bank.computed import overhead, state_gb
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="eight-ranks-two-by-two-by-two",
        lesson=11,
        level=2,
        ask="Eight GPUs as 2 × 2 × 2 of data, pipeline and tensor parallelism: who talks to whom, and when?",
        short="Tensor pairs are neighbours: 0-1, 2-3, 4-5, 6-7, in every layer. With data outermost, pipeline pairs "
        "are 0-2, 1-3, 4-6, 5-7, at each microbatch. Data pairs are 0-4, 1-5, 2-6, 3-7, once a step for gradients.",
        long="Each GPU is in one group of each kind. rank = d·4 + p·2 + t here; the order of axes says who is near "
        "whom. Megatron-LM puts tensor fastest, then data, then pipeline, so that replicas are nearer than stages; "
        "what is right depends on which is to share a machine. Gradients are reduced once, after the last "
        "microbatch, not m times. The loss exists on the last stage of each replica.",
        rubric=(
            "groups written down consistently",
            "how often each talks",
            "axis order decides who is near",
            "one reduction a step",
        ),
        wrong=(
            ("Reduce gradients after each microbatch.", "m times the traffic for the same sum."),
            ("All ranks have the loss.", "Last stages only; others get it if you send it."),
        ),
        follow_ups=(
            ("How many process groups?", "Four of each kind, of two ranks."),
            ("Where is ZeRO-1?", "In the data groups: each of the two steps half of the parameters."),
        ),
        source="Narayanan et al. 2021, §3",
    ),
    Question(
        name="zero-with-a-pipeline",
        lesson=11,
        level=3,
        ask="Which ZeRO stage goes with pipeline parallelism?",
        short="ZeRO-1: it shares out optimizer state, and works once a step: reduce-scatter gradients, step, "
        "all-gather weights. ZeRO-2 would reduce-scatter gradients after each microbatch's backward, ZeRO-3 gather "
        "weights for each microbatch: m times the traffic.",
        long="With ZeRO-2, gradients must be kept whole until the last microbatch anyway, or reduced m times: so "
        "little is won. With ZeRO-3, breadth-first order helps: all microbatches of a chunk pass while its weights "
        "are there. Memory with ZeRO-1, d replicas: 6 + 12/d bytes a parameter of the stage. One trap: every rank "
        "must take part in each collective, even one whose stage has no trainable parameter.",
        rubric=(
            "ZeRO-1, with the reason",
            "why 2 and 3 multiply traffic by m",
            "6 + 12/d bytes",
            "breadth-first as the partner of sharded weights",
        ),
        wrong=(
            ("ZeRO and pipelines exclude each other.", "ZeRO-1 fits well."),
            ("ZeRO-3, for it saves most.", "It gathers weights per microbatch, unless the order is made for it."),
        ),
        follow_ups=(
            (
                "How much does ZeRO-1 save? Say 7B, p = 4, d = 8.",
                f"{6 + 12 / 8:g} bytes a parameter, not 18: {state_gb(7, 6 + 12 / 8, 4)} on a GPU instead of"
                f" {state_gb(7, parts=4)}.",
            ),
            ("When does the reduction overlap?", "With the last microbatch's backward, or the cool-down."),
        ),
        source="Lamy-Poirier 2023 (Breadth-First Pipeline Parallelism); Megatron-LM's documentation of the "
        "distributed optimizer",
    ),
    Question(
        name="checkpoint-a-pipeline",
        lesson=11,
        level=2,
        asked=True,
        ask="How do you checkpoint a model trained with pipeline parallelism?",
        short="Each rank writes its own part: weights, optimizer state, its random state. One small file written "
        "last names all parts, the step and the position in the data. Nothing is gathered on one rank. Names follow "
        "layers, not ranks, so that another p can load it.",
        long="Write to a temporary name, flush, rename; the manifest only when all ranks are done: then a job killed "
        "half-way leaves the last checkpoint whole. Only one replica of each part need write. To load with another "
        "p, read a manifest and fetch each layer from whichever part has it, Adam's moments along with weights. "
        "Test: save, load at p/2, and compare the next loss with an uninterrupted run. Large runs copy to host "
        "memory first and write in the background.",
        rubric=(
            "each rank its part; no single writer",
            "optimizer, step, data position, random state",
            "atomic: manifest last",
            "names by layer, loads at another p",
            "tests by resuming",
        ),
        wrong=(
            (
                "Gather all on rank 0 and torch.save.",
                "Memory and time of one host; it is a bottleneck and may not fit.",
            ),
            ("Save the weights.", "Without moments, step and data position it is another run."),
        ),
        follow_ups=(
            ("Killed during the save: what is on disk?", "Parts without a manifest, and the checkpoint before, whole."),
            ("Which random state?", "Each rank's own; rank 0's for all would repeat dropout masks."),
            ("Load p = 4 at p = 2?", "By layer names: new rank 0 takes layers of old ranks 0 and 1."),
        ),
        source="Lesson 11 of this course",
    ),
    Question(
        name="half-the-layers",
        lesson=11,
        level=3,
        ask="After loading at another p the loss is far too high, though nothing failed. What happened?",
        short="Probably layers were matched by their number within a rank: stage 1's layer 0 landed on layer 0 of "
        "the model, and half the layers kept their random start. Loading that does not insist on every key hides it.",
        long="Names within a rank are local, so every rank has a layer 0. Save under global names, and load "
        "strictly: every parameter exactly once, none left over, shapes equal. With several chunks a rank the same "
        "collision hits optimizer state. A cheap test is a sum over all parameters before and after, by name, and "
        "the loss of one batch.",
        rubric=(
            "local against global layer numbers",
            "non-strict loading hides it",
            "optimizer state too",
            "a test that would have caught it",
        ),
        wrong=(("A learning-rate warm-up issue.", "The first loss, before any step, is already wrong."),),
        follow_ups=(
            (
                "Would loading strictly have been enough?",
                "It finds names that are missing or left over, not layers exchanged: for that, compare sums by name.",
            ),
            ("Loss is right at first, then jumps?", "Moments or step count not restored, or matched to wrong layers."),
        ),
        source="Lesson 11 of this course",
    ),
    Question(
        name="clip-across-stages",
        lesson=11,
        level=3,
        ask="How do you clip gradients by their norm in a pipeline?",
        short="The norm is global: each rank sums squares of its gradients, all-reduce the sum over pipeline and "
        "tensor ranks, take the root, and all scale by the same factor. Tied weights count once; so do parameters "
        "that tensor ranks all hold.",
        long="If every stage clips by its own norm, the direction of the step changes, and no error shows. It is "
        "also the point where all ranks wait for each other, the one that zero bubble's post-validation takes away. "
        "With data parallelism do it after the reduction, or with ZeRO-1 on shards with a sum over replicas too.",
        rubric=(
            "sum of squares over all stages",
            "same factor everywhere",
            "no double counting",
            "it synchronises all ranks",
        ),
        wrong=(
            ("clip_grad_norm_ on each rank.", "Local norms, different factors."),
            ("Sum the norms.", "Sum the squares, then the root."),
        ),
        follow_ups=(
            (
                "What does it cost?",
                "One number to reduce, but every rank waits until the last one has its last gradient.",
            ),
            ("A rank without parameters?", "It adds zero, but must take part, or others hang."),
        ),
        source="Lesson 11 of this course; Qi et al. 2024 (Zero Bubble), §4",
    ),
    Question(
        name="data-parallel-takes-microbatches",
        lesson=11,
        level=4,
        ask="You go from 32 to 256 GPUs with data parallelism, pipeline of 8, global batch 256, microbatch 1. What "
        "breaks?",
        short=f"m. With 32 GPUs, d = 4, m = 64: overhead {overhead(8, 64)}. With 256, d = 32, m = 8: "
        f"{overhead(8, 8)}. Nearly half of all time is bubble.",
        long=f"Ways out: a larger batch, if training bears it; interleaving, v = 4: {overhead(8, 8, 4)}; zero bubble; "
        "or a smaller p: with ZeRO-1 over so many replicas state is small, and p = 4 may fit now: d = 64, m = 4, "
        f"{overhead(4, 4)}: hardly a gain, since m falls as p does. With fixed batch and GPUs, m over p is what "
        "stays: batch over GPUs. Tensor parallelism takes GPUs without taking microbatches.",
        rubric=(
            "computes m before and after",
            "sees m/p = batch over GPUs",
            "ways out with numbers",
            "trade with tensor parallelism",
        ),
        wrong=(("Data parallelism scales perfectly.", "Here it takes the microbatches the pipeline lives on."),),
        follow_ups=(
            ("What does t = 4 do?", f"d = 8, m = 32: {overhead(8, 32)}."),
            ("And a batch of 2,048 instead?", f"m = 64 again: {overhead(8, 64)}, if training bears such a batch."),
        ),
        source="Narayanan et al. 2021, §3",
    ),
)
