import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.machine.cpus import CPUS, FEATURE_NEEDS, with_feature, without_feature
from tilewright.machine.description import Machine
from tilewright.machine.targets import Target, named_machine, parse_target, resolve_target
from tilewright.support.errors import TargetError


def _host() -> Machine:
    return named_machine("znver5")


def _resolve(text: str) -> Machine:
    return resolve_target(parse_target(text), _host)


def test_a_bare_cpu_is_the_machine_at_hand_and_a_name_never_is() -> None:
    assert _resolve("cpu") == _host()

    def never() -> Machine:
        raise RuntimeError("looked at the host")

    assert resolve_target(parse_target("cpu:x86-64-v3"), never).llvm_cpu == "x86-64-v3"


@pytest.mark.parametrize(
    ("text", "bits", "registers"),
    [
        ("cpu:x86-64-v2", 128, 16),
        ("cpu:x86-64-v3", 256, 16),
        ("cpu:x86-64-v4", 512, 32),
        ("cpu:x86-64-v4,vector_bits=256", 256, 32),
        ("cpu:x86-64-v3,vector_bits=128,cores=4", 128, 16),
        ("cpu:znver5,-avx512f", 256, 16),
        ("cpu:x86-64-v3,+avx512f", 512, 32),
        ("cpu,-avx", 128, 16),
        ("cpu:neoverse-n1", 128, 32),
    ],
)
def test_vector_width_and_registers_follow_the_isa(text: str, bits: int, registers: int) -> None:
    machine = _resolve(text)
    assert (machine.vector_bits, machine.vector_registers) == (bits, registers)


def test_options_change_what_they_say() -> None:
    machine = _resolve("cpu:x86-64-v3,cores=7,l1d=48KiB,l2=2m,l3=0,os=windows")
    assert (machine.cores, machine.l1d.size, machine.l2.size, machine.l3) == (7, 48 << 10, 2 << 20, None)
    assert machine.triple == "x86_64-pc-windows-msvc"
    assert _resolve("cpu:apple-m1").triple == "arm64-apple-macosx"


def test_removing_a_feature_removes_what_needs_it_for_llvm_too() -> None:
    machine = _resolve("cpu:x86-64-v4,+avx512vnni,-avx512bw")
    assert machine.has("avx512f", "avx512vnni")
    assert not machine.has("avx512bw")
    assert machine.llvm_features == "-avx512bw,+avx512vnni"
    assert _resolve("cpu:x86-64-v4,+avx512vnni,-avx512f").isa == named_machine("x86-64-v3").isa


def test_peaks_measured_at_one_width_are_not_claimed_for_another() -> None:
    assert _resolve("cpu:znver5").peaks is not None
    assert _resolve("cpu:znver5,vector_bits=256").peaks is None
    assert _resolve("cpu:znver5,-avx512f").peaks is None


_names = st.sampled_from(["", *CPUS])
_cores = st.integers(1, 99).map(lambda cores: f"cores={cores}")
_caches = st.sampled_from(["l1d=32KiB", "l2=1MiB", "l3=8m", "l3=0"])
_x86_features = st.sampled_from(["+avx512f", "-avx512f", "+avx512vnni", "-avx2", "vector_bits=128"])


@given(_names, st.lists(_cores | _caches | _x86_features, max_size=4))
@settings(max_examples=200, deadline=None)
def test_what_parses_prints_back_to_an_equal_target(name: str, words: list[str]) -> None:
    text = ",".join([f"cpu:{name}" if name else "cpu", *words])
    try:
        target = parse_target(text)
    except TargetError:
        return
    assert parse_target(str(target)) == target
    assert str(parse_target(str(target))) == str(target)
    assert resolve_target(target, _host) == resolve_target(parse_target(str(target)), _host)


def test_canonical_text() -> None:
    target = Target("cpu", "x86-64-v3", (("avx512f", "+"), ("cores", "4"), ("vector_bits", "128")))
    assert str(target) == "cpu:x86-64-v3,+avx512f,cores=4,vector_bits=128"
    assert parse_target(" cpu:x86-64-v3 , vector_bits = 128,cores=4,+avx512f") == target


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("", "no kind of target", "write cpu"),
        ("gpu", "'gpu' is no kind of target", "did you mean cpu"),
        ("znver5", "no kind of target", "did you mean cpu:znver5"),
        ("cpu:zenver5", "no CPU is called 'zenver5'", "did you mean znver5"),
        ("cpu:x86-64-v3,vector_bits=512", "must be one of 128, 256, not 512", "write cpu"),
        ("cpu:x86-64-v3,vector_bits=100", "must be one of 128, 256", "write cpu"),
        ("cpu:x86-64-v3,core=2", "'core' is no option", "did you mean cores"),
        ("cpu:x86-64-v3,cores=0", "at least 1", "write cpu"),
        ("cpu:x86-64-v3,cores", "needs a value", "write cpu"),
        ("cpu:x86-64-v3,cores=2,cores=3", "given twice", "write cpu"),
        ("cpu:x86-64-v3,+avx512f,-avx512f", "given twice", "write cpu"),
        ("cpu:x86-64-v3,+avx1024", "no feature is called 'avx1024'", "write cpu"),
        ("cpu:x86-64-v3,+neon", "a feature of aarch64", "write cpu"),
        ("cpu:x86-64-v3,l1d=48KB?", "at least 4 KiB", "write cpu"),
        ("cpu:x86-64-v3,l2=0", "at least 4 KiB", "write cpu"),
        ("cpu:x86-64-v3,os=plan9", "one of linux, macos, windows", "write cpu"),
        ("cpu:x86-64-v3,,", "'' is no option", "write cpu"),
    ],
)
def test_errors_say_what_why_and_what_to_try(text: str, why: str, hint: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    error = caught.value
    assert repr(text) in error.what or text.split(",")[0] in error.what
    assert why in (error.why or "")
    assert hint in (error.hint or "")


@pytest.mark.parametrize("feature", sorted(FEATURE_NEEDS))
def test_adding_a_feature_makes_a_closed_isa_and_removing_it_undoes_nothing_else_needed(feature: str) -> None:
    isa = with_feature(frozenset(), feature)
    assert all(FEATURE_NEEDS[name] in isa for name in isa if name in FEATURE_NEEDS)
    assert without_feature(isa, feature) == isa - {feature}


@pytest.mark.parametrize("name", CPUS)
def test_every_named_cpu_is_closed_and_known_to_llvm(name: str) -> None:
    machine = named_machine(name)
    assert all(FEATURE_NEEDS[feature] in machine.isa for feature in machine.isa if feature in FEATURE_NEEDS)
    assert machine.l1d.size < machine.l2.size
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    with llvm.Target.from_triple(machine.triple).create_target_machine(cpu=machine.llvm_cpu, features=machine.llvm_features) as made:
        assert made.triple == machine.triple
