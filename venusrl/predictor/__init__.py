"""How well the length predictor of `venusrl.schedule` does on lengths of real trajectories."""
