package api_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// dialMock returns a client of a server with the provider mock, and the server's address. edit may change requests before
// the server sees them.
func dialMock(t *testing.T, edit func(r *http.Request)) (*client.Client, string) {
	t.Helper()
	p, err := mock.New(mock.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		edit(r)
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	c, err := client.New(t.Context(), client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, server.URL
}

// A client gets no reservation from a server that does not support them.
func TestReserveWithOlderServer(t *testing.T) {
	asked := false
	c, _ := dialMock(t, func(r *http.Request) {
		if r.URL.Path == "/v1/pools/reserve" {
			asked = true
			r.URL.Path = "/v1/not-yet-invented"
		}
	})
	if id, err := atoll.Reserve(t.Context(), c, &atoll.Spec{}); id != "" || err != nil || !asked {
		t.Errorf("Reserve: %q, %v (asked: %v); want none", id, err, asked)
	}
}
