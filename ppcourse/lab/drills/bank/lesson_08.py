"""Questions on peak memory."""

from ppcourse.lab.drills.bank.computed import held
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="peak-with-and-without",
        lesson=8,
        level=2,
        asked=True,
        ask="Is peak memory the same with and without pipeline parallelism?",
        short="Weights, gradients and optimizer state fall to 1/p. Activations on the first rank do not: with 1F1B "
        "and m ≥ p it holds p microbatches of L/p layers, that is L layers' worth, as one GPU that works microbatch "
        "by microbatch. Later ranks hold less, the last one 1/p of it.",
        long="Against one GPU that takes the whole batch at once, activations fall, but by microbatching, not by the "
        f"pipeline. With GPipe every rank holds m microbatches of L/p layers: p = 4, m = 16 is {16 // 4} times the "
        f"one GPU's. Interleaved a little more than 1F1B: rank 0 holds {held('interleaved', 4, 16, 0, 2)} instead of "
        f"{held('1f1b', 4, 16)} microbatches. Embedding and head make the ends dearer. So a pipeline cures memory "
        "that weights take; for activations one recomputes or splits tensors.",
        rubric=(
            "state falls to 1/p",
            "activations on rank 0 do not, with the reason",
            "differs by rank and by schedule",
            "says what it compares with",
        ),
        wrong=(
            ("Everything is divided by p.", "Not activations of the first rank."),
            ("1F1B's activations on the first stage fall with p.", "p microbatches of L/p layers: constant."),
        ),
        follow_ups=(
            ("And for m < p?", "m microbatches of L/p layers on the first ranks: less than one GPU."),
            ("How would you prove it?", "Reset peak statistics, run a step, read the peak on each rank; vary p and m."),
            ("What do ZB-H2 and DualPipe hold?", "2p − 1, and p + 1 on every rank."),
        ),
        source="Narayanan et al. 2021, §2.2; Korthikanti et al. 2022, §4.2.3",
    ),
    Question(
        name="who-runs-out-first",
        lesson=8,
        level=2,
        ask="In 1F1B, which rank runs out of memory first?",
        short="Usually rank 0: most microbatches in flight, p, and the embedding. But the last rank has the head and "
        "the logits, b·s·V numbers, in fp32 for the loss, which can be larger than a microbatch of layers. I would "
        "compute both.",
        long="Rank r holds min(m, p − r) microbatches of its layers. Logits: 4096 tokens and a vocabulary of 128,000 "
        f"in fp32 are {4096 * 128_000 * 4 / 1e9:.1f} GB, and their gradient as much again, for one microbatch. So in "
        "practice one gives both ends fewer layers, or computes the loss in parts. And fragmentation and "
        "communicators' buffers come on top everywhere.",
        rubric=(
            "rank 0 by activations in flight",
            "embedding there",
            "head and logits on the last rank",
            "a number for logits",
        ),
        wrong=(
            ("All alike.", "In GPipe nearly; in 1F1B p − r."),
            ("The last, for it works most.", "Not for that; if so, for its logits."),
        ),
        follow_ups=(
            ("How to even it out?", "Fewer layers on the first ranks, recompute there, or a V placement."),
            (
                "And if it is interleaved?",
                f"Still rank 0, but less clearly: p = 8, v = 2 holds {held('interleaved', 8, 32, 0, 2)} there and "
                f"{held('interleaved', 8, 32, 7, 2)} on the last; 1F1B {held('1f1b', 8, 32)} and "
                f"{held('1f1b', 8, 32, 7)}.",
            ),
        ),
        source="Narayanan et al. 2021, §2.2; lesson 08 of this course",
    ),
    Question(
        name="which-memory-number",
        lesson=8,
        level=3,
        ask="max_memory_allocated says 30 GB, nvidia-smi 41. Who is right?",
        short="Both. Allocated: bytes of live tensors. Reserved: what PyTorch's caching allocator has taken from the "
        "driver, with free blocks and fragmentation. nvidia-smi adds the CUDA context, libraries and NCCL's buffers, "
        "which PyTorch does not see.",
        long="To plan a schedule I use the peak of allocated after reset_peak_memory_stats, for it counts what the "
        "schedule holds. To know whether it fits I use reserved plus what nvidia-smi shows beyond. Two traps: the "
        "reset sets the peak to what is allocated now, so weights stay in; and read it after a synchronisation and "
        "on each rank, for ranks differ.",
        rubric=(
            "allocated against reserved",
            "context and NCCL on top",
            "reset before, read each rank",
            "which number for which purpose",
        ),
        wrong=(
            ("There is a leak of 11 GB.", "Cache, context and communicators."),
            ("empty_cache() makes room.", "For other processes; PyTorch would have reused it anyway."),
        ),
        follow_ups=(
            (
                "Which of them do you compare two schedules by?",
                "The peak of allocated, on every rank, after a warm-up step; reserved depends on what ran before.",
            ),
            (
                "Out of memory, though much is reserved and free?",
                "Fragmentation: pieces too small; try expandable segments.",
            ),
        ),
        source="Lesson 08 of this course",
    ),
    Question(
        name="memory-grows-with-m",
        lesson=8,
        level=3,
        ask="You run 1F1B, and peak memory still grows with m. What is wrong?",
        short="Something outlives its backward. Candidates: outputs that were sent and are kept until the step ends, "
        "losses logged without detach, receive buffers posted too early, or an order that is GPipe's after all.",
        long="I vary m and look at the slope on each rank: a slope of one output is a kept send, a slope of a full "
        "microbatch is a graph that lives on. A sent output must keep its graph, not its storage, and its storage "
        "only until the send is complete. A returned loss that is not detached keeps the whole graph of its "
        "microbatch. Then count: what is alive between two actions should be p − r microbatches.",
        rubric=(
            "slope against m, rank by rank",
            "sent outputs",
            "logged losses not detached",
            "checks the order itself",
        ),
        wrong=(
            ("1F1B always grows a little.", "Beyond m = p it should be flat."),
            ("Call the garbage collector.", "References hold it, not the collector."),
        ),
        follow_ups=(
            ("Which rank would show a kept loss?", "The last one."),
            (
                "How to free storage but keep the graph?",
                "Shrink the output's data after the send, as Megatron-LM does.",
            ),
        ),
        source="Lesson 08 of this course; Megatron-LM",
    ),
    Question(
        name="activations-of-a-layer",
        lesson=8,
        level=4,
        ask="How many bytes of activations does a transformer layer keep?",
        short="In 16 bits without fused attention s·b·h(34 + 5·a·s/h). The 34 are inputs of linear layers, norms, "
        "nonlinearity and dropout masks; 5·a·s/h are the attention scores, which fused attention does not keep.",
        long=f"Example: s = 4096, h = 4096, a = 32, b = 1: 34 against {5 * 32 * 4096 / 4096:g}: scores are most of "
        "it. Tensor parallelism of size t splits 24 of the 34 and the scores: 10 + 24/t + 5·a·s/(h·t); sequence "
        "parallelism splits the other 10 as well. It is linear in b. For a rank multiply by its layers and its "
        "microbatches in flight, p − r in 1F1B.",
        rubric=(
            "linear in s·b·h, quadratic in s for scores",
            "what fused attention removes",
            "what tensor and sequence parallelism split",
            "times layers times microbatches in flight",
        ),
        wrong=(
            ("2·s·b·h: the output.", "That is what crosses a cut; a layer keeps far more."),
            ("Tensor parallelism divides it by t.", "Not without sequence parallelism: 10·s·b·h stay."),
        ),
        follow_ups=(
            ("With full recomputation?", "2·s·b·h a layer, its input."),
            ("Selective recomputation?", "Drops the scores' part, which is large and cheap to compute again."),
        ),
        source="Korthikanti et al. 2022, Table 2",
    ),
)
