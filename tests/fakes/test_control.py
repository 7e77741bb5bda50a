"""The control that fake clouds share: faults, holds, the log, settings."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes import control as control_module
from tests.fakes.control import Call, Control, Dropped, Injected
from tests.fakes.settings import Settings


@pytest.fixture
def control() -> Control:
    return Control()


def perform(control: Control, operation: str, performed: list[str], *, mutating: bool = True) -> Call:
    """Perform a request as a fake handles it."""
    call = control.begin(operation, mutating)
    try:
        control.before(call)
        performed += [operation] * (2 if call.fault and call.fault.kind == "duplicate" else 1)
        control.after(call)
    except Injected as error:
        control.end(call, error.status, error.code)
        raise
    control.end(call, 200, None)
    return call


def post(control: Control, *faults: dict) -> None:
    status, _ = control.handle("POST", "/_fake/faults", json.dumps(faults).encode())
    assert status == 200


class TestFaults:
    def test_fault_hits_only_the_nth_matching_call(self, control):
        post(control, {"operation": "Launch*", "nth": 2, "status": 429, "code": "Slow", "message": "Wait."})
        done: list[str] = []
        perform(control, "LaunchInstance", done)
        perform(control, "ListInstances", done, mutating=False)
        with pytest.raises(Injected) as caught:
            perform(control, "LaunchInstance", done)
        perform(control, "LaunchInstance", done)
        assert (caught.value.status, caught.value.code, caught.value.message) == (429, "Slow", "Wait.")
        assert done == ["LaunchInstance", "ListInstances", "LaunchInstance"]

    def test_fault_counts_calls_from_when_it_is_posted(self, control):
        perform(control, "A", [])
        post(control, {"operation": "A", "nth": 1})
        with pytest.raises(Injected):
            perform(control, "A", [])

    @pytest.mark.parametrize(("times", "hit"), [(1, [2]), (2, [2, 3]), (0, [2, 3, 4])])
    def test_fault_times_sets_how_many_calls_are_hit(self, control, times, hit):
        post(control, {"nth": 2, "times": times})
        result = []
        for n in range(1, 5):
            try:
                perform(control, "A", [])
            except Injected:
                result.append(n)
        assert result == hit

    @pytest.mark.parametrize(
        ("mutating", "hit"), [(True, ["Create"]), (False, ["Get"]), (None, ["Create", "Get"])]
    )
    def test_fault_can_select_mutating_or_reading_calls(self, control, mutating, hit):
        post(control, {"mutating": mutating, "times": 0})
        result = []
        for operation, changes in (("Create", True), ("Get", False)):
            try:
                perform(control, operation, [], mutating=changes)
            except Injected:
                result.append(operation)
        assert result == hit

    @pytest.mark.parametrize(("kind", "performed"), [("drop_before", []), ("drop_after", ["A"])])
    def test_drop_fault_loses_the_call_or_the_reply(self, control, kind, performed):
        post(control, {"kind": kind})
        done: list[str] = []
        with pytest.raises(Dropped):
            perform(control, "A", done)
        assert done == performed
        (entry,) = control.calls()["calls"]
        assert (entry["status"], entry["code"], entry["fault"]) == (None, "Dropped", kind)

    def test_duplicate_fault_performs_the_call_twice(self, control):
        post(control, {"kind": "duplicate"})
        done: list[str] = []
        assert perform(control, "A", done).status == 200
        assert done == ["A", "A"]

    def test_cleared_faults_hit_no_call(self, control):
        post(control, {"times": 0})
        assert control.handle("DELETE", "/_fake/faults", b"")[0] == 200
        perform(control, "A", [])

    @pytest.mark.parametrize("wrong", [{"knd": "error"}, {"kind": "explode"}, {"nth": 0}, {"nth": "x"}, 7])
    def test_fault_with_unknown_fields_is_refused(self, control, wrong):
        status, answer = control.handle("POST", "/_fake/faults", json.dumps([wrong]).encode())
        assert status == 400
        assert answer["error"]

    def test_fault_counts_calls_across_threads(self, control):
        post(control, {"nth": 20, "times": 5})

        def one(_: int) -> bool:
            try:
                perform(control, "A", [])
            except Injected:
                return True
            return False

        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(one, range(64))) == 5
        numbers = [entry["n"] for entry in control.calls()["calls"]]
        assert numbers == list(range(1, 65))


class TestHolds:
    @pytest.mark.parametrize(("kind", "performed"), [("hold_before", []), ("hold_after", ["A"])])
    def test_hold_fault_holds_until_released_then_drops(self, control, kind, performed):
        post(control, {"kind": kind})
        done: list[str] = []
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(perform, control, "A", done)
            _, result = control.handle("GET", "/_fake/held?wait_s=10", b"")
            assert result == {"held": {"n": 1, "operation": "A", "phase": kind.removeprefix("hold_")}}
            assert not held.done()
            assert control.handle("POST", "/_fake/release", b"") == (200, {"released": 1})
            with pytest.raises(Dropped):
                held.result(10)
        assert done == performed
        assert control.held(wait_s=0) == {"held": None}

    def test_hold_fault_does_not_block_other_calls(self, control):
        post(control, {"operation": "A", "kind": "hold_before"})
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(perform, control, "A", [])
            assert control.held(wait_s=10)["held"]
            assert perform(control, "B", []).status == 200
            control.release()
            with pytest.raises(Dropped):
                held.result(10)

    def test_hold_fault_ends_at_its_limit(self, control, monkeypatch):
        monkeypatch.setattr(control_module, "HOLD_LIMIT_S", 0.05)
        post(control, {"kind": "hold_before"})
        with pytest.raises(Dropped):
            perform(control, "A", [])
        assert control.held(wait_s=0) == {"held": None}


class TestSettings:
    def test_latency_setting_is_simulated_time(self, control):
        control.change_settings({"latency_s": 5, "speed": 100})
        begin = time.monotonic()
        control.begin("A", mutating=False)
        assert 0.05 <= time.monotonic() - begin < 5, "not the five seconds themselves"

    def test_simulated_time_never_goes_back_when_speed_changes(self, control):
        control.change_settings({"speed": 1000})
        time.sleep(0.02)
        before = control.now()
        assert before >= 20
        control.change_settings({"speed": 1})
        assert before <= control.now() < before + 10

    @pytest.mark.parametrize("wrong", [{"sped": 1}, {"speed": 0}, {"page_size": 0}, []])
    def test_invalid_setting_is_refused_and_changes_nothing(self, control, wrong):
        assert control.handle("PATCH", "/_fake/settings", json.dumps(wrong).encode())[0] == 400
        assert control.settings == Settings()

    def test_capacity_at_prefers_the_most_specific_entry(self):
        settings = Settings(capacity={"A10": {"AD-1": 1, "*": 2}, "*": {"AD-1": 3}}, quota={"A10": 4})
        result = [settings.capacity_at(*at) for at in (("A10", "AD-1"), ("A10", "AD-2"), ("X", "AD-1"))]
        assert result == [1, 2, 3]
        assert settings.capacity_at("X", "AD-2") is None
        assert (settings.quota_of("A10"), settings.quota_of("X")) == (4, None)
        assert Settings(late_failure={"*": "No."}).late_failure_at("AD-1") == "No."


class TestState:
    def test_state_counts_the_most_instances_at_once(self, control):
        for instance, cluster in (("i-1", "a"), ("i-2", "a"), ("i-3", "b")):
            control.launched(instance, cluster)
        control.terminated("i-1")
        control.launched("i-4", "a")
        control.launched("i-4", "a")
        state = control.state()
        assert state["most_instances"] == 3
        assert state["most_by_cluster"] == {"a": 2, "b": 1}

    def test_reset_clears_fake_settings_faults_and_calls(self):
        emptied = []
        control = Control(lambda: {"instances": [1], "resources": []}, lambda: emptied.append(True))
        control.change_settings({"launch_s": 9, "speed": 3})
        control.launched("i-1", "a")
        post(control, {"times": 0})
        control.begin("A", mutating=True)
        assert control.state()["instances"] == [1]
        assert control.handle("POST", "/_fake/reset", b"")[0] == 200
        assert emptied == [True]
        assert control.settings == Settings()
        assert control.calls() == {"calls": []}
        assert control.state()["most_instances"] == 0
        assert perform(control, "A", []).n == 1

    def test_unknown_route_answers_404(self, control):
        assert control.handle("GET", "/_fake/nothing", b"")[0] == 404
