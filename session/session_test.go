package session_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/providertest"
	"github.com/seed46cd37a8/atoll/session"
	"github.com/seed46cd37a8/atoll/store"
)

// quick looks after sessions more often than anybody needs.
func quick(o session.Options) session.Options { return o.WithLook(50 * time.Millisecond) }

func openStore(dir string) store.Store { return store.NewSQLite(filepath.Join(dir, "atoll.db")) }

// around is the layer around p, with its store in dir.
func around(p atoll.Provider, dir string, o session.Options) *session.Provider {
	return session.New(p, openStore(dir), quick(o))
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
	t.Run("mock", func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) atoll.Provider {
			return around(openMock(t, mock.Options{Dir: t.TempDir()}), t.TempDir(), session.Options{})
		}, providertest.Pullable("docker.io/library/app:1"))
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

func TestForwards(t *testing.T) {
	providertest.Layer(t, func(p atoll.Provider) atoll.Provider { return around(p, t.TempDir(), session.Options{}) },
		"Provider.OpenSession", "Provider.Sessions", "Provider.CloseSession")
}
