"""Hints of mistakes in privacy code, by reading it: no file is imported, and none is executed."""
