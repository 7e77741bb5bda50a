import pytest

from inventories.address import Address, read_bastion
from inventories.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "bastion"),
    [
        ("opc@203.0.113.7", Address(user="opc", host="203.0.113.7", port=None)),
        ("opc@b.example:2222", Address(user="opc", host="b.example", port=2222)),
        ("opc@[2001:db8::7]:22", Address(user="opc", host="2001:db8::7", port=22)),
        ("[::1]", Address(user=None, host="::1", port=None)),
        ("work", Address(user=None, host="work", port=None)),
    ],
)
def test_read_bastion_parses_user_host_and_port(text, bastion):
    assert read_bastion(text) == bastion
    assert str(bastion) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "@b", "a@", "a@b:", "a@b:0", "a@b:65536", "a@b:x", "a b", "a@b c", "-oProxyCommand=x", "a@-b", "a@b\n",
        "a@2001:db8::7", "a@[zz]", "a@[1.2.3.4]", "a@b,c@d", "ssh://a@b", "a@b;ls", "$(ls)", "a'@b", "a%h@b", "ä@b",
        None, 7, ["a@b"],
    ],
)  # fmt: skip
def test_read_bastion_refuses_malformed_bastions(text):
    with pytest.raises(InvalidInput, match=r"^Bastion .* can't be used: it is written as in ubuntu@"):
        read_bastion(text)
