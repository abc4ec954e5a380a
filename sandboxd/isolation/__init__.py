"""What separates a sandbox from the node: pure decisions, executed by sandbox-init.

Nothing in this package makes a system call. `plan` says which steps build the inside of a sandbox,
`capabilities` and `seccomp` what its commands may ask of the kernel.
"""
