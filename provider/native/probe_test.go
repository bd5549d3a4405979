//go:build linux

package native_test

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// Where these sandboxes work the probe says so, what their wall is, and which abilities are missing.
func TestProbe(t *testing.T) {
	l := newLab(t)
	probe := atoll.ProbeProvider(l.Context(), l.Provider)
	notes := strings.Join(probe.Notes, "\n")
	if !probe.OK || probe.Reason != "" || probe.Fix != "" || !strings.Contains(notes, "kernel of this machine") {
		t.Errorf("probe: %+v", probe)
	}
	if limits := l.Info().Caps.MemoryLimit; limits == strings.Contains(notes, "limits are not enforced") {
		t.Errorf("memory limits %v, notes %q", limits, notes)
	}
	if users := l.Info().Caps.Users; users == strings.Contains(notes, "sandboxes have one user") {
		t.Errorf("users %v, notes %q", users, notes)
	}
}

// A helper that does not exist is refused before anything is made.
func TestHelperThatCannotServe(t *testing.T) {
	opts := freshOptions(t)
	opts.Helper = "/nowhere/atoll"
	l := openLab(t, opts)
	_, err := l.Create(l.Context(), &atoll.Spec{Name: "web"})
	supervisedtest.WantKind(t, "create", err, atoll.ErrUnavailable, "/nowhere/atoll")
	if probe := atoll.ProbeProvider(l.Context(), l.Provider); probe.OK || !strings.Contains(probe.Reason, "/nowhere/atoll") {
		t.Errorf("probe: %+v", probe)
	}
}
