"""What crosses from layer to layer and from rank to rank: what it may be, how it becomes bytes."""
