package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// loadPools loads a file with pools.
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
	if len(cfg.Pools) != 2 || cfg.Pools["plain"].Size != 3 { // nothing has to be said of one
		t.Errorf("there are %v", cfg.Pools)
	}
	s, err := cfg.Pools["big"].spec(cfg)
	if err != nil || s.Project != "default" || s.Resources.Memory != 4<<30 || len(s.Env) != 2 || s.Network.Mode != atoll.NetworkEgress || s.IdleStop != atoll.Never {
		t.Errorf("the spec is %+v, %v", s, err)
	}
	if cfg.Pools["big"].Size != 5 || !strings.HasSuffix(cfg.Origin("pool.big.size"), "config.yaml:6") {
		t.Errorf("the size is %d, of %s", cfg.Pools["big"].Size, cfg.Origin("pool.big.size"))
	}
}

func TestPoolsThatMakeNoSense(t *testing.T) {
	for text, want := range map[string]string{
		"pool: {'a b': {size: 1}}":          "config.yaml:1: pool: \"a b\" is no name",
		"pool: {a: {size: 0}}":              "pool.a.size: 0: must be positive",
		"pool: {a: {sise: 1}}":              "unknown key \"pool.a.sise\"",
		"pool: {a: {b: {c: 1}}}":            "unknown key \"pool.a.b\"",
		"pool: 3":                           "want a table of keys",
		"pool: {a: 3}":                      "want a table of keys",
		"pool: {a: {provider: docker}}":     "the providers are mock",
		"pool: {a: {workdir: x}}":           "the pool cannot be: workdir \"x\"",
		"pool: {a: {network: what}}":        "the pool cannot be",
		"pool: {a: {network: 'what:x'}}":    "use none, on, egress, or named:NAME",
		"pool: {a: {project: 'what ever'}}": "the pool cannot be: project",
	} {
		_, err := loadPools(t, "provider: mock\nproviders: [mock]\n"+text)
		if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(strings.Replace(err.Error(), ":3:", ":1:", 1), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := loadPools(t, "provider: mock", "ATOLL_POOL_A_SIZE=3"); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("a pool of the environment: %v", err)
	}
}

// A server fills its pools, with what the settings say of all sandboxes; another
// program does not, and knows what was claimed.
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
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		r, err := atoll.Pools(t.Context(), p)
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
	if r, err := atoll.Pools(t.Context(), p); err != nil || r.Total.WarmHits != 1 {
		t.Errorf("the report is %+v, %v", r, err)
	}
	if r, err := atoll.Pools(t.Context(), other); err != nil || len(r.Pools) > 0 {
		t.Errorf("another program has %+v, %v", r, err)
	}
}
