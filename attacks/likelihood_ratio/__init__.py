"""Runs with and without one record, told apart by the strongest adversary of a view."""
