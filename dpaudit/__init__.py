"""dpaudit: are the privacy claims of a private decentralized learning algorithm true?"""

__version__ = "0.1.0"
