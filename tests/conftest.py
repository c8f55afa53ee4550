"""What all tests share: an own cache folder, Hypothesis profiles, and golden texts with one flag to update them."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

# Examples are the same in every CI run, so that a change fails by its own fault only; on a developer's machine they differ each time.
hypothesis.settings.register_profile("local", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job: the processes of tests would ignore it as well
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing with them")
    parser.addoption("--store-expected", action="store_true", help="write the results that onnxruntime gives, instead of comparing")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the user's cache, and know nothing of what was measured. The workers of one run share a folder."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(shared / "tilewright-cache"))
        patch.setenv("TILEWRIGHT_CONFIG_DIR", str(shared / "tilewright-config"))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` must equal the file `golden/<name>.txt` beside the test. `pytest --update-golden` writes it."""

    def compare(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path} does not exist; pytest --update-golden writes it"
        assert text == path.read_text(encoding="utf-8")

    return compare
