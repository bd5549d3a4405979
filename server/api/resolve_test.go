package api_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// Find returns a sandbox with its status, in one request. An older server returns the id only.
func TestFind(t *testing.T) {
	var requests []string
	old := false
	c, url := dialMock(t, func(r *http.Request) {
		requests = append(requests, r.URL.Path)
		if old {
			r.Header.Set("Prefer", "return=minimal")
		}
	})
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
	old = true
	reply, err := http.Get(url + "/v1/resolve?id=" + made.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if body, err := io.ReadAll(reply.Body); err != nil || strings.TrimSpace(string(body)) != `{"id":"`+made.ID()+`"}` {
		t.Errorf("minimal reply: %s, %v", body, err)
	}
}
