"""Networks and per-record gradients: what is trained, and how does one record move it?"""
