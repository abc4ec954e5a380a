"""E2B's wire, so that its SDK drives this daemon: a REST control plane, and for each sandbox what
E2B's agent `envd` offers, over REST and the Connect protocol. An additional listener, off by
default."""
