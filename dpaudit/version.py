"""The version, which results, caches and provenance name, and those of optional packages."""

__version__ = "0.2.0"


def optional_versions() -> dict[str, str]:
    """Versions of optional packages that change how numbers are rounded."""
    from importlib.metadata import PackageNotFoundError, version  # a tenth of the time of --help

    try:
        return {"numba": version("numba")}
    except PackageNotFoundError:
        return {}
