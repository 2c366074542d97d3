"""Paired sweeps of feed-forward layers in small language models, on Ray."""

__version__ = "0.1.0"
