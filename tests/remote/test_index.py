"""Package indexes of a person's own environment: which are carried to the nodes, and what installers there get."""

import pytest

from remote.node.environments.uv_tool import not_for_pip, set_indexes
from remote.python_env.index import carried
from remote.python_env.project_files import BadRequirements


def test_index_variables_are_carried_and_nothing_else() -> None:
    inputs = {
        "UV_DEFAULT_INDEX": "corp=https://me:secret@index.corp/simple",
        "UV_INDEX_CORP_PASSWORD": "secret",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "PIP_TRUSTED_HOST": "index.corp",
    }
    rest = {
        "UV_CACHE_DIR": "/c",
        "PIP_CERT": "/c.pem",
        "UV_PUBLISH_TOKEN": "x",
        "HOME": "/h",
        "PIP_INDEX_URL": "",
    }
    assert carried({**inputs, **rest}, same_machine=False) == inputs


@pytest.mark.parametrize(
    ("name", "value", "elsewhere"),
    [
        ("PIP_FIND_LINKS", "/opt/wheels https://w.corp/x", "https://w.corp/x"),
        ("UV_FIND_LINKS", "../wheels,https://w.corp/x,https://w.corp/y", "https://w.corp/x,https://w.corp/y"),
        ("UV_INDEX", "a=http://127.0.0.1:3141/root b=https://i.corp/", "b=https://i.corp/"),
        ("PIP_EXTRA_INDEX_URL", "file:///opt/simple http://localhost:80/", None),
        ("PIP_INDEX_URL", "http://[::1]:3141/simple", None),
        ("PIP_NO_INDEX", "1", None),
    ],
)
def test_places_of_this_computer_are_carried_to_hosts_on_it_alone(
    name: str, value: str, elsewhere: str | None
) -> None:
    assert carried({name: value}, same_machine=True) == {name: value}
    assert carried({name: value}, same_machine=False).get(name) == elsewhere


def test_set_indexes_replaces_the_nodes_own_and_tells_uv_and_pip_alike() -> None:
    node = {"PIP_INDEX_URL": "https://node/", "UV_EXTRA_INDEX_URL": "https://kept/", "PATH": "/bin"}
    set_indexes(
        {"UV_DEFAULT_INDEX": "corp=https://a/", "PIP_FIND_LINKS": "https://x /no/such https://y"}, node
    )
    assert node == {
        "PATH": "/bin",
        "UV_DEFAULT_INDEX": "corp=https://a/",
        "PIP_INDEX_URL": "https://a/",
        "UV_EXTRA_INDEX_URL": "https://kept/",
        "PIP_FIND_LINKS": "https://x /no/such https://y",
        "UV_FIND_LINKS": "https://x,https://y",
    }


@pytest.mark.parametrize("name", ["UV_INDEX", "UV_EXTRA_INDEX_URL"])
def test_pip_is_not_given_indexes_of_which_uv_takes_the_first(name: str) -> None:
    node: dict[str, str] = {}
    set_indexes({name: "corp=https://a/"}, node)
    assert node == {name: "corp=https://a/"}
    assert not_for_pip(node) == [name]
    assert not_for_pip({**node, "PIP_EXTRA_INDEX_URL": "https://b/"}) == []


def test_address_that_cannot_be_read_is_refused_without_telling_it() -> None:
    with pytest.raises(BadRequirements) as report:
        carried({"UV_INDEX": "https://a/ https://[u:secret@x"}, same_machine=False)
    assert str(report.value).startswith("UV_INDEX has an address that can't be read. ")
    assert "secret" not in str(report.value)
    assert report.value.__suppress_context__
