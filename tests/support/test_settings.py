import threading
from pathlib import Path

import pytest

from tilewright.support.errors import SettingsError
from tilewright.support.settings import Settings, current_settings, override, settings_from_env, settings_table


def test_defaults_come_from_an_empty_environment() -> None:
    assert settings_from_env({}) == Settings()
    assert settings_from_env({"PATH": "/bin", "OTHER_THREADS": "3"}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("TILEWRIGHT_THREADS", "3", "threads", 3),
        ("TILEWRIGHT_THREADS", "auto", "threads", None),
        ("TILEWRIGHT_CACHE", "off", "cache", False),
        ("TILEWRIGHT_CACHE_DIR", "/somewhere/else", "cache_dir", Path("/somewhere/else")),
        ("TILEWRIGHT_CACHE_LIMIT_MB", "10", "cache_limit_mb", 10),
        ("TILEWRIGHT_PRECISION", "Strict", "precision", "strict"),
        ("TILEWRIGHT_VERIFY", "yes", "verify", True),
        ("TILEWRIGHT_OPT_LEVEL", "0", "opt_level", 0),
        ("TILEWRIGHT_VERIFY", "1", "verify", True),
        ("TILEWRIGHT_MAX_MEMORY", "1.5GiB", "max_memory", 3 << 29),
        ("TILEWRIGHT_MAX_MEMORY", "2 GB", "max_memory", 2_000_000_000),
        ("TILEWRIGHT_MAX_MEMORY", "4096", "max_memory", 4096),
        ("TILEWRIGHT_PROGRESS", "none", "progress", "none"),
    ],
)
def test_environment_variables_are_typed(variable: str, text: str, name: str, value: object) -> None:
    assert getattr(settings_from_env({variable: text}), name) == value


def test_every_setting_can_be_set_from_its_default_as_text() -> None:
    for row in settings_table():
        text = "auto" if row.default is None else str(row.default)
        assert getattr(settings_from_env({row.environment: text}), row.name) == row.default
        assert row.doc
        assert row.kind.name


@pytest.mark.parametrize(
    ("values", "because"),
    [
        ({"threads": 0}, "at least 1"),
        ({"threads": True}, "an integer"),
        ({"threads": 1.5}, "an integer"),
        ({"opt_level": 4}, "from 0 to 3"),
        ({"cache": "maybe"}, "a boolean"),
        ({"precision": "exact"}, "one of default, strict, bf16"),
        ({"max_memory": "lots"}, "a size in bytes"),
        ({"max_memory": "0GB"}, "a size in bytes"),
        ({"max_memory": -1}, "a size in bytes"),
        ({"max_memory": "-1"}, "a size in bytes"),
        ({"max_memory": 1.5}, "a size in bytes"),
        ({"max_memory": True}, "a size in bytes"),
        ({"cache_dir": 3}, "a path"),
    ],
)
def test_wrong_values_are_refused_before_anything_runs(values: dict[str, object], because: str) -> None:
    with pytest.raises(SettingsError, match=because):
        override(**values).__enter__()
    assert current_settings() == settings_from_env()


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(SettingsError, match="did you mean threads"):
        Settings().changed(thread=2)
    with pytest.raises(SettingsError, match="did you mean TILEWRIGHT_THREADS"):
        settings_from_env({"TILEWRIGHT_THREAD": "2"})


def test_override_nests_and_ends_even_by_an_exception() -> None:
    before = current_settings()
    with override(threads=3):
        with override(verify=True) as inner:
            assert (inner.threads, inner.verify) == (3, True)
            assert current_settings() is inner
        assert current_settings().verify == before.verify
        with pytest.raises(RuntimeError, match="stop"), override(threads=5):
            raise RuntimeError("stop")
        assert current_settings().threads == 3
    assert current_settings() == before


def test_override_does_not_leak_into_another_thread() -> None:
    seen: list[int | None] = []
    with override(threads=7):
        thread = threading.Thread(target=lambda: seen.append(current_settings().threads))
        thread.start()
        thread.join()
    assert seen == [settings_from_env().threads]


def test_code_key_holds_exactly_what_can_change_code() -> None:
    parts = ("winograd", "fusion", "layouts", "packing", "prefetch", "pair_convolutions")
    changed = {"precision": "strict", "opt_level": 1, **dict.fromkeys(parts, False)}
    base = Settings()
    assert {name for name, _ in base.code_key()} == set(changed)
    for name, value in changed.items():
        assert base.changed(**{name: value}).code_key() != base.code_key()
    assert base.changed(threads=2, cache=False, progress="none").code_key() == base.code_key()
