package session_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

func openStore(dir string) session.Store { return teststore.Open(dir) }

// newLayer returns the layer around p, with its store in dir.
func newLayer(p atoll.Provider, dir string, o session.Options) *session.Provider {
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

// The layer records sessions, and the use of sandboxes, for which it wraps
// processes, files and connections. Over local it is a server, which maintains
// sessions from its start.
func TestConformance(t *testing.T) {
	t.Run("mock over the wire", func(t *testing.T) {
		groups := []string{"exec", "output", "files", "sessions", "dial"}
		if !testing.Short() {
			groups = append(groups, "time", "volumes", "errors", "caps")
		}
		providertest.Run(t, openOverWire, providertest.Only(groups...), providertest.WireOnly(),
			providertest.Parallel(4, "sessions")) // the tests mostly wait
	})
	t.Run("local", func(t *testing.T) {
		if testing.Short() {
			t.Skip("-short: one provider only")
		}
		providertest.Run(t, func(t *testing.T) atoll.Provider {
			p, err := local.New(local.Options{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			return newLayer(p, t.TempDir(), session.Options{Server: true})
		}, providertest.Only("sessions"), providertest.Parallel(4, "sessions"))
	})
}

// openOverWire returns a client of a server with sessions around a mock.
func openOverWire(t *testing.T) atoll.Provider {
	t.Helper()
	p := newLayer(openMock(t, mock.Options{Dir: t.TempDir()}), t.TempDir(), session.Options{})
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
	c, err := client.New(t.Context(), client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return wireClient{c, sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-served, p.Close())
	})}
}

type wireClient struct {
	*client.Client
	end func() error
}

func (w wireClient) Close() error { return errors.Join(w.Client.Close(), w.end()) }

func TestForwards(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return newLayer(p, t.TempDir(), session.Options{}) },
		"Provider.OpenSession", "Provider.Sessions", "Provider.CloseSession")
}

// A spec without an idle timeout or lifetime gets those of the options, or the
// defaults.
func TestDefaults(t *testing.T) {
	for _, tt := range []struct {
		opts     session.Options
		idle     atoll.Duration
		lifetime time.Duration
	}{
		{session.Options{}, atoll.Duration(30 * time.Minute), 4 * time.Hour},
		{session.Options{IdleTimeout: atoll.Duration(time.Hour), MaxLifetime: atoll.Duration(time.Minute)}, atoll.Duration(time.Hour), time.Minute},
		{session.Options{IdleTimeout: atoll.Never, MaxLifetime: atoll.Never}, atoll.Never, 0},
	} {
		p := newLayer(openMock(t, mock.Options{}), t.TempDir(), tt.opts)
		o := mustOpen(t, p, workflowSpec("w"))
		if o.IdleTimeout != tt.idle {
			t.Errorf("with %+v the idle timeout is %s, want %s", tt.opts, o.IdleTimeout, tt.idle)
		}
		if left := time.Until(o.Expires); o.Expires.IsZero() != (tt.lifetime == 0) || tt.lifetime > 0 && (left > tt.lifetime || left < tt.lifetime-time.Minute) {
			t.Errorf("with %+v the session expires at %s, want in %s", tt.opts, o.Expires, tt.lifetime)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The same tests with a store that servers share.
func TestOverPostgres(t *testing.T) {
	teststore.OverPostgres(t, ".", "TestConformance|TestForwards")
}
