"""The note on sources: each section that states a vendor's behaviour has a row, and each row a source."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
NOTE = DOCS / "decisions" / "0061-sources-of-statements.md"
PAGES = ("clouds.md", "plans.md", "security.md", "kubernetes.md")
SPEAK_OF_GPUCTL = {
    ("clouds.md", "Many clusters, and cleaning up"),
    ("clouds.md", "What has been shown"),
    ("security.md", "What gpuctl trusts"),
}
"""Sections without statements about a vendor."""

SOURCE = re.compile(r"(?:copy: |SDK: )?https://\S+")
READ = re.compile(r"20\d\d-\d\d|in code")


def sections_of(text: str) -> dict[str, str]:
    """Return the sections of a page, `##`, by title. Lines of code blocks are no titles."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows_of(title: str) -> list[list[str]]:
    """Return the rows of the note's table under a title: section or file, statement, source, month of reading."""
    table = [line for line in sections_of(NOTE.read_text())[title].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


@pytest.mark.parametrize("page", PAGES)
def test_each_section_on_a_vendor_has_a_source(page: str) -> None:
    titles = set(sections_of((DOCS / page).read_text()))
    listed = {section for section, *_ in rows_of(f"docs/{page}")}
    exempt = {title for name, title in SPEAK_OF_GPUCTL if name == page}

    assert listed | exempt == titles
    assert not listed & exempt


@pytest.mark.parametrize("title", [*(f"docs/{page}" for page in PAGES), "Messages"])
def test_each_row_has_a_source_and_the_month_of_reading(title: str) -> None:
    for place, statement, source, read in rows_of(title):
        assert source == "not found" or SOURCE.fullmatch(source), (place, statement)
        assert READ.fullmatch(read), (place, statement)


def test_messages_with_a_source_stand_in_files_that_exist() -> None:
    for file, *_ in rows_of("Messages"):
        assert (DOCS.parent / file).is_file(), file
