"""What `kvalet bench decode` makes of its runs."""

from kvalet.bench.decode import HEADINGS, Decoding, rows


def test_a_row_for_one_and_for_four() -> None:
    found = [
        Decoding(1, tokens_per_s=90.0, step_ms=10.0, compute_ms=9.0),
        Decoding(4, tokens_per_s=150.0, step_ms=25.0, compute_ms=24.0),
        Decoding(4, tokens_per_s=160.0, step_ms=20.0, compute_ms=16.0),
        Decoding(4, tokens_per_s=140.0, step_ms=30.0, compute_ms=27.0),
    ]
    one, four = rows(found)
    assert one == ["1", "90.0 (90.0-90.0)", "10.00", "9.00", "10.0%"]
    assert four == ["4", "150.0 (140.0-160.0)", "25.00", "24.00", "10.0%"]
    assert len(one) == len(HEADINGS)
