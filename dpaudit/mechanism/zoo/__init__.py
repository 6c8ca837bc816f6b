"""Mechanisms with a known epsilon, right and wrong, that an audit of functions must tell apart."""
