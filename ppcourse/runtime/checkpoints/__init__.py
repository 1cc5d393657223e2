"""A training that can be gone on with: what is saved, where, and what of it is whole."""
