sudo iptables-legacy-restore --wait --noflush <<'END'
*filter
:gpuctl-ca978112ca - [0:0]
-A gpuctl-ca978112ca -s 10.77.0.2/31 -p tcp -m tcp --dport 1024:65535 -j ACCEPT
-I INPUT 6 -j gpuctl-ca978112ca
COMMIT
END
sudo ip6tables-legacy-restore --wait --noflush <<'END'
*filter
:gpuctl-ca978112ca - [0:0]
-A gpuctl-ca978112ca -s fd77::2/127 -p tcp -m tcp --dport 1024:65535 -j ACCEPT
-A INPUT -j gpuctl-ca978112ca
COMMIT
END
sudo nft -f - <<'END'
insert rule inet filter input ip6 saddr { fd77::2/127 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
insert rule inet filter input ip saddr { 10.77.0.2/31 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
insert rule ip extra input ip saddr { 10.77.0.2/31 } tcp dport 1024-65535 accept comment "gpuctl-ca978112ca"
END
echo '186a5e1253b93061003c701d078cfa6ec617d8a7b4ee2ad08055abc416e4d3f8  /etc/iptables/rules.v4' | sudo sha256sum --check --quiet && sudo tee /etc/iptables/rules.v4 >/dev/null <<'END'
# CLOUD_IMG: This file was created/modified by the Cloud Image build process
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [463:49013]
:InstanceServices - [0:0]
:gpuctl-ca978112ca - [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p udp --sport 123 -j ACCEPT
-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT
-A gpuctl-ca978112ca -s 10.77.0.2/31 -p tcp -m tcp --dport 1024:65535 -j ACCEPT
-A INPUT -j gpuctl-ca978112ca
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
-A OUTPUT -d 169.254.0.0/16 -j InstanceServices
-A InstanceServices -d 169.254.0.2/32 -p tcp -m owner --uid-owner 0 -m tcp --dport 3260 -j ACCEPT
-A InstanceServices -d 169.254.0.0/16 -p tcp -m tcp -j REJECT --reject-with tcp-reset
COMMIT
END
echo '17039c920c4ff9c6ab9455e771d4277d396e90b745d79fe516759777ad38613b  /etc/iptables/rules.v6' | sudo sha256sum --check --quiet && sudo tee /etc/iptables/rules.v6 >/dev/null <<'END'
*filter
:INPUT DROP [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:gpuctl-ca978112ca - [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p ipv6-icmp -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A gpuctl-ca978112ca -s fd77::2/127 -p tcp -m tcp --dport 1024:65535 -j ACCEPT
-A INPUT -j gpuctl-ca978112ca
COMMIT
END
echo '34670a754b97bac6be80be53a9fdefa7c618e195ebb483fe042c95052bbee7a7  /etc/nftables.conf' | sudo sha256sum --check --quiet && sudo tee /etc/nftables.conf >/dev/null <<'END'
#!/usr/sbin/nft -f


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
