//go:build unix

package statedir

import "testing"

// It is so, too, on systems that have no hold on a process.
func TestKillByPID(t *testing.T) { testKill(t, Identity.killByPID) }
