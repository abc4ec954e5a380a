"""Sandboxes of sandboxd for agent frameworks that bring their own idea of one.

Each module stands on `sandboxd.client` alone, and imports the framework that it is for: nothing
else here imports one of them. docs/providers.md says how each is used.
"""
