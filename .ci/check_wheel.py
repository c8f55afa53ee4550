"""The wheel is pure Python, complete and small."""

import sys
import zipfile
from pathlib import Path

BUDGET_BYTES = 10_000_000
NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".c", ".cc", ".cpp", ".pyx")
NEEDED = ("tilewright/__init__.py", "tilewright/py.typed", "tilewright/support/errors.py")


def main(wheel: Path) -> int:
    faults = []
    if not wheel.name.endswith("-py3-none-any.whl"):
        faults.append(f"{wheel.name} is not tagged py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    faults += [f"native file in the wheel: {name}" for name in names if name.lower().endswith(NATIVE)]
    faults += [f"missing in the wheel: {name}" for name in NEEDED if name not in names]
    faults += [f"does not belong in the wheel: {name}" for name in names if not name.startswith(("tilewright/", "tilewright-"))]
    size = wheel.stat().st_size
    if size > BUDGET_BYTES:
        faults.append(f"the wheel has {size} bytes of {BUDGET_BYTES}")
    print("\n".join(faults) or f"{wheel.name}: {len(names)} files, {size / 1000:.0f} kB")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
