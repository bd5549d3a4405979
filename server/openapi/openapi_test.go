package openapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
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
		Info    struct{ Version, Description string }
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
		_, ok := doc.Paths[path][strings.ToLower(r.Method)]
		if r.Status == http.StatusSwitchingProtocols { // a WebSocket, which may have the path of an operation
			ok = strings.Contains(doc.Info.Description, "`"+r.Path+"`")
		}
		if ok == r.Alias {
			t.Errorf("%s %s: described is %v", r.Method, path, ok)
		}
	}
	if len(doc.Servers) != 1 || doc.Servers[0].URL != "/" {
		t.Errorf("the servers are %v", doc.Servers)
	}
	if got, want := len(doc.Components.Schemas["Error"].Properties["kind"].Enum), len(atoll.Kinds()); got != want {
		t.Errorf("Error has %d kinds, want %d", got, want)
	}
	for _, name := range []string{"Spec", "Status", "Command", "ProcessEvent", "Event", "FileInfo"} {
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

// The page loads its files from the server only.
func TestPageNeedsNothingElse(t *testing.T) {
	base := serveDocs(t)
	if resp, _ := getURL(t, base+"/"); resp.Request.URL.Path != "/docs" {
		t.Errorf("/ leads to %s", resp.Request.URL)
	}
	resp, body := getURL(t, base+"/docs")
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		t.Fatalf("status %d, type %q", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	if csp := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "http") {
		t.Errorf("policy %q", csp)
	}
	for _, bad := range []string{"http://", "https://", "//"} {
		if strings.Contains(body, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	for _, name := range []string{"swagger-ui.css", "swagger-ui-bundle.js", "init.js"} {
		if !strings.Contains(body, `"docs/`+name+`"`) {
			t.Errorf("the page does not load %s", name)
		}
		for _, encoding := range []string{"gzip", "identity"} {
			req, err := http.NewRequest("GET", base+"/docs/"+name, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept-Encoding", encoding)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			compressed := resp.Header.Get("Content-Encoding") == "gzip"
			if err != nil || resp.StatusCode != http.StatusOK || len(data) < 100 || compressed != (encoding == "gzip" && name != "init.js") {
				t.Errorf("%s as %s: status %d, %d bytes, compressed is %v, %v", name, encoding, resp.StatusCode, len(data), compressed, err)
			}
		}
	}
	if resp, _ := getURL(t, base+"/docs/swagger-ui.js"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("another file of the viewer: status %d", resp.StatusCode)
	}
}

// The examples are valid requests.
func TestExamples(t *testing.T) {
	_, body := getURL(t, serveDocs(t)+"/openapi.json")
	var doc struct {
		Paths map[string]map[string]struct {
			RequestBody struct {
				Content map[string]struct {
					Schema struct {
						Ref string `json:"$ref"`
					}
				}
			}
		}
		Components struct {
			Schemas map[string]struct{ Examples []json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, r := range api.Routes() {
		if r.Body.Type == nil {
			continue
		}
		name := path.Base(doc.Paths[r.Path][strings.ToLower(r.Method)].RequestBody.Content["application/json"].Schema.Ref)
		for _, example := range doc.Components.Schemas[name].Examples {
			found[name] = true
			dec := json.NewDecoder(bytes.NewReader(example))
			dec.DisallowUnknownFields()
			v := reflect.New(r.Body.Type).Interface()
			err := dec.Decode(v)
			if checked, ok := v.(interface{ Validate() error }); ok && err == nil {
				err = checked.Validate()
			}
			if err != nil {
				t.Errorf("the example of %s: %v", name, err)
			}
		}
	}
	if len(found) < 10 {
		t.Errorf("only %v have an example", found)
	}
}
