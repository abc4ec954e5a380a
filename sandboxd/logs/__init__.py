"""The daemon's log: one line an event, with what it is about as fields.

What sandboxes and clients choose gets into it, so every line is escaped and bounded, and so is the
number of those that somebody can provoke.
"""
