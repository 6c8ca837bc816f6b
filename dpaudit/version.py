"""The version, which results, caches and provenance name, and those of optional packages."""

__version__ = "0.2.0"


def optional_versions() -> dict[str, str]:
    """Of packages that decide how numbers are rounded where they are installed."""
    from importlib.metadata import PackageNotFoundError, version  # a tenth of the time of --help

    try:
        return {"numba": version("numba")}
    except PackageNotFoundError:
        return {}
