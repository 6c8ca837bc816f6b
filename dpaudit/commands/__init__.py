"""What a person, a script or pytest calls: which command, with which options?"""
