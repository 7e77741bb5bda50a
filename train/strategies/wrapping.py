"""Which parts of a network are sharded by themselves: the auto-wrap policy.

A part's weights are gathered at once. Many small parts need less memory and more exchanges, a few large ones the
other way round. A part that shares a weight with another is left to what both are in.
"""

from collections import Counter

from torch import nn

from train.errors import BadOptions

SIZE = "size:"


def parts_to_wrap(network: nn.Module, policy: str) -> dict[str, nn.Module]:
    """Return the parts by their names, each before what it is in. The whole network is not among them.

    `policy`: `transformer`, its repeated blocks; `size:N`, parts of N weights that are not wrapped yet, from the
    inside out; or names of classes, separated by commas. Raises BadOptions where no part is meant.
    """
    if policy.startswith(SIZE):
        return _by_size(network, int(policy[len(SIZE) :]))
    classes = _blocks(network) if policy == "transformer" else set(policy.split(","))
    named = {name: part for name, part in network.named_modules() if name and type(part).__name__ in classes}
    found = {type(part).__name__ for part in named.values()}
    holders = _holders(network)
    parts = {name: part for name, part in named.items() if not _shares(part, holders)}
    if not parts or (policy != "transformer" and classes - found):
        of_network = Counter(
            type(part).__name__ for name, part in network.named_modules() if name and _trained(part)
        )
        raise BadOptions(
            f"--wrap {policy}: the network has no such part. It has {', '.join(of_network)}; or give size:100000."
        )
    return dict(reversed(parts.items()))


def repeated_blocks(network: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks that a network repeats by their names: not what they are listed in, nor what is in them."""
    classes = _blocks(network)
    found: dict[str, nn.Module] = {}
    for name, part in network.named_modules():
        inside = any(name.startswith(f"{block}.") for block in found)
        if name and not inside and type(part) is not nn.Sequential and type(part).__name__ in classes:
            found[name] = part
    return found


def _by_size(network: nn.Module, least: int) -> dict[str, nn.Module]:
    parts: dict[str, nn.Module] = {}
    holders = _holders(network)

    def left(name: str, part: nn.Module) -> int:
        """Wrap what is large enough within a part; returns its weights that are not wrapped then."""
        inner = sum(left(f"{name}.{one}".lstrip("."), child) for one, child in part.named_children())
        rest = inner + sum(p.numel() for p in part.parameters(recurse=False))
        if not name or rest < least or _shares(part, holders):
            return rest
        parts[name] = part
        return 0

    left("", network)
    return parts


def _blocks(network: nn.Module) -> set[str]:
    """Return the classes of which a list or sequence in the network has several, each of parts with weights."""
    lists = [part for part in network.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    kinds = (
        Counter(type(one).__name__ for one in part if any(True for _ in one.children())) for part in lists
    )
    return {kind for counted in kinds for kind, number in counted.items() if number > 1}


def _holders(part: nn.Module) -> Counter[nn.Parameter]:
    """Return how many modules in a part, itself among them, have each of its weights."""
    return Counter(p for one in part.modules() for p in one.parameters(recurse=False))


def _shares(part: nn.Module, holders: Counter[nn.Parameter]) -> bool:
    """Return whether a weight of the part is also one of a module outside, where `holders` are the network's."""
    return any(number < holders[p] for p, number in _holders(part).items())


def _trained(part: nn.Module) -> bool:
    return any(p.requires_grad for p in part.parameters())
