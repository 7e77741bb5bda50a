"""A small text of generated sentences about training, the same on every machine: to try text models with."""

import random
from collections.abc import Callable, Mapping

BYTES = 60_000
PARAGRAPH = 5
"""Sentences in a paragraph."""

GRAMMAR: Mapping[str, tuple[str, ...]] = {
    "sentence": (
        "{who} {does} {what}.",
        "{who} {does} {what} {when}.",
        "{when}, {who} {does} {what}.",
        "{what} {fate}, because {who} {does} {what}.",
        "if {what} {fate}, {who} {does} {what}.",
        "{number} {many} {share} {what} before {what} {fate}.",
    ),
    "who": ("{each} {worker}", "the {quality} {worker}", "the {worker} on {number} {many}"),
    "each": ("every", "each", "the first", "the last", "no other"),
    "worker": ("rank", "node", "process", "loader", "optimizer", "scheduler", "launcher"),
    "quality": ("slow", "fast", "idle", "busy", "patient", "new", "lost"),
    "does": ("sends", "reads", "averages", "keeps", "updates", "waits for", "checks", "writes", "gathers", "needs"),
    "what": ("the {thing}", "its own {thing}", "the {size} {thing}", "the {thing} of {what}", "{number} {things}"),
    "size": ("small", "large", "whole", "sharded", "final", "random", "compressed"),
    "thing": ("gradient", "batch", "weight", "checkpoint", "loss", "sequence", "learning rate", "embedding", "block"),
    "things": ("gradients", "batches", "weights", "checkpoints", "tokens", "layers", "samples", "epochs"),
    "many": ("machines", "cards", "cores", "sockets", "cables"),
    "share": ("share", "divide", "exchange", "add up", "compare"),
    "fate": ("grows", "shrinks", "is lost", "is ready", "fits into memory", "travels over the network", "converges"),
    "when": ("after each step", "before the next epoch", "at the end", "once in a while", "during the backward pass"),
    "number": ("two", "three", "four", "eight", "sixteen", "a hundred"),
}  # fmt: skip


def generated_text() -> str:
    """Return the text. `random.random` has the same numbers in every version of Python; other functions may not."""
    draw = random.Random(0).random  # noqa: S311 - nothing is kept secret by it
    paragraphs: list[str] = []
    size = 0
    while size < BYTES:
        sentences = (_expand("{sentence}", draw) for _ in range(PARAGRAPH))
        paragraphs.append(" ".join(sentence[0].upper() + sentence[1:] for sentence in sentences) + "\n")
        size += len(paragraphs[-1])
    return "\n".join(paragraphs)


def _expand(text: str, draw: Callable[[], float]) -> str:
    """Replace each name in braces by one of its forms, until no brace is left."""
    while (begin := text.find("{")) >= 0:
        end = text.index("}", begin)
        forms = GRAMMAR[text[begin + 1 : end]]
        text = text[:begin] + forms[int(draw() * len(forms))] + text[end + 1 :]
    return text
