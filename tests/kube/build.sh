#!/bin/bash
# Usage: build.sh [DIR], which then has bin/{kube-apiserver,kube-controller-manager,kube-scheduler,etcd}.
# DIR: $GPUCTL_TEST_KUBE, else a folder of the user's cache. Where they are there already, nothing is done.
# From the source package of Debian 12, which holds all that is needed: 7 minutes on two cores, 3 GB while it builds.
set -euo pipefail
D=$(realpath -m "${1:-${GPUCTL_TEST_KUBE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuctl-tests/kube}}")
if [ -x "$D/bin/kube-apiserver" ] && [ -x "$D/bin/etcd" ]; then exit 0; fi
mkdir -p "$D"/{dl,src,go,reflect2,home,bin,apt/lists/partial,apt/cache/archives/partial}
cd "$D/dl"

# Package lists of our own: this machine's are left as they are.
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > ../apt/src.sources
OWN=(-o "Dir::Etc::sourcelist=$D/apt/src.sources" -o "Dir::Etc::sourceparts=/dev/null" -o "Dir::State::lists=$D/apt/lists"
    -o "Dir::Cache=$D/apt/cache" -o APT::Sandbox::User=root)
apt-get "${OWN[@]}" -q update
apt-get "${OWN[@]}" -q source --download-only kubernetes
apt-get -o APT::Sandbox::User=root -q download \
    golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server

tar xzf kubernetes_*.orig.tar.gz -C ../src --strip-components=1
tar xJf kubernetes_*.debian.tar.xz -C ../src
for package in golang-1.19-*.deb; do dpkg -x "$package" ../go; done
dpkg -x golang-github-modern-go-reflect2-dev*.deb ../reflect2
dpkg -x etcd-server_*.deb ../reflect2

cd ../src
while read -r patch; do patch -p1 -s < "debian/patches/$patch"; done < debian/patches/series
# The reflect2 of these sources crashes with a Go of 1.18 or later.
VENDORED=vendor/github.com/modern-go/reflect2
rm -f $VENDORED/go_*.go
cp "$D"/reflect2/usr/share/gocode/src/github.com/modern-go/reflect2/*.go $VENDORED/
rm -f $VENDORED/*_test.go

mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/k8s.io/kubernetes
export GOROOT=$D/go/usr/lib/go-1.19 GOPATH=$D/src/.go GOCACHE=$D/gocache CGO_ENABLED=0 HOME=$D/home GOPROXY=off \
    GO111MODULE=off
export PATH=$GOROOT/bin:$PATH
cd .go/src/k8s.io/kubernetes
make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler"
cp -L _output/bin/kube-{apiserver,controller-manager,scheduler} "$D/reflect2/usr/bin/etcd" "$D/bin/"
strip "$D"/bin/kube-* || true
rm -rf "$D"/{dl,src,go,gocache,reflect2,home,apt}
"$D/bin/kube-apiserver" --version
