"""Runs of a defense with and without a record, and the scores that separate them."""
