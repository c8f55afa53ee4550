"""Hosts as recorded files: laid out below a folder that stands in for `/`."""

import json
from dataclasses import dataclass
from pathlib import Path

from tilewright.machine.description import Machine
from tilewright.machine.detect import LlvmHost, detect_machine

HOSTS = Path(__file__).parent / "hosts"


@dataclass(frozen=True)
class RecordedHost:
    llvm: LlvmHost
    root: Path

    def machine(self, *processors: int) -> Machine:
        return detect_machine(self.llvm, self.root, frozenset(processors))


def lay_out(name: str, root: Path) -> RecordedHost:
    record = json.loads((HOSTS / f"{name}.json").read_text())
    for path, content in record["files"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    llvm = record["llvm"]
    return RecordedHost(LlvmHost(llvm["triple"], llvm["cpu"], tuple(sorted(llvm["features"].items()))), root)
