"""A virtual machine with systemd and a version 2 hierarchy alone, in which the units are tried."""
