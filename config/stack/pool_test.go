package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// Pools for commands, sessions and templates have exactly the specs of those.
func TestPoolsForOthers(t *testing.T) {
	b, err := loadBuilder(t, `
provider: mock
providers: [mock, local]
session: {idle_timeout: 10m, max_lifetime: 2h}
lifetime: 1h
pool:
  agents: {template: there, size: 7}
  commands: {for: run, provider: local}
  sessions: {for: session}
  slow: {for: session, idle_stop: never}
`, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(b.File()), "templates")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "there.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err = b.poolEntries()
	if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "there") {
		t.Errorf("pools without the template: %v", err)
	}
	write("spec: {image: app, env: [A=1]}\nvolume: '{account}'\nagent: {command: [x, '{prompt}']}\n")
	if _, err = b.poolEntries(); err == nil || !strings.Contains(err.Error(), "have volumes with names of their own") {
		t.Errorf("pools of a template with a volume: %v", err)
	}
	write("provider: other\nagent: {command: [x, '{prompt}']}\n")
	if _, err = b.poolEntries(); err == nil || !strings.Contains(err.Error(), `the provider "other"`) {
		t.Errorf("pools of a template of another provider: %v", err)
	}
	write("provider: local\nspec: {image: app, env: [A=1]}\nagent: {command: [x, '{prompt}']}\n")
	all, err := b.poolEntries()
	if err != nil || len(all) != 4 {
		t.Fatalf("the pools are %+v, %v", all, err)
	}
	if s := all[0]; s.provider != "local" || s.entry.Min != 7 || s.entry.Spec.Image != "app" || len(s.entry.Spec.Env) != 1 {
		t.Errorf("the pool of a template is %+v", s)
	}
	if s := all[1]; s.provider != "local" || s.entry.Spec.IdleStop != config.RunIdleTimeout || !s.entry.Spec.IdleRemove || s.entry.Spec.TTL != 0 {
		t.Errorf("the pool for commands is %+v", s)
	}
	if s := all[2].entry.Spec; s.IdleStop != atoll.Duration(10*time.Minute) || !s.IdleRemove || s.TTL != atoll.Duration(time.Hour) {
		t.Errorf("the pool for sessions is %+v", s)
	}
	if s := all[3].entry.Spec; s.IdleStop != atoll.Never || s.IdleRemove {
		t.Errorf("the pool for endless sessions is %+v", s)
	}
	p, err := b.Open(Options{Server: true})
	if err == nil {
		p.Close()
	}
	if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "pool sessions: the provider mock does not detect idle sandboxes") {
		t.Errorf("Open: %v", err)
	}
}

// A server fills its pools, and applies the settings of all sandboxes. Another program fills none, but knows claimed
// sandboxes.
func TestPoolsAreFilled(t *testing.T) {
	b, err := loadBuilder(t, "provider: mock\nproviders: [mock]\nlifetime: 1h\nidle_stop: 20m\npool: {a: {size: 2}, other: {size: 1, project: other}}", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	p, err := b.Open(Options{Server: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); ; time.Sleep(time.Millisecond) {
		r, err := pool.ReportOf(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Pools) == 2 && r.Pools[0].Warm == 2 && r.Pools[1].Warm == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the pools are %+v", r)
		}
	}
	sb, err := p.Create(t.Context(), &atoll.Spec{Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	st, err := sb.Status(t.Context())
	if left := time.Until(st.Expires); err != nil || st.Spec.Name != "web" || left < 59*time.Minute || left > time.Hour || st.Spec.TTL != atoll.Duration(time.Hour) {
		t.Errorf("the status is %+v, %v", st, err)
	}
	if r, err := pool.ReportOf(t.Context(), p); err != nil || r.Total.WarmHits != 1 {
		t.Errorf("the report is %+v, %v", r, err)
	}
	if r, err := pool.ReportOf(t.Context(), other); err != nil || len(r.Pools) > 0 {
		t.Errorf("another program has %+v, %v", r, err)
	}
}

// A server has sandboxes of the default kind ready, with gVisor or native and unless warm is false.
func TestStockProvider(t *testing.T) {
	for text, want := range map[string]string{
		"provider: gvisor":                   "gvisor",
		"{provider: gvisor, warm: false}":    "",
		"{provider: native}":                 "native",
		"{provider: native, warm: false}":    "",
		"{provider: docker}":                 "",
		"{provider: mock}":                   "",
		"{provider: gvisor, project: other}": "gvisor",
		"{provider: mock, providers: [gvisor], project_providers: [default=gvisor]}": "gvisor",
	} {
		b, err := loadBuilder(t, text, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.stockProvider(); got != want {
			t.Errorf("%s: the provider with a stock is %q, want %q", text, got, want)
		}
		for _, name := range []string{"gvisor", "native"} {
			if n := b.stockOf(name, Options{Server: true}); (n > 0) != (name == want) || b.stockOf(name, Options{}) != 0 {
				t.Errorf("%s: %s has a stock of %d", text, name, n)
			}
		}
	}
	if n := stockSize(); n < 1 || n > mostWarm {
		t.Errorf("at most %d sandboxes", n)
	}
	if most, free := machineMemory(), availableMemory(); free > most {
		t.Errorf("%d bytes of %d are available", free, most)
	}
}
