"""The adversary's Kalman filter: what a view reveals about a record, exactly."""
