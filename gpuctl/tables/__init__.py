"""Tables for people. They import rich: import them where you print."""
