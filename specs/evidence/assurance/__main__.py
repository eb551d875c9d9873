"""`python -m specs.evidence.assurance [PART …]`: gather those parts, or all but the deep suite, and write the
document."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from specs.evidence.assurance.document import document
from specs.evidence.assurance.gather import PARTS, Json, gather

EVIDENCE, DOCUMENT = Path("docs/generated/evidence.json"), Path("docs/generated/assurance.md")


def read_evidence(path: Path = EVIDENCE) -> Json:
    """What was gathered so far."""
    evidence: Json = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return evidence


def main(arguments: Sequence[str]) -> int:
    """Gather and write; 0 when it is done."""
    parser = argparse.ArgumentParser(prog="python -m specs.evidence.assurance", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none with --write-only")
    parser.add_argument("--write-only", action="store_true", help="write the document from what there is")
    given = parser.parse_args(arguments)
    wrong = [part for part in given.parts if part not in PARTS]
    if wrong:
        parser.error(f"there is no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    chosen = [] if given.write_only else given.parts or [part for part in PARTS if part != "deep"]
    evidence = read_evidence()
    for part in chosen:
        sys.stdout.write(f"gathering {part}\n")
        sys.stdout.flush()
        evidence[part] = gather(part)
        EVIDENCE.write_text(json.dumps(evidence, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    DOCUMENT.write_text(document(evidence), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
