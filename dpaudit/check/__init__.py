"""A claims file in CI: does every claim of this repository still hold?"""
