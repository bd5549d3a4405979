//go:build unix

package statedir

import "testing"

// The same holds on systems without handles of processes.
func TestKillByPID(t *testing.T) { testKill(t, Identity.killByPID) }
