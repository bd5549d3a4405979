#!/bin/sh
# Installs atoll and its plugins from a release, after it has verified their checksum:
#
#	curl -fsSL https://github.com/seed46cd37a8/atoll/releases/latest/download/install.sh | sh
#
# Settings: ATOLL_VERSION, such as v1.2.3, instead of the latest release; ATOLL_INSTALL_DIR instead of
# /usr/local/bin, or of ~/.local/bin if you cannot write there; ATOLL_BASE_URL, a mirror of the releases.
set -eu

main() {
	base=${ATOLL_BASE_URL:-https://github.com/seed46cd37a8/atoll/releases}
	version=${ATOLL_VERSION:-}
	case $version in
	'') from=$base/latest/download ;;
	v*) from=$base/download/$version ;;
	*) from=$base/download/v$version ;;
	esac
	system=$(find_system)
	dir=$(find_dir)

	work=$(mktemp -d)
	trap 'rm -rf "$work" ${staged:+"$staged"}' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	download "$from/checksums.txt" "$work/checksums.txt"
	line=$(grep "  atoll_[^ ]*_$system\.tar\.gz\$" "$work/checksums.txt") ||
		fail "the release at $from has no archive for $system"
	archive=${line##* }
	echo "Downloading $archive" >&2
	download "$from/$archive" "$work/$archive"
	sum=$(sha256 "$work/$archive")
	[ "$sum" = "${line%% *}" ] ||
		fail "$archive has the SHA-256 $sum, not ${line%% *}: it is damaged or changed; nothing was installed. Try again"

	# Unpack beside the target, so that each program is replaced in one step.
	mkdir -p "$dir" || fail "cannot write to $dir: set ATOLL_INSTALL_DIR, or run this as root"
	staged=$(mktemp -d "$dir/.atoll-XXXXXX") || fail "cannot write to $dir: set ATOLL_INSTALL_DIR, or run this as root"
	tar -xzf "$work/$archive" -C "$staged" || fail "cannot unpack $archive to $dir: is the disk full?"
	for program in "$staged"/*/atoll*; do
		mv -f "$program" "$dir/${program##*/}"
	done
	echo "Installed $("$dir/atoll" version | head -n 1) to $dir" >&2
	case :$PATH: in
	*:"$dir":*) ;;
	*) echo "$dir is not in PATH: add it with  export PATH=\"$dir:\$PATH\"" >&2 ;;
	esac
	echo 'Try it:  atoll run -- echo hi' >&2
}

# find_system prints the system and the architecture as archives name them.
find_system() {
	case $(uname -s) in
	Linux) os=linux ;;
	Darwin) os=darwin ;;
	*) fail "there is no archive for $(uname -s) that this script could install: see https://github.com/seed46cd37a8/atoll/releases" ;;
	esac
	case $(uname -m) in
	x86_64 | amd64) echo "${os}_amd64" ;;
	aarch64 | arm64) echo "${os}_arm64" ;;
	*) fail "there is no archive for $(uname -m): build atoll from source, with go install" ;;
	esac
}

# find_dir prints the directory for the programs.
find_dir() {
	if [ -n "${ATOLL_INSTALL_DIR:-}" ]; then
		echo "$ATOLL_INSTALL_DIR"
	elif [ -d /usr/local/bin ] && [ -w /usr/local/bin ]; then
		echo /usr/local/bin
	else
		echo "${HOME:?is not set: set ATOLL_INSTALL_DIR}/.local/bin"
	fi
}

# download URL FILE
download() {
	if command -v curl >/dev/null; then
		curl -fsSL --retry 3 -o "$2" "$1"
	elif command -v wget >/dev/null; then
		wget -q -O "$2" "$1"
	else
		fail 'there is neither curl nor wget: install one of them'
	fi || fail "cannot download $1"
}

# sha256 FILE prints the checksum.
sha256() {
	if command -v sha256sum >/dev/null; then
		sha256sum "$1"
	elif command -v shasum >/dev/null; then
		shasum -a 256 "$1"
	else
		openssl dgst -r -sha256 "$1"
	fi | cut -d ' ' -f 1
}

fail() {
	echo "atoll: $1" >&2
	exit 1
}

main
