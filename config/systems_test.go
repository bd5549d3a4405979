package config

import (
	"slices"
	"strings"
	"testing"
)

// Each operating system has the expected providers and defaults.
func TestSystems(t *testing.T) {
	tests := []struct {
		goos     string
		has, not []string
		normal   []string // the defaults; the first is DefaultProvider
	}{
		{"linux", []string{"gvisor", "docker", "native", "microvm", "vmdocker", "kubernetes", "modal", "local", "mock"}, nil, []string{"gvisor", "docker", "native", "microvm", "vmdocker"}},
		{"darwin", []string{"docker", "native", "microvm", "vmdocker", "kubernetes", "modal", "local", "mock"}, []string{"gvisor"}, []string{"vmdocker", "docker", "native", "microvm"}},
		{"windows", []string{"docker", "vmdocker", "kubernetes", "modal", "local", "mock"}, []string{"gvisor", "native", "microvm"}, []string{"vmdocker", "docker"}},
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
				t.Errorf("defaults %q, first %q; want %q", got, DefaultProvider(tt.goos), tt.normal)
			}
		})
	}
}

// Nothing chooses the provider native: it is neither the default nor a substitute on any operating system.
func TestNativeIsNoDefault(t *testing.T) {
	for _, goos := range []string{"linux", "darwin", "windows"} {
		if names := CandidateProviders(goos); slices.Contains(names, "native") || DefaultProvider(goos) == "native" {
			t.Errorf("%s: the candidates are %q, the default is %s", goos, names, DefaultProvider(goos))
		}
	}
}

// On macOS, sandboxes of native belong to the user of the server, so accounts of projects cannot create them. They are not started
// ahead of requests, and have no images.
func TestNativeEntry(t *testing.T) {
	for goos, mac := range map[string]bool{"linux": false, "darwin": true, "windows": false} {
		e := nativeEntry(goos)
		if e.Named || e.Unisolated != mac || e.OneImage != mac || e.HostKernel == mac || e.Light == mac || e.Pulls == mac {
			t.Errorf("%s: %+v", goos, e)
		}
	}
}
