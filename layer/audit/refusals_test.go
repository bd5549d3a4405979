package audit

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// A refusingProvider has sandboxes whose network has refused what the test says.
type refusingProvider struct {
	atoll.ProviderLayer
	mu      sync.Mutex
	refused atoll.Refusals
}

type refusingSandbox struct {
	atoll.SandboxLayer
	p *refusingProvider
}

func (p *refusingProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	return &refusingSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, err
}

func (p *refusingProvider) addRefusal(r atoll.Refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.First, r.Last, r.Count = time.Now(), time.Now(), 1
	p.refused.List = append(p.refused.List, r)
}

func (s *refusingSandbox) Refusals(context.Context) (atoll.Refusals, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	all := s.p.refused
	all.List, all.Time = slices.Clone(all.List), time.Now()
	return all, nil
}

// A failed command, and a removal, record each refused request once.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	leaf, err := mock.New(mock.Options{Dir: filepath.Join(dir, "mock")})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "atoll.db")
	refusing := &refusingProvider{ProviderLayer: atoll.ProviderLayer{Provider: leaf}}
	log := NewLog(sqlite.New(path), Options{Server: "here"})
	p := New(refusing, log)
	sb, err := p.Create(t.Context(), &atoll.Spec{Project: "web"})
	if err != nil {
		t.Fatal(err)
	}
	run := func(script string) {
		t.Helper()
		proc, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", script}})
		if err == nil {
			_, err = proc.Wait(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}
	refusing.addRefusal(atoll.Refusal{Host: "a.example", Protocol: "dns", Reason: "not in --allow"})
	run("exit 0")
	run("exit 3")
	run("exit 3")
	for i := range 20 {
		refusing.addRefusal(atoll.Refusal{Address: "192.0.2.1", Port: 1 + i, Protocol: "tcp", Reason: "no"})
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	var got []string
	for _, line := range readLog(t, path) {
		if strings.Contains(line, " refused ") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{"default refused web a.example denied", "default refused web 4 others denied"}
	for i := 4; i < 20; i++ {
		want = append(want, fmt.Sprintf("default refused web 192.0.2.1:%d denied", 1+i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
