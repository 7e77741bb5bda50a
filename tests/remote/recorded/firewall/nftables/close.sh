sudo nft -f - <<'END'
delete rule inet filter input handle 9
delete rule inet filter input handle 8
delete rule ip extra input handle 7
END
echo '19b4d4954239fe9ad189c84bfeb9167860028fe8605dc1795a34c2f0be8de90c  /etc/nftables.conf' | sudo sha256sum --check --quiet && sudo tee /etc/nftables.conf >/dev/null <<'END'
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
END
