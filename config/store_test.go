package config

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestStoreSettings(t *testing.T) {
	for _, tt := range []struct{ text, says string }{
		{"", ""},
		{"url: postgres://atoll@db.example.com/atoll", ""},
		{"url: postgres://atoll@db.example.com/atoll, password: env:A", ""},
		{"url: \"postgres://atoll@/atoll?host=/run/postgresql&search_path=staging\"", ""},
		{"url: postgres://atoll:hunter2@db.example.com/atoll", "config.yaml:1: store.url: contains a password: use store.password instead"},
		{"url: \"postgres://atoll@db.example.com/atoll?password=hunter2\"", "store.url: contains a password"},
		{"url: mysql://atoll@db.example.com/atoll", "config.yaml:1: store.url: not a URL of the form postgres://"},
		{"url: postgres://atoll@db.example.com:x/atoll", "config.yaml:1: store.url: "},
		{"password: env:A", "config.yaml:1: store.password: requires store.url"},
		{"url: postgres://atoll@db.example.com/atoll, password: hunter2", "store.password: write a reference"},
	} {
		_, err := load(t, "store: {"+tt.text+"}", nil, nil)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("{%s}: %v, want an error with %q", tt.text, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("{%s}: the error has the password: %v", tt.text, err)
		}
	}
}

// Two programs with one database share records, sessions and conversations. Nothing is written to the state
// directory.
func TestSharedDatabase(t *testing.T) {
	t.Setenv("STORE_PASSWORD", testenv.LockedPassword)
	url := "postgres://locked@/atoll?host=" + testenv.OwnPostgres(t).Socket()
	text := fmt.Sprintf("{provider: mock, providers: [mock], store: {url: %q, password: env:STORE_PASSWORD}}", url)
	cfg, err := load(t, text, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range cfg.Values() {
		if v.Key == "store.password" && v.Value != "env:STORE_PASSWORD" {
			t.Errorf("the password is shown as %q", v.Value)
		}
	}
	if probe := ProbeStore(t.Context(), cfg); !probe.OK {
		t.Fatalf("ProbeStore: %+v", probe)
	}
	p, err := Open(cfg, Options{Server: true})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{Name: "web"})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	first, err := cfg.serverID(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	other, err := load(t, text, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if other.StateDir == cfg.StateDir {
		t.Fatal("both programs have the same state directory")
	}
	s := openStore(other)
	defer s.Close()
	r, err := s.Find(t.Context(), sb.ID())
	if err != nil || r.Provider != "mock" || r.Spec.Name != "web" {
		t.Errorf("Find in another program: %+v, %v", r, err)
	}
	if ok, err := s.IsAlive(t.Context(), r.Holder); r.Holder != "" && !ok || err != nil {
		t.Errorf("Alive of the holder: %v, %v", ok, err)
	}
	if second, err := other.serverID(t.Context()); err != nil || second == first {
		t.Errorf("two servers have the name %q, %v", second, err)
	}
	if again, err := cfg.serverID(t.Context()); err != nil || again != first {
		t.Errorf("the name of the server is %q and then %q, %v", first, again, err)
	}
	_, err = Open(other, Options{})
	if atoll.KindOf(err) != atoll.ErrConflict || !strings.Contains(err.Error(), "must reach the same sandboxes") {
		t.Errorf("Open in a place with other sandboxes: %v, want ErrConflict", err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := os.Stat(cfg.StateDir + "/atoll.db"); !os.IsNotExist(err) {
		t.Errorf("the state directory has a store: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// Programs that reach the same sandboxes of a provider get the same place.
func TestPlaces(t *testing.T) {
	place := func(text, provider string) string {
		t.Helper()
		cfg, err := load(t, text, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		where, err := cfg.placeOf(t.Context(), provider, nil)
		if err != nil || where == "" {
			t.Fatalf("placeOf %s: %q, %v", provider, where, err)
		}
		return where
	}
	const remote = "docker: {host: \"tcp://engine.example.com:2376\"}"
	if a, b := place(remote, "docker"), place(remote, "docker"); a != b {
		t.Errorf("places of one engine: %q and %q", a, b)
	}
	for provider, text := range map[string]string{"docker": "docker: {host: \"unix:///var/run/docker.sock\"}", "gvisor": remote, "local": "{}"} {
		if a, b := place(text, provider), place(text, provider); a == b {
			t.Errorf("%s on two machines has one place: %q", provider, a)
		}
	}
}
