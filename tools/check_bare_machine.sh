#!/bin/sh
# Proves the README's two commands on a bare machine: a fresh Debian or Ubuntu made by debootstrap.
#
# usage: tools/check_bare_machine.sh [SUITE [MIRROR]]      default: bookworm, from where this machine has its packages
#
# As root. The last commit is cloned into the new system, which is removed at the end unless KEEP=1.
# Environment: WORK, the folder to work in (default: a new one in TMPDIR); TESTS=0 skips ./dev test.
set -eu
cd "$(dirname "$0")/.."

suite=${1:-bookworm}
mirror=${2:-$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)}
case $suite in
bookworm | trixie | sid) components=main ;;
*) components=main,universe ;; # Ubuntu
esac

work=${WORK:-$(mktemp -d)}
root=$work/$suite
if [ "${KEEP:-0}" = 0 ]; then trap 'rm -rf --one-file-system "${root:?}"' EXIT; fi

if [ ! -x "$root/bin/sh" ]; then
    debootstrap --variant=minbase --components="$components" "$suite" "$root" "$mirror"
fi
# The host's network settings: name service, its own certificates, apt's proxy or mirror.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mkdir -p "$root/usr/local/share"
if [ -d /usr/local/share/ca-certificates ]; then cp -R /usr/local/share/ca-certificates "$root/usr/local/share/"; fi
for file in /etc/apt/apt.conf.d/*; do
    if grep -qiE 'proxy|Check-Valid-Until' "$file"; then cp "$file" "$root/etc/apt/apt.conf.d/"; fi
done

rm -rf "$root/clone"
git clone --quiet --no-hardlinks . "$root/clone"

# inside COMMAND: runs it in the clone, in its own mount namespace, so that nothing stays mounted.
inside() {
    # shellcheck disable=SC2016  # expanded by the inner shell
    unshare --mount sh -c 'mount -t proc proc "$1/proc" && exec chroot "$1" env -i HOME=/root \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb ${http_proxy:+http_proxy="$http_proxy"} \
        ${https_proxy:+https_proxy="$https_proxy"} sh -c "cd /clone && $2"' sh "$root" "$1"
}
if [ "${TESTS:-1}" = 1 ]; then inside './dev test'; fi
inside './dev demo'
start=$(date +%s)
inside './dev build'
echo "check_bare_machine: $suite passed; a second ./dev build took $(($(date +%s) - start)) s"
