"""Templates: sandboxes that were captured while they ran, to be forked any number of times.

`template` and `records` say what one is and how it is written down; `capture` makes one of a live
sandbox, `restore` brings its processes to life in a fresh one; `store` knows which there are,
`pages` has somebody hold their memory, `pool` decides which go when it is too much;
`service` puts these together. The system calls are the native engine's.
"""
