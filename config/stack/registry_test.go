package stack

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// A stack that creates no sandbox, or only one that ends with its command, opens no store.
func TestStoreIsOpenedWhenNeeded(t *testing.T) {
	b := buildConfig(t, &config.Config{StateDir: t.TempDir(), Provider: "mock"})
	p, err := b.Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{Cmd: []string{"cat"}, OpenStdin: true, AutoRemove: true})
	if err == nil {
		_, err = p.List(t.Context(), atoll.Filter{})
	}
	if err == nil {
		sb, err = p.Get(t.Context(), sb.ID())
	}
	if err == nil {
		err = atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"true"}})
	}
	if err == nil {
		err = sb.Remove(t.Context(), atoll.RemoveVolumes())
	}
	if err != nil {
		t.Fatal(err)
	}
	if made, _ := filepath.Glob(filepath.Join(b.StateDir, "atoll.db*")); len(made) > 0 {
		t.Errorf("store files exist: %q", made)
	}
	if probe := ProbeStore(t.Context(), b); !probe.OK {
		t.Errorf("ProbeStore: %+v", probe)
	}
	if sb, err = p.Create(t.Context(), &atoll.Spec{}); err == nil {
		err = sb.Remove(t.Context(), atoll.RemoveVolumes())
	}
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(b.StateDir, "atoll.db")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the store: %v, %v", info, err)
	}
	if probe := ProbeStore(t.Context(), b); !probe.OK {
		t.Errorf("ProbeStore: %+v", probe)
	}
}

// If two programs without a server create a sandbox of one name at once, with different providers, one succeeds. The
// error of the other names the provider.
func TestNameAtTwoProviders(t *testing.T) {
	b := buildConfig(t, &config.Config{StateDir: t.TempDir(), Provider: "mock", Providers: []string{"mock", "local"}})
	for range 20 {
		var all sync.WaitGroup
		made := make([]atoll.Sandbox, 2)
		begin := make(chan struct{})
		for i, name := range b.Providers {
			p, err := b.Open(Options{Server: true})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			all.Go(func() {
				<-begin
				made[i], err = p.Create(t.Context(), &atoll.Spec{Name: "web", Provider: name})
				if err != nil && (atoll.KindOf(err) != atoll.ErrAlreadyExists || !strings.Contains(err.Error(), "provider")) {
					t.Errorf("Create: %v, want ErrAlreadyExists that names the provider", err)
				}
			})
		}
		close(begin)
		all.Wait()
		if (made[0] == nil) == (made[1] == nil) {
			t.Fatalf("want one sandbox with the name, got %v", made)
		}
		for _, sb := range made {
			if sb == nil {
				continue
			}
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The name of an expired sandbox is free for all providers, even before reconciliation.
func TestNameOfTheExpired(t *testing.T) {
	b := buildConfig(t, &config.Config{StateDir: t.TempDir(), Provider: "mock", Providers: []string{"mock", "local"}})
	p, err := b.Open(Options{Server: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Create(t.Context(), &atoll.Spec{Name: "web", TTL: atoll.Duration(time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	for ev, err := range p.Watch(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.List(t.Context(), atoll.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 && (ev.Type == atoll.EventSynced || ev.Status.State == atoll.StateRemoved) {
			break
		}
	}
	sb, err := p.Create(t.Context(), &atoll.Spec{Name: "web", Provider: "local"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
}

// The store says which provider created a sandbox if that cannot be asked itself.
func TestMakerOf(t *testing.T) {
	b := buildConfig(t, &config.Config{StateDir: t.TempDir(), Provider: "mock", Providers: []string{"mock", "local"}})
	maker := makerOf(b)
	if name, err := maker(t.Context(), atoll.NewID()); name != "" || err != nil {
		t.Errorf("makerOf without a store: %q, %v", name, err)
	}
	if openStore(b).Exists() {
		t.Error("makerOf created the store")
	}
	p, err := b.Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, want := range []string{"mock", "local"} {
		sb, err := p.Create(t.Context(), &atoll.Spec{Provider: want})
		if err != nil {
			t.Fatal(err)
		}
		if name, err := maker(t.Context(), sb.ID()); name != want || err != nil {
			t.Errorf("makerOf a sandbox of %s: %q, %v", want, name, err)
		}
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Fatal(err)
		}
		if name, err := maker(t.Context(), sb.ID()); name != "" || err != nil {
			t.Errorf("makerOf a removed sandbox: %q, %v", name, err)
		}
	}
}
