"""Text: which tokens it becomes, and how they are cut into sequences."""

import sys

import pytest
import torch

from train.data import text
from train.data.load import load_dataset
from train.data.sentences import BYTES, generated_text
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, BadEnvironment, BadOptions, MissingData, NotWritten
from train.options import Options


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUCTL_DATA_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


def read(path=None, **options):
    job = Options(model="gpt-10m", dataset="text", data_dir=None if path is None else str(path), **options)
    return load_dataset(job, DistributedEnvironment())


def words(samples):
    return ["".join(map(chr, row)) for row in samples.inputs.tolist()]


@pytest.mark.parametrize("count", [81, 82, 88])
def test_sequences_cover_the_text_exactly_once(count):
    tokens = torch.arange(count, dtype=torch.int32)
    sequences = text.sequences(tokens, 8)
    assert sequences.inputs.shape == sequences.labels.shape == (10, 8)
    assert sequences.inputs.flatten().tolist() == list(range(80))
    assert sequences.labels.flatten().tolist() == list(range(1, 81))


def test_text_is_bytes_and_its_last_tenth_is_for_validation(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("".join(f"{number:03d}\n" for number in range(100)))
    dataset = read(book, seq_len=4)
    assert (len(dataset.training), len(dataset.validation), dataset.test) == (90, 10, None)
    assert words(dataset.training) == [f"{number:03d}\n" for number in range(90)]
    assert words(dataset.validation) == [f"{number:03d}\n" for number in range(90, 100)]
    assert dataset.validation.labels[-1, -1] == 256, "the end of the text"
    assert (dataset.classes, dataset.shape, dataset.is_text) == (257, (4,), True)
    assert len(read(book, seq_len=4, validation=0.5).validation) == 50


def test_texts_of_a_folder_follow_each_other_in_the_order_of_their_names(tmp_path):
    folder = tmp_path / "books"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "two.txt").write_text("cd")
    (folder / "a.txt").write_text("ab")
    (folder / "notes.md").write_text("not this")
    dataset = read(folder, seq_len=2)
    assert dataset.training.inputs.tolist() == [[97, 98]]
    assert dataset.training.labels.tolist() == [[98, 256]]
    assert dataset.validation.inputs.tolist() == [[256, 99]]


def test_text_becomes_tokens_once_until_it_changes(tmp_path, cache):
    book = tmp_path / "book.txt"
    book.write_text("some words " * 9)
    first = read(book, seq_len=4)
    (made,) = cache.glob("*.tokens")
    written = made.stat().st_mtime_ns
    again = read(book, seq_len=8)
    assert made.stat().st_mtime_ns == written
    assert torch.equal(first.training.inputs.flatten()[:80], again.training.inputs.flatten()[:80])
    book.write_text("other words " * 9)
    assert words(read(book, seq_len=5).training)[0] == "other"
    (left,) = cache.glob("*.tokens")
    assert left != made, "the tokens of the text that it was are removed"


@pytest.mark.parametrize(
    ("content", "ends"),
    [
        ("a line of text\n" * 40_000, b"\n"),
        ("words without a line " * 30_000, None),
        ("€" * 200_000, None),
        ("", None),
    ],
    ids=["lines", "words", "characters", "nothing"],
)
def test_large_text_is_read_in_pieces_of_whole_lines_words_or_characters(tmp_path, content, ends):
    book = tmp_path / "book.txt"
    book.write_text(content)
    pieces = list(text.Document(name="book", path=book, version=(0, 0)).pieces())
    assert "".join(piece.decode() for piece in pieces) == content
    assert all(len(piece) <= 3 * text.PIECE for piece in pieces)
    assert not content or len(pieces) > 1
    if ends:
        assert all(piece.endswith(ends) for piece in pieces)
    elif " " in content:
        assert all(piece.startswith(b" ") for piece in pieces[1:])


def test_generated_text_is_small_plain_and_always_the_same():
    generated = generated_text()
    assert generated == generated_text()
    assert BYTES <= len(generated) < BYTES * 1.1
    assert generated.isascii()
    assert "{" not in generated
    assert len(set(generated.split())) > 100
    assert len(read().training) > 50


@pytest.mark.parametrize(
    ("content", "error", "sentence"),
    [
        (None, MissingData, "is not on this machine. Put a file of text there"),
        ({}, BadData, "has no .txt files"),
        (
            "short",
            BadOptions,
            "The text has 6 tokens: too few for a sequence of 1024 to train on and another",
        ),
    ],
)
def test_text_that_cannot_be_used_is_refused(tmp_path, content, error, sentence):
    path = tmp_path / "given"
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(error, match=sentence):
        read(path)


def test_folder_that_takes_no_tokens_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUCTL_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(NotWritten, match="name another folder in GPUCTL_DATA_DIR"):
        read()


def test_tokenizer_without_its_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # Python's way to mark a module as missing
    with pytest.raises(BadEnvironment, match="-m pip install tokenizers; or leave the option out"):
        read(tokenizer="bpe.json")


@pytest.fixture
def made():
    """A small tokenizer of the tokenizers package."""
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=60, special_tokens=["?", "<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(["the loss falls and the loss rises\n"] * 9, trainer)
    return tokenizer


def test_tokenizer_of_a_file_makes_the_tokens(tmp_path, made):
    made.save(str(tmp_path / "bpe.json"))
    book = tmp_path / "book.txt"
    book.write_text("the loss falls\n" * 40)
    dataset = read(book, seq_len=4, tokenizer=str(tmp_path / "bpe.json"))
    expected = [made.encode("the loss falls\n" * 40).ids, [made.token_to_id("<|endoftext|>")]]
    tokens = [token for part in expected for token in part]
    assert dataset.training.inputs.flatten().tolist() == tokens[: dataset.training.inputs.numel()]
    assert dataset.classes == made.get_vocab_size()
    with pytest.raises(MissingData, match=r"no\.json can't be read on this machine"):
        read(book, tokenizer=str(tmp_path / "no.json"))
    with pytest.raises(BadData, match="is no file of the tokenizers package"):
        read(book, tokenizer=str(book))


@pytest.mark.parametrize("setting", ["enable_truncation", "enable_padding"])
def test_text_is_neither_cut_nor_padded_where_the_tokenizer_would(tmp_path, made, setting):
    book = tmp_path / "book.txt"
    book.write_text("the loss falls\n" * 40)
    made.save(str(tmp_path / "plain.json"))
    getattr(made, setting)(**({"max_length": 16} if setting == "enable_truncation" else {"length": 4096}))
    made.save(str(tmp_path / "other.json"))
    plain, other = (
        read(book, seq_len=4, tokenizer=str(tmp_path / f"{name}.json")) for name in ("plain", "other")
    )
    assert other.training.inputs.tolist() == plain.training.inputs.tolist()
