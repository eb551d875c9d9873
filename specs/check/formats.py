"""Verdicts for machines: plain values for JSON, JUnit XML and SARIF."""

from typing import Any
from xml.etree import ElementTree

from specs.check.cases import Case, bounds_of, properties_in, say_bounds
from specs.check.concrete import Concrete
from specs.check.verdicts import CaseResult, Checked, never_happens
from specs.checker.explore import UNDETERMINED, VIOLATED, Result
from specs.model import Answer

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def event_values(answer: Answer, prompt: int | None) -> dict[str, Any]:
    """One event of a counterexample."""
    values: dict[str, Any] = {"event": answer.name}
    if answer.group_class is not None:
        values["group_class"] = answer.group_class._asdict()
    if answer.label:
        values["label"] = answer.label
    if prompt is not None:
        values["prompt"] = prompt
    return values


def violation_values(case: Case, result: Result, story: Concrete | None) -> dict[str, Any]:
    """One violated property with its counterexample."""
    prompts = [told.prompt for told in story.told] if story is not None else [None] * len(result.counterexample)
    events = [event_values(answer, prompt) for answer, prompt in zip(result.counterexample, prompts, strict=True)]
    values: dict[str, Any] = {
        "property": result.broken,
        "says": sentence(case, result),
        "case": case.name,
        "counterexample": events,
        "why": result.why,
    }
    if result.cycle_start is not None:
        values["cycle_start"] = result.cycle_start
    return values


def sentence(case: Case, result: Result) -> str:
    """The sentence of the violated property; of one that must happen, that it never does."""
    said = properties_in(case).sentence_of(str(result.broken))
    return f"this never happens: {said}" if never_happens(case, result) else said


def check_values(checked: Checked, story: Concrete | None) -> dict[str, Any]:
    """A whole verdict. `story` is the first violation with prompts, if it can be told with prompts."""
    violations = checked.violations()
    told = [violation_values(case, result, story if not number else None)
            for number, (case, result) in enumerate(violations)]  # fmt: skip
    first = told[0] if told else {"property": None, "counterexample": []}
    values: dict[str, Any] = {
        "verdict": checked.verdict,
        "property": first["property"],
        "states": checked.states,
        "transitions": checked.transitions,
        "seconds": round(checked.seconds, 3),
        "counterexample": first["counterexample"],
    }
    if "cycle_start" in first:
        values["cycle_start"] = first["cycle_start"]
    values["bounds"] = [case_values(finding) for finding in checked.findings]
    values["violations"] = told
    return values


def case_values(finding: CaseResult) -> dict[str, Any]:
    """One case: its bounds and its result."""
    return {
        **bounds_of(finding.case),
        "verdict": finding.verdict,
        "states": finding.states,
        "transitions": finding.transitions,
        "seconds": round(finding.seconds, 3),
        "why": finding.why,
    }


def junit_text(checked: Checked, name: str) -> str:
    """JUnit XML: a test case for each case; a bound that was hit is an error."""
    verdicts = [finding.verdict for finding in checked.findings]
    suite = ElementTree.Element(
        "testsuite",
        name=f"evenstep check {name}",
        tests=str(len(verdicts)),
        failures=str(verdicts.count(VIOLATED)),
        errors=str(verdicts.count(UNDETERMINED)),
        time=f"{checked.seconds:.3f}",
    )
    for finding in checked.findings:
        test = ElementTree.SubElement(
            suite, "testcase", classname=name, name=finding.case.name, time=f"{finding.seconds:.3f}"
        )
        for result in finding.results:
            if result.verdict == VIOLATED:
                failure = ElementTree.SubElement(
                    test, "failure", type=str(result.broken), message=sentence(finding.case, result)
                )
                failure.text = f"{say_bounds(finding.case)}: {_events(result)}"
            elif result.verdict == UNDETERMINED:
                ElementTree.SubElement(test, "error", type=UNDETERMINED, message=result.why)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def sarif_values(checked: Checked, file: str | None, version: str) -> dict[str, Any]:
    """SARIF 2.1.0: a result for each violated property and each bound that was hit."""
    results = [
        _sarif_result(str(result.broken), "error", _said(case, result), file) for case, result in checked.violations()
    ]
    results += [
        _sarif_result(UNDETERMINED, "warning", f"case {finding.case.name} is undetermined: {finding.why}", file)
        for finding in checked.findings
        if finding.verdict == UNDETERMINED
    ]
    rules = sorted({str(result["ruleId"]) for result in results})
    driver = {"name": "evenstep check", "version": version, "rules": [{"id": rule} for rule in rules]}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _events(result: Result) -> str:
    return ", ".join(answer.name for answer in result.counterexample)


def _said(case: Case, result: Result) -> str:
    return f"{result.broken} is violated ({sentence(case, result)}), in {say_bounds(case)}, by: {_events(result)}"


def _sarif_result(rule: str, level: str, text: str, file: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {"ruleId": rule, "level": level, "message": {"text": text}}
    if file is not None:
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": file}, "region": {"startLine": 1}}}]
    return result
