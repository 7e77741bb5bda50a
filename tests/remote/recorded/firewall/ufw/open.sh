sudo ufw prepend allow proto tcp from 10.77.0.2/31 to any port 1024:65535 comment gpuctl-ca978112ca
sudo ufw prepend allow proto tcp from fd77::2/127 to any port 1024:65535 comment gpuctl-ca978112ca
