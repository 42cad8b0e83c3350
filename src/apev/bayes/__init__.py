"""A small exact laboratory: tabular worlds, a posterior over them, and what the best policies of each kind are worth.

posterior = chain(8)                      # or Posterior([TabularMDP.deterministic(...), ...], prior)
solution = solve(posterior)               # the best adaptive policy: solution.value, solution.act(state, belief)
result = best_markov(posterior)           # the best policy that cannot adapt, with a certificate
evaluate_markov(posterior, pi).mean       # any policy, exactly
"""

from apev.bayes.bound import MarkovBound, bound_markov
from apev.bayes.epistemic import EpistemicEnv, EpistemicPOMDP, belief_update, relative_belief
from apev.bayes.evaluate import Evaluation, evaluate_belief, evaluate_history, evaluate_markov
from apev.bayes.graph import BeliefGraph, BeliefPolicy, build_graph
from apev.bayes.markov import Certificate, MarkovResult, best_markov
from apev.bayes.mdp import Posterior, TabularMDP
from apev.bayes.propositions import belief_suffices, policy_gradient, value_recursion
from apev.bayes.random_worlds import random_posterior
from apev.bayes.solver import Solution, optimal_values, solve
from apev.bayes.surrogate import SurrogateReport, measure_surrogate

__all__ = [
    "BeliefGraph",
    "BeliefPolicy",
    "Certificate",
    "EpistemicEnv",
    "EpistemicPOMDP",
    "Evaluation",
    "MarkovBound",
    "MarkovResult",
    "Posterior",
    "Solution",
    "SurrogateReport",
    "TabularMDP",
    "belief_suffices",
    "belief_update",
    "best_markov",
    "bound_markov",
    "build_graph",
    "evaluate_belief",
    "evaluate_history",
    "evaluate_markov",
    "measure_surrogate",
    "optimal_values",
    "policy_gradient",
    "random_posterior",
    "relative_belief",
    "solve",
    "value_recursion",
]
