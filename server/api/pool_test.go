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

// A client gets no reservation from a server that does not support them.
func TestReserveWithOlderServer(t *testing.T) {
	p, err := mock.New(mock.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/pools/reserve" {
			asked = true
			r.URL.Path = "/v1/not-yet-invented"
		}
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	c, err := client.New(t.Context(), client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if id, err := atoll.Reserve(t.Context(), c, &atoll.Spec{}); id != "" || err != nil || !asked {
		t.Errorf("Reserve: %q, %v (asked: %v); want none", id, err, asked)
	}
}
