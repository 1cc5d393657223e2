"""What the machine gives: the operating system's part, its GPUs, their streams and points of time."""
