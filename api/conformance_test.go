package api_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/api"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/providertest"
)

// overSocket serves p on a unix socket and returns a client of it. Both end
// with the test, the client first.
func overSocket(t testing.TB, p atoll.Provider) *api.Client {
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
	c, err := api.NewClient(t.Context(), api.ClientOptions{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A client is a provider whose Close also closes what is behind it.
type stack struct {
	*api.Client
	behind atoll.Provider
}

func (s stack) Close() error {
	err := s.Client.Close()
	if behind := s.behind.Close(); err == nil {
		err = behind
	}
	return err
}

func openLocal(t *testing.T, dir string) atoll.Provider {
	t.Helper()
	p, err := local.New(local.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	for _, hops := range []int{1, 2} {
		t.Run(map[int]string{1: "one hop", 2: "two hops"}[hops], func(t *testing.T) {
			providertest.Run(t, func(t *testing.T) atoll.Provider {
				p := openLocal(t, t.TempDir())
				for range hops {
					p = stack{overSocket(t, p), p}
				}
				return p
			}, providertest.Count(10))
		})
	}
}
