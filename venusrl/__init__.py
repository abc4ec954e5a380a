"""Agentic reinforcement learning: tasks, episodes, policy and training."""
