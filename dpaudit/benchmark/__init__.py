"""Many audits from one file, and where they run: which defense leaks how much, at what utility?"""
