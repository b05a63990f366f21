"""What a person should know about scores: AUC is blind to their scale, so say where it can no longer be trusted."""

from __future__ import annotations

from math import isfinite

NARROW = 1e-6  # scores this close together are told apart by rounding only
HUGE = 1e9  # an objective beyond this is no longer that of scores within reach
END = 0.01  # how near to 0 or 1 the slope of a sigmoid is a hundredth, and steps hardly move its score any more
FAR = 1e4  # a score beyond this has left the range where a loss of its square means anything


def of_scores(measures: dict[str, float], bounded: bool) -> list[str]:
    """From the smallest, the largest and the spread of the scores. bounded: they lie between 0 and 1."""
    low, high = measures["score_min"], measures["score_max"]
    if not all(isfinite(measures[name]) for name in ("score_min", "score_max", "objective")):
        return ["the scores are no longer finite: the run has diverged; lower the step sizes"]
    size = max(abs(low), abs(high))
    if measures["score_spread"] < NARROW or high - low <= NARROW * size:
        return [f"the score is saturated: all scores lie between {low:.7g} and {high:.7g}, so AUC is rounding "
                "noise and gradients vanish; start again with smaller step sizes"]
    if bounded and (high < END or low > 1 - END):
        return [f"the score is all but saturated: all scores lie between {low:.7g} and {high:.7g}, where gradients "
                "vanish, so that it may take hundreds of rounds to come back; start again with smaller step sizes"]
    if size > FAR:
        return [f"the score is diverging: it reaches {size:.3g} while AUC, blind to scale, may still read well; "
                "lower the step sizes, or set score to sigmoid"]
    if abs(measures["objective"]) > HUGE:
        return [f"the objective is {measures['objective']:.3g}: the variables beside the scores are diverging, which "
                "AUC does not see; lower the step sizes"]
    return []
