//go:build !embedguest

package config

// embeddedGuest is empty: this binary was built without the guest's program.
var embeddedGuest []byte
