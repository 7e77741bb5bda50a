import pytest
import yaml

from inventories import yaml_source
from inventories.errors import InvalidInput


@pytest.fixture(params=["C", "pure"], autouse=True)
def loader(request, monkeypatch):
    """Both of PyYAML's parsers: some machines have only the slow one."""
    if request.param == "pure":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "file.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refusal(path, **options) -> str:
    with pytest.raises(InvalidInput) as caught:
        yaml_source.read(path, **options)
    return str(caught.value).replace(str(path), "FILE")


def test_read_returns_plain_values_and_their_lines(write):
    source = yaml_source.read(
        write(
            "# a comment\n"
            "name: demo\n"
            "list:\n"
            "  - 1\n"
            "  - deep: {flow: 2.5, other: null}\n"
            "on: true\n"
            "1: 2026-11-21\n"
            "time: 2026-11-21T05:46:25Z\n"
            "text: '7'\n"
            "empty:\n"
        )
    )
    assert source.data == {
        "name": "demo", "list": [1, {"deep": {"flow": 2.5, "other": None}}], "on": True, "1": "2026-11-21",
        "time": "2026-11-21T05:46:25Z", "text": "7", "empty": None,
    }  # fmt: skip
    assert source.line("name") == 2
    assert source.line("list") == 3
    assert source.line("list", 0) == 4
    assert source.line("list", 1, "deep", "flow") == 5
    assert source.line("empty") == 10
    assert source.line("list", 1, "nothing", "there") == 5, "the nearest one above"
    assert source.line("nothing") == 2
    assert source.line() == 2


@pytest.mark.parametrize(
    ("text", "data"), [("", None), ("# only a comment\n", None), ("--- 3\n", 3), ("\ufeffa: 1", {"a": 1})]
)
def test_read_accepts_empty_and_scalar_documents(write, text, data):
    source = yaml_source.read(write(text))
    assert source.data == data
    assert source.line() >= 1
    assert not source.ended


def test_read_detects_explicit_document_end(write):
    assert yaml_source.read(write("a: 1\n...\n")).ended
    assert yaml_source.read(write("a: 1\n...")).ended
    assert not yaml_source.read(write("a: |\n  ...\n")).ended


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "a: 1\nb: 2\na: 3\n",
            "FILE:3: key 'a' is there a second time; the first is in line 1. Remove one of them.",
        ),
        (
            "x:\n  y:\n    k: 1\n    'k': 2\n  z:\n    k: 1\n",
            "FILE:4: key 'k' is there a second time; the first is in line 3. Remove one of them.",
        ),
        ("a: 1\nb: *a\n", "FILE:2: aliases ('*a') are not supported. Write the value out."),
        ("a: &a [1]\nb:\n  <<: *a\n", "FILE:3: aliases ('*a') are not supported. Write the value out."),
        ("a: &a\n  b: *a\n", "FILE:2: aliases ('*a') are not supported. Write the value out."),
        (
            "a: 1\nb: !!python/object:os.system x\n",
            "FILE:2: the tag 'tag:yaml.org,2002:python/object:os.system' is not supported.",
        ),
        ("a: !vault |\n  x\n", "FILE:1: the tag '!vault' is not supported."),
        ("a: !!binary aGVsbG8=\n", "FILE:1: the tag 'tag:yaml.org,2002:binary' is not supported."),
        ("a: !!set {x, y}\n", "FILE:1: the tag 'tag:yaml.org,2002:set' is not supported."),
        ("a: !!int foo\n", "FILE:1: 'foo' is no int."),
        ("a: !!bool foo\n", "FILE:1: 'foo' is no bool."),
        ("? [a, b]\n: 1\n", "FILE:1: a key should be text."),
        (b"a: 1\nb: \xff\n", "FILE:2: this is no UTF-8 text. Save the file as UTF-8."),
        ("[" * 51 + "]" * 51, "FILE:1: this is nested more than 50 deep."),
        ("[" * 500_000, "FILE:1: this is nested more than 50 deep."),
        ("#" * (1 << 20) + "\n", "'FILE' is larger than 1 MiB, which no file of this kind needs."),
    ],
)  # fmt: skip
def test_read_refuses_unsupported_yaml_with_line(write, text, sentence):
    assert refusal(write(text)) == sentence


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: 1\n\tb: 2\n", "FILE:2: this can't be read as YAML: "),
        ("a: [1\n", "FILE:"),
        ("a: 1\n b: 2\n", "FILE:2: this can't be read as YAML: "),
        ("a: 1\n---\nb: 2\n", "FILE:2: this can't be read as YAML: but found another document."),
        ("a: 1\nb: \x01\n", "FILE:2: this can't be read as YAML: "),
        ("a: 'x\n", "FILE:"),
        ("%\n", "FILE:1: this can't be read as YAML: "),
        ("a: [1,\n", "FILE:1: this can't be read as YAML: "),
    ],
)
def test_read_refuses_invalid_yaml_with_line(write, text, start):
    sentence = refusal(write(text))
    assert sentence.startswith(start)
    assert "this can't be read as YAML" in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_read_of_an_ini_file_names_what_makes_yaml_of_it(write):
    output = refusal(write("[gpus]\nalpha ansible_host=1\n"))
    assert "It looks like an INI file, and gpuctl reads YAML. " in output
    assert output.endswith("ansible-inventory --list --yaml -i FILE.")


def test_read_of_tab_indentation_advises_spaces(write):
    assert refusal(write("a:\n\tb: 2\n")).endswith("Indent with spaces, not with tabs.")


def test_read_reports_all_problems_up_to_a_limit(write):
    assert refusal(write("a: !x 1\na: 2\n")).splitlines() == [
        "FILE:1: the tag '!x' is not supported.",
        "FILE:2: key 'a' is there a second time; the first is in line 1. Remove one of them.",
    ]
    many = refusal(write("a: 1\n" * 100)).splitlines()
    assert len(many) == 21
    assert many[-1] == "FILE: 79 more like these."


def test_read_keeps_foreign_tags_if_allowed(write):
    source = yaml_source.read(
        write("a: !vault |\n  x\nc: !list [1]\n"),
        foreign_tags=True,
    )
    assert source.data == {"a": yaml_source.Foreign("!vault"), "c": yaml_source.Foreign("!list")}
    assert yaml_source.shown(source.data["a"]) == "a value with the tag !vault"


def test_read_reports_unreadable_files(tmp_path):
    assert refusal(tmp_path / "nothing.yaml") == "Can't read 'FILE': No such file or directory."
    assert refusal(tmp_path) == "Can't read 'FILE': Is a directory."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("a\nb", r"'a\nb'"),
        ([1, {"a": None}], '[1, {"a": null}]'),
        ("x" * 100, "'" + "x" * 56 + "..."),
    ],
)
def test_shown_formats_values_in_one_short_line(value, text):
    assert yaml_source.shown(value) == text
