"""Runs with and without one record, distinguished by the strongest adversary of a view."""
