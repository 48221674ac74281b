"""Registers driftgate's options and fixtures; see ``fixtures/plugin.py``."""

pytest_plugins = ["fixtures.plugin"]
