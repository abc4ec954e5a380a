"""Training: the GRPO objective, the optimizer loop, checkpoints and weight publishing."""
