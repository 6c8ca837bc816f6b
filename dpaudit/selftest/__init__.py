"""Planted privacy bugs and what must find them: is the auditor alive?"""
