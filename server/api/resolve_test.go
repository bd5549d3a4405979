package api_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// Find returns a sandbox with its status, in one request. An older server returns the id only.
func TestFind(t *testing.T) {
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
	var requests []string
	old := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.URL.Path)
		if old {
			r.Header.Set("Prefer", "return=minimal")
		}
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	c, err := client.New(t.Context(), client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	made, err := c.Create(t.Context(), &atoll.Spec{Name: "web", Project: "p", Image: "dir:/", Labels: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, minimal := range []bool{false, true} {
		requests, old = nil, minimal
		sb, st, err := c.Find(t.Context(), "p", "web")
		if err != nil || sb.ID() != made.ID() || st.ID != made.ID() || st.State != atoll.StateRunning || st.Spec.Labels["k"] != "v" {
			t.Fatalf("minimal %v: %+v, %v", minimal, st, err)
		}
		want := "/v1/resolve"
		if minimal {
			want += " /v1/sandboxes/" + made.ID()
		}
		if got := strings.Join(requests, " "); got != want {
			t.Errorf("minimal %v: requests %s, want %s", minimal, got, want)
		}
	}
	for _, project := range []string{"", "q"} {
		if _, _, err := c.Find(t.Context(), project, "web"); atoll.KindOf(err) != atoll.ErrNotFound {
			t.Errorf("project %q: %v", project, err)
		}
	}
	req := httptest.NewRequest("GET", "/v1/resolve?id="+made.ID(), nil)
	req.Header.Set("Prefer", "return=minimal")
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	if body, _ := io.ReadAll(rec.Body); strings.TrimSpace(string(body)) != `{"id":"`+made.ID()+`"}` {
		t.Errorf("minimal reply: %s", body)
	}
}
