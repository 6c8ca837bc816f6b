"""Defenses: one private decentralized algorithm per file, as short as its pseudo-code."""
