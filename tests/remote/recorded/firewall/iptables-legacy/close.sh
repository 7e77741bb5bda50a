sudo iptables-legacy-restore --wait --noflush <<'END'
*filter
-D INPUT -j gpuctl-ca978112ca
-F gpuctl-ca978112ca
-X gpuctl-ca978112ca
COMMIT
END
sudo ip6tables-legacy-restore --wait --noflush <<'END'
*filter
-D INPUT -j gpuctl-ca978112ca
-F gpuctl-ca978112ca
-X gpuctl-ca978112ca
COMMIT
END
echo '2a107214634b52290ddce3b6cafb0562e63e43cd0ccf49ed5ade4e7484bee8b6  /etc/iptables/rules.v4' | sudo sha256sum --check --quiet && sudo tee /etc/iptables/rules.v4 >/dev/null <<'END'
# CLOUD_IMG: This file was created/modified by the Cloud Image build process
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [463:49013]
:InstanceServices - [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p udp --sport 123 -j ACCEPT
-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
-A OUTPUT -d 169.254.0.0/16 -j InstanceServices
-A InstanceServices -d 169.254.0.2/32 -p tcp -m owner --uid-owner 0 -m tcp --dport 3260 -j ACCEPT
-A InstanceServices -d 169.254.0.0/16 -p tcp -m tcp -j REJECT --reject-with tcp-reset
COMMIT
END
echo '81efee9b8467ac9db8dde274bcecfdf87e798ee162f2ba0ddd36f6a7ea193b66  /etc/iptables/rules.v6' | sudo sha256sum --check --quiet && sudo tee /etc/iptables/rules.v6 >/dev/null <<'END'
*filter
:INPUT DROP [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p ipv6-icmp -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
END
