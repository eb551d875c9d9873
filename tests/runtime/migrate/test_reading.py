"""Files as they are used: chains of defaults, interpolation, overrides; and what cannot be read."""

import sys
from pathlib import Path

import pytest

from fsm.errors import ConfigError
from runtime.migrate.reading import read_given
from runtime.migrate.rows import Unresolved


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


class TestChains:
    @pytest.fixture(autouse=True)
    def needs_omegaconf(self) -> None:
        pytest.importorskip("omegaconf")

    def test_paths_are_from_each_file_and_interpolation_sees_the_last_values(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            base="grpo: {n: 4, twice: '${mul:${grpo.n}, 2}', least: '${max:${grpo.n}, 3}'}\n",
            deep__middle="defaults: ../base.yaml\ngrpo: {n: 5}\n",
            deep__more__top="defaults: [../middle.yaml]\ngrpo: {here: '${.n}'}\n",
        )
        document = read_given(tmp_path / "deep/more/top.yaml", ["grpo.n=6"]).document
        assert document == {"grpo": {"n": 6, "twice": 12, "least": 6, "here": 6}}

    def test_a_block_marked_as_override_replaces_the_one_below(self, tmp_path: Path) -> None:
        write(tmp_path, base="a: {x: 1, y: 2}\n", top="defaults: base.yaml\na: {_override_: true, y: 3}\n")
        assert read_given(tmp_path / "top.yaml", ()).document == {"a": {"y": 3}}

    def test_a_value_that_cannot_be_resolved_is_the_only_one_that_is_missing(self, tmp_path: Path) -> None:
        write(tmp_path, top="a: ${nothing.here}\nb: ${no_such_function:1}\nc: ???\nd: 1e-6\ne: [1, '${d}']\n")
        document = read_given(tmp_path / "top.yaml", ()).document
        assert [key for key, value in document.items() if isinstance(value, Unresolved)] == ["a", "b", "c"]
        assert document["d"] == 1e-6
        assert document["e"] == [1, 1e-6]
        assert "no_such_function" in document["b"].reason

    @pytest.mark.parametrize(
        ("files", "says"),
        [
            ({"top": "defaults: other.yaml\n", "other": "defaults: top.yaml\n"}, "lead back to it"),
            ({"top": "defaults: gone.yaml\n"}, r"names .*gone\.yaml, which is not there"),
            ({"top": "defaults: other.yaml\n", "other": "- 1\n"}, "holds a list"),
            ({"top": "defaults: folder/inner/..\n", "folder/inner": ""}, "folder, which is a directory: name a file"),
            ({"top": "defaults: 5\n"}, "defaults is 5; allowed: the path of a file, or a list"),
            ({"top": "defaults: [1, other.yaml]\n"}, r"defaults is \[1, 'other.yaml'\]; allowed: a list of files and"),
            ({"top": "defaults: other.yaml\n", "other": "a: &a {self: *a}\n"}, "a block holds itself"),
            ({"top": "defaults: other.yaml\n", "other": f"a: {'9' * 5000}\n"}, "cannot be read as .*int"),
            ({"top": "defaults: [self/again, _self_]\n", "self/again": "defaults: [/top]\n"}, "lead back to it"),
        ],
    )
    def test_a_chain_without_end_is_refused(self, files: dict[str, str], says: str, tmp_path: Path) -> None:
        write(tmp_path, **files)
        with pytest.raises(ConfigError, match=says):
            read_given(tmp_path / "top.yaml", ())

    def test_the_package_that_is_missing_is_named_with_how_to_install_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, top="defaults: base.yaml\n", plain="grpo: {n: 1}\n")
        monkeypatch.setitem(sys.modules, "omegaconf", None)
        with pytest.raises(ConfigError, match=r"pip install -c constraints.txt -e '\.\[migrate\]'"):
            read_given(tmp_path / "top.yaml", ())
        assert read_given(tmp_path / "plain.yaml", ["grpo.n=2"]).document == {"grpo": {"n": 2}}


def test_what_is_no_configuration_is_refused_with_what_it_is(tmp_path: Path) -> None:
    pickled, listed, broken = tmp_path / "training_args.bin", tmp_path / "list.yaml", tmp_path / "broken.yaml"
    pickled.write_bytes(b"\x80\x04\x95\xff\xfe")
    listed.write_text("- 1\n", encoding="utf-8")
    broken.write_text("a: [", encoding="utf-8")
    for file, says in (
        (pickled, "to_json_string"),
        (listed, "holds a list"),
        (broken, "neither YAML nor JSON"),
        (tmp_path / "gone.yaml", "cannot be read"),
        (tmp_path, "cannot be read: a file is expected, but it is a directory"),
    ):
        with pytest.raises(ConfigError, match=says):
            read_given(file, ())
    listed.write_text("a: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="allowed is key=value"):
        read_given(listed, ["a"])


def test_an_encoding_other_than_utf_8_is_named_with_how_to_convert_it(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    for encoding, says in (("latin-1", r"byte 7 is 0xe9.*iconv -f LATIN1"), ("utf-16", "UTF-16.*iconv -f UTF-16")):
        file.write_bytes("a: caf\u00e9\n".encode(encoding))
        with pytest.raises(ConfigError, match=says):
            read_given(file, ())


def test_merged_keys_lie_below_a_block_s_own_however_deep_and_keys_that_are_no_texts_are_read_as_such(
    tmp_path: Path,
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(
        "a: &a {x: 1, y: 2}\ndeep: {b: &b {<<: *a, x: 3}}\nc: {<<: [*b, *a], z: 4}\nkeys: {5: 6, true: 8, null: 9}\n"
    )
    document = read_given(file, ()).document
    assert document["deep"] == {"b": {"x": 3, "y": 2}}
    assert document["c"] == {"x": 3, "y": 2, "z": 4}
    assert document["keys"] == {"5": 6, "true": 8, "null": 9}
    file.write_text("a: &a {x: 1}\nb: {<<: *a, y: 1, y: 2}\n")
    with pytest.raises(ConfigError, match="y is given twice"):
        read_given(file, ())
