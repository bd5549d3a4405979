package session_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/api"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/providertest"
	"github.com/seed46cd37a8/atoll/session"
	"github.com/seed46cd37a8/atoll/store"
)

func openStore(dir string) store.Store { return store.NewSQLite(filepath.Join(dir, "atoll.db")) }

// around is the layer around p, with its store in dir.
func around(p atoll.Provider, dir string, o session.Options) *session.Provider {
	return session.New(p, openStore(dir), o)
}

func openMock(t *testing.T, o mock.Options) atoll.Provider {
	t.Helper()
	p, err := mock.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	t.Run("mock over the wire", func(t *testing.T) {
		providertest.Run(t, overWire, providertest.Count(10), providertest.Pullable("docker.io/library/app:1"))
	})
	t.Run("local", func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) atoll.Provider {
			p, err := local.New(local.Options{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			return around(p, t.TempDir(), session.Options{Server: true})
		})
	})
}

// overWire is a mock with sessions, seen by a client.
func overWire(t *testing.T) atoll.Provider {
	t.Helper()
	p := around(openMock(t, mock.Options{Dir: t.TempDir()}), t.TempDir(), session.Options{})
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	url := "unix://" + filepath.Join(t.TempDir(), "socket")
	l, err := api.Listen(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, h, l) }()
	c, err := api.NewClient(t.Context(), api.ClientOptions{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return wired{c, sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-served, p.Close())
	})}
}

type wired struct {
	*api.Client
	end func() error
}

func (w wired) Close() error { return errors.Join(w.Client.Close(), w.end()) }

func TestForwards(t *testing.T) {
	providertest.Layer(t, func(p atoll.Provider) atoll.Provider { return around(p, t.TempDir(), session.Options{}) },
		"Provider.OpenSession", "Provider.Sessions", "Provider.CloseSession")
}
