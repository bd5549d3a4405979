//go:build embedguest

package config

import _ "embed"

// embeddedGuest is the guest's program, which make build puts here.
//
//go:embed atoll-guest
var embeddedGuest []byte
