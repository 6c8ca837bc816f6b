"""The words of reports and configs, explained once. Nothing here imports torch."""

from dpaudit.errors import nearest

from .verdict import MEANING

_VERDICTS = {str(verdict): meaning for verdict, meaning in MEANING.items()}
_TERMS = {
    "verdict": "What the evidence says about a claim: refuted, unsupported, underpowered or not "
    "refuted. None of them says that something is private.",
    "claim": "A privacy promise that is audited: epsilon with delta, or mu, for a message, a round "
    "or the whole run, under an adjacency, against one threat model or all.",
    "epsilon": "How much more likely any outcome may become when one record changes, as the "
    "logarithm of that factor, in nats: 0.5 is a factor of 1.65, 5 one of 148. It says nothing "
    "without its adjacency and its delta.",
    "delta": "The probability by which the factor e^epsilon may be exceeded. It should be far "
    "below one over the number of records.",
    "mu": "The currency of Gaussian differential privacy: telling two neighbouring data sets "
    "apart is as hard as telling N(0, 1) from N(mu, 1).",
    "adjacency": "Which data sets count as neighbours, and so what is protected: add-remove, "
    "replace-one, function, agent-identity or user.",
    "add-remove": "Neighbours differ by one record that only one of them has.",
    "replace-one": "Neighbours differ by one record in the place of another. A sum then moves up "
    "to twice as far as under add-remove.",
    "function": "Neighbours differ by one agent's whole function, within the distance of gradients "
    "that the defense states. It promises nothing for single records beyond that distance.",
    "agent-identity": "Neighbours differ by which agent a message comes from; over a run, by all "
    "that one agent puts in. It says nothing of records.",
    "user": "Neighbours differ by all records of one agent at once.",
    "scope": "What a claim's epsilon covers: one message, one round, or the whole run.",
    "threat model": "Who reads what: an external eavesdropper on all links or some, one curious "
    "agent, or a colluding set. Every adversary knows the algorithm, its public parameters and "
    "the graph.",
    "eavesdropper": 'The threat model kind "external": it reads every link, or the links it names, '
    "and has no data of its own.",
    "curious agent": 'The threat model kind "curious": one agent that follows the protocol and '
    "attacks with what it receives, sends and holds.",
    "colluding agents": 'The threat model kind "colluding": several curious agents that share all '
    "they have.",
    "view": "What one threat model really reads of a run: copies of the messages on its links, and "
    "what its own agents hold.",
    "transcript": "Every message on every edge, of the rounds that were recorded.",
    "accounting": "The epsilon of the noise that the defense declares it released, composed over "
    "the run: an interval that is certain to hold it.",
    "certified bound": "A lower bound on epsilon from errors that an attack made in many runs, "
    "wrong with probability 5% at most. A larger one than is claimed refutes the claim.",
    "expected bound": "The certified bound that so many runs can be expected to give, computed "
    "from the exact leak before any run.",
    "ceiling": "The largest bound that a perfect attack could certify with as many trials.",
    "exact leak": "What the strongest adversary of a view learns of one record, by the protocol's "
    "own algebra and without a run; a message that no noise hides is named. Exact for gradients "
    "that do not react to what the view hides; else an interval.",
    "reacting gradient": "A gradient at a model that a view does not tell. It depends on what the "
    "adversary is not shown, and may relay it: the algebra of given gradients is then a lower end, "
    "and who reads every link the upper one.",
    "likelihood ratio": "How much more likely what is seen is with the record than without it: the "
    "best score there is for telling the two apart.",
    "canary": "A record planted on a secret coin. That an attack tells which coins came up bounds "
    "epsilon from below.",
    "sensitivity": "How far a message moves, before noise, when neighbouring data sets are "
    "exchanged. Noise hides a record only as far as its stated bound holds.",
    "gradient inversion": "Reconstruction of training images from intercepted messages that carry "
    "a gradient.",
    "blind baseline": "What a reconstruction scores that saw no message, such as the mean image. "
    "Only what exceeds it is a finding.",
    "membership": "Telling whether a record was among those trained on, or in a batch.",
    "mutual information": "How many bits a message tells about a private quantity, on average.",
    "M-NMI": "Mutual information of message and secret over that of the secret with itself, both "
    "estimated alike: 0 tells nothing, 1 all. It compares at equal numbers of trials only.",
    "null control": "An attack where there is nothing to find, which must certify 0.",
    "positive control": "An attack on a run without noise, which must be found out.",
    "clip norm": "The largest norm that a record's gradient keeps; longer ones are scaled down.",
    "noise multiplier": "Standard deviation of the noise (Laplace: its scale) over the sensitivity "
    "of the sum of a batch.",
    "sampling rate": "The share of an agent's records that is in a batch: each with this "
    "probability (poisson) or so many of them (fixed).",
    "Poisson sampling": "Each record is in a batch with the same probability, whatever the other "
    "records do. The size of a batch then varies from round to round.",
    "amplification": "Sampling hides a record: in a round whose batch leaves it out, nothing of it "
    "is released. A small sampling rate so makes the epsilon of a round smaller.",
    "nats": "The unit of epsilon: a natural logarithm. One nat is a factor of 2.72 between the "
    "probabilities of an outcome, and 1.44 bits.",
    "GDP": "Gaussian differential privacy: mu-GDP says that two neighbouring data sets are as hard "
    "to tell apart as N(0, 1) and N(mu, 1). Each mu gives an epsilon for every delta.",
    "void": "A figure is void where other evidence of the same audit proves it false, as when a "
    "message carries less noise than the defense declares. A void figure supports no claim.",
    "SSIM": "Structural similarity of two images: 1 for the same image, about 0 for unrelated "
    "ones.",
    "PSNR": "Peak signal-to-noise ratio in dB, over the range of the data: higher is closer to the "
    "truth.",
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
