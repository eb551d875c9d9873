"""docs/generated/assurance.md says what the evidence says."""

from pathlib import Path

import pytest

from specs.evidence.assurance import NOT_GATHERED, document, main, read_evidence

ROOT = Path(__file__).parents[3]
EVIDENCE = read_evidence(ROOT / "docs/generated/evidence.json")


def test_the_document_is_what_the_evidence_and_the_code_make_of_it():
    written = (ROOT / "docs/generated/assurance.md").read_text(encoding="utf-8")
    assert written == document(EVIDENCE), "run `python -m specs.evidence.assurance --write-only`"


def test_nothing_in_the_evidence_is_violated_undetermined_or_unproven():
    for suite in ("matrix", "deep"):
        assert set(EVIDENCE.get(suite, {"verdicts": {}})["verdicts"]) <= {"holds", "refused"}, suite
    assert EVIDENCE["proofs"]["holds"]
    assert all(row["agrees"] for row in EVIDENCE["twins"]["rows"])


def test_what_was_not_gathered_is_said_to_be_missing():
    assert document({}).count(NOT_GATHERED) == 5


def test_an_unknown_part_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["proof"])
    assert "there is no part proof; there are matrix, deep, proofs, twins, mutation" in capsys.readouterr().err
