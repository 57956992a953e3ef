import re
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent


def test_every_test_that_the_table_names_exists() -> None:
    named = re.findall(r"`(\S+\.py)::(\w+)`", (FOLDER / "README.md").read_text())
    assert len(named) > 30
    for path, test in named:
        text = ((ROOT if path.startswith("tests/") else FOLDER) / path).read_text()
        assert re.search(rf"\b(def|class) {test}\b", text), f"{path}::{test}"
