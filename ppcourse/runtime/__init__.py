"""Doing it: real processes, real autograd, real messages. torch lives here."""
