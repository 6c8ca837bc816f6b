"""Derives the verdicts of an audit again from its evidence, without the code that made it."""
