"""Who sends to whom, with which weights, in which round?"""
