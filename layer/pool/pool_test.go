package pool_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/storage/store"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(leaverDir); dir != "" {
		fmt.Fprintln(os.Stderr, runLeaver(dir, os.Getenv(leaverStep)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func openStore(dir string) store.Store { return teststore.Open(dir) }

// plainOptions returns the options of a pool with n sandboxes of the zero spec.
func plainOptions(n int) pool.Options {
	return pool.Options{Server: true, Entries: []pool.Entry{{Name: "plain", Min: n}}}
}

// newPool returns a pool around a registry around p; both have their store in dir.
func newPool(t testing.TB, p atoll.Provider, dir string, o pool.Options) *pool.Provider {
	t.Helper()
	o.HealthTimeout = cmp.Or(o.HealthTimeout, testenv.Scale(10*time.Second)) // the default is too short for a busy machine
	l, err := pool.New(registry.New(p, openStore(dir), registry.Options{Server: true}), openStore(dir), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func openMock(t testing.TB, o mock.Options) atoll.Provider {
	t.Helper()
	p, err := mock.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func openLocal(t testing.TB, dir string) atoll.Provider {
	t.Helper()
	p, err := local.New(local.Options{Dir: filepath.Join(dir, "local")})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// waitStocked waits until each pool has its Min.
func waitStocked[P atoll.Provider](t testing.TB, p P) P {
	t.Helper()
	eventually(t, func() error {
		r, err := pool.ReportOf(context.Background(), p)
		for _, one := range r.Pools {
			if one.Warm < one.Min || one.Booting > 0 {
				return fmt.Errorf("pool %+v", one)
			}
		}
		return err
	})
	return p
}

func eventually(t testing.TB, ok func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// The pool gives out running sandboxes, hides its stock, and records the owner of
// each claim. It has no part in commands and files.
func TestConformance(t *testing.T) {
	t.Run("mock", func(t *testing.T) {
		groups := []string{"create", "expiry", "remove", "registry"}
		if !testing.Short() {
			groups = append(groups, "volumes", "watch", "errors", "caps")
		}
		providertest.Run(t, func(t *testing.T) atoll.Provider {
			return waitStocked(t, newPool(t, openMock(t, mock.Options{Dir: t.TempDir()}), t.TempDir(), plainOptions(2)))
		}, providertest.Only(groups...),
			providertest.Parallel(4, "expiry")) // the tests mostly wait
	})
	if testing.Short() {
		t.Skip("-short: one provider only")
	}
	t.Run("local", func(t *testing.T) { // its sandboxes are directories and processes before a claim
		providertest.Run(t, func(t *testing.T) atoll.Provider {
			return waitStocked(t, newPool(t, openLocal(t, t.TempDir()), t.TempDir(), plainOptions(2)))
		}, providertest.Only("create"))
	})
	t.Run("mock over the wire, without a registry", func(t *testing.T) { // mock knows names and secrets itself
		providertest.Run(t, openOverWire, providertest.Only("create", "watch", "errors", "registry"))
	})
}

// openOverWire returns a client of a server with a pool around a mock.
func openOverWire(t *testing.T) atoll.Provider {
	t.Helper()
	p, err := pool.New(openMock(t, mock.Options{Dir: t.TempDir()}), openStore(t.TempDir()), plainOptions(2))
	if err != nil {
		t.Fatal(err)
	}
	waitStocked(t, p)
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
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider {
		l, err := pool.New(p, openStore(t.TempDir()), pool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return l
	})
}

// The same tests with a store that servers share.
func TestOverPostgres(t *testing.T) {
	teststore.OverPostgres(t, ".", "TestConformance|TestForwards")
}
