//go:build embedguest

package guestprogram

import _ "embed"

// embedded is the guest's program, compressed with zstd. make build puts it here.
//
//go:embed atoll-guest.zst
var embedded []byte
