"""Learning problems and runs of a defense on them: what happens when it runs?"""
