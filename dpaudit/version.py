"""The version, which results, caches and provenance name."""

__version__ = "0.2.0"
