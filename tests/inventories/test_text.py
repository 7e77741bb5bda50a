from inventories.text import did_you_mean, nearest


def test_nearest_is_best_first_and_ignores_case():
    shapes = ["VM.GPU.A10.1", "VM.GPU.A10.2", "BM.GPU.A10.4", "g5.12xlarge"]
    assert nearest("vm.gpu.a10.2", shapes)[0] == "VM.GPU.A10.2"
    assert set(nearest("VM.GPU.A10", shapes)) == {"VM.GPU.A10.1", "VM.GPU.A10.2", "BM.GPU.A10.4"}
    assert nearest("VM.GPU.A10", shapes, limit=1) == ["VM.GPU.A10.1"]
    assert nearest("zzz", shapes) == []


def test_did_you_mean_ends_a_clause():
    assert did_you_mean("shap", ["shape", "count"]) == "; did you mean 'shape'?"
    assert did_you_mean("colour", ["shape", "count"]) == ""
