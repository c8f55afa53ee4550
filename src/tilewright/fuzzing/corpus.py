"""Coverage-guided mutation of schedules and pass sequences, jointly.

After Tzer (OOPSLA 2022): a seed is a graph, the passes that are run on it and the changes of its kernels' schedules. What reaches a line of
the compiler, a pair of passes or an option of a decision for the first time is kept as a seed for others. As long as changes of schedules
go on to find something new, passes stay as they are; after some that do not, the passes are changed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

FAILURES = 5  # changes of schedules that reach nothing new before passes are changed
MOST_GENES = 8
FRESH = 0.15  # chance of a new graph


@dataclass(frozen=True, slots=True)
class Genome:
    """What a case is made of: seed of the graph, names of passes (none: the compiler's own), a seed for each change of a schedule."""

    graph: int
    passes: tuple[str, ...] = ()
    genes: tuple[int, ...] = ()


@dataclass(slots=True)
class Corpus:
    """Seeds that reached something new, and what has been reached."""

    passes: tuple[str, ...]
    rng: np.random.Generator
    seeds: list[tuple[Genome, int]] = field(default_factory=list)  # with the count of failures since the last success
    reached: set[str] = field(default_factory=set)
    chosen: int | None = None

    def next(self, number: int) -> Genome:
        """Another genome: a change of a seed, or a new one, whose graph has the seed `number`."""
        self.chosen = None
        if not self.seeds or self.rng.random() < FRESH:
            return Genome(number, self.other_passes(()) if self.rng.random() < 0.5 else (), self.other_genes(()))
        weights = np.arange(1, len(self.seeds) + 1, dtype=np.float64)  # late seeds more often
        self.chosen = int(self.rng.choice(len(self.seeds), p=weights / weights.sum()))
        genome, failures = self.seeds[self.chosen]
        if failures < FAILURES:
            return replace(genome, genes=self.other_genes(genome.genes))
        self.seeds[self.chosen] = genome, 0
        return replace(genome, passes=self.other_passes(genome.passes))

    def learn(self, genome: Genome, reached: Sequence[str]) -> bool:
        """Note what a genome has reached; whether that is something new."""
        new = set(reached) - self.reached
        self.reached |= new
        if new:
            self.seeds.append((genome, 0))
        elif self.chosen is not None:
            kept, failures = self.seeds[self.chosen]
            self.seeds[self.chosen] = kept, failures + 1
        return bool(new)

    def other_genes(self, genes: Sequence[int]) -> tuple[int, ...]:
        """One gene more, one less, or another."""
        made = list(genes)
        fresh = int(self.rng.integers(1, 1 << 30))
        at = int(self.rng.integers(len(made) + 1))
        choice = self.rng.random()
        if not made or (choice < 0.6 and len(made) < MOST_GENES):
            made.insert(at, fresh)
        elif choice < 0.85:
            made[at % len(made)] = fresh
        else:
            del made[at % len(made)]
        return tuple(made)

    def other_passes(self, passes: Sequence[str]) -> tuple[str, ...]:
        """A pass more, one less, another, or two the other way round."""
        made = list(passes or self.passes)
        for _ in range(int(self.rng.integers(1, 4))):
            at, choice = int(self.rng.integers(len(made))), self.rng.random()
            other = self.passes[int(self.rng.integers(len(self.passes)))]
            if choice < 0.25:
                made.insert(at, other)
            elif choice < 0.5 and len(made) > 1:
                del made[at]
            elif choice < 0.75:
                made[at] = other
            else:
                to = int(self.rng.integers(len(made)))
                made[at], made[to] = made[to], made[at]
        return tuple(made)
