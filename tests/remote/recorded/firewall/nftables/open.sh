sudo nft -f - <<'END'
insert rule inet filter input ip6 saddr { fd77::2/127 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
insert rule inet filter input ip saddr { 10.77.0.2/31 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
insert rule ip extra input ip saddr { 10.77.0.2/31 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
END
echo '9b8afe838bf04ec58fd1fb1a80f062e81d27162fad022e4b1a0057f7a1143ff2  /etc/nftables.conf' | sudo sha256sum --check --quiet && sudo tee /etc/nftables.conf >/dev/null <<'END'
#!/usr/sbin/nft -f
flush ruleset

table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state vmap { established : accept, related : accept, invalid : drop }
		meta l4proto { icmp, ipv6-icmp } accept
		tcp dport 22 accept comment "the way in"
	}
	chain forward {
		type filter hook forward priority filter;
	}
}
table ip extra {
	chain late {
		ip saddr 203.0.113.0/24 drop
		tcp dport != 22 reject
	}
	chain input {
		type filter hook input priority 10; policy accept;
		ct state established accept
		jump late
	}
}
insert rule inet filter input ip6 saddr { fd77::2/127 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
insert rule inet filter input ip saddr { 10.77.0.2/31 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
insert rule ip extra input ip saddr { 10.77.0.2/31 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
END
