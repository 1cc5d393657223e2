"""Messages between ranks. link.py says what a link is, and how gloo, shared, NCCL and staged differ."""
