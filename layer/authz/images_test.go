package authz_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/authz"
)

// newRegistry starts a registry with the images public/app and private/app; the second needs a password. It
// returns its host and the number of requests.
func newRegistry(t *testing.T) (host string, requests *atomic.Int64) {
	requests = new(atomic.Int64)
	images := registry.New()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests.Add(1)
		if _, _, ok := req.BasicAuth(); !ok && strings.Contains(req.URL.Path, "private") {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	for _, repository := range []string{"public/app", "private/app"} {
		ref, err := name.ParseReference(host + "/" + repository)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, empty.Image, remote.WithAuth(&authn.Basic{Username: "u", Password: "p"})); err != nil {
			t.Fatal(err)
		}
	}
	requests.Store(0)
	return host, requests
}

// Accounts of projects may use what everybody may have, and what the operator allows. The policy asks no other
// registry, and no server without need.
func TestImagePolicy(t *testing.T) {
	host, requests := newRegistry(t)
	other, otherRequests := newRegistry(t)
	gone := httptest.NewServer(nil)
	gone.Close()
	goneHost := strings.TrimPrefix(gone.URL, "http://")
	p := &authz.ImagePolicy{
		Allow:  []string{"Registry.example.com/", "ghcr.io/acme", "index.docker.io/library", "me/tool", "localhost:5001"},
		Public: []string{host, goneHost},
	}
	for ref, want := range map[string]atoll.Kind{
		host + "/public/app":                "",
		host + "/public/app:latest":         "",
		host + "/private/app":               atoll.ErrDenied,
		host + "/public/app:none":           atoll.ErrNotExist,
		other + "/public/app":               atoll.ErrDenied,
		goneHost + "/public/app":            atoll.ErrUnavailable,
		"localhost:5000/app":                atoll.ErrDenied,
		"169.254.169.254/latest/meta-data":  atoll.ErrDenied,
		"[::1]:5000/app":                    atoll.ErrDenied,
		"internal.example.com/app":          atoll.ErrDenied,
		"registry.example.com/team/app:1":   "",
		"registry.example.com.evil.com/a":   atoll.ErrDenied,
		"registry.example.com:444/a":        atoll.ErrDenied,
		"ghcr.io/acme/app":                  "",
		"ghcr.io/acme":                      "",
		"ghcr.io/acmes/app":                 atoll.ErrDenied,
		"python:3.13":                       "",
		"docker.io/python":                  "",
		"index.docker.io/library/python":    "",
		"acme/node":                         atoll.ErrDenied,
		"me/tool:2":                         "",
		"me/tools":                          atoll.ErrDenied,
		"localhost:5001/app":                "",
		"docker.io/library/../acme/node":    atoll.ErrDenied,
		strings.Repeat("0", 64):             atoll.ErrDenied,
		"0123456789ab":                      atoll.ErrDenied,
		"sha256:" + strings.Repeat("0", 64): atoll.ErrDenied,
		"atoll-local/app":                   atoll.ErrDenied,
		"":                                  atoll.ErrDenied,
		"A B":                               atoll.ErrDenied,
	} {
		wantKind(t, ref, p.Check(t.Context(), ref), want)
	}
	if n := otherRequests.Load(); n != 0 {
		t.Errorf("a registry that is not allowed had %d requests", n)
	}
	before := requests.Load()
	wantKind(t, "again", p.Check(t.Context(), host+"/public/app"), "")
	wantKind(t, "again", p.Check(t.Context(), host+"/private/app"), atoll.ErrDenied)
	if n := requests.Load() - before; n != 0 {
		t.Errorf("images with a known answer took %d requests", n)
	}
	if !strings.Contains(p.Check(t.Context(), host+"/private/app").Error(), "everybody") {
		t.Error("the error has no reason")
	}
}
