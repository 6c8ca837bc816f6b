"""The contract of attacks and the scores of reconstructions: what may an attack see and say?"""
