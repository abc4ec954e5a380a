"""The HTTP face of the daemon: routes, models and the socket's peer credentials."""
