"""Training: recipes, schedules, checkpoints that resume exactly, and the runs they make."""
