"""Training: the loop, optimizers, schedules, checkpoints that resume exactly, and the run folder."""
