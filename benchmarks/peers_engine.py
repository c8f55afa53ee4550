"""Tilewright as an engine of the peer measurement bed.

python peers.py ab --models MODELS --a tilewright --b ort --names resnet50 --threads 1,2 --engine-file benchmarks/peers_engine.py
"""

from __future__ import annotations

import time

from peers import Engine, register


@register
class Tilewright(Engine):
    name = "tilewright"
    kinds = ("model", "int8", "conv", "dwconv", "matmul")
    precision = "default"

    def load(self) -> None:
        import tilewright as tw

        begin = time.perf_counter()
        self.exe = tw.compile(self.onnx, threads=self.threads, precision=self.precision, cache=False, progress="none")
        self.info.update(version=tw.__version__, compile_s=round(time.perf_counter() - begin, 2))

    def step(self):
        return self.exe.run(self.feed)

    def to_numpy(self, y):
        return list(y.values())


@register
class TilewrightBf16(Tilewright):
    """With products in bfloat16 where that is faster, as OpenVINO's default (`ov_default`) is on processors with AMX."""

    name = "tilewright_bf16"
    precision = "bf16"
