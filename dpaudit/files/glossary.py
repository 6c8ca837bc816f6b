"""The words of reports and configs, explained once. Nothing here imports torch."""

from dpaudit.errors import nearest

from .verdict import MEANING

_VERDICTS = {str(verdict): meaning for verdict, meaning in MEANING.items()}
_TERMS = {
    "verdict": "What the evidence says about a claim: refuted, unsupported, underpowered or "
    "not refuted. None of them says that something is private.",
    "claim": "A privacy promise that is audited: epsilon with delta, or mu, for a message, a "
    "round or the whole run, under an adjacency, against one threat model or all.",
    "epsilon": "How much more likely any outcome may become when one record changes, as the "
    "logarithm of that factor, in nats: 0.5 is a factor of 1.65, 5 one of 148. It says "
    "nothing without its adjacency and its delta.",
    "delta": "The probability by which the factor e^epsilon may be exceeded. It should be far "
    "below one over the number of records.",
    "mu": "The currency of Gaussian differential privacy: telling two neighbouring data sets "
    "apart is as hard as telling N(0, 1) from N(mu, 1).",
    "adjacency": "Which data sets count as neighbours, and so what is protected: add-remove, "
    "replace-one, function, agent-identity or user.",
    "add-remove": "Neighbours differ by one record that only one of them has.",
    "replace-one": "Neighbours differ by one record in the place of another. A sum then moves "
    "up to twice as far as under add-remove.",
    "function": "Neighbours differ by one agent's whole function, within the distance of "
    "gradients that the defense states. It promises nothing for single records beyond that "
    "distance.",
    "agent-identity": "Neighbours differ by which agent a message comes from; over a run, by "
    "all that one agent puts in. It says nothing of records.",
    "user": "Neighbours differ by all records of one agent at once.",
    "scope": "What a claim's epsilon covers: one message, one round, or the whole run.",
    "threat model": "Who reads what: an external eavesdropper on all links or some, one "
    "curious agent, or a colluding set. Every adversary knows the algorithm, its public "
    "parameters and the graph.",
    "eavesdropper": 'The threat model kind "external": it reads every link, or the links it '
    "names, and has no data of its own.",
    "curious agent": 'The threat model kind "curious": one agent that follows the protocol '
    "and attacks with what it receives, sends and holds.",
    "colluding agents": 'The threat model kind "colluding": several curious agents that share '
    "all they have.",
    "view": "What one threat model reads of a run: the messages on its links, and what its "
    "own agents hold.",
    "transcript": "Every message on every edge, of the rounds that were recorded.",
    "accounting": "The epsilon of the noise that the defense declares, composed over the run: "
    "an interval that certainly contains it.",
    "certified bound": "A lower bound on epsilon from errors that an attack made in many "
    "runs, wrong with probability at most 5%. If it exceeds the claim, the claim is refuted.",
    "expected bound": "The certified bound that the planned number of runs is expected to "
    "give, computed from the exact leak before any run.",
    "ceiling": "The largest bound that a perfect attack could certify with as many trials.",
    "exact leak": "What the strongest adversary learns about one record from a view, by the "
    "algebra of the protocol and without a run. It names a message that no noise protects. It "
    "is exact for gradients that do not react to what the view hides, and an interval "
    "otherwise.",
    "reacting gradient": "A gradient at a model that the view does not reveal. It depends on "
    "what the adversary does not see, and may relay it. The algebra of given gradients is "
    "then a lower end, and the leak to an adversary who reads every link is the upper end.",
    "likelihood ratio": "How much more likely an observation is with the record than without "
    "it: the best possible score to distinguish the two.",
    "canary": "A record that is planted or left out at random. If an attack can tell which "
    "canaries were planted, epsilon has a lower bound.",
    "sensitivity": "How far a message moves, before noise, between neighbouring data sets. "
    "The noise protects a record only if the stated bound holds.",
    "gradient inversion": "Reconstruction of training images from intercepted messages that "
    "carry a gradient.",
    "blind baseline": "The score of a reconstruction that saw no message, such as the mean "
    "image. Only a better score is a finding.",
    "membership": "Whether a record was in the training data, or in a batch.",
    "mutual information": "How many bits a message reveals about a private quantity, on average.",
    "M-NMI": "The mutual information of message and secret, divided by that of the secret "
    "with itself, both estimated in the same way: 0 reveals nothing, 1 everything. Compare it "
    "only at equal numbers of trials.",
    "null control": "The attack on runs in which there is nothing to find. It must certify 0.",
    "positive control": "The attack on runs without noise. It must succeed.",
    "clip norm": "The largest norm that a record's gradient keeps; longer ones are scaled down.",
    "noise multiplier": "Standard deviation of the noise (Laplace: its scale) over the "
    "sensitivity of the sum of a batch.",
    "sampling rate": "The share of an agent's records that is in a batch: each with this "
    "probability (poisson) or so many of them (fixed).",
    "Poisson sampling": "Each record is in a batch with the same probability, whatever the "
    "other records do. The size of a batch then varies from round to round.",
    "amplification": "Sampling protects a record: a round whose batch leaves it out releases "
    "nothing about it. A small sampling rate therefore makes the epsilon of a round smaller.",
    "nats": "The unit of epsilon: a natural logarithm. One nat is a factor of 2.72 between "
    "the probabilities of an outcome, and 1.44 bits.",
    "GDP": "Gaussian differential privacy: mu-GDP says that two neighbouring data sets are as "
    "hard to tell apart as N(0, 1) and N(mu, 1). Each mu gives an epsilon for every delta.",
    "void": "A figure is void if other evidence of the same audit proves it false, for "
    "example if a message carries less noise than the defense declares. A void figure "
    "supports no claim.",
    "SSIM": "Structural similarity of two images: 1 for the same image, about 0 for unrelated "
    "ones.",
    "PSNR": "Peak signal-to-noise ratio in dB, over the range of the data: higher is closer "
    "to the truth.",
}
ENTRIES = {**_VERDICTS, **_TERMS}
_OTHER_WORDS = {
    "poisson": "Poisson sampling",
    "nat": "nats",
    "gaussian differential privacy": "GDP",
    "privacy amplification": "amplification",
    "amplification by sampling": "amplification",
    "subsampling": "amplification",
}


def names() -> tuple[str, ...]:
    """Every entry by its name."""
    return tuple(ENTRIES)


def entry_of(term: str) -> tuple[str, str] | None:
    """Name and text of an entry, however it is written; None if there is none."""
    asked = _plain(_OTHER_WORDS.get(_plain(term), term))
    return next(((n, text) for n, text in ENTRIES.items() if _plain(n) == asked), None)


def nearest_entry(term: str) -> str:
    """`` (did you mean "canary"?)``, or the empty string where no entry is close."""
    found = nearest(_plain(term), map(_plain, ENTRIES))
    for name in ENTRIES:
        found = found.replace(f'"{_plain(name)}"', f'"{name}"')
    return found


def _plain(term: str) -> str:
    return " ".join(term.lower().replace("-", " ").replace("_", " ").split())
