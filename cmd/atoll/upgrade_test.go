package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestFindLatestRelease(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/good/latest":
			http.Redirect(w, req, "/good/tag/v1.3.0", http.StatusFound)
		case "/none/latest": // as GitHub does before the first release
			http.Redirect(w, req, "/none", http.StatusFound)
		default:
			http.NotFound(w, req)
		}
	}))
	defer server.Close()
	for from, want := range map[string]string{
		server.URL + "/good": "v1.3.0", server.URL + "/good/": "v1.3.0",
		server.URL + "/none": "has no release: it leads to", server.URL + "/else": "it answers 404",
		"example.com": "write it like https://", "ftp://example.com": "write it like https://", "http://127.0.0.1:1": "cannot ask for the latest release",
	} {
		got, err := findLatestRelease(t.Context(), from)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", from, got, want)
		}
	}
}

func TestCompareRelease(t *testing.T) {
	for current, want := range map[string]string{
		"v1.2.3": "atoll v1.3.0 is available; this is v1.2.3", "v1.3.0-rc.1": "atoll v1.3.0 is available", "v1.3.0": "up to date", "v1.10.0": "up to date",
		"devel": "not a release", "v1.2.4-0.20261129070407-e0d783ff0000": "not a release",
	} {
		if got := compareRelease(current, "v1.3.0"); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", current, got, want)
		}
	}
}
