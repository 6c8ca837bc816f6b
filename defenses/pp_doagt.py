"""PP-DOAGT: robust gradient tracking on directed graphs, under decaying Laplace noise."""

from pydantic import NonNegativeFloat

import dpaudit.defense as dp
from dpaudit.defense import Gathering, Gradient, Graph, Noise, Round, Setting


class PPDOAGT(dp.GatheringDefense):
    """PP-DOAGT (Huang, Wu, Shi, Dey and Shi); rows of X, S [..., n_agents, d] are agents.

    With a row-stochastic R and a column-stochastic C on the same edges, alpha_k = gamma q1^(k-1)
    and nu_k = nu_1 q2^(k-1), round k starts from S = 0 in the first and is
        1.  X + Lap(nu_k) and S + Lap(nu_k), sent to the neighbours
        2.  S+ = C (S + Lap) + alpha_k grad F(X)
        3.  X+ = R (X + Lap) - (S+ - S)
    Without noise, S+ - S tracks alpha_k times the sum of the gradients, and this is push-pull.

    Reading: of the method no text is available but its abstract and what Xie, Liu and Chai say of
    it: it extends robust gradient tracking to directed graphs, and its sensitivity is at least
    3 (delta + c) alpha_k. Both hold of this form: given all messages, S+ moves by alpha_k times the
    change of the gradient, and X+ by that and by what S has moved. A tracker that is itself sent
    would gather noise and end hundreds of times further off than their Figure 3 has it.

    The gradient is taken at the true model, which moves too, so a bound needs the smoothness L.
    """

    paper = "PP-DOAGT (Huang, Wu, Shi, Dey, Shi)"
    reconstructed = (
        "the update follows from the abstract and from what Xie, Liu and Chai write of it; the "
        "formula of its epsilon is in no available text"
    )
    messages = {
        "x": "the model before the round, Laplace noise of scale nu_k; it holds the two gradients "
        "before it, one less the other",
        "s": "the gradients gathered before the round, Laplace noise of scale nu_k",
    }

    theory_graph = dp.GraphCondition(
        "PP-DOAGT needs a strongly connected graph that does not vary in time", dp.does_not_vary
    )

    smoothness: NonNegativeFloat = 1.0  # L: gradients over models, both in L1 norm

    def step(
        self, state: Gathering, k: int, graph: Graph, gradient: Gradient, noise: Noise
    ) -> Round:
        X, S = state
        sent_x = X + noise.laplace("x", self.nu(k), X)  # 1
        sent_s = S + noise.laplace("s", self.nu(k), S)

        G = gradient(X)
        S_next = graph.push.mix(sent_s) + self.alpha(k) * G  # 2
        X_next = graph.pull.mix(sent_x) - (S_next - S)  # 3
        sent = {"x": dp.broadcast(graph, sent_x), "s": dp.broadcast(graph, sent_s)}
        return Round(Gathering(X_next, S_next), sent, {"gradient": G})

    def check_theory(self, setting: Setting) -> None:
        super().check_theory(setting)
        q1, q2 = self.step_decay, self.noise_decay
        if self.noise_scale != 0 and not q1 < q2 < 1:
            raise dp.OutsideTheory(
                "DPA040",
                "step_decay, noise_decay: the losses of PP-DOAGT add up over any number of "
                f"rounds for 0 < q1 < q2 < 1 only, got q1={q1:g} and q2={q2:g}",
            )

    def moves(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, dp.L1Moves]:
        """s(k+1) by alpha_k (delta + L |dx(k)|), and x(k+1) by that and by what s(k) moved.

        Gradients that are constant move s by the same in all rounds but for alpha_k, so x moves by
        the difference alone.
        """
        delta, L = self.gradient_distance, self.smoothness
        x, s, flat_x, flat_s = [0.0], [0.0], [0.0], [0.0]
        for k in range(1, n_rounds):
            s.append(self.alpha(k) * (delta + L * x[-1]))
            x.append(s[-1] + s[-2])
            flat_s.append(self.alpha(k) * delta)
            flat_x.append(abs(flat_s[-1] - flat_s[-2]))
        return {"x": dp.L1Moves(flat_x, x), "s": dp.L1Moves(flat_s, s)}

    def assumed(self) -> tuple[str, ...]:
        return smooth(self.smoothness)


def smooth(L: float) -> tuple[str, ...]:
    """What an upper end takes for granted where gradients are taken at true models."""
    return (
        f"each function's gradient moves by at most {L:g} times as much as the model, both in L1 "
        "norm; the upper end counts on it, the lower end is of constant gradients",
    )
