"""Questions on pipelines that are bent back, or fed from both ends."""

from ppcourse.analysis import formulas
from ppcourse.lab.drills.bank.computed import held, makespan
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="explain-dualpipe",
        lesson=7,
        level=3,
        asked=True,
        ask="Explain DualPipe.",
        short="Microbatches enter from both ends. Each rank holds two stages, one of each direction, so in the "
        "steady state it always has a forward of one stream and a backward of the other. It cuts both into "
        "attention, dispatch, MLP and combine and runs them across each other: the all-to-all of one hides behind "
        "the compute of the other.",
        long="Made for a mixture of experts whose all-to-all costs as much as compute. Bubble (PP/2 − 1)(F&B + B − "
        f"3W), B the full backward. Activations PP + 1, here p = 8: {held('dualpipe', 8, 20)}. Two copies of the "
        "parameters, which is bearable because experts are spread over other ranks. If nothing overlaps, F&B = F + "
        f"B, it wins little: p = 8, m = 20, unit times: {makespan('dualpipe', 8, 20)} against "
        f"{makespan('zb-h1', 8, 20)} of ZB-H1.",
        rubric=(
            "fed from both ends, two stages a rank",
            "forward and backward overlapped",
            "the point is the all-to-all",
            "two copies of parameters, PP + 1 activations",
            "the bubble, with the meaning of B",
        ),
        wrong=(
            ("It is zero bubble.", "It has a bubble, (PP/2 − 1)(F&B + B − 3W)."),
            ("It is for any model.", "Its gain is hidden communication; without that it is a small one."),
        ),
        follow_ups=(
            ("Which rank has the first layer?", "Both ends: one for each stream; the same for the last layer."),
            ("What about gradients of the two copies?", "Summed once a step, as in data parallelism."),
            ("How many microbatches?", "At least 2·PP, both directions together, and an even number."),
        ),
        source="DeepSeek-V3 report, §3.2.1 and Table 2",
    ),
    Question(
        name="dualpipe-table",
        lesson=7,
        level=4,
        ask="In DualPipe's table: why PP + 1 activations, why two copies, and why −3W?",
        short="Rank r is r + 1 ranks from one end and p − r from the other; it warms up like 1F1B for each stream, "
        "so it holds p − r and r + 1: p + 1 on every rank. Two copies, since every stage serves both directions on "
        "two ranks. −3W: weight gradients fill what would be waiting, three for each rank on the way to the middle.",
        long="p − 1 becomes p/2 − 1 because a stream meets the other in the middle. F&B + B instead of F + B, "
        "because in the steady state a forward costs a pair. With F = B − W = W it is exact; otherwise an upper "
        "bound, and where F or W is longer than B − W it can be too low. p = 8, F = I = W = 1, F&B = 3: "
        f"{formulas.dualpipe_bubble_time(8, 2, 1, 3):g}; 1F1B has {formulas.bubble_time(8, 1, 2):g}, ZB-H1 "
        f"{formulas.zb_h1_bubble_time(8, 1, 1, 1):g}.",
        rubric=(
            "p − r plus r + 1",
            "each stage lives on two ranks",
            "p/2 − 1 from meeting in the middle",
            "W fills waiting",
            "conditions of the formula",
        ),
        wrong=(
            ("Twice the activations.", "PP + 1, one more than 1F1B's first rank, but on every rank."),
            ("B there is the input gradient.", "In that table B is the full backward; in the zero-bubble paper not."),
        ),
        follow_ups=(
            ("Does the second copy double optimizer state?", "It can be shared out as ZeRO-1 does over the two."),
            ("ZB1P's bubble in that table?", "(PP − 1)(F + B − 2W): ZB-H1 with B the full backward."),
        ),
        source="DeepSeek-V3 report, §3.2.1 and Table 2",
    ),
    Question(
        name="dualpipe-v",
        lesson=7,
        level=4,
        ask="What does DualPipeV change?",
        short="It folds DualPipe in the middle. A rank holds stage r and stage 2p − 1 − r; microbatches go down and "
        "come back up, and what was the second stream is the second half of the model. So the same overlap without a "
        "second copy of the parameters, with half the ranks for as many stages.",
        long="In the table PP counts stages, so DualPipeV has PP/2 devices. Each rank holds two stages of it, each "
        f"one PP-th of the model. Four ranks with eight stages hold {2 * float(held('dualpipe-v', 4, 16)):g} stages' "
        f"activations each, as eight ranks do in DualPipe: {held('dualpipe', 8, 16)}. First and last layer are on the "
        "same rank, so a tied embedding needs no message.",
        rubric=(
            "V placement, stages r and 2p − 1 − r",
            "one copy of the parameters",
            "same overlap of forward and backward",
            "first and last layer on one rank",
        ),
        wrong=(("It needs 2p ranks.", "2p stages on p ranks."),),
        follow_ups=(
            (
                "Why did anyone need two copies, then?",
                "With experts spread elsewhere the copy is small, and hops are fewer.",
            ),
            ("Is the hand-over in the middle free?", "Yes, both stages are on the last rank."),
        ),
        source="DeepSeek's DualPipe repository",
    ),
    Question(
        name="why-a-v",
        lesson=7,
        level=3,
        ask="Why place stages in a V instead of a loop?",
        short="In a V, rank r holds stages r and 2p − 1 − r: down and back up. The rank that starts a microbatch "
        "also ends it, so its backward can begin there at once, and memory evens out: a long-lived early stage is "
        "paired with a short-lived late one.",
        long="In a loop, all first chunks are long-lived on rank 0, and the way from the last rank back to the first "
        "is a hop. In a V the turn in the middle is inside a rank. ZB-V puts a split backward on this placement: "
        "zero bubble if F = I = W, at the peak memory of 1F1B, on every rank the same. First and last layer are "
        "together, which makes tied embeddings easy, but puts embedding and head on the same rank: balance it with "
        "fewer layers.",
        rubric=(
            "stages r and 2p − 1 − r",
            "long-lived and short-lived paired: even memory",
            "loss on the first rank, no message at the turn",
            "ZB-V at p microbatches",
        ),
        wrong=(
            ("A V has fewer hops.", "2(p − 1) instead of 2p − 1 with v = 2: one less."),
            ("It needs two copies.", "Only DualPipe does, which feeds from both ends."),
        ),
        follow_ups=(
            ("Which ranks have head and embedding?", "Rank 0 has both."),
            (
                "What does the V cost?",
                "Messages: 2(p − 1) each way, twice those of 1F1B, since each rank is passed twice.",
            ),
        ),
        source="Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §6",
    ),
    Question(
        name="half-the-memory",
        lesson=7,
        level=4,
        ask="Can a pipeline hold half of 1F1B's activations without recomputation?",
        short="Yes: build the schedule from a block repeated for each microbatch; how long each stage's activation "
        "lives in it decides the peak. On a V placement V-Half needs about p/2 and V-Min about p/3 microbatches on "
        f"each rank. p = 8: {(8 + 2) // 2} and {(8 + 4) // 3} instead of 8.",
        long="Exactly (p + 2)//2 and (p + 4)//3. The price: V-Min leaves a larger bubble, above all when F, I and W "
        "differ, since there is little slack; V-Half's is smaller. What one does with the memory matters: a larger "
        "microbatch, less recomputation or no tensor parallelism can win more than the bubble costs.",
        rubric=(
            "lifetime decides memory",
            "repeating building block",
            "V placement evens ranks out",
            "numbers for V-Half and V-Min",
            "what memory buys elsewhere",
        ),
        wrong=(
            ("Only by recomputing.", "The order alone can do it."),
            ("Then always V-Min.", "Its bubble is the largest of the family."),
        ),
        follow_ups=(
            (
                "How does V-Half get by with half?",
                "A microbatch comes back sooner after it has entered, so fewer are under way at a time.",
            ),
            (
                "What is the least possible?",
                "An activation lives at least while its microbatch goes on and comes back.",
            ),
        ),
        source="Qi et al. 2024 (controllable memory, arXiv 2405.15362)",
    ),
    Question(
        name="three-meanings-of-b",
        lesson=7,
        level=3,
        ask="Three papers write B. What does it mean in each, and why does it matter?",
        short="PyTorch and DeepSeek: the full backward. Zero bubble: only the gradient of the input, which PyTorch "
        "calls I. So (p − 1)(F + B − W) in one paper and (p − 1)(F + B − 2W) in another are the same number.",
        long=f"Check with F = I = W = 1, p = 4: the zero-bubble paper gives {3 * (1 + 1 - 1)}, and DeepSeek's ZB1P "
        f"row, with B = 2, gives {3 * (1 + 2 - 2)}. Users reported the difference as an error of the table; it is a "
        "matter of letters. Likewise PP: ranks in DualPipe, stages in DualPipeV. And chunk: a microbatch there, a "
        "stage of a rank here.",
        rubric=(
            "full backward against input gradient",
            "shows that both formulas agree",
            "translates before comparing",
        ),
        wrong=(("The report's table is wrong.", "It uses B for the full backward."),),
        follow_ups=(
            ("Whose B in (PP/2 − 1)(F&B + B − 3W)?", "The full backward, in both places."),
            (
                "A talk says only: the bubble is (p − 1)(F + B − W). How large is it?",
                "Ask whose B. The input gradient: ZB-H1's. The full backward: (p − 1)·W more than that.",
            ),
        ),
        source="Qi et al. 2024 (Zero Bubble), §2; DeepSeek-V3 report, Table 2",
    ),
)
