"""Requests from a file."""

from pathlib import Path

import pytest

from kvalet.errors import ConfigError
from kvalet.sim.trace import load, requests_of
from kvalet.sim.workloads import Request

GOOD = '{"arrival_s": 0.5, "prompt_tokens": 20, "output_tokens": 30}'


def test_lines_become_requests() -> None:
    lines = [
        GOOD,
        "",
        '{"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 3, "max_tokens": 8, "priority": -1,'
        ' "conversation": "a", "pause_s": 2.5}',
        '{"arrival_s": 1, "prompt_tokens": 30, "output_tokens": 3, "conversation": "a"}',
    ]
    assert requests_of(lines, 100, "trace") == (
        Request(0, 0.5, 20, 30, 30),
        Request(1, 1.0, 9, 3, 8, pause_s=2.5, priority=-1),
        Request(1, 1.0, 30, 3, 3),
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "Invalid JSON"),
        ("7", "Input should be an object"),
        ('{"arrival_s": 0, "prompt_tokens": 1}', "output_tokens: Field required"),
        (GOOD.replace("30", "0"), "output_tokens: Input should be greater than or equal to 1"),
        (GOOD.replace("20", '"20"'), "prompt_tokens: Input should be a valid integer"),
        (GOOD.replace("20", "2.5"), "prompt_tokens: Input should be a valid integer"),
        (GOOD.replace("0.5", "-1"), "arrival_s: Input should be greater than or equal to 0"),
        (GOOD.replace("0.5", "NaN"), "arrival_s: Input should be"),
        (GOOD.replace("arrival_s", "arival_s"), "arrival_s: Field required"),
        (GOOD[:-1] + ', "user": 1}', "user: Unexpected keyword argument"),
        (GOOD[:-1] + ', "max_tokens": 29}', "max_tokens: 29 is less than output_tokens"),
        (GOOD.replace("20", "71"), "prompt_tokens + output_tokens: 101 do not fit into 100 cells"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_its_field(line: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        requests_of([GOOD, line], 100, "my.jsonl")
    assert str(error.value).startswith(f"my.jsonl, line 2: {complaint}")


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl: there is no request in it"):
        load(path, 100)
    with pytest.raises(ConfigError, match=r"none\.jsonl: No such file"):
        load(tmp_path / "none.jsonl", 100)
