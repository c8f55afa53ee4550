"""Recognising composites that a model writes out: softmax, layer and RMS normalisation, GELU, hard swish, softplus.

The rules see through the groupings that exporters choose: products are compared as sets of factors with one coefficient, inner functions as
polynomials of the input. Numbers match within a relative 1e-6. Results agree with those of the written form within rounding.
"""

from __future__ import annotations

import math

from tilewright.graph.node import Function, Node, Value
from tilewright.graph.ops import Binary, Cast, Gelu, HardSwish, LayerNorm, LogSoftmax, Reduce, RmsNorm, SizeValue, Softmax, Softplus, Unary
from tilewright.graph.shapes import broadcast_shapes, dims_equal, element_count
from tilewright.transform.match import binary_of, fn_of, made_by, number, unary_of
from tilewright.transform.rewriting import Answer, Rewriter, Rules, apply_rules
from tilewright.transform.rules.elementwise import scalar

TOLERANCE = 1e-6
GAUSS = math.sqrt(0.5)  # erf(x / sqrt 2)
TANH_SCALE = math.sqrt(2.0 / math.pi)
TANH_CUBIC = 0.044715


def recognise_composites(function: Function) -> Function:
    """The function with written-out composites as single operators."""
    return apply_rules(function, RULES)


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.0)


# -- products and polynomials

Polynomial = dict[int, float]  # coefficient of each power of the input


def factors(value: Value, limit: int = 6) -> tuple[list[Value], float]:
    """The value as a product: factors that are no products themselves, and the numbers among them multiplied."""
    found: list[Value] = []
    coefficient = 1.0
    stack = [value]
    while stack:
        current = stack.pop()
        product, quotient = binary_of(current, "mul"), binary_of(current, "div")
        constant = number(current)
        divisor = None if quotient is None else number(quotient[1])
        if constant is not None:
            coefficient *= float(constant)
        elif product is not None and len(found) + len(stack) < limit:
            stack.extend(product)
        elif quotient is not None and divisor:
            coefficient /= float(divisor)
            stack.append(quotient[0])
        else:
            found.append(current)
    return found, coefficient


def polynomial(value: Value, x: Value, depth: int = 8) -> Polynomial | None:
    """The value as a polynomial of x, if it is one with numbers as coefficients."""
    if value is x:
        return {1: 1.0}
    constant = number(value)
    if constant is not None:
        return {0: float(constant)}
    op = value.op
    if depth == 0 or not isinstance(op, Binary) or op.fn not in ("add", "sub", "mul", "div"):
        return None
    a, b = (polynomial(operand, x, depth - 1) for operand in value.node.inputs)
    if a is None or b is None:
        return None
    match op.fn:
        case "add" | "sub":
            sign = 1.0 if op.fn == "add" else -1.0
            return {power: a.get(power, 0.0) + sign * b.get(power, 0.0) for power in {*a, *b}}
        case "mul":
            result: Polynomial = {}
            for p, m in a.items():
                for q, n in b.items():
                    result[p + q] = result.get(p + q, 0.0) + m * n
            return result
    return {power: c / b[0] for power, c in a.items()} if set(b) == {0} and b[0] else None


def is_polynomial(value: Value, x: Value, wanted: Polynomial) -> bool:
    found = polynomial(value, x)
    if found is None:
        return False
    terms = {power: c for power, c in found.items() if c}
    return terms.keys() == wanted.keys() and all(close(terms[power], c) for power, c in wanted.items())


# -- activations


def activation_product(r: Rewriter, node: Node) -> Answer:
    """x * 0.5 * (1 + erf(x / sqrt 2)) and the like, in any grouping."""
    if fn_of(node) not in ("mul", "div") or not node.types[0].dtype.is_float:
        return None
    parts, coefficient = factors(node[0])
    if len(parts) != 2:
        return None
    for x, gate in (parts, reversed(parts)):
        if x.type is node.types[0] and gate.type is x.type:
            if _is_gelu_gate(gate, x, coefficient, "erf", {1: GAUSS}):
                return r.emit(Gelu(False), x)
            if _is_gelu_gate(gate, x, coefficient, "tanh", {1: TANH_SCALE, 3: TANH_SCALE * TANH_CUBIC}):
                return r.emit(Gelu(True), x)
            if _is_hard_gate(gate, x, coefficient):
                return r.emit(HardSwish(), x)
    return None


def _is_gelu_gate(gate: Value, x: Value, coefficient: float, fn: str, inner: Polynomial) -> bool:
    """gate * coefficient = 0.5 * (1 + fn(inner(x)))."""
    total = binary_of(gate, "add")
    if total is None:
        return False
    shift = number(total[1])
    parts, slope = factors(total[0])
    if shift is None or len(parts) != 1 or not close(shift * coefficient, 0.5) or not close(slope * coefficient, 0.5):
        return False
    argument = unary_of(parts[0], fn)
    return argument is not None and is_polynomial(argument, x, inner)


def _is_hard_gate(gate: Value, x: Value, coefficient: float) -> bool:
    """gate * coefficient = clamp(x / 6 + 1/2, 0, 1)."""
    capped = binary_of(gate, "min")
    floored = None if capped is None else binary_of(capped[0], "max")
    if capped is None or floored is None or number(floored[1]) != 0:
        return False
    high = number(capped[1])
    return (
        high is not None
        and bool(coefficient)
        and close(high * coefficient, 1.0)
        and is_polynomial(floored[0], x, {0: 0.5 / coefficient, 1: 1.0 / (6.0 * coefficient)})
    )


def softplus(r: Rewriter, node: Node) -> Answer:
    """log(1 + exp(x)), log1p(exp(x))."""
    fn, (inner,) = fn_of(node), node.inputs
    if fn == "log":
        total = binary_of(inner, "add")
        inner = total[0] if total is not None and number(total[1]) == 1 else inner
        x = unary_of(inner, "exp") if total is not None and inner is total[0] else None
    else:
        x = unary_of(inner, "exp") if fn == "log1p" else None
    return r.emit(Softplus(), x) if x is not None else None


# -- softmax


def _sum_along(value: Value, fn: str = "sum") -> tuple[Value, int] | None:
    """x and the axis where value is a reduction of x along one axis, which is kept."""
    op = made_by(value, Reduce)
    if op is None or op.fn != fn or not op.keepdims or len(op.axes) != 1:
        return None
    x = value.node.inputs[0]
    return x, op.axes[0] % x.type.rank


def _shifted(value: Value, axis: int) -> Value | None:
    """x where value is x - max(x) along the axis."""
    difference = binary_of(value, "sub")
    greatest = None if difference is None else _sum_along(difference[1], "max")
    return difference[0] if difference is not None and greatest == (difference[0], axis) else None


def softmax(r: Rewriter, node: Node) -> Answer:
    """exp(x - max(x)) / sum(exp(x - max(x))), also without the maximum."""
    op = node.op
    assert isinstance(op, Binary)
    powers, divisor = node.inputs
    inverse = unary_of(divisor, "reciprocal") if op.fn == "mul" else divisor if op.fn == "div" else None
    total = None if inverse is None else _sum_along(inverse)
    exponent = unary_of(powers, "exp")
    if total is None or exponent is None or total[0] is not powers:
        return None
    x = _shifted(exponent, total[1])
    return r.emit(Softmax(total[1]), exponent if x is None else x)


def log_of_softmax(r: Rewriter, node: Node) -> Answer:
    (x,) = node.inputs
    inner = made_by(x, Softmax)
    if fn_of(node) != "log" or inner is None or r.is_shared(x):
        return None
    return r.emit(LogSoftmax(inner.axis), x.node.inputs[0])


def log_softmax(r: Rewriter, node: Node) -> Answer:
    """s - log(sum(exp(s))) with s = x - max(x), or s = x."""
    op = node.op
    assert isinstance(op, Binary)
    logarithm = unary_of(node.inputs[1], "log") if op.fn == "sub" else None
    total = None if logarithm is None else _sum_along(logarithm)
    s = node.inputs[0]
    if total is None or unary_of(total[0], "exp") is not s:
        return None
    x = _shifted(s, total[1])
    return r.emit(LogSoftmax(total[1]), s if x is None else x)


# -- normalisation


def mean_of(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """x and the axes where value is the mean of x over its last axes, which are kept."""
    parts, coefficient = factors(value, 2)
    count = None
    if len(parts) == 1 and (quotient := binary_of(parts[0], "div")) is not None:
        total, divisor = quotient
        size = divisor.node.inputs[0] if made_by(divisor, Cast) else divisor
        named = made_by(size, SizeValue)
        count = named.size if named is not None else None
    else:
        total = parts[0] if len(parts) == 1 else value
    op = made_by(total, Reduce)
    if op is None or op.fn != "sum" or not op.keepdims:
        return None
    x = total.node.inputs[0]
    axes = tuple(sorted(axis % x.type.rank for axis in op.axes))
    if axes != tuple(range(x.type.rank - len(axes), x.type.rank)):
        return None
    wanted = element_count([x.shape[axis] for axis in axes])
    if wanted.is_const:
        fits = count is None and close(coefficient * int(wanted.value), 1.0)
    else:
        fits = count is not None and coefficient == 1.0 and dims_equal(count, wanted)
    return (x, axes) if fits else None


def _root_mean_square(value: Value, by: str) -> tuple[Value, tuple[int, ...], float] | None:
    """x, axes, epsilon where value is the root (`by` sqrt, or its reciprocal by rsqrt) of the mean of x * x plus epsilon."""
    radicand = unary_of(value, by)
    total = None if radicand is None else binary_of(radicand, "add")
    epsilon = None if total is None else number(total[1])
    mean = None if total is None else mean_of(total[0])
    square = None if mean is None else binary_of(mean[0], "mul")
    if mean is None or epsilon is None or square is None or square[0] is not square[1]:
        return None
    return square[0], mean[1], float(epsilon)


def normalised(r: Rewriter, node: Node) -> Answer:
    """x * rsqrt(mean(x * x) + epsilon), where x may be y - mean(y)."""
    op = node.op
    assert isinstance(op, Binary)
    if op.fn not in ("mul", "div") or not node.types[0].dtype.is_float:
        return None
    for x, root in (node.inputs, node.inputs[::-1]) if op.fn == "mul" else (node.inputs,):
        found = _root_mean_square(root, "rsqrt" if op.fn == "mul" else "sqrt")
        if found is not None and found[0] is x:
            return _normalisation(r, x, found[1][0], found[2])
        # x * (rsqrt(...) * scale)
        scaled = binary_of(root, "mul") if op.fn == "mul" else None
        for inverse, scale in () if scaled is None else (scaled, scaled[::-1]):
            found = _root_mean_square(inverse, "rsqrt")
            if found is not None and found[0] is x:
                return r.emit(Binary("mul"), _normalisation(r, x, found[1][0], found[2]), scale)
    return None


def _normalisation(r: Rewriter, x: Value, axis: int, epsilon: float) -> Value:
    difference = binary_of(x, "sub")
    mean = None if difference is None else mean_of(difference[1])
    one = scalar(r, 1, x.type.dtype)
    if difference is not None and mean is not None and mean[0] is difference[0] and mean[1][0] == axis:
        return r.emit(LayerNorm(axis, epsilon), difference[0], one, scalar(r, 0, x.type.dtype))
    return r.emit(RmsNorm(axis, epsilon), x, one)


def affine_parameters(r: Rewriter, node: Node) -> Answer:
    """norm(x) * scale and norm(x) + bias with the parameters inside."""
    op = node.op
    assert isinstance(op, Binary)
    for norm, parameter in (node.inputs, node.inputs[::-1]):
        if r.is_shared(norm) or norm.type is not node.types[0] or not isinstance(norm.op, (LayerNorm, RmsNorm)):
            continue
        x, scale, *bias = norm.node.inputs
        if not _is_parameter(parameter, norm):
            continue
        unbiased = not bias or number(bias[0]) == 0
        if op.fn == "mul" and number(scale) == 1 and unbiased:
            return r.emit(norm.op, x, parameter, *bias)
        if op.fn == "add" and bias and unbiased:
            return r.emit(norm.op, x, scale, parameter)
    return None


def _is_parameter(value: Value, norm: Value) -> bool:
    """Smaller than x, so that it is worth to be read inside the normalisation."""
    return value.type.rank < norm.type.rank and broadcast_shapes(norm.shape, value.shape) == norm.shape


RULES: Rules = {
    Binary: (activation_product, softmax, log_softmax, normalised, affine_parameters),
    Unary: (softplus, log_of_softmax),
}
