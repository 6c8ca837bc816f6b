"""Data sets, and which agent holds which records: what is learned from?"""
