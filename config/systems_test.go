package config

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// What each operating system can have, and what is used there unless something is said.
func TestSystems(t *testing.T) {
	tests := []struct {
		goos     string
		has, not []string
		normal   []string // the first is the default
	}{
		{"linux", []string{"gvisor", "docker", "microvm", "vmdocker", "kubernetes", "modal", "local", "mock"}, nil, []string{"gvisor", "docker", "microvm", "vmdocker"}},
		{"darwin", []string{"docker", "microvm", "vmdocker", "kubernetes", "modal", "local", "mock"}, []string{"gvisor"}, []string{"vmdocker", "docker", "microvm"}},
		{"windows", []string{"docker", "vmdocker", "kubernetes", "modal", "local", "mock"}, []string{"gvisor", "microvm"}, []string{"vmdocker", "docker"}},
	}
	for _, tt := range tests {
		t.Run(tt.goos, func(t *testing.T) {
			for _, e := range Providers() {
				p := e.On(tt.goos)
				if want := slices.Contains(tt.has, e.Name); p.OK != want || want == slices.Contains(tt.not, e.Name) {
					t.Errorf("%s: %+v, want %v", e.Name, p, want)
				}
				if !p.OK && (!strings.HasPrefix(p.Reason, e.Name+" is only available on Linux") || !strings.Contains(p.Reason, ", current platform: "+tt.goos+": ") ||
					!strings.Contains(p.Fix, "set url") || !strings.Contains(p.Fix, "--provider docker")) {
					t.Errorf("%s: %q, do %q", e.Name, p.Reason, p.Fix)
				}
			}
			if got := DefaultProviders(tt.goos); !slices.Equal(got, tt.normal) || DefaultProvider(tt.goos) != got[0] {
				t.Errorf("by default: %q, %q first; want %q", got, DefaultProvider(tt.goos), tt.normal)
			}
		})
	}
}

// Each driver says why it does not work, or what it is.
func TestDrivers(t *testing.T) {
	cfg, err := Load(Source{Env: []string{"HOME=" + t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	home := map[string]string{"qemu": "linux", "firecracker": "linux", "vz": "darwin", "wsl2": "windows"}
	for _, d := range Drivers() {
		p := d.Probe(t.Context(), cfg)
		switch {
		case home[d.Name] == "":
			t.Errorf("%s: nobody knows where it works", d.Name)
		case p.OK && len(p.Notes) == 0, !p.OK && (p.Reason == "" || p.Fix == ""):
			t.Errorf("%s: %+v", d.Name, p)
		case home[d.Name] != runtime.GOOS && (p.OK || !strings.HasSuffix(p.Reason, "current platform: "+runtime.GOOS)):
			t.Errorf("%s: %+v on %s", d.Name, p, runtime.GOOS)
		}
		for _, name := range d.Users {
			if _, err := (&Config{}).find(name); err != nil {
				t.Errorf("%s: %v", d.Name, err)
			}
		}
		delete(home, d.Name)
	}
	if len(home) > 0 {
		t.Errorf("not listed: %v", home)
	}
}
