"""Questions on interleaving."""

from ppcourse.lab.drills.bank.computed import held, makespan, overhead, rate
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="how-interleaving-works",
        lesson=5,
        level=1,
        asked=True,
        ask="How does interleaving shrink the bubble, and at what cost?",
        short="Each rank holds v thin stages instead of one thick one, round robin. Filling the pipeline takes p − 1 "
        "thin stages, each 1/v as long, so the overhead is (p − 1)/(v·m). The cost: p·v − 1 hops instead of p − 1, "
        "and a little more memory on the first ranks.",
        long=f"p = 8, m = 32: {overhead(8, 32)}, with v = 4 {overhead(8, 32, 4)}. Messages of a microbatch grow from "
        f"7 to {8 * 4 - 1} each way, a little more than v times. Rank 0 holds {held('interleaved', 8, 32, 0, 4)} "
        f"microbatches instead of {held('1f1b', 8, 32)}. With v = 2 and p = 3, 24 layers: rank 0 has layers 1 to 4 "
        "and 13 to 16. m should be a multiple of p. With slow links it loses.",
        rubric=(
            "several chunks a rank, round robin",
            "fill time falls by v, so (p − 1)/(v·m)",
            "messages about v times",
            "slightly more memory",
            "m a multiple of p, links fast",
        ),
        wrong=(
            (
                "V halves the bubble rate.",
                f"The overhead; at p = 4, m = 8 the rate goes from {rate(4, 8)} to {rate(4, 8, 2)}.",
            ),
            ("Rank 0 gets neighbouring layers.", "Then a microbatch would not come round; it is round robin."),
        ),
        follow_ups=(
            ("Why are v chunks no more memory for weights?", "The same layers in all, only other ones."),
            ("What bounds v?", "Layers by p·v, and latency."),
            ("Which layers has rank 1?", "For 24 layers, p = 3, v = 2: 5 to 8 and 17 to 20."),
        ),
        source="Narayanan et al. 2021, §2.2",
    ),
    Question(
        name="interleaving-messages",
        lesson=5,
        level=2,
        asked=True,
        ask="What does interleaving cost in communication?",
        short="A microbatch passes p·v − 1 cuts instead of p − 1, in each direction, and each message has the same "
        "size as before. People say v times; exactly it is (p·v − 1)/(p − 1), since the way from the last rank back "
        f"to the first is a hop now, too. p = 8, v = 4: {31 / 7:.2f} times.",
        long="Also, there is a link from the last rank to the first, often across machines. And there is less work "
        "to hide a message behind: stages are 1/v as long, messages are not shorter. Megatron-LM overlaps sends with "
        "work and can scatter a message over the tensor-parallel ranks and gather it on the other side, so each link "
        "carries a part.",
        rubric=(
            "p·v − 1 against p − 1",
            "message size unchanged",
            "v times is approximate",
            "less work to hide behind",
        ),
        wrong=(
            ("Messages get 1/v as large.", "Their size is b·s·h, however thin the stage."),
            ("Only latency grows.", "Bytes grow as much as the number of messages."),
        ),
        follow_ups=(
            (
                "When do bytes matter, when latency?",
                "Latency with small messages; bytes when a transfer nears a chunk's time.",
            ),
            ("Could you avoid the way back?", "Yes, with a V placement: the second half of the model runs back up."),
        ),
        source="Narayanan et al. 2021, §2.2",
    ),
    Question(
        name="choose-v",
        lesson=5,
        level=2,
        asked=True,
        ask="How do you choose v?",
        short="As large as layers and links allow, and no larger than the bubble needs. p·v must cut the layers "
        "evenly; a chunk's time must stay well above a hop; m should be a multiple of p. I start at 2, compute (p − "
        "1)/(v·m), and measure.",
        long=f"p = 8, m = 32: v = 1, 2, 4 give {overhead(8, 32)}, {overhead(8, 32, 2)}, {overhead(8, 32, 4)}: each "
        "doubling wins half of what is left and doubles the messages. If m is large anyway, v = 1 is right: "
        "fewer messages, less memory. By latency alone, p = 4, m = 8, v = 2 beats 1F1B up to a hop of somewhat more "
        f"than t_f: at 1.2 it takes {makespan('interleaved', 4, 8, 2, hop=1.2)} against "
        f"{makespan('1f1b', 4, 8, hop=1.2)}, at 1.4 {makespan('interleaved', 4, 8, 2, hop=1.4)} against "
        f"{makespan('1f1b', 4, 8, hop=1.4)}.",
        rubric=(
            "layers divisible by p·v",
            "chunk time against hop time",
            "diminishing returns, with the formula",
            "m a multiple of p",
            "measure",
        ),
        wrong=(
            ("Always the maximum, one layer a chunk.", "Then messages are the most and have least to hide behind."),
            ("It costs no memory.", "1 + (p − 1)/(p·v) of 1F1B's on rank 0."),
        ),
        follow_ups=(
            ("30 layers and p = 4?", "No even cut; uneven chunks may lose more than interleaving wins."),
            (
                "Is v = 4 more memory than v = 2?",
                f"Less: {held('interleaved', 8, 32, 0, 4)} against {held('interleaved', 8, 32, 0, 2)} at p = 8; both "
                f"above {held('1f1b', 8, 32)}.",
            ),
        ),
        source="Narayanan et al. 2021, §2.2; Korthikanti et al. 2022, §4.2.3",
    ),
    Question(
        name="interleaved-memory",
        lesson=5,
        level=3,
        ask="Why does interleaving hold more activations, and how many?",
        short="Rank 0 warms up with 2(p − 1) + (v − 1)p chunks, and holds one more, each 1/v of a microbatch: in all "
        f"p + (p − 1)/v, that is 1 + (p − 1)/(p·v) of 1F1B's p. p = 8, v = 4: {held('interleaved', 8, 32, 0, 4)}.",
        long="The reason: before its first gradient, p microbatches pass v − 1 chunks, and then the last chunk as in "
        "1F1B, but with two slots for each rank below, one for the way down and one for the way back, since forward "
        "and backward of thin stages alternate. The last rank, too, holds more than in 1F1B: "
        f"{held('interleaved', 8, 32, 7, 4)} instead of {held('1f1b', 8, 32, 7)}: memory is also spread more evenly.",
        rubric=(
            "warm-up in chunks",
            "1 + (p − 1)/(p·v)",
            "falls with v towards 1",
            "last rank holds much more than in 1F1B",
        ),
        wrong=(
            ("v times as much.", "Chunks are 1/v as large."),
            ("The same as 1F1B.", "On rank 0 up to half more with v = 2, and on the last rank many times as much."),
        ),
        follow_ups=(
            ("And breadth first?", f"All m of every chunk, as GPipe: {held('breadth-first', 8, 32, 0, 4)}."),
            ("p = 4, v = 2?", f"{held('interleaved', 4, 8, 0, 2)} instead of {held('1f1b', 4, 8)}."),
        ),
        source="Korthikanti et al. 2022, §4.2.3",
    ),
    Question(
        name="not-a-multiple-of-p",
        lesson=5,
        level=3,
        ask="Interleaved, p = 4 and m = 10. What happens?",
        short="Microbatches go through a chunk in groups of p. With 10 the last group has 2, and ranks wait for the "
        f"gaps. The formula would say {(10 + 3 / 2) * 3:g} t_f; it really takes {makespan('interleaved', 4, 10, 2)}. "
        "Many frameworks refuse it; it is legal, only slower.",
        long=f"With m = 8 and 12 formula and simulator agree: {makespan('interleaved', 4, 8, 2)} and "
        f"{makespan('interleaved', 4, 12, 2)}. So I would choose 8 or 12 and adapt the microbatch size. If I must run "
        "10, the plan for 12 without the two that are not there is legal, because an action needs only actions of "
        "its own microbatch.",
        rubric=(
            "groups of p",
            "formula no longer exact",
            "legal, but slower, or refused",
            "picks a neighbouring m",
        ),
        wrong=(
            ("It deadlocks.", "Not if the order is made for it; some implementations just refuse."),
            ("Pad with empty microbatches at no cost.", "They cost their slots."),
        ),
        follow_ups=(
            ("Does plain 1F1B mind?", "No, it has no groups: (m + p − 1)(t_f + t_b) for every m."),
            ("p = 4, m = 3?", f"{makespan('interleaved', 4, 3, 2)} against {makespan('1f1b', 4, 3)} of 1F1B, in t_f."),
        ),
        source="Narayanan et al. 2021, §2.2; lesson 05 of this course",
    ),
    Question(
        name="depth-or-breadth",
        lesson=5,
        level=4,
        ask="Depth-first against breadth-first interleaving: when which?",
        short="Depth first sends p microbatches through a chunk, then the next chunk, and turns to backwards early: "
        "little memory. Breadth first sends all m through a chunk before the next, as GPipe does: m held, but a "
        "chunk's weights are needed in one stretch, which suits weights shared out over replicas.",
        long="With fully sharded weights (ZeRO-3, FSDP) each use of a chunk means gathering it. Breadth first "
        "gathers once for all m forwards and once for the backwards; depth first once for every group. Gradients of "
        "a chunk are also complete earlier, so their reduction overlaps better. The price, p = 8, m = 32, v = 4: "
        f"rank 0 holds {held('breadth-first', 8, 32, 0, 4)} instead of {held('interleaved', 8, 32, 0, 4)} "
        "microbatches.",
        rubric=(
            "defines both orders",
            "memory p against m",
            "gathers and reductions of sharded weights",
            "gives a case for each",
        ),
        wrong=(
            ("Breadth first has the smaller bubble.", "The same, with free hops; its gain is in the weights' traffic."),
        ),
        follow_ups=(
            ("m = p?", "Then they hold nearly the same, and breadth first costs little."),
            ("With ZeRO-1 only?", "No gathers in between; depth first."),
        ),
        source="Lamy-Poirier 2023 (Breadth-First Pipeline Parallelism)",
    ),
)
