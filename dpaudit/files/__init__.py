"""Every file that a user reads or writes, checked: which keys, which values, which version?

No module of this room imports torch, so that a config is refused before anything heavy is loaded.
"""
