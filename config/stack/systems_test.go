package stack

import (
	"runtime"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/config"
)

// Each driver reports why it does not work, or notes about itself.
func TestDrivers(t *testing.T) {
	b, err := loadBuilder(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	home := map[string]string{"qemu": "linux", "firecracker": "linux", "vz": "darwin", "wsl2": "windows"}
	for _, d := range Drivers() {
		p := d.Probe(t.Context(), b)
		switch {
		case home[d.Name] == "":
			t.Errorf("%s: unknown operating system", d.Name)
		case p.OK && len(p.Notes) == 0, !p.OK && (p.Reason == "" || p.Fix == ""):
			t.Errorf("%s: %+v", d.Name, p)
		case home[d.Name] != runtime.GOOS && (p.OK || !strings.HasSuffix(p.Reason, "current platform: "+runtime.GOOS)):
			t.Errorf("%s: %+v on %s", d.Name, p, runtime.GOOS)
		}
		for _, name := range d.Users {
			if _, err := (&config.Config{}).FindProvider(name); err != nil {
				t.Errorf("%s: %v", d.Name, err)
			}
		}
		delete(home, d.Name)
	}
	if len(home) > 0 {
		t.Errorf("missing drivers: %v", home)
	}
}
