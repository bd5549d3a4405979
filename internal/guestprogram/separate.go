//go:build !embedguest

package guestprogram

// embedded is empty: this binary was built without the guest's program.
var embedded []byte
