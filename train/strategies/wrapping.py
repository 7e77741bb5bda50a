"""Choose the parts of a network that are sharded separately: the auto-wrap policy.

A part's weights are gathered at once. Many small parts need less memory and more exchanges, a few large ones the
other way round. Parts that share a weight stay in the part that contains both.
"""

from collections import Counter

from torch import nn

from train.errors import BadOptions

SIZE = "size:"


def parts_to_wrap(network: nn.Module, policy: str) -> dict[str, nn.Module]:
    """Return the parts by name, each before the part that contains it, without the whole network.

    `policy`: `transformer`, its repeated blocks; `size:N`, parts with N weights outside smaller parts, from the
    inside out; or names of classes, separated by commas. Raises BadOptions if no part matches.
    """
    if policy.startswith(SIZE):
        return _by_size(network, int(policy[len(SIZE) :]))
    classes = _blocks(network) if policy == "transformer" else set(policy.split(","))
    named = {name: part for name, part in network.named_modules() if name and type(part).__name__ in classes}
    matched = {type(part).__name__ for part in named.values()}
    holders = _holders(network)
    parts = {name: part for name, part in named.items() if not _shares(part, holders)}
    if not parts or (policy != "transformer" and classes - matched):
        of_network = Counter(
            type(part).__name__
            for name, part in network.named_modules()
            if name and any(p.requires_grad for p in part.parameters())
        )
        raise BadOptions(
            f"--wrap {policy}: the network has no such part. It has {', '.join(of_network)}; or give size:100000."
        )
    return dict(reversed(parts.items()))


def repeated_blocks(network: nn.Module) -> dict[str, nn.Module]:
    """Return the network's repeated blocks by name, without the lists that contain them and without inner blocks."""
    classes = _blocks(network)
    blocks: dict[str, nn.Module] = {}
    for name, part in network.named_modules():
        inside = any(name.startswith(f"{block}.") for block in blocks)
        if name and not inside and type(part) is not nn.Sequential and type(part).__name__ in classes:
            blocks[name] = part
    return blocks


def _by_size(network: nn.Module, min_weights: int) -> dict[str, nn.Module]:
    parts: dict[str, nn.Module] = {}
    holders = _holders(network)

    def wrap(name: str, part: nn.Module) -> int:
        """Wrap the large parts within a part; returns the number of weights left."""
        inner = sum(
            wrap(f"{name}.{child_name}".lstrip("."), child) for child_name, child in part.named_children()
        )
        rest = inner + sum(p.numel() for p in part.parameters(recurse=False))
        if not name or rest < min_weights or _shares(part, holders):
            return rest
        parts[name] = part
        return 0

    wrap("", network)
    return parts


def _blocks(network: nn.Module) -> set[str]:
    """Return the classes with several instances in a list or sequence, all with child modules."""
    lists = [part for part in network.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    kinds = (
        Counter(type(child).__name__ for child in part if any(True for _ in child.children()))
        for part in lists
    )
    return {kind for counted in kinds for kind, number in counted.items() if number > 1}


def _holders(part: nn.Module) -> Counter[nn.Parameter]:
    """Return how many modules in a part (itself included) have each of its weights."""
    return Counter(p for module in part.modules() for p in module.parameters(recurse=False))


def _shares(part: nn.Module, holders: Counter[nn.Parameter]) -> bool:
    """Return whether a weight of the part is also in a module outside. `holders`: the network's."""
    return any(number < holders[p] for p, number in _holders(part).items())
