"""Arguments, variables and errors of the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvalet import __version__
from kvalet.cli.config import ServeConfig, knobs, load, settings
from kvalet.cli.run import run
from kvalet.core.config import SlotConfig
from kvalet.errors import ConfigError
from kvalet.settings import values_of


def _failure(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that a command which cannot work prints."""
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvalet: ")
    assert err.count("\n") == 1
    return err


def test_a_flag_wins_over_its_variable_and_that_over_the_default() -> None:
    environ = {"LLAMA_ARG_N_PARALLEL": "7", "LLAMA_ARG_BATCH": "64"}
    config = load({"parallel": "3"}, environ)
    assert config.slots == SlotConfig(num_slots=3, max_queue=128)
    assert config.steps.batch_size == 64


def test_every_field_is_a_setting_with_its_own_spellings() -> None:
    found = list(settings())
    assert [item.name for item in found] == list(values_of(ServeConfig()))
    spellings = [flag for setting in found for flag in setting.flags]
    variables = [setting.env for setting in found]
    names = [setting.name for setting in found]
    assert all(variables)
    for words in (spellings, variables, names):
        assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("parallel", "0", "-np/--parallel: expected an integer from 1 to 256, not '0'"),
        ("parallel", "many", "-np/--parallel: expected an integer from 1 to 256, not 'many'"),
        ("ctx_size", "-1", "-c/--ctx-size: expected an integer of at least 0, not '-1'"),
        ("port", "65536", "--port: expected an integer from 0 to 65535, not '65536'"),
        ("host", "", "--host: expected a text that is not empty, not ''"),
    ],
)
def test_a_flag_that_cannot_be_honoured_is_named(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        load({name: text}, {})
    assert str(error.value) == complaint


def test_a_variable_that_cannot_be_honoured_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^LLAMA_SERVER_PREEMPT_EVERY: expected an integer"):
        load({}, {"LLAMA_SERVER_PREEMPT_EVERY": "often"})


def test_knobs_are_announced_only_when_set() -> None:
    assert knobs(load({}, {})) == []
    environ = {"LLAMA_SERVER_PREEMPT_EVERY": "8"}
    assert knobs(load({}, environ)) == ["LLAMA_SERVER_PREEMPT_EVERY=8"]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["serve", "--parallel"], "expected one argument"),
        (["serve", "--prallel", "4"], "unknown flag --prallel; did you mean --parallel?"),
        (["serve", "--para", "4"], "unknown flag --para; did you mean --parallel?"),
        (["serve", "--no-preemt"], "unknown flag --no-preemt; did you mean --no-preempt?"),
        (["serve", "-port=80"], "unknown flag -port; did you mean --port?"),
        (["serve", "-ngl", "99"], "unknown flag -ngl (see kvalet serve --help)"),
        (["serve", "-hi"], "unknown flag -hi (see kvalet serve --help)"),
        (["serve", "-hf", "x"], "-hf is not supported yet: name a file with -m, or fetch a model"),
        (["serve", "--hf-repo", "x"], "--hf-repo is not supported yet"),
        (["--verison"], "unknown flag --verison; did you mean --version?"),
        (["bench", "exact", "--tokns", "3"], "unknown flag --tokns; did you mean --tokens?"),
        (["pull", "--hel"], "unknown flag --hel; did you mean --help?"),
        (["serve", "--preempt-ram", "-1", "-c", "none"], "-c/--ctx-size: expected an integer"),
        (["serve", "-c2048", "-t", "none"], "-t/--threads: expected an integer"),
        (["serve", "--alias=-x", "-t", "none"], "-t/--threads: expected an integer"),
        (["serve", "model.gguf"], "unrecognized arguments: model.gguf"),
        (["serve", "--parallel", "none"], "-np/--parallel"),
        (["sreve"], "invalid choice: 'sreve'"),
        ([], "COMMAND"),
        (["tokenize"], "-m/--model"),
        (["tokenize", "-m", "no-such.gguf"], "no-such.gguf"),
        (["serve", "-m", "no-such.gguf"], "no-such.gguf"),
        (["pull", "no-such-model"], "no-such-model"),
    ],
)
def test_an_error_is_one_line(
    capsys: pytest.CaptureFixture[str], args: list[str], part: str
) -> None:
    assert part in _failure(capsys, *args)


def test_a_file_that_is_no_model_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("these are notes")
    assert "notes.gguf" in _failure(capsys, "tokenize", "-m", str(path))
    assert "notes.gguf" in _failure(capsys, "serve", "-m", str(path))


def test_version_starts_without_the_heavy_parts() -> None:
    heavy = "{'fastapi', 'ggml', 'numpy', 'rich', 'tokenizers', 'uvicorn', 'httpx'}"
    code = (
        "import sys\nfrom kvalet.cli.run import run\n"
        "run(['--version'])\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == f"kvalet {__version__}\n[]\n"


def test_an_exactness_mode_that_does_not_exist_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--exact: expected auto, on or off" in _failure(capsys, "serve", "--exact", "maybe")
