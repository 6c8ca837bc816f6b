"""Whether a step draws numbers that ``noise`` does not give it, and that may seldom matter.

A step whose messages differ when it is played again is refused. One that leaves out its noise once
in a thousand rounds, by a coin of its own, is hardly ever seen to differ: so it is seen that it
draws at all.
"""

from contextlib import AbstractContextManager

from dpaudit.recorder.draws import generators


def watched(defense: object) -> AbstractContextManager[set[str]]:
    """The names of generators that are drawn from meanwhile, as ``generators.watched`` has them.

    Of further generators, those that a class of the defense keeps, or its module.
    """
    places = [vars(base) for base in type(defense).__mro__]
    functions = [f for place in places for f in place.values()]
    return generators.watched(functions, places=places)
