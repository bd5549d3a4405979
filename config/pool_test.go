package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// loadPools loads a configuration file with pools.
func loadPools(t *testing.T, text string, env ...string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(Source{File: file, Env: append([]string{"HOME=" + dir}, env...)})
}

func TestPoolsAreRead(t *testing.T) {
	cfg, err := loadPools(t, `
provider: mock
pool:
  plain:
  big:
    size: 5
    image: docker.io/library/app:1
    env: [A=1, B=2]
    memory: 4g
    allow: [example.com]
    idle_stop: never
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Pools) != 2 || cfg.Pools["plain"].Size != 3 { // the defaults suffice
		t.Errorf("the pools are %v", cfg.Pools)
	}
	s, err := cfg.Pools["big"].sandboxSpec(cfg)
	if err != nil || s.Project != "default" || s.Resources.Memory != 4<<30 || len(s.Env) != 2 || s.Network.Mode != atoll.NetworkEgress || s.IdleStop != atoll.Never {
		t.Errorf("the spec is %+v, %v", s, err)
	}
	if cfg.Pools["big"].Size != 5 || !strings.HasSuffix(cfg.Origin("pool.big.size"), "config.yaml:6") {
		t.Errorf("the size is %d from %s", cfg.Pools["big"].Size, cfg.Origin("pool.big.size"))
	}
}

func TestInvalidPools(t *testing.T) {
	for text, want := range map[string]string{
		"pool: {'a b': {size: 1}}":               "config.yaml:1: pool: invalid name \"a b\"",
		"pool: {a: {size: 0}}":                   "pool.a.size: 0: must be positive",
		"pool: {a: {sise: 1}}":                   "unknown key \"pool.a.sise\"",
		"pool: {a: {b: {c: 1}}}":                 "unknown key \"pool.a.b\"",
		"pool: 3":                                "want a table of keys",
		"pool: {a: 3}":                           "want a table of keys",
		"pool: {a: {provider: docker}}":          "the providers are mock",
		"pool: {a: {workdir: x}}":                "invalid pool: workdir \"x\"",
		"pool: {a: {network: what}}":             "invalid pool",
		"pool: {a: {network: 'what:x'}}":         "use none, on, egress, or named:NAME",
		"pool: {a: {project: 'what ever'}}":      "invalid pool: project",
		"pool: {a: {for: who}}":                  "use one of create, run, session",
		"pool: {a: {template: shell, image: x}}": "set only size besides",
	} {
		_, err := loadPools(t, "provider: mock\nproviders: [mock]\n"+text)
		if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(strings.Replace(err.Error(), ":3:", ":1:", 1), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := loadPools(t, "provider: mock", "ATOLL_POOL_A_SIZE=3"); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("Load with a pool in the environment: %v", err)
	}
}

// Pools for commands, sessions and templates have exactly the specs of those.
func TestPoolCreations(t *testing.T) {
	for text, want := range map[string]int{"": pool.DefaultMaxCreations, "pool_creations: 5\n": 5} {
		if cfg, err := loadPools(t, "provider: mock\n"+text); err != nil || cfg.PoolCreations != want {
			t.Errorf("%q: %d, %v, want %d", text, cfg.PoolCreations, err, want)
		}
	}
	if _, err := loadPools(t, "provider: mock\npool_creations: 0\n"); err == nil || !strings.Contains(err.Error(), "must be positive") {
		t.Errorf("0: %v", err)
	}
}

func TestPoolsForOthers(t *testing.T) {
	cfg, err := loadPools(t, `
provider: mock
providers: [mock, local]
session: {idle_timeout: 10m, max_lifetime: 2h}
lifetime: 1h
pool:
  agents: {template: there, size: 7}
  commands: {for: run, provider: local}
  sessions: {for: session}
  slow: {for: session, idle_stop: never}
`)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(cfg.file), "templates")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "there.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err = cfg.poolEntries()
	if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "there") {
		t.Errorf("pools without the template: %v", err)
	}
	write("spec: {image: app, env: [A=1]}\nvolume: '{account}'\nagent: {command: [x, '{prompt}']}\n")
	if _, err = cfg.poolEntries(); err == nil || !strings.Contains(err.Error(), "have volumes with names of their own") {
		t.Errorf("pools of a template with a volume: %v", err)
	}
	write("provider: other\nagent: {command: [x, '{prompt}']}\n")
	if _, err = cfg.poolEntries(); err == nil || !strings.Contains(err.Error(), `the provider "other"`) {
		t.Errorf("pools of a template of another provider: %v", err)
	}
	write("provider: local\nspec: {image: app, env: [A=1]}\nagent: {command: [x, '{prompt}']}\n")
	all, err := cfg.poolEntries()
	if err != nil || len(all) != 4 {
		t.Fatalf("the pools are %+v, %v", all, err)
	}
	if s := all[0]; s.provider != "local" || s.entry.Min != 7 || s.entry.Spec.Image != "app" || len(s.entry.Spec.Env) != 1 {
		t.Errorf("the pool of a template is %+v", s)
	}
	if s := all[1]; s.provider != "local" || s.entry.Spec.IdleStop != RunIdleTimeout || !s.entry.Spec.IdleRemove || s.entry.Spec.TTL != 0 {
		t.Errorf("the pool for commands is %+v", s)
	}
	if s := all[2].entry.Spec; s.IdleStop != atoll.Duration(10*time.Minute) || !s.IdleRemove || s.TTL != atoll.Duration(time.Hour) {
		t.Errorf("the pool for sessions is %+v", s)
	}
	if s := all[3].entry.Spec; s.IdleStop != atoll.Never || s.IdleRemove {
		t.Errorf("the pool for endless sessions is %+v", s)
	}
	p, err := Open(cfg, Options{Server: true})
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
	cfg, err := loadPools(t, "provider: mock\nproviders: [mock]\nlifetime: 1h\nidle_stop: 20m\npool: {a: {size: 2}, other: {size: 1, project: other}}")
	if err != nil {
		t.Fatal(err)
	}
	other, err := Open(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	p, err := Open(cfg, Options{Server: true})
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
