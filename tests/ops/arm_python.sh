#!/bin/sh
# Puts a Python for ARM, with what glassloop needs to generate, into a folder: Debian's packages, unpacked and not
# installed, and wheels. The system is not changed. For `make test-arm` on Debian or Ubuntu with qemu-user.
set -eu
here=$(realpath "$(dirname "$0")") folder=$(realpath -m "$1") python=$(realpath -s "$2")
rm -rf "$folder"
mkdir -p "$folder/state/lists/partial" "$folder/cache/archives/partial" "$folder/packages" "$folder/root"
: >"$folder/status"
cat >"$folder/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures {"arm64";};
APT::Sandbox::User "";
Dir::State "$folder/state";
Dir::State::status "$folder/status";
Dir::Cache "$folder/cache";
END
export APT_CONFIG="$folder/apt.conf"
apt-get update -qq
version=$(apt-cache depends python3-minimal | sed -n 's/.*Depends: \(python3\.[0-9]*\)-minimal.*/\1/p')
cd "$folder/packages"
apt-get download -qq "$version-minimal" "lib$version-minimal" "lib$version-stdlib" libc6 libgcc-s1 libstdc++6 \
  libexpat1 zlib1g libbz2-1.0 liblzma5 libffi8 libsqlite3-0 libuuid1 libcrypt1 libncursesw6 libtinfo6
for package in *.deb; do dpkg -x "$package" "$folder/root"; done
platforms=$(for tag in 2_17 2_24 2_27 2_28 2_31 2_34; do echo --platform "manylinux_${tag}_aarch64"; done)
# shellcheck disable=SC2086
"$python" -m pip install --disable-pip-version-check --quiet --no-deps --only-binary=:all: --target "$folder/site" \
  $platforms --python-version "${version#python}" -c "$here/../../constraints.txt" numpy tokenizers
ln -s "root/usr/bin/$version" "$folder/python"
