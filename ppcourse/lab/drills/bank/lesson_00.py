"""Questions on words, ranks and messages."""

from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="words",
        lesson=0,
        level=1,
        ask="Rank, stage, chunk, microbatch: what is what?",
        short="A rank is a process, usually with one GPU. A stage is a slice of the model. With interleaving a rank "
        "holds several stages, its chunks. A microbatch is a part of the batch. So p ranks, v chunks on each, p·v "
        "stages, and m microbatches in a step.",
        long="I say it first, because projects differ: DeepSpeed calls a rank a stage; torchgpipe and DualPipe call "
        "a microbatch a chunk. And the letter B is the full backward in PyTorch and in DeepSeek's report, but only "
        "the gradient of the input in the zero-bubble paper. Before I compare two formulas, I translate their "
        "letters.",
        rubric=(
            "a rank is a process, a stage a slice of the model",
            "several stages on a rank when interleaved",
            "a microbatch is a part of the batch, not a smaller step",
            "knows that projects use the words differently",
        ),
        wrong=(
            ("A stage is a GPU.", "Only while v = 1; interleaved, a GPU holds v of them."),
            ("Each microbatch is an optimizer step.", "Their gradients are summed; there is one step a batch."),
        ),
        follow_ups=(
            ("p = 4 and v = 3: how many stages, and where is stage 6?", "Twelve; round robin, stage 6 is on rank 2."),
            ("What is accumulated over microbatches?", "Gradients of the weights, in the one buffer they have anyway."),
        ),
        source="Narayanan et al. 2021, §2.2",
    ),
    Question(
        name="both-send-first",
        lesson=0,
        level=1,
        ask="Two neighbouring ranks both want to send to each other before they receive. What happens?",
        short="If a send waits until the other side receives, both wait for ever: a deadlock. It may seem to work "
        "while messages are small and something buffers them. I post receives early, make sends asynchronous, or fix "
        "an order in which one sends while the other receives.",
        long="In 1F1B this is no corner case: a rank sends an activation down while its neighbour sends a gradient "
        "up. Megatron-LM and others pair such a send and receive into one call. What I like better: ask before the "
        "run. A schedule is only rows of actions, so a program can replay it and name the circle of ranks that would "
        "wait. In this course such a plan is refused with that sentence before a process starts.",
        rubric=(
            "says that it deadlocks, and under which condition (blocking sends)",
            "knows that buffering may hide it",
            "names a cure: paired calls, asynchronous sends, receives posted early",
            "connects it to 1F1B",
        ),
        wrong=(
            ("NCCL sorts that out.", "It runs operations of a communicator in the order given; two wrong orders hang."),
            ("Add a barrier.", "A barrier is one more thing to wait for; it does not turn a send into a receive."),
        ),
        follow_ups=(
            (
                "How would you find it in a job that hangs?",
                "Print for each rank the action it stands at; look for the circle.",
            ),
            (
                "Does a timeout help?",
                "It ends the job late and without a cause. A check before the start costs nothing.",
            ),
        ),
        source="Lesson 00 of this course, where you provoke one",
    ),
    Question(
        name="which-message-is-it",
        lesson=0,
        level=3,
        ask="How does a rank know to which microbatch an arriving tensor belongs?",
        short="By order. On each channel, a pair of ranks and a direction, messages go in the order in which the "
        "sender works, and the receiver knows that order from the schedule. NCCL has no tags to match by.",
        long="So a receiver posts its receives in the sender's order, ahead of need, even if it will use the tensors "
        "in another order. How far ahead it must post can be computed from the plan; for the usual schedules one is "
        "enough. Shapes must be agreed before, since a receive needs a buffer of the right size. On CPUs I also send "
        "along what the message is, so that a mistake becomes an error and not wrong numbers.",
        rubric=(
            "order, not tags",
            "the order is the sender's",
            "receives are posted ahead of need",
            "shapes must be known in advance",
        ),
        wrong=(
            ("With a tag.", "gloo has tags, NCCL does not; code that needs them runs on one of the two only."),
            ("By its shape.", "All microbatches of a step have the same shape as a rule."),
        ),
        follow_ups=(
            (
                "What if a learner's schedule uses messages in another order?",
                "Post more receives: as many as may overtake.",
            ),
            ("What if shapes change from step to step?", "Agree on them again before the step, on the CPU."),
        ),
        source="Lesson 00 of this course",
    ),
    Question(
        name="which-link",
        lesson=0,
        level=2,
        ask="You have eight GPUs with NVLink in each machine, and InfiniBand between machines. What goes over which?",
        short="Tensor parallelism inside a machine, for it exchanges activations in every layer and waits for them. "
        "The pipeline between machines: a message from neighbour to neighbour at each cut only, and it can hide "
        "behind work. Data parallelism outermost: one reduction of gradients a step.",
        long="The rule is: who talks most and can wait least gets the fastest link. A pipeline sends b·s·h numbers "
        "for a microbatch at a cut, point to point. Tensor parallelism all-reduces as much several times in each "
        "layer. Data parallelism moves all gradients, but once a step, and it overlaps with the backward. I would "
        "still measure the link, because a pipeline over a slow one loses by latency first, above all if interleaved.",
        rubric=(
            "tensor parallelism inside the machine",
            "pipeline across machines, point to point",
            "reason: volume and how often one must wait",
            "data parallelism once a step, overlapped",
        ),
        wrong=(
            ("The pipeline needs NVLink most.", "It sends least; tensor parallelism needs it most."),
            ("All three all-reduce.", "A pipeline has no collective between stages, only sends and receives."),
        ),
        follow_ups=(
            ("When does a pipeline belong inside a machine?", "When there is only one, or GPUs have no NVLink at all."),
            ("What if interleaved?", "v times as many hops, nearly; check that the gain is above what latency costs."),
        ),
        source="Narayanan et al. 2021, §3",
    ),
)
