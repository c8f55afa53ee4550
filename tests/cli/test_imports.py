"""The public names, and what they cost."""

import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw


def imported_by(code: str) -> set[str]:
    """Modules that a fresh process has loaded after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint('\\n'.join(sys.modules))"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("heavy", ["numpy", "onnx", "llvmlite", "typer", "rich"])
def test_importing_the_package_loads_nothing_heavy(heavy: str) -> None:
    assert heavy not in imported_by("import tilewright")


@pytest.mark.parametrize("heavy", ["numpy", "onnx", "llvmlite", "rich"])
def test_help_loads_nothing_heavy(heavy: str) -> None:
    code = "sys.argv = ['tilewright', '--help']\nfrom tilewright.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert heavy not in imported_by(code)


@pytest.mark.parametrize("front_end", ["onnx", "tilewright.compiler", "tilewright.graph.node"])
def test_running_an_artifact_loads_no_front_end(front_end: str, artifact: object) -> None:
    code = f"sys.argv = ['tilewright', 'run', {str(artifact)!r}]\nfrom tilewright.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert front_end not in imported_by(code)


@pytest.mark.parametrize("front_end", ["onnx", "tilewright.compiler", "tilewright.graph.node", "tilewright.machine"])
def test_profiling_an_artifact_loads_no_front_end(front_end: str, artifact: object) -> None:
    code = (
        f"import tilewright as tw\nimport numpy as np\nprint(tw.load({str(artifact)!r}).profile(np.zeros((2, 16), np.float32), repeat=1))"
    )
    assert front_end not in imported_by(code)


@pytest.mark.parametrize("front_end", ["onnx", "tilewright.compiler", "tilewright.graph.node"])
def test_a_model_that_the_cache_holds_loads_no_front_end(front_end: str, mlp: Path) -> None:
    tw.compile(mlp)
    code = f"import tilewright as tw\nprint(tw.compile({str(mlp)!r}).threads)"
    assert front_end not in imported_by(code)


def test_public_names_exist() -> None:
    for name in tw.__all__:
        assert getattr(tw, name) is not None
        assert name in dir(tw)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tw.nonsense


def test_the_kernel_decorator_and_the_package_share_a_name() -> None:
    import tilewright.kernel.nodes

    assert callable(tw.kernel)
    assert tw.kernel.nodes is tilewright.kernel.nodes
