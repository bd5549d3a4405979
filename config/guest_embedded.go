//go:build embedguest

package config

import _ "embed"

// embeddedGuest is the guest's program, compressed with zstd. make build puts it here.
//
//go:embed atoll-guest.zst
var embeddedGuest []byte
