"""Amounts of money, as people write them."""


def dollars(usd: float) -> str:
    """`$1,234.50`; of less than ten cents, two figures: `$0.0042`."""
    if usd == 0 or usd >= 0.0995:
        return f"${usd:,.2f}"
    return f"${usd:.2g}" if usd >= 0.0001 else "< $0.0001"
