"""Training: the loop over steps, validation, checkpoints that resume exactly, distributed runs."""
