package api_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// overSocket serves p on a unix socket and returns a client of it. The client and then the server
// end with the test.
func overSocket(t testing.TB, p atoll.Provider) *client.Client {
	t.Helper()
	url := "unix://" + filepath.Join(t.TempDir(), "socket")
	l, err := api.Listen(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, h, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	c, err := client.New(t.Context(), client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A stack is a client whose Close also closes the provider behind it.
type stack struct {
	*client.Client
	behind atoll.Provider
}

func (s stack) Close() error {
	err := s.Client.Close()
	if behind := s.behind.Close(); err == nil {
		err = behind
	}
	return err
}

func openLocal(t *testing.T) atoll.Provider {
	t.Helper()
	p, err := local.New(local.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// openMock returns a provider with a registry, which supports everything that the API serves.
func openMock(t *testing.T) atoll.Provider {
	t.Helper()
	dir := t.TempDir()
	p, err := mock.New(mock.Options{Dir: filepath.Join(dir, "mock")})
	if err != nil {
		t.Fatal(err)
	}
	return registry.New(p, sqlite.New(filepath.Join(dir, "atoll.db")), registry.Options{Server: true})
}

// One hop must keep all promises. A second hop, where a server is also a client, and the processes
// of provider local, which end in other ways than those of mock, must keep the promises about
// streams.
func TestConformance(t *testing.T) {
	streams := []string{"exec", "output", "time", "tty", "files", "watch", "errors", "dial"}
	for _, tt := range []struct {
		name string
		open func(*testing.T) atoll.Provider
		hops int
		opts []providertest.Option
	}{
		{"mock", openMock, 1, []providertest.Option{providertest.Count(100), providertest.Parallel(4, "expiry", "sessions"), providertest.PullableImage("docker.io/library/app:1")}},
		{"mock", openMock, 2, []providertest.Option{providertest.Only(streams...), providertest.WireOnly("files")}},
		{"local", openLocal, 1, []providertest.Option{providertest.Only("exec", "output", "time", "tty", "dial")}},
	} {
		t.Run(fmt.Sprintf("%s/%d", tt.name, tt.hops), func(t *testing.T) {
			if testing.Short() && (tt.hops > 1 || tt.name != "mock") {
				t.Skip("-short: one hop over one provider")
			}
			if testing.Short() {
				tt.opts = append(tt.opts, providertest.Only(append(streams, "create", "remove")...), providertest.WireOnly("exec", "output", "time", "tty", "files", "dial"))
			}
			providertest.Run(t, func(t *testing.T) atoll.Provider {
				p := tt.open(t)
				for range tt.hops {
					p = stack{overSocket(t, p), p}
				}
				return p
			}, tt.opts...)
		})
	}
}
