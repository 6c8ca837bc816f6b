"""From scores to certified bounds and p-values: what do these runs prove, and how surely?"""
