"""The kinds of cards, a file a topic. Answers come from the closed forms; the tests hold them against the simulator."""

from ppcourse.lab.drills.card_kinds import bubble, interleaving, memory, messages, step, zero_bubble

ALL = (bubble, step, memory, messages, interleaving, zero_bubble)
