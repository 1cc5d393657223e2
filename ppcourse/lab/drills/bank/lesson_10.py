"""Questions on choosing sizes."""

from ppcourse.lab.drills.bank.computed import overhead, state_gb
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="choose-p-and-m",
        lesson=10,
        level=2,
        ask="How do you choose the number of pipeline ranks and of microbatches?",
        short="p as small as memory allows, since the bubble grows with p − 1. m from the batch: the replica's batch "
        "over the microbatch size; the microbatch just large enough for good kernels. Then check the bubble; if it "
        "is too large, interleave or split the backward.",
        long="Say 8 machines of 8: tensor 8 inside, then p = 2, 4 or 8 and the rest data. With a batch of 512 and "
        f"microbatches of 1: p = 2 has d = 4 and m = 128, overhead {overhead(2, 128)}; p = 8 has d = 1 and m = 512, "
        f"{overhead(8, 512)}. Same GPUs, so bubble alone rarely decides: memory does, and the data-parallel "
        "reduction. Write down the candidates that fit, predict each one's step, run the best three.",
        rubric=(
            "smallest p that fits",
            "m from batch, replicas and microbatch size",
            "microbatch size by kernel efficiency",
            "verifies by measuring a few",
        ),
        wrong=(
            ("As many ranks as possible.", "More bubble, more hops, thinner stages."),
            ("m = p.", f"Overhead near 1: p = 8 gives {overhead(8, 8)}."),
        ),
        follow_ups=(
            ("Microbatch of 1 or of 2?", "Time both: t(2) against 2·t(1), times what m does to the bubble."),
            ("Which comes first, tensor or pipeline?", "Tensor up to a machine's GPUs, if links are fast."),
        ),
        source="Narayanan et al. 2021, §3",
    ),
    Question(
        name="bubble-of-thirty-percent",
        lesson=10,
        level=3,
        ask="A run shows 30% idle time. What do you do, in which order?",
        short="First find out which idle time: lay the timeline beside the simulated one. Fill and drain? More "
        "microbatches, fewer ranks, interleaving, split backward. One rank never idle? Balance. Gaps everywhere? "
        "Links or launches.",
        long=f"Take p = 8, m = 16: the overhead alone should be {overhead(8, 16)}, so 30% rate is nothing strange. "
        "Cheapest first: m, if the batch and kernels allow; balance by moving layers; then v = 2, which halves it if "
        f"links are fast: {overhead(8, 16, 2)}; then zero bubble, which wants optimizer changes or memory. After each "
        "change predict the gain, then measure.",
        rubric=(
            "diagnoses before acting",
            "compares with what the formula expects",
            "order by cost",
            "predicts, then measures",
        ),
        wrong=(("Switch from GPipe to 1F1B.", "Same bubble; it frees memory, with which m may grow."),),
        follow_ups=(
            ("m cannot grow. Why might that be?", "The batch is fixed, replicas take their share, microbatch is at 1."),
            ("The gaps are before sends. Meaning?", "Sends that block, or a link shared with another collective."),
        ),
        source="Lesson 10 of this course",
    ),
    Question(
        name="plan-a-70b",
        lesson=10,
        level=4,
        ask="Plan the training of a 70B model on 64 GPUs of 80 GB, aloud.",
        short=f"State first: 18 bytes a parameter, {state_gb(70)}. On 8-way tensor and 4-way pipeline, 32 GPUs, "
        f"{state_gb(70, parts=32)} each; with the optimizer shared over two replicas 12 instead of 18 bytes, "
        f"{state_gb(70, 12, 32)}. That leaves two thirds for activations. Two replicas.",
        long="80 layers, 20 a stage. In 1F1B rank 0 holds four microbatches of 20 layers, split over 8 tensor ranks "
        "with sequence parallelism; fused attention, microbatch 1, perhaps selective recomputation. Batch 512: m = "
        f"256, overhead {overhead(4, 256)}: v = 1 is enough. Tensor group in a machine, pipeline across machines, "
        "replicas outermost. Then I check the last rank: head and logits, so perhaps 19 layers there. And I say what "
        "I would measure first: one layer's time and memory.",
        rubric=(
            "bytes of state, divided rightly",
            "activations in flight estimated",
            "placement on links",
            "m and bubble computed",
            "ends balanced, and what to measure",
        ),
        wrong=(
            ("FSDP over 64 and done.", "Possible, but say what it gathers each layer, and over which link."),
            ("p = 64.", "Barely more than a layer a stage, and a bubble to match."),
        ),
        follow_ups=(
            ("512 GPUs, same batch?", f"16 replicas, m = 32, overhead {overhead(4, 32)}: now interleave."),
            ("Sequence length 32k?", "Activations grow; context parallelism, or recompute."),
            (
                "A GPU dies every day. What changes?",
                "Checkpoints: each rank its own part, often, and able to load at other sizes.",
            ),
        ),
        source="Narayanan et al. 2021, §3; Korthikanti et al. 2022, Table 2",
    ),
    Question(
        name="is-the-pipeline-worth-it",
        lesson=10,
        level=3,
        ask="When would you not use pipeline parallelism?",
        short="When the model fits by other means at less cost: with ZeRO on fast links and enough tokens a GPU; "
        "inside one NVLink machine with tensor parallelism. Or when the batch is too small for several microbatches, "
        "as often in fine-tuning, or stages cannot be balanced.",
        long="A pipeline's price is the bubble, balance and code; its strength is that it needs least bandwidth. So "
        "it wins over many machines with moderate links and large models. ZeRO-3 moves all weights twice or three "
        "times a step: fine if each GPU has many tokens to hide it. For inference latency, a pipeline does not help: "
        "a token passes all stages.",
        rubric=(
            "alternatives and their price",
            "needs many microbatches",
            "strength: little bandwidth",
            "an example",
        ),
        wrong=(("Always for large models.", "It depends on links and batch."),),
        follow_ups=(
            (
                "13B on one machine of eight 80 GB GPUs with NVLink: what do you take?",
                f"ZeRO or tensor parallelism: {state_gb(13)} of state over eight are {state_gb(13, parts=8)} each.",
            ),
            (
                "How does ZeRO-3 scale with fewer tokens a GPU?",
                "Badly: same weights to gather, less work to hide them.",
            ),
        ),
        source="Narayanan et al. 2021, §3; lesson 10 of this course",
    ),
)
