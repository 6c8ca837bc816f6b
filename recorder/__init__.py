"""Records what a program sends and draws, in the environment in which the program lives.

It imports the standard library alone, under Python 3.8 and newer. NumPy, torch, JAX and transports
are hooked as soon as the program has imported them. What crosses to the auditor are files: see
docs/recorder-protocol.md.

    from dpaudit_recorder import tap
"""

__version__ = "0.2.0"
PROTOCOL = 1  # version of the files and environment variables, which the auditor checks
