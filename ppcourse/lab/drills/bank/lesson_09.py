"""Questions on balance."""

from ppcourse.analysis.partition import partition
from ppcourse.analysis.simulate import simulate
from ppcourse.lab.drills.bank.computed import makespan, percent
from ppcourse.lab.drills.question import Question
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs

LAYERS = (1, 4, 4, 4, 4, 6)  # embedding, four blocks, head: in any unit of time


def slowest(method: str) -> float:
    """The most expensive of three stages."""
    sizes = partition(LAYERS, 3, method)
    starts = [sum(sizes[:stage]) for stage in range(3)]
    return max(sum(LAYERS[start : start + size]) for start, size in zip(starts, sizes, strict=True))


def later(name: str) -> str:
    """How much longer a step gets by random delays of a tenth on average, p = 8, m = 32: the mean of 20 runs."""
    plan = build(name, 8, 32)
    share = 8 / plan.num_stages
    costs = Costs(share, share, share)
    late = [simulate(plan, costs, jitter=0.1, seed=seed).makespan for seed in range(20)]
    return percent(sum(late) / len(late) / simulate(plan, costs).makespan - 1)


QUESTIONS = (
    Question(
        name="gpus-in-series",
        lesson=9,
        level=2,
        asked=True,
        ask="GPUs work in series. How do you raise their load, and what if they are unevenly loaded?",
        short="First overlap: microbatches, enough of them, then interleaving or a split backward. Then balance: the "
        "slowest stage sets the pace of all, and no schedule cures that. Measure each stage's time and move layers "
        "until the largest is as small as possible.",
        long=f"p = 4, m = 8, t_b = 2t_f: {makespan('1f1b', 4, 8)} t_f with equal stages; a last stage 1.5 times as "
        f"long makes it {makespan('1f1b', 4, 8, slow=1.5)}. The bound is m times the slowest stage, plus filling. "
        "More microbatches do not help against it. Ends are special: the embedding is cheap in time and dear in "
        "memory, the head dear in both, so give the last rank fewer layers; Megatron-LM has flags for that. Then "
        "look at what else a rank does: data loading on the first, logging on the last.",
        rubric=(
            "microbatches, interleaving, split backward for overlap",
            "slowest stage sets the pace",
            "measure, then repartition",
            "embedding and head",
            "a number or the bound",
        ),
        wrong=(
            ("More microbatches even it out.", "Imbalance stays in proportion, whatever m."),
            ("Equal numbers of layers are balanced.", "Only if layers are equal; embedding and head are not."),
        ),
        follow_ups=(
            (
                "The last stage is 1.5 times as long: how much slower is the step?",
                f"Nearly 1.5 times, for large m: {makespan('1f1b', 4, 8, slow=1.5)} instead of "
                f"{makespan('1f1b', 4, 8)} at m = 8.",
            ),
            ("One GPU is slower than the others?", "The same: give it fewer layers."),
            ("You cannot move layers. Now?", "Cut a layer finer, or tensor parallelism where it is slow."),
        ),
        source="Narayanan et al. 2021, §2.2; lesson 09 of this course",
    ),
    Question(
        name="embedding-and-head",
        lesson=9,
        level=3,
        ask="Why are the first and the last stage special, and what do you do about it?",
        short="The first has the embedding: many parameters, hardly any time. The last has the head and the loss: as "
        "many parameters, a large matrix product, and logits in memory. So the last rank gets fewer layers, and "
        "often the first too, for its memory.",
        long="The head costs 2·b·s·h·V operations forward; a layer 24·b·s·h² and some attention, so the head is "
        f"about V/(12·h) layers: V = 128,000 and h = 4096 make {128_000 / (12 * 4096):.1f}. In Megatron-LM there are "
        "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers. Rank 0 in 1F1B also holds most "
        "microbatches, so memory there is doubly tight. A V placement puts both on one rank.",
        rubric=(
            "embedding: memory, not time",
            "head and loss: both",
            "head in units of layers",
            "fewer layers at the ends; knows a flag",
        ),
        wrong=(("The embedding is slow, it is huge.", "It is a lookup."),),
        follow_ups=(
            (
                "How many layers fewer does the last rank get, then?",
                f"As many as the head is worth, here {128_000 / (12 * 4096):.1f}: two or three; measure which.",
            ),
            (
                "Split the head over ranks?",
                "Vocabulary parallelism does that, inside a tensor group or even over stages.",
            ),
        ),
        source="Megatron-LM, arguments.py; lesson 09 of this course",
    ),
    Question(
        name="tied-embeddings",
        lesson=9,
        level=3,
        ask="Embedding and output head share their weights, but lie on different ranks. What do you do?",
        short="Each of the two ranks has a copy and computes a gradient for its own use. Sum both, so that both "
        "copies take the same step. Once a step, before clipping and the optimizer, between first and last rank.",
        long="Traps: forget it, and the copies drift apart silently. Count it once in the global norm, not twice. "
        "With data parallelism sum full gradients first or reduce consistently, not parts of one with parts of the "
        "other. In a checkpoint it is one tensor. And both must start equal.",
        rubric=(
            "two copies, sum of gradients",
            "when: before clipping and step",
            "norm counts it once",
            "a way to test: copies stay equal to the last bit",
        ),
        wrong=(
            ("Broadcast the first rank's weights now and then.", "The head's gradient would be lost."),
            ("Average the two gradients.", "The sum: both uses contribute to one loss."),
        ),
        follow_ups=(
            (
                "And with data parallelism?",
                "Sum over the two ends and over the replicas; over the ends first, if replicas keep only shards.",
            ),
            ("Which placement needs no message?", "A V: first and last stage on one rank."),
        ),
        source="Lesson 09 of this course; Megatron-LM",
    ),
    Question(
        name="what-to-balance",
        lesson=9,
        level=3,
        ask="Partition by number of layers, by parameters, or by time?",
        short="By measured time, minimising the largest stage; memory as a side condition. Parameters mislead: an "
        f"embedding has many and takes no time. Costs {', '.join(map(str, LAYERS))} on three ranks: uniform makes "
        f"{slowest('uniform'):g}, optimal {slowest('optimal'):g}.",
        long="What counts is the least maximum: nobody waits for a stage that is too short. A rule that minimises "
        "the difference between largest and smallest can pick a worse maximum. With so few layers dynamic "
        "programming is instant and exact. Time forward and backward together, warm, at the real microbatch size. "
        "And if you recompute, with that.",
        rubric=(
            "least maximum",
            "measured time, not parameters",
            "memory as a constraint",
            "knows that max − min is another aim",
        ),
        wrong=(("Balance parameters, for memory.", "Then time is what it happens to be; the slowest sets the pace."),),
        follow_ups=(
            ("How fine can you cut?", "Layer by layer; finer needs a cut inside a layer, with more to send."),
            (
                "How much does it win here?",
                f"Large m: {percent(1 - slowest('optimal') / slowest('uniform'))} of the time.",
            ),
        ),
        source="Lesson 09 of this course",
    ),
    Question(
        name="jitter",
        lesson=9,
        level=4,
        ask="Actions are late at random, by 10% on average. Which schedules suffer most?",
        short=f"They differ little. The work itself grows by a tenth, and waiting for the latest of several "
        f"adds to it. p = 8, m = 32, simulated: GPipe {later('gpipe')}, 1F1B {later('1f1b')}, ZB-H1 {later('zb-h1')}, "
        f"interleaved with v = 2 {later('interleaved')}, ZB-H2 {later('zb-h2')} longer than without delays.",
        long="A late action is passed on along every dependency, and a rank that needs two things takes the later of "
        "them; the mean of a maximum is above the maximum of means. What helps is slack: ZB-H2 has more microbatches "
        "waiting in front of each rank. Interleaved cuts the work into more pieces, whose delays average out if they "
        "are independent. I simulate every schedule under the same delays and compare with its own step without. Real "
        "causes: clocks, data-dependent experts, other jobs, the garbage collector.",
        rubric=(
            "lateness is passed on",
            "maximum above mean",
            "slack in the schedule absorbs",
            "compares under the same delays, by simulation",
        ),
        wrong=(
            ("It averages out.", "Within a rank; between ranks the latest counts."),
            (
                "1F1B suffers far more than GPipe, as its ranks meet more often.",
                "Simulated, they lose about the same.",
            ),
        ),
        follow_ups=(
            ("What about one slow GPU all the time?", "That is imbalance: move layers."),
            ("Why the same delays for all?", "Else you compare luck."),
        ),
        source="Lesson 09 of this course",
    ),
)
