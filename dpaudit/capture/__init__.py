"""Programs that were not written for dpaudit: what they send and draw, recorded as they run."""
