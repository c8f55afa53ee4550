"""A process for `CaseProcess` that answers, or does not, as it is asked: see `test_process.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time


def spin(seconds: float) -> None:
    """Use so much processor time."""
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


def behave(how: str) -> None:
    match how:
        case "spin":
            spin(1e9)
        case "spin in a thread":
            thread = threading.Thread(target=spin, args=(1e9,))
            thread.start()
            thread.join()
        case "spin in a child":
            subprocess.run([sys.executable, "-c", "while True: pass"], check=True)
        case "sleep":
            time.sleep(1e6)
        case "deadlock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "work":
            spin(0.3)


def main() -> None:
    for line in sys.stdin:
        behave(json.loads(line)["how"])
        print(json.dumps("done"), flush=True)


if __name__ == "__main__":
    main()
