package stack

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A URL that only the store can refuse is an error of the Builder.
func TestInvalidStoreURL(t *testing.T) {
	_, err := loadBuilder(t, "store: {url: \"postgres://atoll@db.example.com/atoll?sslmode=whatever\"}", nil, nil)
	if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "config.yaml:1: store.url: ") || !strings.Contains(err.Error(), "sslmode") {
		t.Errorf("got %v, want an error with the line and sslmode", err)
	}
}

// Two programs with one database share records, sessions and conversations. Nothing is written to the state
// directory.
func TestSharedDatabase(t *testing.T) {
	t.Setenv("STORE_PASSWORD", testenv.LockedPassword)
	url := "postgres://locked@/atoll?host=" + testenv.OwnPostgres(t).Socket()
	text := fmt.Sprintf("{provider: mock, providers: [mock], store: {url: %q, password: env:STORE_PASSWORD}}", url)
	b, err := loadBuilder(t, text, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if probe := ProbeStore(t.Context(), b); !probe.OK {
		t.Fatalf("ProbeStore: %+v", probe)
	}
	p, err := b.Open(Options{Server: true})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{Name: "web"})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	first, err := b.serverID(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	other, err := loadBuilder(t, text, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if other.StateDir == b.StateDir {
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
	if again, err := b.serverID(t.Context()); err != nil || again != first {
		t.Errorf("the name of the server is %q and then %q, %v", first, again, err)
	}
	_, err = other.Open(Options{})
	if atoll.KindOf(err) != atoll.ErrConflict || !strings.Contains(err.Error(), "must reach the same sandboxes") {
		t.Errorf("Open in a place with other sandboxes: %v, want ErrConflict", err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := os.Stat(b.StateDir + "/atoll.db"); !os.IsNotExist(err) {
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
		b, err := loadBuilder(t, text, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		where, err := b.placeOf(t.Context(), provider, nil)
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
