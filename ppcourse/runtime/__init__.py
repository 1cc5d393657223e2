"""Doing it: real processes, real autograd, real messages. torch lives here.

    launch, train, torchrun    what users call: run and evaluate, train, and a rank that torchrun has started
    reference, profile         the same in one process: the oracle, and what each layer takes
    interpreter                runs any schedule, action by action; clock says when, meter weighs, tracing writes
    processes/                 the ranks: started, told what to do, watched, ended
    checkpoints/               a training that can be gone on with
    stages/                    one stage on its rank: forward, B or I and W, what is kept in between
    links/                     messages between ranks
    values/                    what crosses from layer to layer and from rank to rank
    machine/                   what the operating system and GPUs give

Of the folders each imports only from those below it, and links and stages do not know each other.
"""
