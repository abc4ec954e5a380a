"""The whole pipeline on one machine: a small policy learns by acting in real sandboxes."""
