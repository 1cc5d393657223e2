"""What a learner sees: charts, checks of exercises, saved progress, what the machine can do."""
