"""The folder in which the children of a run find their ``sitecustomize``."""
