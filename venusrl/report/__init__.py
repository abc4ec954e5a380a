"""What a run shows: progress in the terminal, metrics as lines of JSON, a report in one file."""
