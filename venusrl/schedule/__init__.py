"""Which actions run next: decisions over a snapshot of the cluster, and nothing else.

Pure: no clock, no I/O, no engine. A policy is a function of one immutable `Snapshot` and returns a
`Decision`; the simulator, an unmodified vLLM server and our own vLLM scheduler run the same code.
"""
