package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
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
	s, err := cfg.Pools["big"].SandboxSpec(cfg)
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
