package api_test

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A projectLister is a provider with resources of projects.
type projectLister struct {
	atoll.ProviderLayer
	projects []atoll.Project
}

func (k *projectLister) Projects(context.Context) ([]atoll.Project, error) { return k.projects, nil }

// The client gets the projects unchanged.
func TestProjects(t *testing.T) {
	p := openMock(t)
	defer p.Close()
	k := &projectLister{ProviderLayer: atoll.ProviderLayer{Provider: p}}
	h, err := api.NewHandler(k, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	server := httptest.NewServer(h)
	defer server.Close()
	c, err := client.New(t.Context(), client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, want := range [][]atoll.Project{nil, {
		{Name: "a", Provider: "vmdocker", Machine: atoll.StateRunning, Sandboxes: 2, Disk: 5 << 30}, {Name: "b", Provider: "vmdocker"},
	}} {
		k.projects = want
		if got, err := atoll.Projects(t.Context(), c); err != nil || !slices.Equal(got, want) {
			t.Errorf("Projects: %+v, %v, want %+v", got, err, want)
		}
	}
	k.projects = nil
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/projects", nil))
	if got := strings.TrimSpace(w.Body.String()); got != `{"projects":[]}` {
		t.Errorf("without any the answer is %s", got)
	}
}
