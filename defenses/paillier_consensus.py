"""Gradient descent whose consensus is computed under Paillier encryption."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt, PrivateAttr
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Models, Noise, Round, Setting, ThreatModel

from .correlated_randomness import uniform

LARGEST = 2**53  # up to here float64 holds every integer, and both channels give the same ones


class KeyPair(NamedTuple):
    """One agent's keys, of ``phe.paillier``."""

    public: Any
    private: Any


class PaillierConsensus(dp.NoiselessFunctionDefense):
    """Zhang and Wang (2019), from the estimator that Xie, Liu and Chai attack; rows are agents.

    In round k every agent i draws a b_ij in (0, sqrt(1 / (2 deg_max))) for each neighbour j, which
    it shares with nobody. With E_i encryption under the public key of i,
        i sends to j      E_i(-x_i)
        j answers         (E_i(x_j) E_i(-x_i))^b_ji = E_i(b_ji (x_j - x_i))
        i decrypts, and   x_i+ = x_i + sum over j of b_ij b_ji (x_j - x_i) - alpha_k grad f_i(x_i)
    with alpha_k = step_size / k^power. Models and weights are integers after multiplication by
    ``scale``, so the increments of i and j cancel exactly.

    ``channel`` "paillier" encrypts; "ideal" computes the same integers in the clear, batched over
    trials, and the transcript says who would hold the key. Reconstructed: the exchange is that of
    encrypted consensus, and the schedule and the distribution of b are a reading.
    """

    needs_graph = dp.undirected("encrypted consensus", " (Assumption 2)")
    first_release = 2  # in round 1, models are equal: the sign of x_i - x_j says nothing
    paper = "Zhang, Wang: Paillier-encrypted gradient descent"
    reconstructed = "the update and the exchange, from an attack on it that another paper states"
    claims = "no epsilon; cryptographic against eavesdroppers"
    messages = {
        "state": "minus the sender's model, encrypted under the sender's own key",
        "difference": "b_ji (x_j - x_i) from j to i, encrypted under the receiver's key",
    }
    private = {
        "gradient": "grad f_i at the model of the round",
        "increment": "sum over j of b_ij b_ji (x_j - x_i): agent i forms it from the differences "
        "and its own b_ij; all its neighbours j together can, each from b_ji and b_ij (x_i - x_j)",
    }

    step_size: PositiveFloat = 0.1
    power: Annotated[float, Field(gt=0.5, le=1)] = 1.0  # steps sum to infinity, their squares not
    scale: PositiveInt = 1_000_000
    channel: Literal["ideal", "paillier"] = "ideal"
    key_bits: Annotated[int, Field(ge=256)] = 2048  # of n = p q; below 2048 for tests alone
    _keyring: list[KeyPair] = PrivateAttr(default_factory=list)  # made when first needed

    @property
    def packages(self) -> Mapping[str, str]:
        return {"phe": "dpaudit[paillier]"} if self.channel == "paillier" else {}

    def alpha(self, k: int) -> float:
        """The step size of round k."""
        return self.step_size / k**self.power

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X = state.X
        x = (self.scale * X.double()).round()
        b = self._weights(graph, x, noise)

        difference = self._exchange(x, b, graph)  # on edge j -> i: b_ji (x_j - x_i), scale^2
        increment = b[..., _reversed(graph).to(X.device), :] * difference  # times b_ij, scale^3
        receivers = graph.receivers.to(X.device)
        total = torch.zeros_like(x).index_add_(-2, receivers, increment / self.scale**3)
        G = gradient(X)
        X_next = X + total.to(X) - self.alpha(k) * G
        sent = {
            "state": replace(dp.broadcast(graph, (-x / self.scale).to(X)), readers=graph.senders),
            "difference": dp.unicast(
                graph, (difference / self.scale**2).to(X), readers=graph.receivers
            ),
        }
        return Round(Models(X_next), sent, {"gradient": G, "increment": total.to(X)})

    def _weights(self, graph: Graph, x: Tensor, noise: Noise) -> Tensor:
        """b_ji of each edge j -> i as integers, [..., n_edges, 1]."""
        deg_max = graph.senders.bincount().max().item()
        like = x.new_empty(*x.shape[:-2], graph.n_edges, 1)
        b = uniform(noise, "weights", like) * math.sqrt(1 / (2 * deg_max))
        return (self.scale * b).floor().clamp(min=1)

    def _exchange(self, x: Tensor, b: Tensor, graph: Graph) -> Tensor:
        j, i = graph.senders.to(x.device), graph.receivers.to(x.device)
        difference = b * (x[..., j, :] - x[..., i, :])
        if not bool(difference.abs().max() <= LARGEST):  # NaN is no number below it either
            raise dp.DpauditError(
                "DPA046",
                f"paillier-consensus: a model times scale={self.scale} leaves the range of exact "
                "integers; lower step_size (the run diverges) or scale",
            )
        if self.channel == "ideal":
            return difference
        return exchange(self._keys(graph.n_agents), x, b, graph)

    def _keys(self, n_agents: int) -> Sequence[KeyPair]:
        while len(self._keyring) < n_agents:
            self._keyring.append(key_pair(self.key_bits))
        return self._keyring

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Nothing to those without a key; to a neighbour the sign of x_i - x_j from round 2 on."""
        if not threat_model.agents:
            assumption = "ciphertexts give nothing away (decisional composite residuosity)"
            return Bracket((), (), (assumption,))
        return super().mechanism(setting, threat_model, victim)


def exchange(keys: Sequence[KeyPair], x: Tensor, b: Tensor, graph: Graph) -> Tensor:
    """The encrypted protocol on every edge j -> i, and what i decrypts.

    Args:
        keys: of each agent.
        x: [n_agents, d], integers.
        b: [n_edges, 1], the positive integers b_ji.

    Returns:
        b_ji (x_j - x_i), [n_edges, d], exact.

    Raises:
        DpauditError: more than one trial, a wrong key, or a damaged ciphertext.
    """
    if x.ndim != 2:
        raise dp.DpauditError(
            "DPA005", 'channel "paillier" runs one trial at a time; use channel = "ideal"'
        )
    decrypted = []
    for e, (j, i) in enumerate(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)):
        for x_j, x_i in zip(x[j].tolist(), x[i].tolist(), strict=True):
            message = request(keys[i], int(x_i))
            answer = reply(message, int(x_j), int(b[e].item()))
            decrypted.append(decrypt(keys[i], answer))
    return torch.tensor(decrypted, dtype=x.dtype, device=x.device).view(graph.n_edges, -1)


def request(own: KeyPair, x_i: int) -> Any:
    """E_i(-x_i)."""
    return own.public.encrypt(-x_i)


def reply(message: Any, x_j: int, b_ji: int) -> Any:
    """(E_i(x_j) E_i(-x_i))^b_ji, computed without the private key of i."""
    return (message + message.public_key.encrypt(x_j)) * b_ji


def decrypt(own: KeyPair, ciphertext: Any) -> int:
    """The plaintext. Raises DpauditError: it is not for this key, or was damaged on its way.

    Paillier does not authenticate, but a damaged ciphertext decrypts to an almost uniform number
    of key length, which is out of range but for one chance in 2^(key_bits - 54).
    """
    if ciphertext.public_key != own.public:
        raise dp.DpauditError(
            "DPA043", "paillier: the ciphertext was encrypted under another agent's key"
        )
    try:
        plaintext = own.private.decrypt(ciphertext)
    except OverflowError:
        plaintext = LARGEST + 1
    if abs(plaintext) > LARGEST:
        raise dp.DpauditError(
            "DPA046",
            f"paillier: a ciphertext decrypts to a number beyond {LARGEST}: it was damaged on its "
            "way, or encrypted under another key",
        )
    return int(plaintext)


def key_pair(bits: int) -> KeyPair:
    """A new key pair. Raises MissingPackage: phe is not installed."""
    try:
        paillier = import_module("phe.paillier")
    except ImportError:
        raise dp.MissingPackage(
            "DPA023", 'channel "paillier" needs the package phe: pip install "dpaudit[paillier]"'
        ) from None
    return KeyPair(*paillier.generate_paillier_keypair(n_length=bits))


def _reversed(graph: Graph) -> Tensor:
    """For each edge j -> i the index of i -> j, [n_edges]."""
    index = torch.zeros(graph.n_agents, graph.n_agents, dtype=torch.long)
    index[graph.senders, graph.receivers] = torch.arange(graph.n_edges)
    return index[graph.receivers, graph.senders]
