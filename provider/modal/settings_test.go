//go:build linux

package modal_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// Remove also ends a sandbox that was created with other settings of apps.
func TestRemoveAfterTheAppChanged(t *testing.T) {
	p := provider(t)
	for what, change := range map[string]func(*modal.Options){
		"another app":          func(o *modal.Options) { o.App = o.Prefix + "-other" },
		"one for each project": func(o *modal.Options) { o.AppPerProject = true },
	} {
		t.Run(what, func(t *testing.T) {
			sb := created(t, p, atoll.Spec{})
			opts := optionsOf(p)
			change(&opts)
			again, err := modal.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			there, err := again.Get(t.Context(), sb.ID())
			if err != nil {
				t.Fatal(err)
			}
			if err := there.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Fatal(err)
			}
			if names := lives(t, p); len(names) > 0 {
				t.Errorf("Modal still has %q", names)
			}
		})
	}
}
