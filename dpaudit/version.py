"""The version, which results, caches and provenance name."""

__version__ = "0.1.0"
