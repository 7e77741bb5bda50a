"""The lanes: every deep test has a place, and a few landings run all of them."""

import lanes


def test_lanes_about_lists_every_file_with_slow_tests() -> None:
    marked = {
        str(path.relative_to(lanes.TESTS))
        for path in lanes.TESTS.rglob("test_*.py")
        if "pytest.mark.slow" in path.read_text() and path.name != "test_lanes.py"
    }
    assert marked == set(lanes.ABOUT)


def test_lanes_about_names_only_existing_paths() -> None:
    root = lanes.TESTS.parent
    tracked = [
        str(path.relative_to(root))
        for folder in ("gpuctl", "provision", "remote", "inventories", "train", "tests", "bench", "docs")
        for path in (root / folder).rglob("*")
    ]
    missing = {
        prefix
        for about in lanes.ABOUT.values()
        for prefix in about
        if not any(path.startswith(prefix) for path in tracked)
    }
    assert not missing


def test_deep_order_puts_tests_of_touched_files_first() -> None:
    order = lanes.deep_order(["remote/firewall/ufw.py", "README.md"], 12)
    about = [
        file for file in order if any("remote/firewall/ufw.py".startswith(at) for at in lanes.ABOUT[file])
    ]
    assert about
    assert order[: len(about)] == about
    assert sorted(order) == sorted(lanes.ABOUT)


def test_deep_order_puts_changed_test_file_first() -> None:
    assert lanes.deep_order(["tests/train/test_recipes.py"], 3)[0] == "train/test_recipes.py"


def test_deep_order_rotates_with_number_of_commits() -> None:
    firsts = {lanes.deep_order([], commits)[0] for commits in range(len(lanes.ABOUT))}
    assert firsts == set(lanes.ABOUT)


def test_deep_order_without_history_is_sorted() -> None:
    assert lanes.deep_order([], 0) == sorted(lanes.ABOUT)
