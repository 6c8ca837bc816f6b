"""Membership by reference runs of the same algorithm: LiRA and RMIA."""
