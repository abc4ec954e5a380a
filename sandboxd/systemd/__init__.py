"""Running under systemd: what it is told and asks (`manager`), and its units (`install`)."""
