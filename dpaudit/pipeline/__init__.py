"""One audit, from a config to verdicts: prepare, run the jobs, judge. Does the claim stand?"""
