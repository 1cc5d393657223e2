"""Questions on why and where to cut a model."""

from ppcourse.lab.drills.bank.computed import state_gb
from ppcourse.lab.drills.question import Question

QUESTIONS = (
    Question(
        name="why-a-pipeline",
        lesson=1,
        level=1,
        ask="What is pipeline parallelism for?",
        short="For models that do not fit one GPU. Layers are cut into stages, each on its own rank; activations go "
        "forward from rank to rank, gradients come back. A rank then keeps 1/p of weights, gradients and optimizer "
        "state, and only neighbours talk, a little at a time.",
        long=f"An example: 7 billion parameters with Adam in mixed precision take 18 bytes each, {state_gb(7)}, "
        f"before any activations. On four ranks that is {state_gb(7, parts=4)} each. What it costs: ranks idle while "
        "the pipeline fills and drains, the bubble; so a batch is split into microbatches. And one thing it does not "
        "do: with 1F1B the first rank holds activations of p microbatches in L/p layers, as many as one GPU would "
        "hold.",
        rubric=(
            "layers over ranks, because the model does not fit",
            "weights, gradients and optimizer state fall to 1/p",
            "point-to-point messages, few bytes",
            "names the bubble as the price",
        ),
        wrong=(
            ("It makes a step p times faster.", "At best that, less the bubble; its first use is memory."),
            ("It divides activations by p.", "Not on the first rank of 1F1B, if m is at least p."),
        ),
        follow_ups=(
            ("Why not FSDP?", "It fits too, but moves all weights in every step; it depends on links and batch size."),
            ("How many bytes a parameter, and which?", "Weights 2, gradients 4, fp32 weights and two moments 12: 18."),
        ),
        source="Huang et al. 2019; Megatron-LM's documentation of the distributed optimizer",
    ),
    Question(
        name="pp-tp-dp",
        lesson=1,
        level=1,
        asked=True,
        ask="Pipeline, tensor and data parallelism: compare them, and say how you would combine them.",
        short="Data parallelism copies the model and splits the batch: one gradient reduction a step. Tensor "
        "parallelism splits every layer: collectives in each layer, so it stays inside a machine. Pipeline "
        "parallelism splits by layers: messages between neighbours, but a bubble. Combined: tensor inside, pipeline "
        "across machines, data outermost.",
        long="Memory: data parallelism alone saves nothing without ZeRO; the other two divide weights and optimizer "
        "state. Messages: tensor parallelism exchanges activations of b·s·h in every layer, in both passes, and "
        "waits; the pipeline once at a cut. Efficiency: tensor parallelism makes matrices thin, the pipeline has its "
        "bubble, data parallelism eats the batch: with a fixed global batch more replicas leave fewer microbatches, "
        "and the bubble grows. So: as little model parallelism as makes it fit, then data parallelism.",
        rubric=(
            "what each splits",
            "what each communicates, and how often",
            "memory: what is divided, what is copied",
            "placement: tensor inside a machine, pipeline across, data outermost",
            "sees that data parallelism takes microbatches away",
        ),
        wrong=(
            ("A model that does not fit one GPU cannot use data parallelism.", "ZeRO-3 or FSDP share the weights out."),
            ("Tensor parallelism has no cost but memory.", "It waits for collectives in each layer."),
        ),
        follow_ups=(
            (
                "Eight GPUs in a machine, 64 in all, 70B: which sizes?",
                "Tensor 8, pipeline 4, or 2 with ZeRO-1, the rest data; then measure.",
            ),
            ("Which rank order?", "Neighbouring ranks in the tensor group, since they share the fast link."),
            ("Where does sequence parallelism fit?", "With tensor parallelism: it splits what that leaves whole."),
        ),
        source="Narayanan et al. 2021, §3",
    ),
    Question(
        name="bytes-a-parameter",
        lesson=1,
        level=2,
        ask="How much memory does training a 7B model take before activations? And with p = 4?",
        short="18 bytes a parameter in Megatron's accounting: bf16 weights 2, fp32 gradients 4, fp32 weights and "
        f"Adam's two moments 12. That is {state_gb(7)}; on four ranks {state_gb(7, parts=4)} each, if evenly cut.",
        long=f"Two remarks. 16 bytes is the other usual count, with gradients in half precision: {state_gb(7, 16)}. "
        "And the cut is not even: the first rank has the embedding, the last one the head, each as large as several "
        "layers. With ZeRO-1 over d replicas the 12 bytes are shared out: 6 + 12/d; for d = 8 that is "
        f"{state_gb(7, 7.5)} in all instead. Then come activations, which may be more than all that.",
        rubric=(
            "weights, gradients, master weights, two moments",
            "18 (or 16, and says why)",
            "divides by p, and sees that embedding and head make it uneven",
            "remembers activations",
        ),
        wrong=(
            ("14 GB, 2 bytes each.", "Those are the weights alone, enough to infer, not to train."),
            ("Microbatches need a larger gradient buffer.", "They all add into the same one."),
        ),
        follow_ups=(
            ("What does ZeRO-1 make of it?", "6 + 12/d bytes: the optimizer's part is shared by d replicas."),
            ("And inference?", "2 bytes a parameter in bf16, plus the key-value cache."),
        ),
        source="Megatron-LM's documentation of the distributed optimizer",
    ),
    Question(
        name="what-crosses-a-cut",
        lesson=1,
        level=2,
        ask="How many bytes cross a cut, and how does that compare with a gradient all-reduce?",
        short="For each microbatch b·s·h numbers forward and as many back. It does not depend on how many layers a "
        "stage has. An all-reduce moves nearly twice all gradients of a rank in a step. So the more parameters and "
        "the fewer tokens, the cheaper the cut by comparison.",
        long="In a step all microbatches together send 2·B·s·h numbers over a cut, B being this replica's batch: m "
        "drops out, so more microbatches mean more messages, not more bytes. A ring all-reduce of N parameters sends "
        "2(d − 1)/d·N numbers from each GPU. What decides in practice is not only volume: a message at a cut hides "
        "behind the next microbatch's work, and the all-reduce behind the backward. With interleaving the number of "
        "cuts grows from p − 1 to p·v − 1, and the bytes with it.",
        rubric=(
            "b·s·h numbers a microbatch and way",
            "both ways: activation and its gradient",
            "independent of depth and, in total, of m",
            "all-reduce: about twice the gradients",
        ),
        wrong=(
            ("The weights' gradients cross the cut.", "They stay on the rank; the activations' gradients cross."),
            ("Twice the microbatches, twice the bytes.", "Twice the messages of half the size."),
        ),
        follow_ups=(
            (
                "What else crosses, in a transformer?",
                "Nothing if a layer takes one tensor; masks and the like can be remade.",
            ),
            ("And with tied embeddings?", "An all-reduce of that gradient between first and last rank, once a step."),
        ),
        source="Narayanan et al. 2021, §3",
    ),
    Question(
        name="gradients-through-a-cut",
        lesson=1,
        level=2,
        ask="autograd ends at a process. How do gradients get through a cut?",
        short="By hand. The receiver makes the tensor that arrives a leaf with requires_grad, runs its layers, and "
        "after its backward sends that leaf's .grad to the sender. The sender calls backward on its output with that "
        "gradient. Chain rule, one link at a time.",
        long="Three mistakes I know. Forget requires_grad on the received tensor: its gradient is None, and the "
        "ranks before never learn. Call backward on a loss only the last rank has: the others need the gradient as "
        "an argument. And keep the sent output alive in full: only its graph is needed, its storage can be freed, as "
        "Megatron-LM does. If the model's input needs no gradient, rank 0 sends none, and nobody may wait for it.",
        rubric=(
            "received tensor is a leaf with requires_grad",
            "backward with the received gradient as argument",
            "sends input.grad on",
            "knows the silent failure when requires_grad is missing",
        ),
        wrong=(
            ("autograd follows send and receive.", "torch.distributed's send is no autograd function."),
            ("detach() breaks training.", "It cuts the graph at the place where you carry the gradient across."),
        ),
        follow_ups=(
            ("What if stage 0 is frozen?", "Then it has no gradient to compute; the next stage need not send one."),
            ("Integers across a cut, such as a mask?", "They travel, and nothing comes back for them."),
        ),
        source="Lesson 01 of this course; Megatron-LM",
    ),
)
