//go:build linux

// Command runsc is gVisor's own OCI runtime, built from the version of gVisor
// that Atoll embeds, to be measured beside it.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
