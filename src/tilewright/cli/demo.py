"""tilewright demo: a trained model on real input, with a visible result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tilewright.cli.answer import Answer, command
from tilewright.cli.options import Debug, Json, SetOptions, settings_for
from tilewright.cli.tables import time_text

if TYPE_CHECKING:
    from rich.console import Console

CALLS = 50  # the latency shown is the median of so many


@command
def demo(set_: SetOptions = None, json: Json = False, debug: Debug = False) -> Answer:
    """Compile a digit recogniser and show it at work."""
    settings = settings_for(set_)

    import numpy as np

    from tilewright import demo as digits
    from tilewright.api import make_artifact
    from tilewright.runtime.executable import Executable

    shown = digits.samples()
    batch = digits.network_input(shown.images)
    start = time.perf_counter()
    executable = Executable(make_artifact(digits.model_bytes(), "cpu", None, settings).artifact, settings.threads)
    compile_seconds = time.perf_counter() - start
    probabilities = executable(batch)
    latencies = []
    for _ in range(CALLS):
        start = time.perf_counter()
        executable(batch[:1])
        latencies.append(time.perf_counter() - start)
    latency = float(np.median(latencies))
    answers = probabilities.argmax(axis=1)
    data = {
        "images": len(batch),
        "accuracy": digits.accuracy(probabilities, shown.labels),
        "predicted": answers.tolist(),
        "labels": shown.labels.tolist(),
        "compile_seconds": compile_seconds,
        "latency_seconds": latency,
        "target": executable.manifest["target"]["name"],
    }

    def show(console: Console) -> None:
        console.print("Handwritten digits, read by a small network that was compiled just now:\n")
        console.print(digits.render(shown.images, probabilities, shown.labels))
        console.print(f"\ncompiled for {data['target']} in {time_text(compile_seconds)}")
        console.print(f"one image takes {time_text(latency)}, the median of {CALLS} calls")
        console.print("next: tilewright check your-model.onnx", style="dim")

    return Answer(data, show)
