"""No regular expression of the package can be made to take more than linear time."""

from __future__ import annotations

import ast
import re

import fuzz_patterns
import pytest
from fuzz_automaton import UnprovableError, automaton_of
from fuzz_backtracking import MAX_COUNT, SuperLinearError, prove
from fuzz_patterns import HiddenPatternError, parse_source, uses_in, uses_in_package
from fuzz_steps import StepCounter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scale import scaled

# What is known to backtrack too much, whether every position is tried, and a text that shows it.
BAD = [
    (r"(a+)+$", False, "a", "b"),
    (r"(a|a)*b", False, "a", ""),
    (r"(?:a|aa)*b", False, "a", ""),
    (r"(?:[ab]|ab?)*?c", False, "a", ""),
    (r"(?:a*)*b", False, "a", ""),
    (r"(?:aa?)+$", False, "a", "b"),
    (r"a*a*b", False, "a", ""),
    (r"a+[ab]*a+c", False, "a", ""),
    (r"a*(?:b|a*)c", False, "a", ""),
    (r"a*b", True, "a", ""),
    (r"a+(?=b)", True, "a", ""),
    (r"a*a*b", True, "a", ""),
    (r"ab.*?c", True, "ab", ""),
    (r"a(?:a*b)?", True, "a", ""),
    (r"a(?=a*b)", True, "a", ""),
    (r"(?:a[ab]*c|a)", True, "ab", ""),
]
GOOD = [
    (r"a*b", False),
    (r"a+", True),
    (r"(?<!a)a+b", True),
    (r"a[^a]*b", True),
    (r"a*+b", False),
    (r"(?:a|b)*", True),
    (r"\n\s*\n", True),
    (r"^a*b", True),
    (r"a{3}a+", True),
    (r"(a|b)x*\1", True),
]
ALSO_BAD = [
    (r"\s*\s*x", False),
    (r"^\s+|\s+$", True),
    (r"(?i:[a-z]+)*\d", False),
    (r"(.*),(.*),(.*)x", False),
    (r"<!--.*?-->", True),
    (r"<(b|i)>.*?</\1>", True),
    (r"^\s*\w+:", True),
    (r"(?:x(?:a?)*)*y", True),
]
NOT_UNDERSTOOD = [r"(a+)\1", r"(a)?(?(1)b|c)", r"(?:a{900}){9}"]

letters = st.sampled_from(["a", "b", "[ab]", ".", "c", "[^a]"])
repeats = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", ""])
expressions = st.recursive(
    letters,
    lambda inner: st.one_of(
        st.builds("(?:{}){}".format, inner, repeats),
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("(?={}){}".format, inner, inner),
        st.builds("(?!{}){}".format, inner, inner),
        st.builds("{}{}".format, letters, repeats),
    ),
    max_leaves=6,
)
words = st.text("abc", max_size=4)


@pytest.mark.parametrize(("pattern", "scanning", "repeated", "end"), BAD)
def test_what_backtracks_is_convicted(pattern, scanning, repeated, end):
    """By the proof, and rightly: twice the text takes three times the steps or more."""
    with pytest.raises(SuperLinearError, match=f"{MAX_COUNT + 1}|after"):
        prove(re.compile(pattern), scanning=scanning)
    steps = [_steps(pattern, repeated * size + end, scanning=scanning) for size in (8, 16)]
    assert steps[1] >= 3 * steps[0]


@pytest.mark.parametrize(("pattern", "scanning"), ALSO_BAD)
def test_more_that_backtracks_is_convicted(pattern, scanning):
    """Also with flags, classes, references and lines."""
    with pytest.raises(SuperLinearError):
        prove(re.compile(pattern, re.MULTILINE), scanning=scanning)


@pytest.mark.parametrize(("pattern", "scanning"), GOOD)
def test_what_is_linear_is_proved(pattern, scanning):
    """With few steps for each character."""
    assert prove(re.compile(pattern), scanning=scanning).work <= 12


@pytest.mark.parametrize("pattern", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_not_proved(pattern):
    """It is refused, not passed over."""
    with pytest.raises(UnprovableError):
        prove(re.compile(pattern), scanning=True)


@settings(max_examples=scaled(150, 5_000), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(expressions, st.tuples(words, words, words), st.integers(0, 24), st.booleans())
def test_no_proof_is_broken_by_counting_steps(pattern, parts, times, scanning):
    """A matcher of another make never takes more steps than the proof of a generated pattern allows."""
    compiled = re.compile(pattern)
    try:
        proof = prove(compiled, scanning=scanning)
    except (SuperLinearError, UnprovableError):
        return
    text = parts[0] + parts[1] * times + parts[2]
    # What a step is made of: the ways on from one place, and the conditions on them.
    size = len(pattern) + max(map(len, automaton_of(compiled).edges))
    allowed = size * (1 + proof.work) * (len(text) + 2)
    assert _steps(pattern, text, scanning=scanning) <= allowed


@settings(max_examples=scaled(150, 5_000), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(expressions, words, words, st.integers(0, 5))
def test_the_other_matcher_matches_as_python_does(pattern, before, repeated, times):
    """So its steps are those of a real matcher."""
    text = before + repeated * times
    counter = StepCounter(pattern)
    expected = re.match(pattern, text)
    assert counter.match(text) == (None if expected is None else expected.end())


def test_every_regular_expression_of_the_package_is_proved():
    """Each call of ``re`` and each separator of the splitter, by the methods it is used with."""
    uses = uses_in_package()
    proofs = {use.where: prove(use.pattern, scanning=use.scanning) for use in uses}
    most = max(proofs, key=lambda where: proofs[where].work)
    scanning = sum(use.scanning for use in uses)
    print(
        f"regular expressions: {len(uses)} proved linear, {scanning} of them tried at every position; "
        f"most work for a character: {proofs[most].work} steps ({most})"
    )
    assert len(uses) >= _calls_in_package()


def test_no_module_hides_its_regular_expressions():
    """``re`` is imported by its own name only, no other engine is used, and models keep to pydantic's linear one."""
    for source in fuzz_patterns.sources_of_package():
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("re", "regex"), source.name
            if isinstance(node, ast.Import):
                assert all(each.name != "regex" and (each.name != "re" or not each.asname) for each in node.names)
            assert not (isinstance(node, ast.keyword) and node.arg == "regex_engine"), source.name


def test_a_bad_regular_expression_in_a_module_would_be_found(monkeypatch):
    """A pattern is judged by what is called on its name, here and where it is imported; a hidden one is refused."""
    code = "import re\nA = re.compile('a*b')\nB = re.compile('a*b')\nC = {n: re.compile(n + '+') for n in 'xy'}\n"
    used = parse_source("bounded_retrieval.errors", code + "A.match('')\nB.match('')\n")
    other = parse_source("other", "from bounded_retrieval.errors import B as b\nb.sub('', '')\n")
    monkeypatch.setattr("bounded_retrieval.errors.C", {n: re.compile(n + "+") for n in "xy"}, raising=False)
    uses = list(uses_in(used, [used, other]))
    assert [use.scanning for use in uses] == [False, True, True, True]
    with pytest.raises(SuperLinearError):
        [prove(use.pattern, scanning=use.scanning) for use in uses]
    hidden = parse_source("bounded_retrieval.errors", "import re\ndef f(x):\n    return re.search(x, '')\n")
    with pytest.raises(HiddenPatternError, match="line 3: name 'x'"):
        list(uses_in(hidden, [hidden]))


def _steps(pattern: str, text: str, *, scanning: bool) -> int:
    counter = StepCounter(pattern)
    try:
        if scanning:
            counter.find_all(text)
        else:
            counter.match(text)
    except OverflowError:
        pass
    return counter.steps


def _calls_in_package() -> int:
    texts = (path.read_text(encoding="utf-8") for path in fuzz_patterns.PACKAGE.rglob("*.py"))
    return sum(
        len(re.findall(r"\bre\.(?:compile|match|fullmatch|search|sub|split|findall|finditer)\(", text))
        for text in texts
    )
