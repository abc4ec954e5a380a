"""VenusRL's sandbox daemon: isolated Linux sandboxes over a Unix socket."""

API_VERSION = 1
__version__ = "0.1.0"
