package config

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// unnamed is a Config as Load makes it on a system, where nobody says which provider.
func unnamed(goos string) *Config {
	return &Config{
		Provider: DefaultProvider(goos), Providers: DefaultProviders(goos),
		values: []Value{{Key: "provider", From: "default"}},
	}
}

// The preferred provider of each system is taken if it works, else docker, else none.
func TestChoose(t *testing.T) {
	const yes, no, unsure = "yes", "no", "unsure"
	for _, tt := range []struct {
		what      string
		names     []string // of candidates
		providers []string // those that c has; all when nil
		says      map[string]string
		want      string
		reason    string // begins so
		err       bool
		asked     string
	}{
		{what: "gVisor works", names: candidates("linux"), says: map[string]string{"gvisor": yes, "docker": yes}, want: "gvisor", asked: "gvisor"},
		{what: "gVisor does not", names: candidates("linux"), says: map[string]string{"gvisor": no, "docker": yes}, want: "docker", reason: "gvisor does not work here: why", asked: "gvisor docker"},
		{what: "gVisor does not say", names: candidates("linux"), says: map[string]string{"gvisor": unsure, "docker": yes}, want: "gvisor", asked: "gvisor"},
		{what: "nothing works on Linux", names: candidates("linux"), says: map[string]string{"gvisor": no, "docker": no}, want: "gvisor", err: true, asked: "gvisor docker"},
		{what: "an engine that does not say", names: candidates("linux"), says: map[string]string{"gvisor": no, "docker": unsure}, want: "gvisor", err: true, asked: "gvisor docker"},
		{what: "docker is not to be had", names: candidates("linux"), providers: []string{"gvisor", "microvm"}, want: "gvisor"},
		{what: "machines on macOS", names: candidates("darwin"), says: map[string]string{"vmdocker": yes, "docker": yes}, want: "vmdocker", asked: "vmdocker"},
		{what: "no machines on macOS", names: candidates("darwin"), says: map[string]string{"vmdocker": no, "docker": yes}, want: "docker", reason: "vmdocker does not work here: why", asked: "vmdocker docker"},
		{what: "nothing works on macOS", names: candidates("darwin"), says: map[string]string{"vmdocker": no, "docker": no}, want: "vmdocker", err: true, asked: "vmdocker docker"},
		{what: "a system with machines of another kind", names: []string{"vmdocker", "docker"}, says: map[string]string{"vmdocker": no, "docker": yes}, want: "docker", reason: "vmdocker", asked: "vmdocker docker"},
		{what: "a system with docker only", names: []string{"docker"}, want: "docker"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			c := unnamed("linux")
			if tt.providers != nil {
				c.Providers = tt.providers
			}
			var asked []string
			got := c.choose(tt.names, func(name string) (atoll.Probe, bool) {
				asked = append(asked, name)
				if tt.says[name] == yes {
					return atoll.Probe{OK: true}, true
				}
				return atoll.Probe{Reason: "why " + name, Fix: "do " + name}, tt.says[name] == no
			})
			if got.Provider != tt.want || !strings.HasPrefix(got.Reason, tt.reason) || (got.Reason == "") != (tt.reason == "") || (got.Err != nil) != tt.err {
				t.Errorf("%+v, want %s, because %q, error %v", got, tt.want, tt.reason, tt.err)
			}
			if strings.Join(asked, " ") != tt.asked {
				t.Errorf("asked %q, want %q", asked, tt.asked)
			}
			for _, name := range asked {
				if tt.err && (atoll.KindOf(got.Err) != atoll.ErrUnavailable || !strings.Contains(got.Err.Error(), name+": why "+name+"; do "+name)) {
					t.Errorf("%v does not say what to do for %s", got.Err, name)
				}
			}
		})
	}
}

// Who names a provider gets it, and nobody is asked.
func TestChooseWhatIsNamed(t *testing.T) {
	for _, from := range []string{"", "--provider", "ATOLL_PROVIDER", "config.yaml:1"} {
		c := unnamed("linux")
		c.Provider, c.values[0].From = "microvm", from
		got := c.choose(candidates("linux"), func(name string) (atoll.Probe, bool) {
			t.Errorf("%s was asked", name)
			return atoll.Probe{}, true
		})
		if got != (Choice{Provider: "microvm"}) {
			t.Errorf("from %q: %+v", from, got)
		}
	}
}

// What has made sandboxes before is still there to find them.
func TestChosenKeepsTheOthers(t *testing.T) {
	c := unnamed("linux")
	names := c.chosen(Choice{Provider: "docker"}).ProviderNames()
	if want := []string{"docker", "gvisor", "microvm", "vmdocker"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if c.Provider != "gvisor" {
		t.Errorf("who was given the configuration sees %s in it", c.Provider)
	}
	c.Providers = []string{"docker"} // the preferred one is one of them all the same
	if names := c.chosen(Choice{Provider: "docker"}).ProviderNames(); !slices.Equal(names, []string{"docker", "gvisor"}) {
		t.Errorf("%q, want gvisor as well", names)
	}
}

// It is said once that another provider stands in: by a server at once, by others with the
// first sandbox.
func TestChoiceIsTold(t *testing.T) {
	down := atoll.Errorf("create", "", atoll.ErrUnavailable, "nothing works")
	for _, tt := range []struct {
		what         string
		choice       Choice
		server       bool
		first, later string // what the log has
	}{
		{what: "the preferred one", choice: Choice{Provider: "gvisor"}},
		{what: "the preferred one of a server", choice: Choice{Provider: "gvisor"}, server: true},
		{what: "another", choice: Choice{Provider: "docker", Reason: "gvisor cannot"}, later: "level=WARN msg=\"sandboxes that name no provider are made by docker\" reason=\"gvisor cannot\""},
		{what: "another of a server", choice: Choice{Provider: "docker", Reason: "gvisor cannot"}, server: true, first: "made by docker", later: "made by docker"},
		{what: "none", choice: Choice{Provider: "gvisor", Err: down}},
		{what: "none of a server", choice: Choice{Provider: "gvisor", Err: down}, server: true, first: "nothing works", later: "nothing works"},
	} {
		var log bytes.Buffer
		ask := tt.choice.tell(slog.New(slog.NewTextHandler(&log, nil)), tt.server)
		if got := log.String(); !strings.Contains(got, tt.first) || (got == "") != (tt.first == "") {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.first)
		}
		for range 2 {
			if err := ask(); err != tt.choice.Err {
				t.Errorf("%s: %v, want %v", tt.what, err, tt.choice.Err)
			}
		}
		if got := log.String(); !strings.Contains(got, tt.later) || strings.Count(got, "\n") != min(len(tt.later), 1) {
			t.Errorf("%s: %q, want %q, once", tt.what, got, tt.later)
		}
	}
}
