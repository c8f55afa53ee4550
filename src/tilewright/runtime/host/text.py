"""Operators about strings: StringNormalizer, StringConcat, StringSplit, RegexFullMatch, Tokenizer, TfIdfVectorizer, Cast,
CastLike."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.host.calling import Array, Attributes, Table, each, is_strings, strings
from tilewright.support.errors import InputError

RUN = re.compile(r"(\[[^\[\]]+\]|\\[wWsSdD])\+")  # one or more characters of a kind: the first match is the longest


def normalize(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """Words [C] or [1, C] without stop words, in one case. Where none is left: one empty word."""
    x = inputs[0]
    stop = attributes.get("stopwords", [])
    exact = bool(attributes.get("is_case_sensitive", 0))
    stopped = set(stop if exact else [word.lower() for word in stop])
    kept = [word for word in x.reshape(-1).tolist() if (word if exact else word.lower()) not in stopped]
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(attributes.get("case_change_action", "NONE"), str)
    words = [change(word) for word in kept] or [""]
    return strings(words, (*x.shape[:-1], len(words)))


def concat(inputs: Sequence[Any], attributes: Attributes) -> Array:
    a, b = np.broadcast_arrays(inputs[0], inputs[1])
    return strings([x + y for x, y in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)], a.shape)


def split(inputs: Sequence[Any], attributes: Attributes) -> tuple[Array, Array]:
    """The parts of each string in a new last axis, filled up with empty ones, and how many each has. Without a delimiter, no part begins or
    ends with a space; Python's `split` leaves those at the end when it stops after `maxsplit` parts."""
    x = inputs[0]
    delimiter, most = attributes.get("delimiter") or None, attributes.get("maxsplit", -1)
    texts = x.reshape(-1).tolist()
    parts = [(text if delimiter else text.strip()).split(delimiter, most) for text in texts]
    longest = max((len(found) for found in parts), default=0)
    filled = [word for found in parts for word in (*found, *[""] * (longest - len(found)))]
    counts = np.asarray([len(found) for found in parts], np.int64).reshape(x.shape)
    return strings(filled, (*x.shape, longest)), counts


def full_match(inputs: Sequence[Any], attributes: Attributes) -> Array:
    compiled = _pattern("RegexFullMatch", attributes.get("pattern", ""))
    return each(lambda text: compiled.fullmatch(text) is not None, inputs[0], np.bool_)


def _pattern(operator: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InputError(f"{operator}: the pattern {text!r} is not understood: {error}") from None


def tokens(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """Tokenizer: the tokens of each string of [C] or [N, C] in a new last axis, filled up with `pad_value`. They are what stands between
    `separators`, expressions of which each cuts what the ones before it have left, or what `tokenexp` matches; characters one by one for an
    empty separator. Tokens of fewer than `mincharnum` characters are left out; with `mark` each string's stand between 0x02 and 0x03."""
    x, separators, expression = inputs[0], attributes.get("separators") or [], attributes.get("tokenexp") or ""
    least = attributes.get("mincharnum", 1)
    if x.ndim > 2:
        raise InputError(f"Tokenizer takes strings of shape [C] or [N, C], not {list(x.shape)}")
    if bool(separators) == bool(expression):
        raise InputError("Tokenizer takes separators, or an expression for tokens", hint="one of the two must be given")
    if separators == [""] or expression == ".":
        found = [list(text) for text in x.reshape(-1).tolist()]
    elif expression:
        pattern = _pattern("Tokenizer", expression)
        found = [_longest(text, pattern) for text in x.reshape(-1).tolist()]
    else:
        patterns = [_pattern("Tokenizer", text) for text in separators]
        found = [_between(text, patterns) for text in x.reshape(-1).tolist()]
    kept = [[token for token in own if token and len(token) >= least] for own in found]
    longest = max(map(len, kept), default=0)
    if x.size == 0 or longest == 0:
        return strings([], x.shape if x.size == 0 else (*x.shape, 0))
    if attributes.get("mark", 0):
        kept, longest = [["\x02", *own, "\x03"] for own in kept], longest + 2
    filled = [token for own in kept for token in (*own, *[attributes.get("pad_value", "")] * (longest - len(own)))]
    return strings(filled, (*x.shape, longest))


def _longest(text: str, pattern: re.Pattern[str]) -> list[str]:
    """The matches of a pattern from left to right, each as long as can be, where `re` takes the first alternative that matches."""
    found: list[str] = []
    at, is_run = 0, RUN.fullmatch(pattern.pattern) is not None
    while at < len(text) and (match := pattern.search(text, at)) is not None:
        start, end = match.span()
        if not is_run:
            end = next((e for e in range(len(text), end, -1) if pattern.fullmatch(text, start, e)), end)
        found.append(text[start:end])
        at = max(end, start + 1)
    return found


def _between(text: str, patterns: Sequence[re.Pattern[str]]) -> list[str]:
    """What is left of a text when all that the patterns match, one after the other, is taken out."""
    parts = [text]
    for pattern in patterns:
        cut: list[str] = []
        for part in parts:
            at = 0
            for match in pattern.finditer(part):
                cut.append(part[at : match.start()])
                at = match.end()
            cut.append(part[at:])
        parts = cut
    return parts


def tf_idf(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """How often each n-gram of a pool occurs in each row: counts (TF), weights where it occurs (IDF), their products (TFIDF). The n
    elements of an n-gram stand up to `max_skip_count` + 1 places apart; single elements are counted once whatever is skipped."""
    x = inputs[0]
    pool = attributes.get("pool_strings") or attributes.get("pool_int64s") or []
    starts, shortest, longest = attributes["ngram_counts"], attributes["min_gram_length"], attributes["max_gram_length"]
    grams: dict[tuple[Any, ...], int] = {}
    number = 0
    for n, begin in enumerate(starts, 1):
        end = starts[n] if n < len(starts) else len(pool)
        for at in range(begin, end, n):
            if shortest <= n <= longest:
                grams[tuple(pool[at : at + n])] = attributes["ngram_indexes"][number]
            number += 1
    width = max(attributes["ngram_indexes"]) + 1
    weights = np.ones(width, np.float32)
    given = attributes.get("weights")
    if given:
        weights[attributes["ngram_indexes"]] = given
    rows = [x.tolist()] if x.ndim <= 1 else x.reshape(-1, x.shape[-1]).tolist()
    counts = np.zeros((len(rows), width), np.float32)
    for row, items in zip(counts, rows, strict=True):
        _count(row, [items] if not isinstance(items, list) else items, grams, range(shortest, longest + 1), attributes["max_skip_count"])
    mode = attributes["mode"]
    if mode == "IDF":
        counts = np.where(counts > 0, weights, np.float32(0))
    elif mode == "TFIDF":
        counts *= weights
    return counts.reshape((*x.shape[:-1], width)).astype(np.float32)


def _count(row: Array, items: list[Any], grams: dict[tuple[Any, ...], int], lengths: range, most_skipped: int) -> None:
    for n in lengths:
        for distance in range(1, (1 if n == 1 else most_skipped + 1) + 1):
            for start in range(len(items) - (n - 1) * distance):
                column = grams.get(tuple(items[start + i * distance] for i in range(n)))
                if column is not None:
                    row[column] += 1


def cast(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """Numbers to strings and back. `to`: NumPy's name of the dtype, "string" for strings."""
    x, to = inputs[0], attributes["to"]
    if to == "string":
        return x if is_strings(x) else strings([number_text(value) for value in x.reshape(-1)], x.shape)
    if not is_strings(x):
        return np.asarray(x.astype(to))
    read = int if np.dtype(to).kind in "iu" else float
    try:
        return each(lambda text: bool(float(text)) if to == "bool" else read(text), x, np.dtype(to))
    except (ValueError, OverflowError) as error:
        raise InputError(f"Cast: a string is no {to}: {error}") from None


def cast_like(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, like = inputs
    return cast([x], {"to": "string" if is_strings(like) else like.dtype.name})


def number_text(value: Any) -> str:
    """The shortest text that reads back as the same number of its dtype; NaN, INF and -INF as ONNX writes them."""
    if value.dtype.kind in "fV":
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("INF" if value > 0 else "-INF")
        magnitude = abs(float(value))
        plain = magnitude == 0 or 1e-4 <= magnitude < 1e16
        number = value if value.dtype.kind == "f" else np.float32(value)
        return np.format_float_positional(number, trim="-") if plain else np.format_float_scientific(number, trim="-")
    return str(value.item())


OPERATORS: Table = {
    ("", "StringNormalizer"): normalize,
    ("", "StringConcat"): concat,
    ("", "StringSplit"): split,
    ("", "RegexFullMatch"): full_match,
    ("", "TfIdfVectorizer"): tf_idf,
    ("", "Cast"): cast,
    ("", "CastLike"): cast_like,
    ("com.microsoft", "Tokenizer"): tokens,
}
# Of operators that ONNX has no type rule for: the axes that the result has behind those of the first operand, of whose dtype it is.
ADDED_AXES = {("com.microsoft", "Tokenizer"): 1}  # as many as the longest text has tokens
