package config

import (
	"slices"
	"strings"
	"testing"
)

func TestProviderNames(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{Provider: "gvisor", Providers: []string{"gvisor", "docker"}}, "gvisor docker"},
		{Config{Provider: "docker", Providers: []string{"gvisor", "docker"}}, "docker gvisor"},
		{Config{Provider: "mock", Providers: []string{"gvisor", "docker"}}, "mock gvisor docker"},
		{Config{Provider: "mock"}, "mock"},
	} {
		if got := strings.Join(tt.cfg.ProviderNames(), " "); got != tt.want {
			t.Errorf("%s and %v are %q, want %q", tt.cfg.Provider, tt.cfg.Providers, got, tt.want)
		}
	}
	for goos, want := range map[string][]string{"linux": {"gvisor", "docker", "native", "microvm", "vmdocker"}, "darwin": {"vmdocker", "docker", "native", "microvm"}} {
		if got := DefaultProviders(goos); !slices.Equal(got, want) {
			t.Errorf("DefaultProviders(%s) = %v, want %v", goos, got, want)
		}
	}
}

// The most specific setting wins. Without a setting, the choice is left to the server.
func TestProviderOf(t *testing.T) {
	const team = "project_providers: [team=mock]\nproviders: [gvisor, mock, local]\n"
	for _, tt := range []struct {
		name, file string
		env        []string
		flags      map[string]string
		team, rest string
	}{
		{name: "nothing"},
		{name: "the project's", file: team, team: "mock"},
		{name: "the file's", file: team + "provider: local\n", team: "mock", rest: "local"},
		{name: "the environment's", file: team, env: []string{"ATOLL_PROVIDER=local"}, team: "local", rest: "local"},
		{name: "the flag's", file: team, env: []string{"ATOLL_PROVIDER=mock"}, flags: map[string]string{"provider": "local"}, team: "local", rest: "local"},
	} {
		cfg, err := load(t, tt.file, tt.env, tt.flags)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if team, rest := cfg.ProviderOf("team"), cfg.ProviderOf("rest"); team != tt.team || rest != tt.rest {
			t.Errorf("%s: %q and %q, want %q and %q", tt.name, team, rest, tt.team, tt.rest)
		}
	}
}

func TestInvalidProviders(t *testing.T) {
	for file, want := range map[string]string{
		"providers: [gvisor, dokcer]\n":                         `providers: "dokcer": use one of gvisor, docker`,
		"project_providers: [team]\n":                           `project_providers: "team": write it like PROJECT=PROVIDER`,
		"project_providers: [\"a team=docker\"]\n":              `"a team=docker": write it like`,
		"project_providers: [team=mock]\nproviders: [gvisor]\n": `"team=mock": the providers are gvisor: add it to providers`,
		"project_providers: [t=gvisor, t=gvisor]\n":             `"t=gvisor": the project already has a provider`,
		"project_providers: [t=docker]\nproviders: [gvisor]\n":  `"t=docker": the providers are gvisor`,
	} {
		if _, err := load(t, file, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
	}
}
