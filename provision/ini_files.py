"""Configuration files of clouds' SDKs that can't be parsed."""

import configparser
import shlex


def no_ini(error: configparser.Error) -> str:
    """Return the reason, without a full stop; never a line of the file, which may be a secret."""
    if isinstance(error, configparser.MissingSectionHeaderError) and error.line.startswith(
        ("\ufeff", "\xef\xbb\xbf")
    ):
        return (
            "it begins with a byte order mark, as some editors of Windows write it. Remove that: "
            f"sed -i '1s/^\\xEF\\xBB\\xBF//' {shlex.quote(error.source)}"
        )
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} is in no section. It should begin with a name in brackets, such as [default]"
    if isinstance(error, configparser.DuplicateSectionError | configparser.DuplicateOptionError):
        return f"line {error.lineno}: {error.message.rpartition(']: ')[2]}"
    # The next lines quote the file.
    return error.message.splitlines()[0].rstrip(".")
