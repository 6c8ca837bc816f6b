"""The canary game and its strongest adversary: what does a view leak?"""
