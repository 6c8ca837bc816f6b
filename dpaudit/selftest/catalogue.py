"""Mechanisms that are audited without attacks, and how much each leaks by a closed form."""

from collections.abc import Iterator, Sequence
from math import inf, sqrt
from typing import Any

from . import bypasses, faults, odd
from .common_mistakes import BrainFloatNoise, HalfPrecisionNoise
from .correct import PrivateGossip
from .ordinary import Mechanism, Said, ordinary_audits
from .zoo import ClipForgotten

LAPLACE: dict[str, Any] = {"family": "laplace"}
WHOLE_BATCH: dict[str, Any] = {"batch_size": faults.RECORDS}
MIXED = 1 / 3  # weight of an agent's own model on a ring
COMMON = 1 - 0.3**2  # share of variance that all 6 agents have in common


def _fault(name: str, defense: PrivateGossip, leaks: float) -> Mechanism:
    return Mechanism(name, defense, False, leaks=leaks)


def _correct(
    name: str, defense: PrivateGossip, leaks: float = 1.0, graph: str = "ring"
) -> Mechanism:
    return Mechanism(name, defense, True, leaks=leaks, graph=graph)


# The third value is mu of all messages over the declared mu, for the worst record in every batch;
# under Laplace noise it is epsilon over the declared epsilon. It is infinite if an outcome that has
# more probability than delta is impossible in the neighbouring world. The values of "the shortest
# of" and "drawn until short" are simulated (4e6 privacy losses). 0.793 comes from covariances.
FAULTS = (
    _fault("noise four times too small", faults.NoiseQuartered(), 4.0),
    _fault("noise four times too small, Laplace", faults.NoiseQuartered(**LAPLACE), 4.0),
    _fault("noise of standard deviation 0", faults.NoiseAbsent(), inf),
    _fault("no clipping", ClipForgotten(), inf),
    _fault("noise scaled by C squared", faults.ClipNormSquared(), 2.0),
    _fault("noise scaled by the sampling rate", faults.RateInNoise(), 2.0),
    _fault("noise of all records averaged", faults.NoiseOfRecordsAveraged(), 2.0),
    _fault("each coordinate clipped to C", faults.ClipByCoordinate(), 6.0),
    _fault("each third clipped to C", faults.ClipByBlock(), sqrt(3)),
    _fault("clipped after the noise", faults.ClipAfterNoise(), inf),
    _fault("uniform noise", faults.UniformNoise(), inf),
    _fault("noise of random signs", faults.SignNoise(), inf),
    _fault("noise of 256 numbers", faults.TableNoise(), inf),
    _fault("float16 noise, C = 1e-6", HalfPrecisionNoise(clip_norm=1e-6, learning_rate=5e5), inf),
    _fault("float16 noise, C = 5e3", HalfPrecisionNoise(clip_norm=5e3), inf),
    _fault("float16 noise scaled to C = 1e6", faults.HalfThenScaled(clip_norm=1e6), inf),
    _fault("bfloat16 noise, C = 1e-6", BrainFloatNoise(clip_norm=1e-6, learning_rate=5e5), inf),
    _fault("a row of a Hadamard matrix bare", faults.HadamardRowBare(), inf),
    _fault("a row of a cosine transform bare", faults.CosineRowBare(), inf),
    _fault("a random direction bare", faults.DirectionBare(), inf),
    _fault("a random direction with a fifth", faults.DirectionQuiet(), 5.0),
    _fault("the means of blocks bare", faults.BlockMeansBare(), inf),
    _fault("a contrast of two agents bare", faults.ContrastBare(), inf),
    _fault("noise of half the rank", faults.LowRankNoise(), inf),
    _fault("the shortest of three draws", faults.ShortestOf(draws=3, **WHOLE_BATCH), 1.2),
    _fault("the shortest of eight draws", faults.ShortestOf(**WHOLE_BATCH), 1.4),
    _fault("drawn until short", faults.DrawnUntilShort(**WHOLE_BATCH), 3.0),
    _fault("noise clamped", faults.NoiseClamped(), inf),
    _fault("noise cut off", faults.NoiseTruncated(), inf),
    _fault("noise turned along the gradient", faults.NoiseAlongGradient(), inf),
    _fault("noise as long as the gradient", faults.NoiseOfGradientsSize(), inf),
    _fault("noise in proportion to each number", faults.NoiseMultiplied(), inf),
    _fault("less noise for long gradients", faults.NoiseShrinks(), 2.5),
    _fault("half of the noise dropped", faults.NoiseDropped(), inf),
    _fault("a random third of rounds bare", faults.ThirdOfRoundsBare(), inf),
    _fault("a quarter in rounds 5 to 8", faults.MiddleQuiet(), sqrt((8 + 4 * 16) / 12)),
    _fault("no clipping in rounds 5 to 8", faults.MiddleUnclipped(), inf),
    _fault("one agent bare in round 6", faults.MiddleAgentBare(), inf),
    _fault("agent 0 bare", faults.AgentBare(), inf),
    _fault("a term after rounding to a grid", bypasses.TermAfterGrid(), inf),
    _fault("a term after bfloat16", bypasses.TermAfterBrainFloat(), inf),
    _fault("a term after signs", bypasses.TermAfterSign(), inf),
    _fault("the remainder added back", bypasses.RemainderAfterGrid(), inf),
    _fault("small noisy numbers replaced", bypasses.SmallestBare(), inf),
    _fault(
        "own model kept without noise",
        bypasses.CleanKept(),
        sqrt(sum(((1 - MIXED**k) / (1 - MIXED)) ** 2 for k in range(1, 5)) / 4),
    ),
    _fault(
        "momentum without noise, hidden once",
        bypasses.MomentumClean(),
        sqrt(sum(((1 - 0.9**k) / (1 - 0.9)) ** 2 for k in range(1, 5)) / 4),
    ),
    _fault("noise taken back", bypasses.NoiseTakenBack(), sqrt((1 + 4 + 9 + 16) / 4)),
    _fault("the clipped part added later", bypasses.ClippedPartLater(), inf),
    _fault("opposite noise in the next round", faults.OppositeNextRound(), inf),
    _fault("seeds that repeat", faults.SeedsRepeat(), inf),
    _fault("noise handed on to neighbours", faults.NoiseHandedOn(), inf),
    _fault("noise shifted by coordinates", faults.NoiseShifted(), inf),
    _fault("half of the noise drawn once", faults.HalfOfTheNoiseOnce(), sqrt(2)),
    _fault("opposite noise on two links", faults.LinksOpposite(), inf),
    _fault("noise that sums to zero", faults.ZeroSum(), inf),
    _fault(
        "noise mostly in common",
        faults.MostlyCommon(),
        sqrt((1 - COMMON / (1 - COMMON + 6 * COMMON)) / (1 - COMMON)),
    ),
    _fault("a checksum sent along", bypasses.Telling(), inf),
    _fault("the batch's size sent along", bypasses.CountSent(), inf),
    _fault("one bit sent along", bypasses.FlagSent(), inf),
    _fault("the number of clipped records", bypasses.ShareClippedSent(), inf),
    _fault("divided by the long records", bypasses.DividedByLongRecords(), 4.0),
)

CORRECT = (
    _correct("private gossip", PrivateGossip()),
    _correct("private gossip, Laplace", PrivateGossip(**LAPLACE)),
    _correct("private gossip, C = 1e-6", PrivateGossip(clip_norm=1e-6)),
    _correct("private gossip, C = 5e3", PrivateGossip(clip_norm=5e3)),
    _correct("noise by Box and Muller", odd.BoxMuller()),
    _correct("noise by inversion", odd.ByInversion()),
    _correct("noise times random signs", odd.RandomSigns()),
    _correct("noise reflected at random", odd.Reflected()),
    _correct("a louder scale by agent and round", odd.Louder()),
    _correct("some coordinates louder", odd.SometimesLoud()),
    _correct("agents of other noise", odd.LouderByAgent()),
    _correct("an offset for the run", odd.OffsetForTheRun()),
    _correct("an offset of all agents", odd.OffsetOfAllAgents(), sqrt(1 - 4 / 25)),
    _correct("an offset of all coordinates", odd.OffsetOfAllCoordinates()),
    _correct("noise by shares", odd.NoiseByShares()),
    _correct("turned and turned back", odd.Rotated()),
    _correct("noised in the frequency domain", odd.InFrequencies()),
    _correct("noised in float64", odd.InDoublePrecision()),
    _correct("sum and noise on one grid", odd.OnOneGrid()),
    _correct("rounded at random", odd.RandomlyRounded()),
    _correct("rounded with a public dither", odd.PubliclyDithered()),
    _correct("the largest noisy numbers", odd.LargestKept()),
    _correct("a soft threshold after the noise", odd.Shrunk()),
    _correct("divided by the noisy length", odd.UnitLength()),
    _correct("a median of noisy numbers", odd.Smoothed()),
    _correct("a public random half", odd.HalfOfThemPublic()),
    _correct("a noisy sketch", odd.Sketched()),
    _correct("frozen layers", odd.Frozen()),
    _correct("clipped to half of C", odd.ClippedShorter(), 0.5),
    _correct("the sum clipped again", odd.ClippedLonger()),
    _correct("eight bits for each number", odd.GridOfRoundNumbers()),
    _correct("two rounds of warm-up", odd.WarmUp(), sqrt(1 / 2)),
    _correct("rounds that only mix", odd.MixedAgain(), sqrt(2 / 3)),
    _correct("sent in every third round", odd.SentSeldom()),
    _correct("zeros in the rounds between", odd.ZerosBetween()),
    _correct("sent a round late", odd.SentLate(), sqrt(3 / 4)),
    _correct("a gradient a round late", odd.GradientLate()),
    _correct("a running average sent", odd.AverageSent()),
    _correct("steps as in Adam", odd.Adaptive()),
    _correct("all noise drawn in round 1", odd.DrawnAtOnce()),
    _correct("differences sent", odd.Difference()),
    _correct("coordinates shuffled", odd.Shuffled()),
    _correct("padded by zeros", odd.Padded()),
    _correct("a noisy channel", odd.NoisyChannel(), 0.793),
    _correct("sent twice, with signs", odd.SentTwice()),
    _correct("constants sent along", odd.Greeting()),
    _correct("a noisy number sent along", odd.NoisyNumber()),
    _correct("rotating peers", PrivateGossip(), graph="exponential"),
)

WITHOUT_ATTACKS = FAULTS + CORRECT


def audits_without_attacks(
    seed: int, mechanisms: Sequence[Mechanism] = WITHOUT_ATTACKS
) -> Iterator[Said]:
    """An audit of each mechanism's claim that asks for no attack."""
    yield from ordinary_audits(seed, mechanisms, attacks=())
