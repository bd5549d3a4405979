package stack

import (
	"bytes"
	"cmp"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// loadUnnamed returns a Builder as on a system if no provider is configured.
func loadUnnamed(t *testing.T, goos string) *Builder {
	t.Helper()
	b, err := loadBuilder(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Provider, b.Providers = config.DefaultProvider(goos), config.DefaultProviders(goos)
	return b
}

// The preferred provider of each system is chosen if it works, otherwise docker, otherwise none.
func TestChoose(t *testing.T) {
	const yes, no, unsure = "yes", "no", "unsure"
	for _, tt := range []struct {
		what      string
		names     []string // of CandidateProviders
		providers []string // Providers of the Config; nil means the default
		says      map[string]string
		want      string
		reason    string // prefix of the reason
		err       bool
		probed    string
	}{
		{what: "gVisor works", names: config.CandidateProviders("linux"), says: map[string]string{"gvisor": yes, "docker": yes}, want: "gvisor", probed: "gvisor"},
		{what: "gVisor does not work", names: config.CandidateProviders("linux"), says: map[string]string{"gvisor": no, "docker": yes}, want: "docker", reason: "gvisor does not work here: why", probed: "gvisor docker"},
		{what: "gVisor does not answer", names: config.CandidateProviders("linux"), says: map[string]string{"gvisor": unsure, "docker": yes}, want: "gvisor", probed: "gvisor"},
		{what: "nothing works on Linux", names: config.CandidateProviders("linux"), says: map[string]string{"gvisor": no, "docker": no}, want: "gvisor", err: true, probed: "gvisor docker"},
		{what: "an engine that does not answer", names: config.CandidateProviders("linux"), says: map[string]string{"gvisor": no, "docker": unsure}, want: "gvisor", err: true, probed: "gvisor docker"},
		{what: "docker is not configured", names: config.CandidateProviders("linux"), providers: []string{"gvisor", "microvm"}, want: "gvisor"},
		{what: "machines on macOS", names: config.CandidateProviders("darwin"), says: map[string]string{"vmdocker": yes, "docker": yes}, want: "vmdocker", probed: "vmdocker"},
		{what: "no machines on macOS", names: config.CandidateProviders("darwin"), says: map[string]string{"vmdocker": no, "docker": yes}, want: "docker", reason: "vmdocker does not work here: why", probed: "vmdocker docker"},
		{what: "nothing works on macOS", names: config.CandidateProviders("darwin"), says: map[string]string{"vmdocker": no, "docker": no}, want: "vmdocker", err: true, probed: "vmdocker docker"},
		{what: "a system with machines of another kind", names: []string{"vmdocker", "docker"}, says: map[string]string{"vmdocker": no, "docker": yes}, want: "docker", reason: "vmdocker", probed: "vmdocker docker"},
		{what: "a system with docker only", names: []string{"docker"}, want: "docker"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			b := loadUnnamed(t, "linux")
			if tt.providers != nil {
				b.Providers = tt.providers
			}
			var probed []string
			got := b.chooseAmong(tt.names, func(name string) (atoll.Probe, bool) {
				probed = append(probed, name)
				if tt.says[name] == yes {
					return atoll.Probe{OK: true}, true
				}
				return atoll.Probe{Reason: "why " + name, Fix: "do " + name}, tt.says[name] == no
			})
			if got.Provider != tt.want || !strings.HasPrefix(got.Reason, tt.reason) || (got.Reason == "") != (tt.reason == "") || (got.Err != nil) != tt.err {
				t.Errorf("%+v, want %s with the reason %q, error %v", got, tt.want, tt.reason, tt.err)
			}
			if strings.Join(probed, " ") != tt.probed {
				t.Errorf("probed %q, want %q", probed, tt.probed)
			}
			for _, name := range probed {
				if tt.err && (atoll.KindOf(got.Err) != atoll.ErrUnavailable || !strings.Contains(got.Err.Error(), name+": why "+name+"; do "+name)) {
					t.Errorf("%v has no advice for %s", got.Err, name)
				}
			}
		})
	}
}

// A configured provider is chosen without a probe.
func TestChooseWhatIsNamed(t *testing.T) {
	for _, tt := range []struct {
		from, file string
		env        []string
		flags      map[string]string
	}{
		{from: "--provider", flags: map[string]string{"provider": "microvm"}},
		{from: "ATOLL_PROVIDER", env: []string{"ATOLL_PROVIDER=microvm"}},
		{from: "config.yaml:1", file: "provider: microvm\n"},
		{}, // not loaded
	} {
		b, err := loadBuilder(t, tt.file, tt.env, tt.flags)
		if tt.from == "" {
			b, err = NewBuilder(&config.Config{Provider: "microvm", Providers: config.DefaultProviders("linux")})
		}
		if err != nil {
			t.Fatal(err)
		}
		if from := filepath.Base(b.Origin("provider")); from != cmp.Or(tt.from, ".") {
			t.Errorf("the provider comes from %q, want %q", from, tt.from)
		}
		got := b.chooseAmong(config.CandidateProviders("linux"), func(name string) (atoll.Probe, bool) {
			t.Errorf("%s was probed", name)
			return atoll.Probe{}, true
		})
		if got != (Choice{Provider: "microvm"}) {
			t.Errorf("from %q: %+v", tt.from, got)
		}
	}
}

// Providers that may have created sandboxes before remain configured.
func TestChosenKeepsTheOthers(t *testing.T) {
	b := loadUnnamed(t, "linux")
	names := b.withChoice(Choice{Provider: "docker"}).ProviderNames()
	if want := []string{"docker", "gvisor", "native", "microvm", "vmdocker"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if b.Provider != "gvisor" {
		t.Errorf("withChoice changed the original to %s", b.Provider)
	}
	b.Providers = []string{"docker"} // the preferred provider is implied
	if names := b.withChoice(Choice{Provider: "docker"}).ProviderNames(); !slices.Equal(names, []string{"docker", "gvisor"}) {
		t.Errorf("%q, want gvisor as well", names)
	}
}

// The log has one warning if another provider replaces the preferred one: for a server at once, for other programs
// with the first sandbox.
func TestChoiceIsLogged(t *testing.T) {
	down := atoll.Errorf("create", "", atoll.ErrUnavailable, "nothing works")
	for _, tt := range []struct {
		what         string
		choice       Choice
		server       bool
		first, later string // substrings of the log
	}{
		{what: "the preferred one", choice: Choice{Provider: "gvisor"}},
		{what: "the preferred one of a server", choice: Choice{Provider: "gvisor"}, server: true},
		{what: "another one", choice: Choice{Provider: "docker", Reason: "gvisor cannot"}, later: "level=WARN msg=\"sandboxes without a provider name are created by docker\" reason=\"gvisor cannot\""},
		{what: "another one of a server", choice: Choice{Provider: "docker", Reason: "gvisor cannot"}, server: true, first: "created by docker", later: "created by docker"},
		{what: "none", choice: Choice{Provider: "gvisor", Err: down}},
		{what: "none of a server", choice: Choice{Provider: "gvisor", Err: down}, server: true, first: "nothing works", later: "nothing works"},
	} {
		var log bytes.Buffer
		ask := tt.choice.reportChoice(slog.New(slog.NewTextHandler(&log, nil)), tt.server)
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
