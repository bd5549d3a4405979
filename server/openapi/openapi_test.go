package openapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/server/openapi"
)

type provider struct{ atoll.Provider }

func getURL(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// serveDocs serves a handler with documentation that requires a token.
func serveDocs(t *testing.T) string {
	t.Helper()
	h, err := api.NewHandler(provider{}, api.Options{Tokens: map[string]auth.Account{"secret": {}}, Docs: openapi.Handler("1.2.3")})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(func() { server.Close(); h.Close() })
	return server.URL
}

func TestDocumentDescribesEveryRoute(t *testing.T) {
	resp, body := getURL(t, serveDocs(t)+"/openapi.json")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("status %d, type %q", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	var doc struct {
		OpenAPI string
		Info    struct{ Version string }
		Servers []struct{ URL string }
		Paths   map[string]map[string]struct {
			OperationID string
			Responses   map[string]struct {
				Ref string `json:"$ref"`
			}
		}
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Enum []string }
			}
			Responses map[string]any
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" || doc.Info.Version != "1.2.3" {
		t.Errorf("openapi %q of version %q", doc.OpenAPI, doc.Info.Version)
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths {
		for method, op := range item {
			if ids[op.OperationID] {
				t.Errorf("%s %s: operation id %q is taken", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
			if op.Responses["4XX"].Ref != "#/components/responses/Error" || op.Responses["5XX"].Ref != "#/components/responses/Error" {
				t.Errorf("%s %s: the responses %v do not describe errors", method, path, op.Responses)
			}
		}
	}
	for _, r := range api.Routes() {
		if r.Method == "" {
			r.Method = "GET"
		}
		path := strings.ReplaceAll(r.Path, "...}", "}")
		if _, ok := doc.Paths[path][strings.ToLower(r.Method)]; ok == r.Alias {
			t.Errorf("%s %s: described is %v", r.Method, path, ok)
		}
	}
	if len(doc.Servers) != 1 || doc.Servers[0].URL != "/" {
		t.Errorf("the servers are %v", doc.Servers)
	}
	if got, want := len(doc.Components.Schemas["Error"].Properties["kind"].Enum), len(atoll.Kinds()); got != want {
		t.Errorf("Error has %d kinds, want %d", got, want)
	}
	for _, name := range []string{"Spec", "Status", "Command", "StreamMessage", "Event", "FileInfo"} {
		if len(doc.Components.Schemas[name].Properties) == 0 {
			t.Errorf("there is no schema %s", name)
		}
	}
	if doc.Components.Responses["Error"] == nil {
		t.Error("there is no response Error")
	}
	for ref := range schemaRefs(body) {
		if _, ok := doc.Components.Schemas[ref]; !ok {
			t.Errorf("schema %s is referred to and is not there", ref)
		}
	}
}

// schemaRefs returns the references in a document.
func schemaRefs(doc string) map[string]bool {
	found := map[string]bool{}
	for _, part := range strings.Split(doc, `"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		found[name] = true
	}
	return found
}

func TestPageNeedsNothingElse(t *testing.T) {
	resp, body := getURL(t, serveDocs(t)+"/docs")
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		t.Fatalf("status %d, type %q", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	if csp := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
		t.Errorf("policy %q", csp)
	}
	for _, r := range api.Routes() {
		if !r.Alias && !strings.Contains(body, r.Summary) && !strings.Contains(body, strings.ReplaceAll(r.Summary, "'", "&#39;")) {
			t.Errorf("%s is not on the page", r.Name)
		}
	}
	for _, bad := range []string{"<script", "http://", "https://", "src="} {
		if strings.Contains(body, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
}
