"""How long and how much: everything that can be said of a plan without running it."""
