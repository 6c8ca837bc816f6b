"""Attacks: one file each; they return evidence from a view and judge nothing."""
