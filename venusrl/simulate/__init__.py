"""A cluster of engines as discrete events, which runs the code of `venusrl.schedule` unchanged."""
