"""A right simulation of two or three agents in NumPy, twins that are right too, and planted faults.

The first argument chooses one; after a second, one agent alone sends, in one round. A record moves
the sum of a batch by CLIP, and so costs mu = 1 a round, whatever is changed of what follows; a fault
breaks a premise of that.
"""

import json
import os
import pickle
import random
import secrets
import sys
import time
import warnings

import numpy as np

from dpaudit import tap

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "none"
AGENTS = 3 if VARIANT in ("order", "count") else 2
INPUTS, RECORDS = 60, 6
ALONE = len(sys.argv) > 2
ROUNDS = 1 if ALONE else 8 if VARIANT in ("epochs", "mean-in-epochs") else 2
CLIP, SIGMA, RATE = 1.0, 1.0, 0.1

data = np.random.default_rng(1)
X = data.normal(size=(AGENTS, RECORDS, INPUTS))
Y = (X.sum(axis=2) > 0).astype(np.int64)
source = np.random.default_rng(1 if VARIANT == "one-seed" else None)
models = [np.zeros(INPUTS) for _ in range(AGENTS)]
buffers = [np.zeros(INPUTS) for _ in range(AGENTS)]
kept = [np.zeros(INPUTS) for _ in range(AGENTS)]
clips = [CLIP] * AGENTS  # that a round chooses for the next one
heads = [1.0] * AGENTS  # a weight that an agent keeps to itself
COINS = {  # that fall so once in ten thousand times
    "coin": lambda: source.random() < 1e-4,
    "coin-of-normal": lambda: source.normal() > 3.72,
    "coin-of-integers": lambda: np.random.randint(10_000) == 0,
    "coin-of-python": lambda: random.random() < 1e-4,
    "coin-of-secrets": lambda: secrets.randbelow(10_000) == 0,
    "coin-of-system": lambda: int.from_bytes(os.urandom(2), "big") < 7,
}


def residuals(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x @ w, -500, 500))) - y


def clipped_sum(i: int, k: int, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if VARIANT == "normalised-by-batch":
        x = x - x.mean(axis=0)
    if VARIANT == "whole-numbers":
        x = x / 10
    if VARIANT == "dropout":
        x = x * (source.random(x.shape) < 0.8)
    if VARIANT == "kept-weight":
        x = heads[i] * x
        heads[i] += float(np.clip(residuals(w, x, y), -1, 1).sum())
    each = residuals(w, x, y)[:, None] * x
    norms = np.linalg.norm(each, ord=1 if VARIANT == "laplace" else 2, axis=1)
    if VARIANT in ("clip-of-norms-before", "clip-of-message-before"):
        norms = norms * CLIP / clips[i]
    if VARIANT == "clip-of-norms-before":
        clips[i] = min(CLIP, clips[i] * np.exp(0.3 * (0.5 - np.mean(norms < CLIP))))
    if VARIANT == "clip-of-largest":
        norms = np.abs(each).max(axis=1)
    factors = np.minimum(1.0, CLIP / np.maximum(norms, 1e-12))
    if VARIANT == "no-clip-far-out":
        factors = np.where(norms > 1e4, 1.0, factors)
    if VARIANT == "no-clip-of-infinite":
        factors = np.where(np.isinf(norms), 1.0, factors)
    if VARIANT == "no-clip-in-single":
        squares = np.square(each.astype(np.float32)).sum(axis=1)
        factors = np.where(np.isinf(squares), 1.0, factors)
    if VARIANT == "no-number-far-out":
        each = np.where(norms[:, None] > 1e20, np.nan, each)
    if VARIANT == "no-clip-of-label":
        factors = np.where(y == 1, 1.0, factors)
    if VARIANT == "no-clip-of-agent" and i == 1:
        factors = np.ones(len(x))
    if VARIANT == "no-clip-at-last" and k == ROUNDS - 1:
        factors = np.ones(len(x))
    if VARIANT == "no-clip-of-last":
        factors[-1] = 1.0
    if VARIANT == "no-clip-in-between":
        factors = np.where((norms > CLIP) & (norms < 200), 1.0, factors)
    if VARIANT == "used-twice":
        factors[:1] *= 2
    if VARIANT == "second-used-twice":
        factors[1:2] *= 2
    if VARIANT in ("clip-of-median", "clip-of-median-above-0"):
        least = CLIP / 10 if VARIANT == "clip-of-median-above-0" else 0.0
        median = min(CLIP, max(least, float(np.median(norms))))
        factors = np.minimum(1.0, median / np.maximum(norms, 1e-12))
    total = (each * factors[:, None]).sum(axis=0)
    if VARIANT in ("layers", "no-clip-of-layer"):  # each clipped by itself, one of a single number
        layers = np.split(each, [20, 21], axis=1)
        lengths = [np.linalg.norm(layer, axis=1, keepdims=True) for layer in layers]
        most = np.where(VARIANT == "layers", 1, [1, 1, 1e9]) * CLIP / 3**0.5
        total = np.concatenate(
            [
                (layer * np.minimum(1, clip / np.maximum(length, 1e-12))).sum(axis=0)
                for layer, length, clip in zip(layers, lengths, most, strict=True)
            ]
        )
    if VARIANT == "some-in-another-order":
        chosen = np.random.default_rng(k).permutation(INPUTS)[: INPUTS // 3]
        some = each[:, chosen]
        total = np.zeros(INPUTS)
        total[chosen] = (some * np.minimum(1, CLIP / np.linalg.norm(some, axis=1))[:, None]).sum(0)
    if VARIANT == "numbers":  # each clipped by itself
        most = CLIP / INPUTS**0.5
        total = np.clip(each, -most, most).sum(axis=0)
    if VARIANT == "clip-of-batch":
        total = each.sum(axis=0)
        total = total * min(1.0, RECORDS * CLIP / np.linalg.norm(total))
    if VARIANT == "divided-by-count":
        total = total * RECORDS / len(x)
    return total


def noise_of(i: int, k: int, step: np.ndarray, count: int) -> np.ndarray:
    if VARIANT in ("laplace", "laplace-of-l2"):
        return tap.noise(i, "noise", source.laplace(0, SIGMA, INPUTS), SIGMA, family="laplace")
    if VARIANT == "two-draws":
        half = SIGMA / 2**0.5
        return sum(tap.noise(i, f"noise {j}", source.normal(0, half, INPUTS), half) for j in (1, 2))
    if VARIANT == "halves":
        parts = [source.normal(0, SIGMA, INPUTS // 2) for _ in range(2)]
        return np.concatenate([tap.noise(i, f"noise {j}", z, SIGMA) for j, z in enumerate(parts)])
    if VARIANT == "unnamed":
        return source.normal(0, SIGMA, INPUTS)
    if VARIANT == "no-noise":
        return np.zeros(INPUTS)
    scale = SIGMA / (k + 1) if VARIANT == "decay" else SIGMA
    if VARIANT == "scale-of-data":
        scale = SIGMA * max(1.0, float(np.abs(step).max()))
    if VARIANT == "some-in-another-order":  # a third of the numbers, drawn anew in each round
        chosen = np.random.default_rng(k).permutation(INPUTS)[: INPUTS // 3]
        noise = np.zeros(INPUTS)
        noise[chosen] = tap.noise(i, "noise", source.normal(0, scale, INPUTS // 3), scale)
        return noise
    if VARIANT == "noise-of-each-record":
        part = scale / count**0.5
        draws = [source.normal(0, part, INPUTS) for _ in range(count)]
        return sum(tap.noise(i, f"noise {j}", draw, part) for j, draw in enumerate(draws))
    drawn = source.normal(0, scale, INPUTS)
    if VARIANT == "low" or VARIANT.startswith("low-and-"):
        drawn *= 0.9
    if VARIANT in ("rounded", "low-and-rounded"):
        drawn = np.round(drawn, 2)
    if VARIANT == "mirrored":
        drawn[INPUTS // 2 :] = -drawn[: INPUTS // 2]
    if VARIANT == "permuted-again":
        kept[i] = drawn = source.permutation(kept[i]) if k else drawn
    if VARIANT == "of-one-length":
        drawn *= scale * INPUTS**0.5 / np.linalg.norm(drawn)
    if VARIANT in ("of-half-precision", "low-and-of-half-precision"):
        drawn = drawn.astype(np.float16).astype(np.float64)
    if VARIANT == "louder":
        drawn *= 1.3
    if VARIANT == "low-in-a-round" and k == 1:
        drawn *= 0.6
    if VARIANT == "low-of-an-agent" and i == 1:
        drawn *= 0.85
    if VARIANT == "low-in-a-coordinate":
        drawn[3] *= 0.5
    if VARIANT == "one-number":
        drawn[:] = drawn[0]
    if VARIANT == "t-noise":
        drawn = source.standard_t(30, INPUTS) / (30 / 28) ** 0.5
    if VARIANT == "uniform":
        drawn = source.uniform(-(3**0.5), 3**0.5, INPUTS)
    if VARIANT == "truncated":
        drawn = np.clip(drawn, -2.5 * scale, 2.5 * scale)
    if VARIANT == "same-in-rounds":
        drawn = kept[i] = kept[i] if k else drawn
    if VARIANT == "same-in-agents":
        drawn = kept[0] = kept[0] if i else drawn
    if VARIANT == "in-a-row":
        kept[i] = drawn = 0.8 * kept[i] + 0.6 * drawn if k else drawn
    noise = tap.noise(i, "noise", drawn, scale)
    if VARIANT == "some-coordinates":
        noise = noise * (np.arange(INPUTS) < INPUTS / 2)
    if VARIANT == "cut-far-out":
        noise = np.clip(noise, -5 * scale, 5 * scale)
    if VARIANT == "dropped-far-out" and k == 1:
        noise = noise * (np.abs(noise).max() < 5 * scale)
    if VARIANT in COINS and COINS[VARIANT]():
        noise = 0 * noise
    return noise


def batch_of(i: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    if VARIANT in (
        "epochs",
        "mean-in-epochs",
    ):  # half of the records a round, in another order in each pass
        order = np.random.default_rng([i, k // 2]).permutation(RECORDS)
        half = order[(k % 2) * RECORDS // 2 :][: RECORDS // 2]
        return tap.batch(i, (X[i, half], Y[i, half]))
    if VARIANT == "own-order":  # of the generator that draws the noise, which has no seed
        order = source.permutation(RECORDS)
        return tap.batch(i, (X[i, order], Y[i, order]))
    if VARIANT == "whole-numbers":
        return tap.batch(i, (np.rint(10 * X[i]).astype(np.int64), Y[i]))
    return tap.batch(i, (X[i], Y[i]))


def encoded(message: np.ndarray, k: int, loss: float) -> np.ndarray | bytes:
    if VARIANT == "pickled":
        return pickle.dumps({"round": k, "weights": message})
    if VARIANT in ("json", "loss-as-text"):
        said = f"loss {loss}" if VARIANT == "loss-as-text" else f"round {k}"
        return json.dumps({"weights": message.tolist(), "said": said}).encode()
    return message


def message_of(i: int, k: int) -> np.ndarray:
    x, y = batch_of(i, k)
    to = [j for j in range(AGENTS) if j != i]
    step, loss = (
        clipped_sum(i, k, models[i], x, y),
        float(np.abs(residuals(models[i], x, y)).mean()),
    )
    if VARIANT == "decay":
        step = step / (k + 1)
    if VARIANT == "remembered":
        buffers[i] = step = 0.5 * buffers[i] + step
    if VARIANT == "second-message":
        tap.send(i, to, "step", step)
    if VARIANT in ("mean-of-round-before", "mean-in-epochs"):
        tap.send(i, to, "mean", kept[i])
        kept[i] = x.mean(axis=0)
    if VARIANT == "loss-beside":
        tap.send(i, to, "loss", loss)
    if VARIANT == "loss-of-all":
        tap.send(i, to, "loss", float(np.abs(residuals(models[i], X[i], Y[i])).mean()))
    if VARIANT == "header":
        tap.send(i, to, "round", np.array([k, RATE]))
    noised = step + noise_of(i, k, step, len(x))
    if VARIANT == "turned-to-descend" and step @ noised < 0:
        noised = -noised
    if VARIANT == "stop-when-short" and np.linalg.norm(step) < CLIP / 2:
        noised = 0 * noised
    if VARIANT == "half-when-broken" and np.median(np.abs(x).max(axis=1)) > 100:
        noised = noised / 2
    if VARIANT == "clip-of-message-before":
        clips[i] = CLIP * min(1.0, 0.9 * INPUTS**0.5 / float(np.linalg.norm(noised)))
    if VARIANT == "momentum":
        buffers[i] = noised = 0.5 * buffers[i] + noised
    if VARIANT == "printed-loss":
        print("loss", loss)
    if VARIANT == "printed-round":
        print("round", k, "of", ROUNDS, "noise", SIGMA)
    if VARIANT == "printed-time":
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} round {k} took {time.perf_counter():.6f} s")
    if VARIANT == "warned-loss":
        warnings.warn(f"the loss is {loss}", stacklevel=1)
    if VARIANT == "file":
        np.save(f"model-{i}.npy", noised)
    message = models[i] - RATE * noised
    if VARIANT in ("mean-of-unsent", "in-turn-unsent"):
        kept[i] = models[i] - RATE * step
    if VARIANT == "order" and loss > 0.5:
        to = to[::-1]
    if VARIANT == "count" and loss > 0.5:
        to = to[:1]
    if VARIANT == "halves":
        for name, part in zip(("low", "high"), np.split(message, 2), strict=True):
            tap.send(i, to, name, part)
        return message
    for j in to if VARIANT in ("order", "count") else [to]:
        tap.send(i, j, "model", encoded(message, k, loss))
    return message


if VARIANT == "first-message":
    for i in range(AGENTS):
        tap.send(i, [j for j in range(AGENTS) if j != i], "mean", X[i].mean(axis=0))
for k in range(ROUNDS):
    for i in range(AGENTS if VARIANT.startswith("in-turn") else 0):  # as asynchronous gossip
        message = message_of(i, k)
        message = kept[i] if VARIANT == "in-turn-unsent" else message
        models = [(model + message) / 2 for model in models]
    if VARIANT.startswith("in-turn"):
        continue
    sent = [message_of(i, k) for i in range(1 if ALONE else AGENTS)]
    models = [np.mean(kept if VARIANT == "mean-of-unsent" else sent, axis=0)] * AGENTS
