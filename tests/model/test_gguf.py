"""GGUF files: what is read is what was written, and nothing broken gets past the door."""

import ctypes
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.model.builders import Value, write_bpe, write_gguf, write_spm

from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile

METADATA: dict[str, Value] = {
    "general.alignment": 32,
    "t.int": 7,
    "t.float": 0.5,
    "t.flag": True,
    "t.text": "a\0b caf\u00e9",
    "t.texts": ["", "x\0y", "\u2581\U0001f600"],
    "t.ints": [3, -4],
    "t.floats": [0.25, -1.0],
    "t.flags": [True, False],
}
TENSORS = {"a": (4, 3), "b.weight": (32,)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "small.gguf", METADATA, TENSORS)


def fault(path: Path, content: bytes) -> str:
    """The message for a file of this content, without the file's name."""
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    name, _, message = str(caught.value).partition(": ")
    assert name == str(path)
    assert "\n" not in message
    return message


def test_metadata_is_read_as_written(path: Path) -> None:
    with GGUFFile.open(path) as file:
        for key, value in METADATA.items():
            read = file.metadata[key]
            if isinstance(read, np.ndarray):
                assert read.tolist() == value
            else:
                assert read == (tuple(value) if isinstance(value, list) else value)
        assert file.text("general.architecture") == "llama"


def test_tensors_are_where_they_say(path: Path) -> None:
    with GGUFFile.open(path) as file:
        for name, shape in TENSORS.items():
            tensor = file.tensors[name]
            count = int(np.prod(shape))
            assert (tensor.type_name, tensor.shape, tensor.num_bytes) == ("f32", shape, 4 * count)
            content = ctypes.string_at(file.address(tensor), tensor.num_bytes)
            assert np.frombuffer(content, np.float32).tolist() == list(range(count))
            assert path.read_bytes()[tensor.offset :][: tensor.num_bytes] == content


def test_a_closed_file_gives_no_addresses(path: Path) -> None:
    file = GGUFFile.open(path)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.address(file.tensors["a"])


def test_dropped_pages_come_back_from_the_file(path: Path) -> None:
    with GGUFFile.open(path) as file:
        tensor = file.tensors["a"]
        before = ctypes.string_at(file.address(tensor), tensor.num_bytes)
        file.drop_resident()
        assert ctypes.string_at(file.address(tensor), tensor.num_bytes) == before


def test_typed_access_names_the_key_and_the_fault(path: Path) -> None:
    with GGUFFile.open(path) as file:
        assert file.integer("t.int") == 7
        assert file.integer("t.absent", 3) == 3
        assert (file.number("t.float"), file.number("t.int")) == (0.5, 7.0)
        assert file.flag("t.flag") is True
        with pytest.raises(ModelFileError, match=r"'t\.absent' is missing"):
            file.integer("t.absent")
        with pytest.raises(ModelFileError, match=r"'t\.flag' is not an integer"):
            file.integer("t.flag")
        with pytest.raises(ModelFileError, match=r"'t\.int' is not a string"):
            file.text("t.int")
        with pytest.raises(ModelFileError, match=r"'t\.text' is not a list of strings"):
            file.texts("t.text")
        with pytest.raises(ModelFileError, match=r"'t\.texts' is not a list of numbers"):
            file.numbers("t.texts")


def test_a_vocabulary_only_file_has_no_tensors(tmp_path: Path) -> None:
    with GGUFFile.open(write_gguf(tmp_path / "v.gguf", {"t.int": 1})) as file:
        assert file.tensors == {}
        assert file.integer("t.int") == 1


def test_tokens_that_are_not_utf8_keep_their_bytes(tmp_path: Path, path: Path) -> None:
    content = path.read_bytes().replace("caf\u00e9".encode(), b"caf\xff\xfe")
    (tmp_path / "odd.gguf").write_bytes(content)
    with GGUFFile.open(tmp_path / "odd.gguf") as file:
        assert file.text("t.text").encode("utf-8", "surrogateescape") == b"a\0b caf\xff\xfe"


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf: No such file"):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="Is a directory"):
        GGUFFile.open(tmp_path)


def test_what_is_not_gguf_is_named(tmp_path: Path, path: Path) -> None:
    whole, scratch = path.read_bytes(), tmp_path / "x.gguf"
    assert fault(scratch, b"") == "the file is empty"
    assert fault(scratch, b"PK\3\4" + bytes(100)).startswith("not a GGUF file")
    assert "big-endian" in fault(scratch, b"GGUF" + struct.pack(">I", 3) + whole[8:])
    assert "GGUF version 0 " in fault(scratch, b"GGUF" + bytes(4) + whole[8:])
    assert "GGUF version 65536 " in fault(scratch, b"GGUF" + struct.pack("<I", 1 << 16) + whole[8:])
    assert "GGUF version 1 " in fault(scratch, b"GGUF" + struct.pack("<I", 1) + whole[8:])
    assert "GGUF version 9 " in fault(scratch, b"GGUF" + struct.pack("<I", 9) + whole[8:])


def test_a_truncated_file_says_where_it_ends(tmp_path: Path, path: Path) -> None:
    whole, scratch = path.read_bytes(), tmp_path / "x.gguf"
    assert fault(scratch, whole[:6]) == "truncated in the first bytes"
    assert "truncated in metadata key 't.texts'" in fault(
        scratch, whole[: whole.index(b"x\0y") + 1]
    )
    assert "truncated in the list of tensors" in fault(scratch, whole[: whole.index(b"b.weight")])
    assert "truncated: tensor 'b.weight' ends at byte" in fault(scratch, whole[:-1])


def test_a_part_of_a_model_is_not_a_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "part.gguf", {"split.count": 3})
    with pytest.raises(ModelFileError, match="one of 3 parts of a model"):
        GGUFFile.open(path)


def test_what_would_kill_ggmls_reader_is_refused(tmp_path: Path, path: Path) -> None:
    whole, scratch = path.read_bytes(), tmp_path / "x.gguf"
    alignment = b"general.alignment" + struct.pack("<I", 4)
    assert "'general.alignment' is not a 32-bit integer" in fault(
        scratch, whole.replace(alignment, alignment[:-4] + struct.pack("<I", 6))
    )
    named = struct.pack("<Q", 5) + b"t.int"
    assert "metadata key 3 of 10 has no name" in fault(
        scratch, whole.replace(named, struct.pack("<Q", 0) + b"t.int")
    )
    dims = struct.pack("<IQQ", 2, 4, 3)
    assert "tensor 'a' has a dimension of 0" in fault(
        scratch, whole.replace(dims, struct.pack("<IQQ", 2, 4, 0))
    )


def test_ggmls_own_complaint_is_the_message(
    tmp_path: Path, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, scratch = path.read_bytes(), tmp_path / "x.gguf"
    message = fault(scratch, whole.replace(b"t.float", b"t.flags", 1))
    assert "duplicate key 't.flags'" in message
    assert capfd.readouterr() == ("", "")


def test_no_damage_gets_past(tmp_path: Path, path: Path) -> None:
    """Every cut, every byte set to several values; vocabularies damaged at random."""
    bpe = write_bpe(tmp_path / "bpe.gguf", ["the"], metadata={"tokenizer.chat_template": "{{ x }}"})
    spm = write_spm(tmp_path / "spm.gguf", {"t": -1.0, "th": -2.0, "h": -3.0})
    run = subprocess.run(
        [sys.executable, "-m", "tests.model.fuzz_gguf", path, bpe, spm],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    loaded, refused = map(int, run.stdout.split())
    assert loaded > 500  # harmless damage, or the test would prove nothing
    assert refused > 500
