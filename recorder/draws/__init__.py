"""What a program draws, and how a run of an audit replays it."""
