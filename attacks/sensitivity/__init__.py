"""How far messages move between neighbouring worlds, beside the stated bounds."""
