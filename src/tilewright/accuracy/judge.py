"""Whether results are right: equal but for rounding errors.

A result within a few units in the last place of its greatest magnitude is right. One beyond that may still be: long sums, cancellation, and
jumps (a rounding to integers that falls the other way, another of two nearly equal maxima) make much of little. So the reference runs again
with rounding errors added, until what they do explains the difference, or does not: first errors of ordinary size, which bound what moves
in proportion, then larger ones, which find jumps that are near. No more noisy runs are made than that takes: one may explain all; where no
operator jumps, a result far off is wrong after two, and any other after those of ordinary size. Kernels, graphs after a pass and outputs
of whole models are judged alike: what a fault of a graph pass does shows in outputs alone, and may be little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.accuracy.errors import Error, error_of, tolerance_of
from tilewright.accuracy.operator_errors import is_float
from tilewright.accuracy.rounding_noise import Expected, Memory, NoisyInterpreter, Spread, apart, disagreement, excess, zeros_of_run
from tilewright.graph.node import Module, Node
from tilewright.ir.expr import Expr
from tilewright.runtime.specs import Array
from tilewright.support.errors import TilewrightError

ORDINARY = 5
NOISES = (*(1.0,) * ORDINARY, *(8.0,) * 16)  # scales of the errors of noisy runs
PATIENCE, FEW = 4, 8  # so many runs in a row that explain nothing are the last where more than a few elements are left
MEAN = 6.0  # times what noisy runs move a result by on average it may be off on average, where nothing jumps; right ones stay below 1
SURE, FAR = 2, 100.0  # where nothing jumps, a result that so many runs allow less than a hundredth of is wrong

# The reference once more, with an interpreter that adds errors.
Again = Callable[[NoisyInterpreter], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a result. error: how far off it is; wrong: in what way, empty if it is right; rounding: it is right although beyond
    its tolerance, since rounding errors do as much."""

    error: Error
    wrong: str = ""
    rounding: bool = False

    @property
    def ok(self) -> bool:
        return not self.wrong


@dataclass(slots=True)
class Judge:
    """Judges results against those of a reference. base: the reference's results without noise. again: runs it once more, with an
    interpreter over `module`. absolute, coarse: as `NoisyInterpreter` has them, where another runtime's functions are to be judged, and
    where a model was compiled with `precision=bf16`. Noisy runs are kept: several accounts can be judged."""

    base: Sequence[Array]
    again: Again
    module: Module | None = None
    absolute: bool = False
    coarse: bool = False
    seed: int = 0
    _memory: Memory = field(default_factory=Memory)
    _spreads: list[Spread] = field(init=False)
    _runs: int = 0

    def __post_init__(self) -> None:
        self._spreads = [Spread(np.asarray(array)) for array in self.base]

    def __call__(self, found: Sequence[Array], expected: Sequence[Array] | None = None, tolerance: float | None = None) -> list[Verdict]:
        """A verdict on each result, by the reference or by another account, `expected`. tolerance: of the relative error; with one, nothing
        else counts."""
        against = [np.asarray(array) for array in (self.base if expected is None else expected)]
        results = [np.asarray(array) for array in found]
        plain = within_tolerance(results, against, tolerance)
        beyond = {i: verdict.wrong for i, verdict in enumerate(plain) if not verdict.ok}
        if not beyond or tolerance is not None:
            return plain
        wrong = self._beyond_rounding(results, against, beyond)
        return [Verdict(verdict.error, wrong.get(i, ""), i in beyond and i not in wrong) for i, verdict in enumerate(plain)]

    def _beyond_rounding(self, found: Sequence[Array], against: Sequence[Array], beyond: dict[int, str]) -> dict[int, str]:
        """Of the results `beyond` their tolerance those that rounding errors do not explain, with what is wrong."""
        wrong, least, idle = beyond, sum(array.size for array in found), 0
        while True:
            if self._runs:
                said = {i: self._wrong(i, found[i], against[i]) for i in wrong}
                wrong = {i: text for i, (text, _, _) in said.items() if text}
                left = sum(count for _, count, _ in said.values())
                if not self._memory.jumps and self._settled([excess for text, _, excess in said.values() if text]):
                    return wrong
                idle = idle + 1 if left >= least and self._runs >= ORDINARY else 0
                least = min(least, left)
                if not wrong or (idle >= PATIENCE and least > FEW) or self._runs == len(NOISES):
                    return wrong
            self._run()

    def _wrong_on_average(self, number: int, found: Array, expected: Expected) -> tuple[str, int, float]:
        """`_wrong` for a result of which each element is within what is allowed. One element in many may by chance be moved little by all
        noisy runs, and so much is allowed of each; their mean leaves nothing to chance, and a small factor on everything shows in it."""
        spread = self._spreads[number]
        if self._memory.jumps or not is_float(expected.value) or not (expected.compared & expected.finite).all():
            return "", 0, 0.0
        off, moved = mean_square(found.astype(np.float64) - expected.value.astype(np.float64)), mean_square(spread.far)
        if not np.isfinite(off) or off <= MEAN * moved:
            return "", 0, 0.0
        return f"is off by {off:.2g} on average, rounding errors by {moved:.2g}", found.size, off / (MEAN * moved) if moved else math.inf

    def _settled(self, amounts: Sequence[float]) -> bool:
        """Whether no more runs can explain results that are wrong by so many times what is allowed, where no operator jumps. Infinities and
        NaNs jump by themselves."""
        enough = self._runs >= ORDINARY or (self._runs >= SURE and all(amount > FAR for amount in amounts))
        return enough and not any(map(math.isnan, amounts))

    def _run(self) -> None:
        """One more noisy run."""
        scale, zeros = NOISES[self._runs], zeros_of_run(self._runs)
        generator = np.random.default_rng([self.seed, self._runs])
        self._runs += 1
        try:
            others = self.again(NoisyInterpreter(generator, self.module, scale, self.absolute, self.coarse, self._memory, zeros))
        except TilewrightError:  # sizes that depend on rounding errors contradict each other
            for spread in self._spreads:
                spread.shapeless = True
            return
        for spread, other in zip(self._spreads, others, strict=True):
            spread.add(np.asarray(other), scale)

    def _wrong(self, number: int, found: Array, against: Array) -> tuple[str, int, float]:
        """What is wrong with a result by the noisy runs so far, with how many elements, and by how many times what is allowed."""
        expected = self._spreads[number].expected()
        if expected is None:
            return "", 0, 0.0
        if against.shape != expected.value.shape or against.dtype != expected.value.dtype:
            return f"is {found.dtype}{list(found.shape)}, not {against.dtype}{list(against.shape)}", max(found.size, 1), math.inf
        expected = replace(expected, value=against)
        said = disagreement(found, expected)
        if said is None:
            return self._wrong_on_average(number, found, expected)
        if found.shape != against.shape or found.dtype != against.dtype:
            return said, max(found.size, 1), math.inf
        return said, int(np.count_nonzero(apart(found, expected))), excess(found, expected)


def mean_square(x: Array) -> float:
    """The root of the mean of squares, of numbers of any size."""
    greatest = float(np.abs(x).max(initial=0.0))
    return greatest * float(np.sqrt(np.mean(np.square(x / greatest)))) if greatest else 0.0


def within_tolerance(found: Sequence[Array], against: Sequence[Array], tolerance: float | None = None) -> list[Verdict]:
    """A verdict on each result by its relative error alone."""
    verdicts = []
    for mine, other in zip(found, against, strict=True):
        error, limit = error_of(mine, other), tolerance_of(other.dtype) if tolerance is None else tolerance
        verdicts.append(Verdict(error, "" if error.relative <= limit else f"relative error {error.relative:.2g}, more than {limit:.0e}"))
    return verdicts


def judge_of_node(node: Node, operands: Sequence[Array], sizes: dict[Expr, int], base: Sequence[Array], module: Module | None) -> Judge:
    """The judge of what the kernel of one node, such as a group, gives for these operands; base: what the reference gives."""
    return Judge(base, lambda noisy: noisy.results_of(node, operands, dict(sizes)), module)


def judge_of_module(module: Module, inputs: Sequence[Array], base: Sequence[Array], coarse: bool = False) -> Judge:
    """The judge of what a whole graph gives for these inputs; base: what the reference gives. coarse: as `Judge` has it."""
    return Judge(base, lambda noisy: noisy.run(module.main, list(inputs), {}), module, coarse=coarse)
